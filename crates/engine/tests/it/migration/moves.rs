use super::*;

/// The three ways to hand over, and what the reader gets: the same.
#[test]
fn a_long_stream_moves_in_its_middle() {
    for commit in ["asked", "confirmed", "sent"] {
        let scene = Scene::new();
        let reserved = scene.start(&json!({}));
        assert_eq!(reserved["state"], "reserved");
        let Scene { source, target, mut stream, mut read, whole } = scene;
        read.until(&mut stream, 90);
        let mut frozen = source.verb("freeze", &json!({"commit": commit}));
        if commit == "asked" {
            assert_eq!(frozen["state"], "synced", "{frozen}");
            assert_eq!(target.verb("verify", &frozen)["state"], "ready");
            assert_eq!(frozen["fence"], Value::Null);
            frozen = source.verb("commit", &json!({}));
        }
        assert_eq!(frozen["state"], "committed", "{frozen}");
        let at = frozen["output_tokens"].as_u64().unwrap() as usize;
        let next = target.post("/plimsoll/v1/migrations/m/take_over", &frozen);
        source.verb("release", &json!({}));
        read.rest(stream);
        assert_eq!(read.ids.len(), at);
        let said = json!({"type": "migrated", "migration": "m", "output_tokens": at, "fence": frozen["fence"]});
        assert_eq!(read.finish, said);
        read.rest(next);
        assert_eq!(read.said(), whole.said(), "{commit}");
        // Prompt and output until then came as blocks: nothing was computed twice.
        let report = target.wait_state("done");
        assert_eq!(report["moved_pages"].as_u64().unwrap() as usize, (200 + at - 1).div_ceil(16));
        let metrics = send(target.address, "GET", "/metrics", "", "").text();
        let computed = metrics
            .lines()
            .find(|line| line.starts_with("sglang:prefill_effective_tokens_total") && line.contains("input"))
            .unwrap();
        assert!(computed.ends_with(" 0"), "{computed}");
        source.wait_empty();
        target.wait_empty();
    }
}

#[test]
fn a_reader_that_waits_at_the_target_needs_no_take_over() {
    let scene = Scene::new();
    scene.start(&json!({}));
    let Scene { source, target, stream, mut read, whole } = scene;
    let address = target.address;
    let follower = std::thread::spawn(move || {
        let body = json!({"wait_ms": 20_000}).to_string();
        let mut next = send(address, "POST", "/plimsoll/v1/migrations/m/follow", "", &body);
        let mut chunks = String::new();
        while let Some(chunk) = next.chunk().unwrap() {
            chunks.push_str(&chunk);
        }
        chunks
    });
    source.verb("freeze", &json!({"commit": "sent"}));
    source.verb("release", &json!({}));
    read.rest(stream);
    read.add(&follower.join().unwrap());
    assert_eq!(read.said(), whole.said());
    source.wait_empty();
    target.wait_empty();
}

#[test]
fn what_the_target_has_is_not_sent() {
    let scene = Scene::new();
    // The same prompt was there before.
    let mut body = request("before");
    body["sampling_params"]["max_new_tokens"] = json!(1);
    scene.target.post("/generate", &body).text();
    let reserved = scene.start(&json!({}));
    assert_eq!(reserved["have_pages"], 200 / 16);
    let frozen = scene.source.verb("freeze", &json!({"commit": "confirmed"}));
    let at = frozen["output_tokens"].as_u64().unwrap() as usize;
    assert_eq!(frozen["moved_pages"].as_u64().unwrap() as usize, (200 + at - 1).div_ceil(16) - 200 / 16);
    let next = scene.target.post("/plimsoll/v1/migrations/m/take_over", &frozen);
    scene.source.verb("release", &json!({}));
    let Scene { mut read, stream, whole, .. } = scene;
    read.rest(stream);
    read.rest(next);
    assert_eq!(read.said(), whole.said());
}

/// Cumulative, as SGLang streams by default: everything so far in each chunk.
#[test]
fn the_stream_at_the_target_can_be_cumulative() {
    let scene = Scene::new();
    scene.start(&json!({}));
    let mut frozen = scene.source.verb("freeze", &json!({"commit": "confirmed"}));
    frozen["incremental"] = json!(false);
    let mut next = scene.target.post("/plimsoll/v1/migrations/m/take_over", &frozen);
    let mut last = Value::Null;
    while let Some(chunk) = next.chunk().unwrap() {
        last = parse_events(chunk.strip_suffix("data: [DONE]\n\n").unwrap_or(&chunk)).pop().unwrap_or(last);
    }
    assert_eq!(last["text"], scene.whole.text);
    assert_eq!(last["output_ids"], json!(scene.whole.ids));
    assert_eq!(last["meta_info"]["finish_reason"], scene.whole.finish);
    assert_eq!(last["meta_info"]["id"], "r");
}
