//! The class goes on into the engine: as its `priority`, where it takes one, and what is left of the client's time.

use crate::{CHAT, COMPLETIONS, EMBEDDINGS, GENERATE, body, fake};
use plimsoll_end_to_end::engine::EngineProcess;
use plimsoll_end_to_end::{Gateway, Plan};
use plimsoll_fakes::{Dialect, FakeEngine, Options};
use serde_json::{Value, json};

const LOW: (&str, &str) = ("x-plimsoll-class", "low");

async fn sent(engine: &FakeEngine, gateway: &Gateway, path: &str, headers: &[(&str, &str)], ask: &Value) -> String {
    let answer = gateway.post_raw(path, headers, ask.to_string().as_bytes()).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    String::from_utf8(engine.snapshot().last_body()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_takes_priorities_gets_the_class() {
    let options = Options { priority_scheduling: true, ..Options::new(Dialect::Sglang) };
    let engine = FakeEngine::start(options).await.unwrap();
    let gateway = Plan::with([engine.url()]).start().await;
    for path in [CHAT, COMPLETIONS, GENERATE] {
        let ask = body(path, false, 2);
        for (headers, own, priority) in [
            (&[][..], Value::Null, 8),
            (&[LOW][..], Value::Null, 0),
            (&[][..], json!(1_000_000), 9),
            (&[LOW][..], json!(1_000_000), 1),
            (&[LOW][..], json!(-3), -1),
        ] {
            let mut ask = ask.clone();
            if !own.is_null() {
                ask["priority"] = own;
            }
            let text = sent(&engine, &gateway, path, headers, &ask).await;
            let mut read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(text.matches("\"priority\"").count(), 1, "{text}");
            assert_eq!(read["priority"], priority, "{path} {headers:?}");
            // And nothing else but the id.
            let read = read.as_object_mut().unwrap();
            read.remove("rid");
            read.remove("priority");
            ask.as_object_mut().unwrap().remove("priority");
            assert_eq!(&Value::Object(read.clone()), &ask);
        }
    }
    let ask = body(EMBEDDINGS, false, 0);
    assert_eq!(sent(&engine, &gateway, EMBEDDINGS, &[], &ask).await, ask.to_string());
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_say_gets_none_unless_the_operator_says_so() {
    let engine = fake(Dialect::Vllm).await;
    let silent = Plan::with([engine.url()]).start().await;
    let ask = body(CHAT, false, 2);
    assert_eq!(sent(&engine, &silent, CHAT, &[LOW], &ask).await, ask.to_string());
    silent.finish().await;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plimsoll.toml");
    let told = format!("[[engines]]\nurl = \"{}\"\npriority_order = \"lower_first\"\n", engine.url());
    std::fs::write(&file, told).unwrap();
    let told = Plan::default().config(&file, 1).start().await;
    for (headers, priority) in [(&[][..], 0), (&[LOW][..], 8)] {
        let text = sent(&engine, &told, CHAT, headers, &ask).await;
        let whole = ask.to_string();
        let wanted = format!("{},\"priority\":{priority}}}", &whole[..whole.len() - 1]);
        assert_eq!(text, wanted);
    }
    told.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_the_clients_time_goes_along() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let headers = [("x-request-deadline-ms", "60000"), ("x-sgl-ttft-slo-ms", "30000"), ("x-slo-tpot-ms", "50")];
    let ask = body(CHAT, true, 2);
    sent(&engine, &gateway, CHAT, &headers, &ask).await;
    let seen = engine.snapshot();
    let ms = |name: &str| seen.last_header(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    assert!((1..=60_000).contains(&ms("x-request-deadline-ms")), "{:?}", seen.last_headers);
    assert!((1..=30_000).contains(&ms("x-slo-ttft-ms")), "{:?}", seen.last_headers);
    assert_eq!(seen.last_header("x-sgl-ttft-slo-ms"), None, "it counts from an arrival that was earlier");
    assert_eq!(ms("x-slo-tpot-ms"), 50);
    gateway.finish().await;
}

/// The built-in engine says that it takes priorities, and serves in their order what the gateway gave it in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_serves_in_the_order_of_classes() {
    let slow = ["--schedule-policy", "priority", "--max-running", "1", "--step-delay-ms", "20"];
    let engine = EngineProcess::start(&slow);
    let gateway = Plan::with([format!("http://{}", engine.addr)]).start().await;
    let ask = |tokens| json!({"prompt": "hello there", "max_tokens": tokens, "ignore_eos": true}).to_string();
    let done = async |headers: &[(&str, &str)], tokens: u64| {
        let answer = gateway.post_raw(COMPLETIONS, headers, ask(tokens).as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        std::time::Instant::now()
    };
    let waiting = async |number: u64| {
        let what = format!("one runs and {number} wait");
        engine.until(&what, |load| load["num_running_reqs"] == 1 && load["num_waiting_reqs"] == number).await;
    };
    let (_, low, high) = tokio::join!(
        done(&[], 100),
        async {
            waiting(0).await;
            done(&[LOW], 4).await
        },
        async {
            waiting(1).await;
            done(&[], 4).await
        },
    );
    assert!(high < low, "the one of class high came later and goes first");
    gateway.finish().await;
}
