use super::*;
use crate::commands::demo::stream::refusal;
use crate::commands::demo::tally::Tally;
use std::collections::BTreeMap;

fn report(tally: &Tally) -> Report {
    Report::new(&tally.snapshot(), serde_json::json!({ "source": "generated" }), ["work".into(), "scale".into()])
}

fn tally() -> Tally {
    Tally::new(3, BTreeMap::from([("0".to_owned(), "http://127.0.0.1:1000".to_owned())])).unwrap()
}

#[test]
fn unknown_figures_are_null_and_a_dash_and_not_zero() {
    let report = report(&tally());
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    assert!(json["ttft_ms"].is_null() && json["itl_ms"].is_null() && json["hit_rate"].is_null());
    assert_eq!(json["engines"][0]["requests"], 0);
    assert!(report.table().contains("prefix hit rate                  –"), "{}", report.table());
    assert!(report.failure().is_none());
}

#[test]
fn requests_are_completed_plus_errors_and_errors_fail_the_demo() {
    let tally = tally();
    tally.failed(&refusal("overloaded", "try again"));
    tally.failed(&refusal("overloaded", "try again"));
    let report = report(&tally);
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    let number = |key: &str| json[key].as_u64().unwrap();
    assert_eq!((number("requests"), number("completed"), number("errors")), (2, 0, 2));
    assert_eq!(json["errors_by_code"]["overloaded"], 2);
    assert!(report.table().contains("try again"));
    assert_eq!(report.failure().unwrap().message, "2 of 2 requests failed");
}
