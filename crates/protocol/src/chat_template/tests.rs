use super::*;
use serde_json::json;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, vec![("bos_token".to_owned(), "<s>".to_owned())]).unwrap()
}

fn conversation(messages: &Json) -> Conversation<'_> {
    Conversation {
        messages,
        tools: None,
        add_generation_prompt: false,
        continue_final_message: false,
        extra: None,
        now: DateTime::constant(2026, 3, 4, 5, 6, 7, 0),
    }
}

const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}";

#[test]
fn errors_say_what_is_wrong_and_quote_no_prompt() {
    let error = ChatTemplate::compile("a\n{% if %}", Vec::new()).unwrap_err();
    assert!(matches!(&error, TemplateError::Syntax(what) if what.contains("line 2")), "{error}");
    let messages = json!([{"role": "user", "content": "a secret"}]);
    let refused = template("{{ raise_exception('no ' + messages[0].role) }}").render(&conversation(&messages));
    assert_eq!(refused, Err(TemplateError::Refused("no user".to_owned())));
    let failed = template("{{ messages[0].content.steer() }}").render(&conversation(&messages)).unwrap_err();
    assert!(!failed.to_string().contains("secret") && failed.to_string().contains("line 1"), "{failed}");
    let failed = template("{{ messages[9].content.x }}").render(&conversation(&messages)).unwrap_err();
    assert!(matches!(failed, TemplateError::Failed(_)), "{failed}");
    // Inside a macro the words still arrive.
    let nested = template("{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}");
    assert_eq!(nested.render(&conversation(&messages)), Err(TemplateError::Refused("inner".to_owned())));
}

#[test]
fn callers_cannot_replace_what_is_the_servers() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let extra =
        json!({"messages": [], "add_generation_prompt": true, "now:": "never", "mood": "calm", "bos_token": "<B>"});
    let conversation = Conversation { extra: extra.as_object(), ..conversation(&messages) };
    let text = template(
        "{{ bos_token }}{{ messages|length }}{{ add_generation_prompt }}{{ mood }}{{ strftime_now('%d %b %Y, %H:%M') }}",
    );
    assert_eq!(text.render(&conversation).unwrap(), "<B>1Falsecalm04 Mar 2026, 05:06");
}

#[test]
fn a_final_message_can_be_continued() {
    let go_on = |source: &str, content: Json| {
        let messages = json!([{"role": "user", "content": "go on"}, {"role": "assistant", "content": content}]);
        template(source).render(&Conversation { continue_final_message: true, ..conversation(&messages) })
    };
    assert_eq!(go_on(PLAIN, json!("so far ")).unwrap(), "[user]go on\n[assistant]so far ");
    let trims = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}";
    assert_eq!(go_on(trims, json!(" so far ")).unwrap(), "[user]go on<end>[assistant]so far");
    assert!(matches!(go_on("{{ messages[0].content }}", json!("unseen")), Err(TemplateError::Continue(_))));
    assert!(matches!(go_on(PLAIN, json!(" ")), Err(TemplateError::Continue(_))));
}

#[test]
fn parts_go_to_templates_that_take_them() {
    let typed = template("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}");
    assert!(typed.wants_parts());
    assert!(!template(PLAIN).wants_parts(), "a printed list is no text");
    assert!(!template("{{ messages[0].content | tojson }}").wants_parts());
    assert!(!template("{{ raise_exception('no') }}").wants_parts());
    let messages = [
        json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": null}),
    ];
    assert_eq!(
        template(PLAIN).prepare(messages.to_vec(), SGLANG_JOINT).unwrap(),
        json!([{"role": "user", "content": "a b"}])
    );
    assert_eq!(typed.prepare(messages.to_vec(), VLLM_JOINT).unwrap()[0]["content"], messages[0]["content"]);
    let rendered = typed.prepare(messages.to_vec(), VLLM_JOINT).unwrap();
    assert_eq!(typed.render(&conversation(&rendered)).unwrap(), "<a><b>");
}

#[test]
fn messages_are_made_ready() {
    let call = |arguments: Json| json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
    let messages =
        [call(json!("{\"b\": 1, \"a\": 2}")), call(json!("")), call(json!("not json")), call(json!({"x": 1}))];
    let ready = template(PLAIN).prepare(messages.to_vec(), SGLANG_JOINT).unwrap();
    assert_eq!(ready[0]["content"], "");
    let arguments = |at: usize| ready[at]["tool_calls"][0]["function"]["arguments"].to_string();
    assert_eq!(arguments(0), "{\"b\":1,\"a\":2}", "in their order");
    assert_eq!([arguments(1), arguments(2), arguments(3)], ["{}", "\"not json\"", "{\"x\":1}"]);
    for (wrong, field) in [
        (json!("x"), ""),
        (json!({"content": "x"}), ".role"),
        (json!({"role": 7, "content": "x"}), ".role"),
        (json!({"role": "user", "content": 7}), ".content"),
        (json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}), ".content"),
        (json!({"role": "user", "content": "x", "tool_calls": 3}), ".tool_calls"),
    ] {
        let error =
            template(PLAIN).prepare(vec![json!({"role": "user", "content": "ok"}), wrong], SGLANG_JOINT).unwrap_err();
        assert_eq!((error.index, error.field), (1, field));
    }
}

use super::messages::{SGLANG_JOINT, VLLM_JOINT};
