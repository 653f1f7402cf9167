//! `sin`, `cos`, `ln` and `exp` in f64 from operations that IEEE defines to the last bit.
//!
//! Maths libraries differ in their last bits; angles and frequencies of positions must not, or the same model would
//! say different things on different machines. Accurate to about 1e-15, made for tables and not for speed.

/// `(sin, cos)` of a non-negative angle in radians, by reduction to an eighth of a turn and Taylor series.
#[must_use]
pub fn sin_cos(angle: f64) -> (f64, f64) {
    let quarter = std::f64::consts::FRAC_PI_2;
    let turns = (angle / quarter).round();
    let r = angle - turns * quarter;
    let r2 = r * r;
    let (mut sin, mut cos) = (0.0, 0.0);
    for i in (0..10u32).rev() {
        // Horner form of sum (-1)^i r^2i / (2i)! and of its odd twin.
        let even = f64::from((2 * i + 1) * (2 * i + 2));
        let odd = f64::from((2 * i + 2) * (2 * i + 3));
        cos = 1.0 - r2 / even * (if i == 9 { 1.0 } else { cos });
        sin = 1.0 - r2 / odd * (if i == 9 { 1.0 } else { sin });
    }
    let sin = sin * r;
    match turns as u64 % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Natural logarithm of a positive, normal number: its exponent, and an odd series for the rest.
#[must_use]
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut fraction = f64::from_bits(bits & ((1 << 52) - 1) | (1023 << 52));
    if fraction > std::f64::consts::SQRT_2 {
        fraction *= 0.5;
        exponent += 1;
    }
    // ln f = 2 artanh((f - 1) / (f + 1)); the argument is at most 0.172.
    let s = (fraction - 1.0) / (fraction + 1.0);
    let mut series = 0.0;
    for i in (0..14u32).rev() {
        series = series * (s * s) + 1.0 / f64::from(2 * i + 1);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * series
}

/// `e^x` for -700 <= x <= 700.
#[must_use]
pub fn exp(x: f64) -> f64 {
    let n = (x / std::f64::consts::LN_2).round();
    let r = x - n * std::f64::consts::LN_2;
    let mut sum = 1.0;
    for i in (1..20u32).rev() {
        sum = 1.0 + sum * r / f64::from(i);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// `base^exponent` for a positive base.
#[must_use]
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}
