use super::*;

fn error(answer: Answer) -> (u16, Value) {
    let status = answer.status;
    (status, answer.json()["error"].clone())
}

#[test]
fn every_refusal_is_typed_and_changes_nothing() {
    let scene = Scene::new();
    let path = |verb: &str| format!("/plimsoll/v1/migrations/m/{verb}");
    let cases = [
        ("offer", json!({}), 400, "invalid_request", Some("rid")),
        ("offer", json!({"rid": "nobody"}), 404, "no_such_request", None),
        ("offer", json!({"rid": "r", "ship_ms": 10_000_000}), 400, "invalid_request", Some("ship_ms")),
        ("reserve", json!({"rid": "r"}), 400, "invalid_request", Some("prompt_tokens")),
        ("reserve", json!({"rid": "q", "prompt_tokens": 9, "page_tokens": 32}), 409, "incompatible", None),
        (
            "reserve",
            json!({"rid": "q", "prompt_tokens": 9, "page_tokens": 16, "chain": ["x"]}),
            400,
            "invalid_request",
            Some("chain"),
        ),
        ("reserve", json!({"rid": "r", "prompt_tokens": 9, "page_tokens": 16}), 409, "rid_in_flight", None),
        (
            "reserve",
            json!({"rid": "q", "prompt_tokens": 9, "page_tokens": 16, "most_tokens": 100_000}),
            409,
            "incompatible",
            None,
        ),
        ("freeze", json!({"commit": "never"}), 400, "invalid_request", Some("commit")),
        ("freeze", json!({}), 404, "unknown_migration", None),
        ("verify", json!({}), 400, "invalid_request", Some("seal")),
        ("take_over", json!({"fence": "12"}), 400, "invalid_request", Some("fence")),
        ("take_over", json!({"fence": "0".repeat(32)}), 404, "unknown_migration", None),
        ("dance", json!({}), 404, "not_found", None),
    ];
    for (verb, body, status, code, param) in cases {
        let (got, error) = error(scene.source.post(&path(verb), &body));
        assert_eq!((got, &error["code"]), (status, &json!(code)), "{verb} {body}: {error}");
        assert_eq!(error["param"], json!(param), "{verb} {body}: {error}");
    }
    let bad_id = scene.source.post("/plimsoll/v1/migrations/a%20b/abort", &json!({}));
    assert_eq!(error(bad_id).0, 400);
    scene.source.verb("offer", &json!({"rid": "r"}));
    let other = scene.source.post("/plimsoll/v1/migrations/n/offer", &json!({"rid": "r"}));
    assert_eq!(error(other).1["code"], "already_migrating");
    let early = scene.source.post(&path("release"), &json!({}));
    assert_eq!(error(early).1["code"], "wrong_state");
    let all: Value = send(scene.source.address, "GET", "/plimsoll/v1/migrations", "", "").json();
    assert_eq!(all["migrations"].as_array().unwrap().len(), 1);
    scene.source.verb("abort", &json!({}));
    assert_eq!(scene.source.verb("resume", &json!({}))["state"], "resumed");
    let over = scene.source.post(&path("freeze"), &json!({}));
    assert_eq!(error(over), (410, scene.source.try_verb("freeze", &json!({})).1["error"].clone()));
    scene.target.wait_empty();
    scene.completes_at_source();
}

#[test]
fn the_verbs_need_the_key_and_the_port() {
    let server = Server::start(EngineConfig { api_key: Some("secret".into()), ..movable() });
    for path in ["/plimsoll/v1/migrations", "/plimsoll/v1/migrations/m"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    assert_eq!(server.post("/plimsoll/v1/migrations/m/offer", &json!({"rid": "r"})).status, 401);
    let key = "authorization: Bearer secret\r\n";
    let answer = server.send("GET", "/plimsoll/v1/migrations", key, "");
    assert_eq!((answer.status, answer.json()), (200, json!({"migrations": []})));
    let info = server.send("GET", "/server_info", key, "").json();
    let port = info["migration"]["port"].as_u64().unwrap() as u16;
    // Whoever is no engine, or brings no migration that is waited for, is sent away.
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"));
    let off = Server::start(config());
    let answer = off.get("/plimsoll/v1/migrations");
    assert_eq!(answer.status, 404);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("--migration-listen"));
    assert_eq!(off.get("/server_info").json()["migration"], Value::Null);
}
