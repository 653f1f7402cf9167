//! Times as logs write them, in nanoseconds since 1970 or since the start of the log.

/// Reads a number of `unit_ns` each, or a date with time (`2023-11-16 18:17:03.98`, `T` for the space, `Z` or an offset behind).
pub(super) fn parse(text: &str, unit_ns: f64) -> Option<i128> {
    let text = text.trim().trim_matches('"');
    if let Ok(number) = text.parse::<f64>() {
        let ns = number * unit_ns;
        return (ns.is_finite() && ns.abs() < 1e30).then_some(ns as i128);
    }
    date(text)
}

fn date(text: &str) -> Option<i128> {
    let (day, time) = text.split_once(['T', ' '])?;
    let mut parts = day.split('-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (time, offset_s) = offset(time.trim())?;
    let mut parts = time.split(':');
    let (hour, minute) = (parts.next()?.parse::<u32>().ok()?, parts.next()?.parse::<u32>().ok()?);
    let seconds: f64 = parts.next().unwrap_or("0").parse().ok()?;
    if parts.next().is_some() || hour > 23 || minute > 59 || !(0.0..61.0).contains(&seconds) {
        return None;
    }
    let whole = days(year, month, day) * 86_400 + i64::from(hour) * 3_600 + i64::from(minute) * 60 - offset_s;
    Some(i128::from(whole) * 1_000_000_000 + (seconds * 1e9).round() as i128)
}

/// The time without its offset, and the offset from UTC in seconds.
fn offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, 0)) };
    let (time, offset) = time.split_at(at);
    let digits: String = offset[1..].chars().filter(char::is_ascii_digit).collect();
    let number: i64 = digits.parse().ok()?;
    let (hours, minutes) = if digits.len() <= 2 { (number, 0) } else { (number / 100, number % 100) };
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    Some((time.trim_end(), sign * (hours * 3_600 + minutes * 60)))
}

/// Days from 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_nanoseconds_since_1970() {
        let at = |text| parse(text, 1e9).unwrap();
        assert_eq!(at("1970-01-01T00:00:00Z"), 0);
        assert_eq!(at("2023-11-16 18:17:03.9799600"), 1_700_158_623_979_960_000);
        assert_eq!(at("2023-11-16T19:17:03.97996+01:00"), 1_700_158_623_979_960_000);
        assert_eq!(at("2000-02-29 00:00"), 951_782_400_000_000_000);
        assert_eq!(at("1.5"), 1_500_000_000);
        assert_eq!(parse("-3", 1e6), Some(-3_000_000));
        for text in ["", "yesterday", "2023-13-01 00:00:00", "2023-11-16", "2023-11-16 25:00:00", "nan", "inf"] {
            assert_eq!(parse(text, 1e9), None, "{text}");
        }
    }
}
