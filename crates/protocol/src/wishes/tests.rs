use super::*;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    map
}

fn read(pairs: &[(&str, &str)]) -> Result<Wishes, WishError> {
    Wishes::read(&headers(pairs), None, None)
}

fn ms(ms: u64) -> Option<Nanos> {
    Some(Nanos::from_millis(ms))
}

#[test]
fn every_spelling_is_understood() {
    assert_eq!(read(&[("x-custom", "1"), ("x-slo", "2")]).unwrap(), Wishes::default());
    for spelling in SPELLINGS.iter().filter(|spelling| spelling.place == Place::Header) {
        let value = match spelling.form {
            Form::Class => "low",
            Form::TokensPerSecond => "20",
            _ => "50",
        };
        let wishes = read(&[(spelling.name, value)]).unwrap();
        let expected = match spelling.wish {
            Wish::Ttft => Wishes { ttft: ms(50), ..Wishes::default() },
            Wish::Tpot => Wishes { tpot: ms(50), ..Wishes::default() },
            Wish::Remaining => Wishes { remaining: ms(50), ..Wishes::default() },
            Wish::Class => Wishes { class: Some(Class::Low), ..Wishes::default() },
            Wish::Priority => unreachable!("no header names a priority"),
        };
        assert_eq!(wishes, expected, "{}", spelling.name);
    }
    let body = Wishes::read(&HeaderMap::new(), Some(-3), Some("flex")).unwrap();
    assert_eq!(body, Wishes { class: Some(Class::Low), priority: Some(-3), ..Wishes::default() });
    for silent in ["auto", "default", "scale", "anything"] {
        assert_eq!(Wishes::read(&HeaderMap::new(), None, Some(silent)).unwrap().class, None);
    }
}

#[test]
fn names_are_lower_case_and_unique() {
    for (index, spelling) in SPELLINGS.iter().enumerate() {
        assert_eq!(spelling.name, spelling.name.to_ascii_lowercase());
        assert!(
            spelling.place == Place::Body || spelling.name.starts_with("x-"),
            "{} is never looked at",
            spelling.name
        );
        assert!(SPELLINGS[..index].iter().all(|other| other.name != spelling.name));
    }
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    let times = ["", "0", "-1", "+5", "NaN", "inf", "1e3", "soon", "86400001", "99999999999999999999999", "1.2.3", "."];
    for spelling in SPELLINGS.iter().filter(|s| s.place == Place::Header && s.form != Form::Class) {
        for bad in times.iter().filter(|bad| **bad != "86400001" || spelling.form != Form::TokensPerSecond) {
            let error = read(&[(spelling.name, bad)]).unwrap_err();
            assert_eq!(error.name(), spelling.name, "{bad}");
            assert!(error.to_string().contains(spelling.form.unit()), "{error}");
        }
    }
    assert!(read(&[("x-request-deadline-ms", "1.5")]).is_err());
    assert!(read(&[("x-plimsoll-class", "urgent")]).unwrap_err().to_string().contains("`high`, `medium` or `low`"));
    assert_eq!(Wishes::read(&HeaderMap::new(), Some(1 << 40), None).unwrap_err().name(), "priority");
    let mut opaque = HeaderMap::new();
    opaque.insert("x-slo-ttft-ms", HeaderValue::from_bytes(b"5\xff").unwrap());
    assert!(Wishes::read(&opaque, None, None).is_err());
}

#[test]
fn contradictions_are_refused_and_repetitions_are_not() {
    let error = read(&[("x-slo-ttft-ms", "900"), ("x-sgl-ttft-slo-ms", "700")]).unwrap_err();
    let expected = WishError::Contradiction { name: "x-sgl-ttft-slo-ms", other: "x-slo-ttft-ms" };
    assert_eq!(error, expected);
    assert!(read(&[("x-slo-ttft-ms", "900"), ("x-slo-ttft-ms", "901")]).is_ok());
    assert!(read(&[("x-slo-ttft-ms", "900"), ("x-slo-ttft-ms", "1900")]).is_err());
    // 30 tokens a second are 33.3 ms.
    assert!(read(&[("x-sgl-tps-slo", "30"), ("x-slo-tpot-ms", "33")]).is_ok());
    assert!(read(&[("x-sgl-tps-slo", "30"), ("x-slo-tpot-ms", "30")]).is_err());
    let class = headers(&[("x-plimsoll-class", "high")]);
    assert!(Wishes::read(&class, None, Some("priority")).is_ok());
    assert_eq!(Wishes::read(&class, None, Some("flex")).unwrap_err().name(), "service_tier");
}

#[test]
fn what_is_left_goes_before_what_is_wished() {
    let both = read(&[("x-slo-ttft-ms", "900"), ("x-request-deadline-ms", "200")]).unwrap();
    assert_eq!(both.first_token_within(), ms(200));
    assert_eq!(read(&[("x-slo-ttft-ms", "900")]).unwrap().first_token_within(), ms(900));
    assert_eq!(Wishes::default().first_token_within(), None);
}

proptest! {
    /// Whatever is accepted lies within the bounds of the table; the order of headers has no say in what is wished.
    #[test]
    fn accepted_wishes_are_within_bounds(
        pairs in proptest::collection::vec((0..SPELLINGS.len(), "[0-9]{1,9}(\\.[0-9]{1,3})?|high|low|-1|"), 0..5)
    ) {
        let pairs: Vec<(&str, &str)> = pairs
            .iter()
            .filter(|(index, _)| SPELLINGS[*index].place == Place::Header)
            .map(|(index, value)| (SPELLINGS[*index].name, value.as_str()))
            .collect();
        let day = Nanos::from_secs(86_400);
        let forward = read(&pairs);
        if let Ok(wishes) = forward {
            for time in [wishes.ttft, wishes.tpot, wishes.remaining].into_iter().flatten() {
                prop_assert!(time > Nanos::ZERO && time <= Nanos(day.0 * 12));
            }
            prop_assert_eq!(pairs.is_empty(), wishes == Wishes::default());
        }
        let mut backward = pairs;
        backward.reverse();
        prop_assert_eq!(read(&backward).is_ok(), forward.is_ok());
    }
}
