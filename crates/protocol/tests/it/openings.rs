//! What stands before the opening of an answer comes again in the next turn, whatever the template; the opening need not.

use crate::templates::{STYLES, template};
use crate::tokenizers_under_test::all;
use plimsoll_protocol::chat_template::messages::SGLANG_JOINT;
use plimsoll_protocol::prompt::{Context, text_ids};
use plimsoll_protocol::request::{Api, PromptIds};
use plimsoll_protocol::tokenizer::{ModelText, SegmentCache};
use serde_json::{Value, json};

fn prompt(text: &ModelText, messages: &[Value], extra: &Value) -> Option<PromptIds> {
    let cache = SegmentCache::new(1 << 20, [5; 32]);
    let now = "2026-11-05T07:08:09".parse().unwrap();
    let context = Context { text, cache: &cache, owner: "", joint: SGLANG_JOINT, now };
    let body = json!({"model": "m", "messages": messages, "chat_template_kwargs": extra});
    Some(text_ids(&context, Api::Chat, body.to_string().as_bytes())?.prompt)
}

#[test]
fn the_next_turn_begins_with_all_before_the_opening() {
    let tokenizers = all();
    let (mut compared, mut taken_back) = (0, Vec::new());
    // "pythonisms" is no template of a model: it prints the roles of all messages in one line.
    for style in STYLES.into_iter().filter(|style| *style != "pythonisms") {
        for (name, tokenizer) in &tokenizers {
            let text = ModelText {
                tokenizer: tokenizer.clone(),
                chat: Some(template(style)),
                chat_with_tools: None,
                eos_token: None,
            };
            for extra in [json!(null), json!({"enable_thinking": false}), json!({"enable_thinking": true})] {
                let mut messages = vec![json!({"role": "user", "content": "How deep is it, in <s>fathoms?"})];
                let Some(mut before) = prompt(&text, &messages, &extra) else { continue };
                for turn in 0..3 {
                    messages.push(json!({"role": "assistant", "content": format!("It is {turn} deep.")}));
                    messages.push(json!({"role": "user", "content": format!("And {turn} é漢 miles on?")}));
                    let next = prompt(&text, &messages, &extra).unwrap();
                    let known = before.ids.len() - before.opening_tokens;
                    assert!(next.ids.starts_with(&before.ids[..known]), "{style}, {name}, {extra}, turn {turn}");
                    if !next.ids.starts_with(&before.ids) {
                        assert!(before.opening_tokens > 0);
                        taken_back.push(style);
                    }
                    compared += 1;
                    before = next;
                }
            }
        }
    }
    taken_back.dedup();
    assert!(compared > 300 && taken_back.len() >= 2, "{compared} compared, {taken_back:?} take their opening back");
}
