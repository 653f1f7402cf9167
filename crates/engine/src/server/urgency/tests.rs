use super::*;
use axum::http::{HeaderName, HeaderValue};

fn urgency(headers: &[(&'static str, &'static str)]) -> Result<Urgency, ApiError> {
    let pairs = headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    read(&pairs.collect())
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

#[test]
fn every_spelling_is_understood() {
    for name in ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-sgl-ttft-slo-ms", "x-request-deadline-ms"] {
        assert_eq!(urgency(&[(name, "1500")]).unwrap(), Urgency { ttft: ms(1500), ..Urgency::default() }, "{name}");
    }
    for (name, value) in [("x-slo-tpot-ms", "50"), ("x-llm-d-slo-tpot-ms", " 50.0 "), ("x-sgl-tps-slo", "20")] {
        assert_eq!(urgency(&[(name, value)]).unwrap(), Urgency { tpot: ms(50), ..Urgency::default() }, "{name}");
    }
    assert_eq!(urgency(&[]).unwrap(), Urgency::default());
    let fields = Fields::parse(br#"{"priority": -3}"#).unwrap();
    assert_eq!(SloHeaders(Urgency::default()).and_body(&fields).unwrap().priority, Some(-3));
}

#[test]
fn what_is_left_of_the_budget_goes_first() {
    let both = urgency(&[("x-slo-ttft-ms", "900"), ("x-request-deadline-ms", "0"), ("x-sgl-ttft-slo-ms", "7")]);
    assert_eq!(both.unwrap().ttft, ms(0));
    assert_eq!(urgency(&[("x-sgl-ttft-slo-ms", "7"), ("x-slo-ttft-ms", "900")]).unwrap().ttft, ms(900));
}

#[test]
fn what_is_wrong_is_named() {
    for (name, value) in [
        ("x-slo-ttft-ms", "soon"),
        ("x-slo-ttft-ms", "0"),
        ("x-slo-ttft-ms", "NaN"),
        ("x-request-deadline-ms", "-1"),
        ("x-slo-tpot-ms", "1e300"),
        ("x-sgl-tps-slo", "0"),
        ("x-sgl-tps-slo", ""),
    ] {
        let error = urgency(&[(name, value)]).unwrap_err();
        assert_eq!((error.status, error.code, error.param.as_deref()), (400, "invalid_header", Some(name)), "{value}");
    }
}
