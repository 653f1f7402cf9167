use super::*;

#[test]
fn the_target_is_killed_before_the_take_over() {
    for state in ["reserved", "receiving", "ready", "committed"] {
        let mut scene = Scene::new();
        if state == "reserved" {
            let offered = scene.source.verb("offer", &json!({"rid": "r"}));
            let reserved = scene.target.verb("reserve", &offered);
            scene.target.kill();
            scene.source.verb("start", &reserved);
        } else {
            scene.start(&json!({}));
        }
        let mut fence = Value::Null;
        match state {
            "receiving" => drop(scene.target.wait_state("receiving")),
            "ready" => assert_eq!(scene.source.verb("freeze", &json!({}))["state"], "synced"),
            "committed" => fence = scene.source.verb("freeze", &json!({"commit": "confirmed"}))["fence"].clone(),
            _ => {}
        }
        scene.target.kill();
        if state == "committed" {
            // It is the target's, as far as the source can know: the driver must say that it is not.
            assert_eq!(scene.source.try_verb("abort", &json!({})).0, 409);
            scene.source.verb("resume", &json!({"fence": fence}));
        }
        let report = scene.source.wait_state("resumed");
        assert_eq!(report["why"], if state == "committed" { "asked" } else { "link_lost" });
        scene.completes_at_source();
    }
}

#[test]
fn the_source_is_killed_after_the_take_over() {
    let scene = Scene::new();
    scene.start(&json!({}));
    let frozen = scene.source.verb("freeze", &json!({"commit": "confirmed"}));
    // The reader has not read all that was said: it goes on where it is.
    let Scene { mut source, target, mut read, stream, whole } = scene;
    let mut body = frozen;
    body["from_token"] = json!(read.ids.len());
    let mut next = target.post("/plimsoll/v1/migrations/m/take_over", &body);
    source.kill();
    drop(stream);
    read.until(&mut next, 100);
    // The reader loses its connection as well, and comes again.
    drop(next);
    body["from_token"] = json!(read.ids.len());
    let next = target.post("/plimsoll/v1/migrations/m/take_over", &body);
    read.rest(next);
    assert_eq!(read.said(), whole.said());
    target.wait_empty();
}

#[test]
fn the_source_is_killed_before_its_commit() {
    let scene = Scene::new();
    scene.start(&json!({}));
    let frozen = scene.source.verb("freeze", &json!({}));
    assert_eq!((&frozen["state"], &frozen["fence"]), (&json!("synced"), &Value::Null));
    let Scene { mut source, target, mut read, stream, whole } = scene;
    source.kill();
    drop(stream);
    let (status, answer) = target.try_verb("take_over", &json!({}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("fence")));
    let body = json!({"source_gone": true, "from_token": read.ids.len()});
    read.rest(target.post("/plimsoll/v1/migrations/m/take_over", &body));
    assert_eq!(read.said(), whole.said());
    target.wait_empty();
}

#[test]
fn the_target_freezes() {
    let scene = Scene::new();
    scene.start(&json!({}));
    scene.target.wait_state("receiving");
    scene.target.post("/admin/faults", &json!({"no_respond": true}));
    let frozen = scene.source.verb("freeze", &json!({"wait_ms": 100}));
    assert_eq!(frozen["state"], "frozen", "the target has not confirmed: {frozen}");
    // No sign of life for longer than the deadline.
    assert_eq!(scene.source.wait_state("resumed")["why"], "link_lost");
    scene.target.post("/admin/faults", &json!({"no_respond": null}));
    assert_eq!(scene.target.wait_state("aborted")["role"], "target");
    scene.target.wait_empty();
    scene.completes_at_source();
}

#[test]
fn nobody_drives_any_more() {
    // The source gives up first, and tells.
    let scene = Scene::new();
    scene.start(&json!({"ship_ms": 300, "expires_ms": 60_000}));
    assert_eq!(scene.source.wait_state("resumed")["why"], "expired");
    assert_eq!(scene.target.wait_state("aborted")["why"], "source_aborted");
    scene.target.wait_empty();
    scene.completes_at_source();
    // Frozen.
    let scene = Scene::new();
    scene.start(&json!({"freeze_ms": 300}));
    assert_eq!(scene.source.verb("freeze", &json!({}))["state"], "synced");
    assert_eq!(scene.source.wait_state("resumed")["why"], "expired");
    assert_eq!(scene.target.wait_state("aborted")["why"], "source_aborted");
    scene.target.wait_empty();
    scene.completes_at_source();
    // The target gives up first, after the commit: its word brings the request back.
    let scene = Scene::new();
    scene.start(&json!({"ready_ms": 300, "commit_ms": 60_000}));
    assert_eq!(scene.source.verb("freeze", &json!({"commit": "confirmed"}))["state"], "committed");
    assert_eq!(scene.target.wait_state("aborted")["why"], "expired");
    assert_eq!(scene.source.wait_state("resumed")["why"], "target_refused");
    let (status, answer) = scene.target.try_verb("take_over", &scene.source.look());
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_request")), "there is no fence any more");
    scene.target.wait_empty();
    scene.completes_at_source();
    // Nobody reads at the target.
    let scene = Scene::new();
    scene.start(&json!({"linger_ms": 200}));
    let frozen = scene.source.verb("freeze", &json!({"commit": "sent"}));
    scene.source.verb("release", &json!({}));
    scene.target.wait_state("done");
    let mut next = scene.target.post("/plimsoll/v1/migrations/m/take_over", &frozen);
    let last = std::iter::from_fn(|| next.chunk().unwrap()).last().unwrap();
    assert!(last.contains("[DONE]"));
    scene.source.wait_empty();
    scene.target.wait_empty();
}
