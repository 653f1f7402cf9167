use super::*;
use proptest::prelude::*;

#[test]
fn exp_and_sin_cos_are_accurate() {
    for i in -8_700..8_800 {
        let x = i as f32 / 100.0;
        let want = f64::from(x).exp();
        assert!(((f64::from(exp(x)) - want) / want).abs() < 3e-7, "exp({x})");
    }
    for i in 0..50_000 {
        let x = f64::from(i) * 0.6543;
        let (sin, cos) = sin_cos(x);
        assert!((sin - x.sin()).abs() < 1e-10 && (cos - x.cos()).abs() < 1e-10, "angle {x}");
    }
}

#[test]
fn multiply_is_right() {
    let (k, n, rows) = (24, 32, 5);
    let matrix = Matrix::from_fn(k, n, |i, o| (i as f32 - 7.0) * 0.125 + o as f32 * 0.25);
    let x: Vec<f32> = (0..rows * k).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut y = vec![0.0; rows * n];
    matrix.multiply(&x, &mut y);
    for row in 0..rows {
        for o in 0..n {
            let want: f32 = (0..k).map(|i| x[row * k + i] * ((i as f32 - 7.0) * 0.125 + o as f32 * 0.25)).sum();
            // All values are small multiples of 1/8: exact in f32.
            assert_eq!(y[row * n + o].to_bits(), (want + 0.0).to_bits());
        }
    }
}

proptest! {
    #[test]
    fn a_row_has_the_same_bits_in_any_batch(
        rows in prop::collection::vec(prop::collection::vec(-3.0f32..3.0, 32), 1..8),
        pick in any::<prop::sample::Index>(),
    ) {
        let matrix = Matrix::from_fn(32, 48, |i, o| ((i * 31 + o * 17) % 97) as f32 * 0.013 - 0.6);
        let flat = rows.concat();
        let mut together = vec![0.0; rows.len() * 48];
        matrix.multiply(&flat, &mut together);
        let row = pick.index(rows.len());
        let mut alone = vec![0.0; 48];
        matrix.multiply(&rows[row], &mut alone);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&alone), bits(&together[row * 48..][..48]));
    }
}
