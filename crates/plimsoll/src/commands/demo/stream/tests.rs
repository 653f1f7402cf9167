use super::*;
use http_body_util::Full;

const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: keep-alive\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\" ship\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\" load\"}}]}\r\n\r\n\
    data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":2,\
    \"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn outcome(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Answer, Refusal> {
    let mut response = Response::builder().status(status).header("x-plimsoll-engine", "2");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let response = response.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(read(response, Instant::now()))
}

#[test]
fn a_whole_chat_answer_has_text_usage_and_engine() {
    let answer = outcome(200, &[], &format!("{CHAT}{USAGE}{DONE}")).unwrap();
    assert_eq!(answer.text, " ship load");
    assert_eq!(answer.engine.as_deref(), Some("2"));
    assert_eq!(answer.gaps.len(), 1);
    assert!(answer.ttft > Duration::ZERO);
    let usage = answer.usage.unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()), (90, 2, Some(64)));
}

#[test]
fn a_completion_without_usage_leaves_it_unknown() {
    let body = format!("data: {{\"choices\":[{{\"text\":\" run\",\"finish_reason\":\"length\"}}]}}\n\n{DONE}");
    let answer = outcome(200, &[], &body).unwrap();
    assert_eq!((answer.text.as_str(), answer.usage.is_none()), (" run", true));
}

#[test]
fn a_stream_that_just_ends_is_no_answer() {
    for body in [CHAT.to_owned(), format!("data: {{\"choices\":[{{\"text\":\" run\"}}]}}\n\n{DONE}"), String::new()] {
        let refusal = outcome(200, &[], &body).unwrap_err();
        assert_eq!((refusal.code.as_str(), refusal.engine.as_deref()), ("truncated", Some("2")));
    }
}

#[test]
fn an_error_event_ends_the_answer_with_its_code() {
    let body = format!("data: {{\"error\":{{\"message\":\"it died\",\"code\":\"engine_lost\"}}}}\n\n{DONE}");
    let refusal = outcome(200, &[], &body).unwrap_err();
    assert_eq!((refusal.code.as_str(), refusal.message.as_str()), ("engine_lost", "it died"));
    assert_eq!(outcome(200, &[], "data: {broken\n\n").unwrap_err().code, "broken_event");
}

#[test]
fn only_429_and_503_with_retry_after_ask_for_a_repeat() {
    let body = "{\"error\":{\"message\":\"full\",\"code\":\"overloaded\",\"type\":\"x\",\"param\":null}}";
    let retry = |status, headers: &[(&str, &str)]| outcome(status, headers, body).unwrap_err().retry_after;
    assert_eq!(retry(429, &[("retry-after", "2")]), Some(Duration::from_secs(2)));
    assert_eq!(retry(503, &[("retry-after", "1")]), Some(Duration::from_secs(1)));
    assert_eq!(retry(503, &[]), None);
    assert_eq!(retry(400, &[("retry-after", "2")]), None);
    for nonsense in ["-5", "nan", "inf", "Sun, 29 Nov 2026 16:00:00 GMT"] {
        assert_eq!(retry(429, &[("retry-after", nonsense)]), None);
    }
    assert_eq!(outcome(502, &[], "<html>").unwrap_err().code, "http_502");
}
