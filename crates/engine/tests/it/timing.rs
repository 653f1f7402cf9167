//! Timing mode over a socket: the times are a GPU's, and the engine says so.

use crate::client::{Server, config};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::timing::Timing;
use plimsoll_timing::{StepShape, find};
use serde_json::{Value, json};

const SPEEDUP: f64 = 5.0;

fn timed() -> EngineConfig {
    let profile = find("h100-llama3-70b-tp8").unwrap();
    let timed = EngineConfig::timed(Timing { profile, speedup: SPEEDUP });
    assert_eq!((timed.kv_tokens, timed.token_budget, timed.dp_size), (1_288_000, 8192, 1));
    EngineConfig { model: config().model, kv_tokens: 65_536, faults: true, ..timed }
}

#[test]
fn a_request_takes_what_the_gpu_would_take_and_the_engine_says_so() {
    let server = Server::start(timed());
    let body = json!({"text": " ship".repeat(100), "sampling_params": {"max_new_tokens": 50, "ignore_eos": true, "temperature": 0}});
    let answer = server.ask("/generate", &body);
    let profile = find("h100-llama3-70b-tp8").unwrap();
    let mut sum_s = 0.0;
    for generated in 0..50 {
        let mut shape = StepShape::default();
        match generated {
            0 => shape.add_prefill(100, 0, true),
            _ => shape.add_decode(100 + generated),
        }
        sum_s += profile.step_time(&shape).as_secs_f64() / SPEEDUP;
    }
    // Never quicker; how much slower is this machine's affair, and counted (below).
    let took_s = answer["meta_info"]["e2e_latency"].as_f64().unwrap();
    assert!(took_s >= 0.98 * sum_s, "{took_s} s, the model says {sum_s}");
    let load = server.wait_load("the last step is counted", |load| load["plimsoll_joint_steps"] == 50);
    let busy_s = load["plimsoll_busy_us"].as_f64().unwrap() / 1e6;
    assert!((busy_s / sum_s - 1.0).abs() < 0.001, "{busy_s} s of account, the model says {sum_s}");
    let moments: Vec<f64> = load["decode_moments"].as_array().unwrap().iter().map(|m| m.as_f64().unwrap()).collect();
    assert_eq!(moments[0], 49.0);
    assert!((moments[2] / 49.0 / 1e6 * SPEEDUP - 0.0097).abs() < 0.002, "about 9.7 ms a step: {moments:?}");
    let info = server.get("/server_info").json();
    assert_eq!(info["timing"]["profile"], "h100-llama3-70b-tp8");
    assert_eq!((&info["timing"]["founded"], &info["timing"]["speedup"]), (&json!("measured"), &json!(SPEEDUP)));
    let metrics = server.get("/metrics").text();
    for name in ["timing_late_ratio", "timing_late_steps_total", "timing_lost_seconds_total"] {
        assert!(metrics.lines().any(|line| line.starts_with(&format!("plimsoll_engine_{name}{{"))), "{name}");
    }
}

#[test]
fn an_engine_without_it_says_that_too_and_the_tokens_are_the_same() {
    let (plain, timed) = (Server::start(config()), Server::start(timed()));
    assert_eq!(plain.get("/server_info").json()["timing"], Value::Null);
    let body = json!({"text": " mast ship load", "sampling_params": {"max_new_tokens": 20, "ignore_eos": true, "temperature": 0}});
    assert_eq!(plain.ask("/generate", &body)["output_ids"], timed.ask("/generate", &body)["output_ids"]);
}

#[test]
fn a_speed_up_that_cannot_work_is_refused() {
    for speedup in [0.0, -1.0, f64::NAN, 1e9] {
        let profile = find("h100-llama3-8b").unwrap();
        let error = EngineConfig::timed(Timing { profile, speedup }).validate().unwrap_err();
        assert!(error.to_string().ends_with("use 0.01 to 1000"), "{error}");
    }
    assert!(
        EngineConfig::timed(Timing { profile: find("h200-deepseek-v3-dp32").unwrap(), speedup: 1.0 })
            .validate()
            .is_ok()
    );
}
