use super::*;
use serde_json::json;

fn change(body: &Value) -> Result<Faults, String> {
    changed(Faults { no_respond: true, ..Faults::default() }, body.to_string().as_bytes())
        .map_err(|error| error.message)
}

#[test]
fn named_faults_change_and_the_others_stay() {
    let faults = change(&json!({"crash_after": {"steps": 7}, "clock_skew_ms": -1500, "http_status": 503})).unwrap();
    assert!(faults.no_respond);
    assert_eq!(faults.crash_after, Some(CrashAfter::Steps(7)));
    assert_eq!((faults.clock_skew_ms, faults.http_status), (-1500, Some(503)));
    let off = json!({"no_respond": null, "crash_after": null, "clock_skew_ms": null, "http_status": null});
    assert_eq!(changed(faults, off.to_string().as_bytes()).unwrap(), Faults::default());
}

#[test]
fn the_transfer_that_breaks_is_counted_from_the_switch() {
    let switch = crate::faults::FaultSwitch::default();
    let cut = |body: Value| switch.set(changed(switch.current(), body.to_string().as_bytes()).unwrap());
    assert_eq!(switch.next_transfer(), None);
    cut(json!({"transfer_error": {"nth": 2, "after_pages": 3}}));
    cut(json!({"http_status": 500}));
    assert_eq!([switch.next_transfer(), switch.next_transfer(), switch.next_transfer()], [None, Some(3), None]);
    cut(json!({"transfer_error": {}}));
    assert_eq!([switch.next_transfer(), switch.next_transfer()], [Some(0), Some(0)]);
    cut(json!({"transfer_error": null}));
    assert_eq!(switch.next_transfer(), None);
}

#[test]
fn what_is_wrong_is_named() {
    for (body, part) in [
        (json!({"crash_afte": {"steps": 1}}), "did you mean crash_after"),
        (json!({"kind": 1}), "is not a fault"),
        (json!({"crash_after": {}}), "exactly one"),
        (json!({"crash_after": {"steps": 1, "tokens": 2}}), "exactly one"),
        (json!({"crash_after": {"steps": 0}}), "steps: 0 is not between"),
        (json!({"crash_after": 3}), "expected an object"),
        (json!({"clock_skew_ms": 1e15 as i64}), "is not between"),
        (json!({"http_status": 200}), "400 and 599"),
        (json!({"slow_step": {"factor": 0.5}}), "factor: 0.5 is not between 1 and 1000"),
        (json!({"slow_step": {}}), "exactly one of factor and us"),
        (json!({"kv_pressure": 1.5}), "not between 0 and 1"),
        (json!({"transfer_error": {"nth": 0}}), "nth: 0 is not between"),
        (json!([1]), "send a JSON object"),
    ] {
        let message = change(&body).unwrap_err();
        assert!(message.contains(part), "{body}: {message}");
    }
}

#[test]
fn every_fault_can_be_switched_off_with_null() {
    for kind in KINDS {
        let mut faults = Faults::default();
        (kind.set)(&Fields::parse(json!({kind.name: null}).to_string().as_bytes()).unwrap(), kind.name, &mut faults)
            .unwrap();
        assert_eq!(faults, Faults::default(), "{}", kind.name);
    }
}

#[test]
fn the_document_has_this_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating/reference-engine.md");
    let document = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = document.lines().filter(|line| line.starts_with("| `")).collect();
    for kind in KINDS {
        let line = format!("| `{}` | {} | {} |", kind.name, kind.takes, kind.does);
        assert!(lines.contains(&line.as_str()), "docs/operating/reference-engine.md lacks the line\n{line}");
    }
}
