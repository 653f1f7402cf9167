//! What clients say about deadlines, SLOs and class is heard in every spelling, and what cannot be meant is refused.

use crate::{CHAT, GENERATE, body, fake};
use plimsoll_end_to_end::Plan;
use plimsoll_fakes::Dialect;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absurd_and_contradictory_wishes_are_refused_by_name() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let ask = body(CHAT, true, 2).to_string();
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("x-slo-ttft-ms", "-5")], "x-slo-ttft-ms"),
        (&[("x-llm-d-slo-tpot-ms", "NaN")], "x-llm-d-slo-tpot-ms"),
        (&[("x-sgl-ttft-slo-ms", "99999999999999999999")], "x-sgl-ttft-slo-ms"),
        (&[("x-request-deadline-ms", "0")], "x-request-deadline-ms"),
        (&[("x-plimsoll-class", "first")], "x-plimsoll-class"),
        (&[("x-slo-ttft-ms", "500"), ("x-sgl-ttft-slo-ms", "800")], "x-sgl-ttft-slo-ms"),
        (&[("x-sgl-tps-slo", "50"), ("x-slo-tpot-ms", "50")], "x-slo-tpot-ms"),
    ];
    for (headers, name) in cases {
        let answer = gateway.post_raw(CHAT, headers, ask.as_bytes()).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "invalid_header"), "{headers:?}");
        assert_eq!(answer.json()["error"]["param"], *name, "{}", answer.text());
    }
    for priority in ["1.5", "\"high\"", "4294967296"] {
        let ask = format!(r#"{{"text":"a","priority":{priority}}}"#);
        let answer = gateway.post_raw(GENERATE, &[], ask.as_bytes()).await;
        assert_eq!((answer.status(), answer.code().as_str()), (400, "invalid_request"), "{priority}");
        assert_eq!(answer.json()["error"]["param"], "priority", "{}", answer.text());
    }
    assert_eq!(engine.snapshot().generations, 0);
    gateway.finish().await;
}

/// A short request is high by itself. It may ask for less, and not by asking twice for different things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_lower_its_class() {
    let engine = fake(Dialect::Sglang).await;
    let gateway = Plan::with([engine.url()]).start().await;
    let tier = |tier: Value| {
        let mut ask = body(CHAT, false, 2);
        ask["service_tier"] = tier;
        ask.to_string()
    };
    let plain = body(CHAT, false, 2).to_string();
    for (headers, ask, class, rule) in [
        (&[][..], plain.clone(), "high", "few_uncached_tokens"),
        (&[("x-plimsoll-class", "LOW")][..], plain.clone(), "low", "asked_lower"),
        (&[("x-plimsoll-class", "medium")][..], plain, "medium", "asked_lower"),
        (&[][..], tier(json!("flex")), "low", "asked_lower"),
        (&[][..], tier(json!("auto")), "high", "few_uncached_tokens"),
    ] {
        let answer = gateway.post_raw(CHAT, headers, ask.as_bytes()).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!((record["class"].as_str(), record["class_rule"].as_str()), (Some(class), Some(rule)), "{ask}");
    }
    let both = gateway.post_raw(CHAT, &[("x-plimsoll-class", "medium")], tier(json!("flex")).as_bytes()).await;
    assert_eq!(both.status(), 400, "{}", both.text());
    gateway.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_has_bounds_of_its_own_and_a_tenant_another_class() {
    let engine = fake(Dialect::Sglang).await;
    let ask = body(CHAT, false, 2);
    let model = ask["model"].as_str().expect("a model").to_owned();
    let of = |model: &str| {
        let plan = Plan::with([engine.url()]).set("classes.models.0.name", model);
        plan.set("classes.models.0.high_uncached_tokens", 0)
    };
    let tenant = Plan::with([engine.url()]).set("traffic.tenants.0.name", "default");
    for (plan, class, rule) in [
        (of("another"), "high", "few_uncached_tokens"),
        (of(&model), "medium", "between"),
        (tenant.set("traffic.tenants.0.class_shift", "lower"), "medium", "tenant"),
    ] {
        let gateway = plan.start().await;
        let answer = gateway.post(CHAT, &ask).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let record = gateway.record(answer.header("x-request-id").unwrap()).await;
        assert_eq!((record["class"].as_str(), record["class_rule"].as_str()), (Some(class), Some(rule)), "{record}");
        gateway.finish().await;
    }
}
