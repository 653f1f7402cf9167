//! Bodies and headers reach the engine as the client wrote them, but for the keys that are ours.

use crate::{CHAT, COMPLETIONS, GENERATE, fake, is_rid};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::Dialect;
use serde_json::Value;

/// Odd spaces, escapes, number forms, an unknown nested field and a key order that no serialiser would choose.
const ODD: &str = "{ \"zeta\" : {\"b\":1.0, \"a\":[1e2,-0 ] },\"model\":\"tiny\" ,\r\n\t\"messages\":[{\"role\":\"user\",\
                   \"content\":\"caf\\u00e9 \\ud83d\\ude00 / \\/ <&>\"}],\"max_tokens\":2,\"logprobs\":null,\
                   \"big\":123456789012345678901234567890 }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_and_openai_engines_get_the_very_bytes() {
    for dialect in [Dialect::Vllm, Dialect::Openai] {
        let engine = fake(dialect).await;
        let gateway = Plan::with([engine.url()]).start().await;
        let answer = gateway.post_raw(CHAT, &[], ODD.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(String::from_utf8_lossy(&engine.snapshot().last_body()), ODD, "{dialect:?}");
        gateway.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_gets_the_very_bytes_and_one_rid() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let native = r#"{"sampling_params":{"max_new_tokens":2,"custom":{"y":1,"x":2}},"text":"hi","unknown":[]}"#;
    for (path, sent) in [(CHAT, ODD), (GENERATE, native)] {
        let answer = gateway.post_raw(path, &[], sent.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let got = String::from_utf8(engine.snapshot().last_body()).unwrap();
        let rid = serde_json::from_str::<Value>(&got).unwrap()["rid"].as_str().unwrap().to_owned();
        assert!(is_rid(&rid), "{rid}");
        let key = format!("\"rid\":\"{rid}\"");
        let without = got.replacen(&format!("{key},"), "", 1);
        let without = if without == got { got.replacen(&format!(",{key}"), "", 1) } else { without };
        assert_eq!(without, sent, "nothing but the rid was added on {path}");
    }
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rid_of_the_client_is_replaced_not_repeated() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let sent = r#"{"text":"hi","rid":"r1","sampling_params":{"max_new_tokens":2}}"#;
    assert_eq!(gateway.post_raw(GENERATE, &[], sent.as_bytes()).await.status(), 200);
    let got = String::from_utf8(engine.snapshot().last_body()).unwrap();
    assert_eq!(got.matches("\"rid\"").count(), 1, "{got}");
    assert!(is_rid(&engine.snapshot().rids[0]), "a prefix such as `r1` must never reach the engine: {got}");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_pass_but_those_of_the_hop() {
    let engine = fake(Dialect::Vllm).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("X-My-Own", "Yes it is"),
        ("x-smg-routing-key", "k"),
        ("traceparent", trace),
        ("tracestate", "a=b"),
        ("X-Hop", "1"),
        ("Connection", "X-Hop"),
        ("TE", "trailers"),
    ];
    let body = crate::body(COMPLETIONS, false, 2).to_string();
    assert_eq!(gateway.post_raw(COMPLETIONS, &headers, body.as_bytes()).await.status(), 200);
    let seen = engine.snapshot();
    assert_eq!(seen.last_header("x-my-own"), Some("Yes it is"));
    assert_eq!(seen.last_header("x-smg-routing-key"), Some("k"));
    assert_eq!(seen.last_header("tracestate"), Some("a=b"));
    assert_eq!(seen.last_header("host"), Some(engine.addr().to_string().as_str()));
    assert_eq!((seen.last_header("x-hop"), seen.last_header("te")), (None, None));
    let passed = seen.last_header("traceparent").unwrap();
    assert_eq!(passed[..36], trace[..36], "the same trace goes on to the engine: {passed}");
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_come_back_byte_for_byte() {
    // vLLM would make its answer's id from the header, which the gateway extends.
    let engine = fake(Dialect::Openai).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let blank = |bytes: &[u8]| {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let at = text.find("\"created\":").map_or(0, |at| at + 10);
        let end = at + text[at..].find(',').unwrap_or(0);
        format!("{}{}", &text[..at], &text[end..])
    };
    for stream in [false, true] {
        let body = crate::body(CHAT, stream, 1).to_string();
        let id = [("x-request-id", "same")];
        let direct = plimsoll_end_to_end::client::ask(engine.addr(), "POST", CHAT, &id, body.as_bytes()).await;
        let through = gateway.post_raw(CHAT, &id, body.as_bytes()).await;
        // The engine numbers its answers: what follows the id is compared.
        let after_id = |bytes: &[u8]| blank(bytes).split_once("\"object\"").map(|(_, rest)| rest.to_owned());
        let first = |bytes: &[u8]| after_id(bytes)?.split("\"id\"").next().map(str::to_owned);
        assert!(first(&direct.body).is_some());
        assert_eq!(first(&through.body), first(&direct.body));
        assert_eq!(through.body.len(), direct.body.len(), "{}", through.text());
        assert_eq!(through.header("content-type"), direct.header("content-type"));
    }
    gateway.finish().await;
}
