use super::*;

fn facts(api: Api, body: &str) -> RequestFacts {
    scan(api, &Bytes::copy_from_slice(body.as_bytes())).unwrap()
}

fn refused(api: Api, body: &[u8]) -> String {
    scan(api, &Bytes::copy_from_slice(body)).unwrap_err().to_string()
}

#[test]
fn chat_facts() {
    let f = facts(
        Api::Chat,
        r#" {"model":"m\"x","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":7,"zzz":{"a":[1]}}"#,
    );
    assert_eq!(f.model.as_deref(), Some("m\"x"));
    assert!(f.stream && !f.batch);
    assert_eq!(f.max_output_tokens, Some(7));
    assert_eq!(f.prompt, PromptSize::TextBytes(r#"[{"role":"user","content":"hi"}]"#.len() as u64));
    assert_eq!(f.sequences, 1);
}

#[test]
fn urgency_in_the_body() {
    let f = facts(Api::Chat, r#"{"messages":[],"priority":-7,"service_tier":"fl\u0065x"}"#);
    assert_eq!((f.priority, f.service_tier.as_deref()), (Some(-7), Some("flex")));
    let f = facts(Api::Generate, r#"{"text":"a","priority":null,"service_tier":5}"#);
    assert_eq!((f.priority, f.service_tier), (None, None));
    for bad in ["1.5", "\"high\"", "1e999", "9223372036854775808", "true"] {
        assert!(refused(Api::Chat, format!(r#"{{"messages":[],"priority":{bad}}}"#).as_bytes()).contains("`priority`"));
    }
}

#[test]
fn prompts_of_every_shape() {
    let size = |json: &str| {
        let f = facts(Api::Completions, &format!(r#"{{"model":"m","prompt":{json},"n":2}}"#));
        (f.prompt, f.sequences)
    };
    assert_eq!(size(r#""abcd""#), (PromptSize::TextBytes(4), 2));
    assert_eq!(size(r#"["ab","c\"d\\"]"#), (PromptSize::TextBytes(2 + 6), 4));
    assert_eq!(size("[1, 22,333]"), (PromptSize::Tokens(3), 2));
    assert_eq!(size("[[1,2],[3]]"), (PromptSize::Tokens(3), 4));
}

#[test]
fn generate_reads_sampling_params() {
    let f =
        facts(Api::Generate, r#"{"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":9,"odd":null},"rid":"x"}"#);
    assert_eq!(f.max_output_tokens, Some(9));
    assert_eq!(f.prompt, PromptSize::Tokens(3));
    assert!(!f.batch);
    assert!(facts(Api::Generate, r#"{"text":["one"]}"#).batch);
    assert!(facts(Api::Generate, r#"{"input_ids":[[5]]}"#).batch);
}

#[test]
fn what_is_refused_and_why() {
    let ok = r#"{"model":"m","messages":[]"#;
    for (body, hint) in [
        (&b""[..], "empty"),
        (b"  \n", "empty"),
        (b"[1]", "expected an object"),
        (b"{\"model\":", "not valid JSON"),
        (b"{\"model\":\"m\",\"messages\":[]} x", "not valid JSON"),
        (b"{\"model\":\"\xff\",\"messages\":[]}", "not UTF-8"),
        (b"{\"model\":5,\"messages\":[]}", "`model` must be a string"),
        (b"{\"model\":\"m\"}", "`messages` is missing"),
        (b"{\"model\":\"m\",\"messages\":{}}", "`messages` must be an array"),
        (b"{\"model\":\"m\",\"model\":\"n\",\"messages\":[]}", "duplicate field"),
    ] {
        let text = refused(Api::Chat, body);
        assert!(text.contains(hint), "{text} lacks {hint}");
    }
    for (extra, hint) in [
        (r#","stream":"yes""#, "`stream`"),
        (r#","max_tokens":-1"#, "`max_tokens`"),
        (r#","max_tokens":1.5"#, "`max_tokens`"),
        (r#","max_tokens":1e999"#, "`max_tokens`"),
        (r#","max_tokens":99999999999"#, "absurdly large"),
        (r#","n":[]"#, "`n`"),
    ] {
        let text = refused(Api::Chat, format!("{ok}{extra}}}").as_bytes());
        assert!(text.contains(hint), "{text} lacks {hint}");
    }
    assert!(refused(Api::Completions, br#"{"prompt":["a","b"],"n":40000}"#).contains("at most 65536"));
    let long = format!(r#"{{"model":"{}","messages":[]}}"#, "m".repeat(257));
    assert!(refused(Api::Chat, long.as_bytes()).contains("longer than 256"));
    assert!(refused(Api::Completions, br#"{"prompt":[]}"#).contains("empty"));
    assert!(refused(Api::Completions, br#"{"prompt":[1,-2]}"#).contains("negative"));
    assert!(refused(Api::Generate, br#"{"text":"a","input_ids":[1]}"#).contains("exactly one"));
}

/// Depth alone must not crash the scan: serde_json's recursion limit answers.
#[test]
fn deep_nesting_is_answered() {
    let deep = format!("{{\"model\":\"m\",\"messages\":[],\"x\":{}1{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let _ = scan(Api::Chat, &Bytes::from(deep));
}

/// Found by fuzzing: a bare number was counted as one token id, and the engine answered what we should have.
#[test]
fn one_number_is_no_list_of_token_ids() {
    for (api, body) in [(Api::Generate, &br#"{"input_ids":5}"#[..]), (Api::Chat, br#"{"messages":[],"input_ids":5}"#)] {
        assert!(refused(api, body).contains("`input_ids` must be an array"));
    }
}

/// Found by fuzzing: the engine would have generated its default of tokens, and one sequence, where we counted more.
#[test]
fn generate_has_its_limits_in_sampling_params_only() {
    let f = facts(Api::Generate, r#"{"text":"a","max_tokens":9,"n":3}"#);
    assert_eq!((f.max_output_tokens, f.sequences), (None, 1));
}

/// Found by fuzzing: ids in `text` were counted as a prompt that no engine takes.
#[test]
fn token_ids_are_no_text() {
    for body in [&br#"{"text":[1,3]}"#[..], br#"{"text":[[1],[3]]}"#] {
        assert!(refused(Api::Generate, body).contains("`text` must be a string or an array of strings"));
    }
}

#[test]
fn media_are_counted_as_what_they_become() {
    let chat = |url: &str| {
        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": "{url}"}}}}]}}]}}"#
        );
        let PromptSize::TextBytes(bytes) = facts(Api::Chat, &body).prompt else { panic!("it is a text") };
        bytes
    };
    let plain = chat("https://example.org/a.png");
    assert!(plain < 200);
    let image = chat(&format!("data:image/png;base64,{}", "QUJD".repeat(250_000)));
    assert!((4_096..4_400).contains(&image), "{image}");
    assert!(chat("data:image/png;base64,QUJD") < 200, "a small one is no more than it is");
    // Prose that talks of such things is prose.
    let prose = "so much to say ".repeat(1_000);
    assert!(chat(&format!(";base64,{prose}")) > 15_000 && chat(&format!("data:image/png;base64,{prose}")) > 15_000);
}
