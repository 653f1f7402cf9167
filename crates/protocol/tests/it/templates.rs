//! Ten template styles, each against texts that jinja2 3.1 rendered (`golden.json`), and random conversations against
//! jinja2 itself. `PLIMSOLL_BLESS=1` with a Python that has jinja2 writes the golden texts anew.

use crate::jinja;
use plimsoll_protocol::chat_template::{ChatTemplate, Conversation, TemplateError};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

pub(crate) const STYLES: [&str; 10] =
    ["chatml", "qwen", "llama", "mistral", "gemma", "deepseek", "glm", "gptoss", "generation", "pythonisms"];
const NOW: &str = "2026-11-05T07:08:09";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn source(style: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{style}.jinja"))).unwrap()
}

fn specials() -> Vec<(String, String)> {
    [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec()
}

pub(crate) fn template(style: &str) -> ChatTemplate {
    ChatTemplate::compile(&source(style), specials()).unwrap()
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) style: &'static str,
    pub(crate) name: String,
    pub(crate) messages: Value,
    pub(crate) tools: Option<Value>,
    pub(crate) generate: bool,
    pub(crate) extra: Map<String, Value>,
}

impl Case {
    /// As `transformers` gives it to jinja2.
    fn for_python(&self) -> Value {
        let mut context = json!({
            "messages": self.messages, "tools": self.tools, "documents": null, "add_generation_prompt": self.generate,
            "bos_token": "<s>", "eos_token": "</s>",
        });
        context.as_object_mut().unwrap().extend(self.extra.clone());
        json!({"template": source(self.style), "context": context, "now": NOW})
    }

    /// The first place where two results differ, with what comes before it.
    fn difference(&self, got: &Value, want: &Value) -> String {
        let (got, want) = (got.to_string(), want.to_string());
        let same =
            got.char_indices().zip(want.chars()).take_while(|((_, a), b)| a == b).last().map_or(0, |((at, _), _)| at);
        let from = got.floor_char_boundary(same.saturating_sub(60));
        let part = |text: &str| text.get(from..text.floor_char_boundary(same + 60)).unwrap_or_default().to_owned();
        format!("{}: {}\n got {}\nwant {}", self.name, self.messages, part(&got), part(&want))
    }

    pub(crate) fn rendered(&self) -> Value {
        let template = template(self.style);
        let conversation = Conversation {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            add_generation_prompt: self.generate,
            continue_final_message: false,
            extra: Some(&self.extra),
            now: NOW.parse().unwrap(),
        };
        match template.render(&conversation) {
            Ok(text) => json!({"text": text}),
            Err(TemplateError::Refused(message)) => json!({"refused": message}),
            Err(error) => json!({"failed": error.to_string()}),
        }
    }
}

pub(crate) fn tools() -> Value {
    json!([
        {"type": "function", "function": {
            "name": "stow", "description": "Stows <cargo> & \"goods\" in a hold, it's easy",
            "parameters": {"type": "object", "properties": {
                "hold": {"type": "integer", "description": "Which", "default": 2},
                "goods": {"type": "array", "items": {"type": "string"}},
                "mode": {"type": "string", "enum": ["fast", "safe"], "default": "safe"},
                "place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": ["number", "null"]}}, "required": ["x"]},
            }, "required": ["hold", "goods"]},
        }},
        {"type": "function", "function": {"name": "sound", "description": "漢字 🚢 tiefe", "parameters": {"type": "object", "properties": {}}, "return": {"type": "number"}}},
    ])
}

fn call(name: &str, id: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn conversations() -> Vec<(&'static str, Value, bool)> {
    let system = json!({"role": "system", "content": "  You keep the log. \n"});
    let user = |text: &str| json!({"role": "user", "content": text});
    let said = |text: &str| json!({"role": "assistant", "content": text});
    let stow = call(
        "stow",
        "abc123DEF",
        &json!({"hold": 3, "goods": ["tea & <rum>", "café 漢字"], "load": 1.50, "tiny": 1e-7, "huge": 1e20, "ok": true, "none": null}),
    );
    let sound = call("sound", "xyz456GHI", &json!({}));
    vec![
        ("one question", json!([user("How deep is it?")]), false),
        ("with a system message", json!([system, user(" What now? \n"), said("We sail."), user("When?")]), false),
        ("after thinking", json!([user("a"), said("<think>\nhm, <b>\n</think>\n\nso"), user("b")]), false),
        ("ends with an answer", json!([user("a"), said("<think>x</think>y")]), false),
        (
            "a tool is called",
            json!([
                system, user("Stow it"), {"role": "assistant", "content": "", "tool_calls": [stow]},
                {"role": "tool", "tool_call_id": "abc123DEF", "content": "{\"done\": true, \"note\": \"it's <in>\"}"},
                said("Done."), user("Again"),
            ]),
            true,
        ),
        (
            "a tool was called last",
            json!([
                user("Stow and sound"), {"role": "assistant", "content": "At once.", "reasoning_content": "both\n", "tool_calls": [stow, sound]},
                {"role": "tool", "tool_call_id": "abc123DEF", "content": "3"},
                {"role": "tool", "tool_call_id": "xyz456GHI", "content": "12.5"},
            ]),
            true,
        ),
        ("tools are there and not called", json!([user("Hello")]), true),
        ("two users in a row", json!([user("a"), user("b")]), false),
        ("wide letters", json!([user("ship 漢字🚢 é\u{301} \u{7f}end"), said("ok\u{301}"), user("x")]), false),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for style in STYLES {
        for (name, messages, with_tools) in conversations() {
            for (variant, generate, extra) in [
                ("", true, json!({})),
                (", no prompt", false, json!({})),
                (", no thinking", true, json!({"enable_thinking": false, "reasoning_effort": "low"})),
            ] {
                cases.push(Case {
                    style,
                    name: format!("{style}: {name}{variant}"),
                    messages: messages.clone(),
                    tools: with_tools.then(tools),
                    generate,
                    extra: extra.as_object().unwrap().clone(),
                });
            }
        }
    }
    cases
}

#[test]
fn every_style_renders_as_jinja2_did() {
    let golden: Value = serde_json::from_slice(&std::fs::read(folder().join("golden.json")).unwrap()).unwrap();
    let cases = cases();
    assert_eq!(golden.as_object().unwrap().len(), cases.len());
    for case in cases {
        // Failures differ in their words.
        let (got, want) = (case.rendered(), &golden[&case.name]);
        if want.get("failed").is_some() {
            assert!(got.get("failed").is_some(), "{}: {got}", case.name);
        } else {
            assert!(got == *want, "{}", case.difference(&got, want));
        }
    }
}

#[test]
fn the_golden_texts_are_jinja2s() {
    let Some(python) = jinja::python() else { return };
    let cases = cases();
    let said = jinja::render(&python, &cases.iter().map(Case::for_python).collect::<Vec<_>>());
    let fresh: Map<String, Value> = cases.into_iter().map(|case| case.name).zip(said).collect();
    let path = folder().join("golden.json");
    if std::env::var_os("PLIMSOLL_BLESS").is_some() {
        std::fs::write(path, serde_json::to_string_pretty(&fresh).unwrap() + "\n").unwrap();
        return;
    }
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(golden, Value::Object(fresh));
}

/// Values as tool arguments have them.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        (-1000i32..1000, -12i32..25)
            .prop_map(|(digits, exponent)| Value::from(f64::from(digits) * 10f64.powi(exponent))),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z <>&'\"\\\\{}%\n\t]{0,12}",
        any::<String>(),
        Just("<think>\nx\n</think>\n\ny".to_owned()),
        Just("<tool_response>a</tool_response>".to_owned()),
        " {0,2}\n{0,2}[a-zé漢🚢]{0,4} {0,2}\n{0,2}",
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Value> {
    let called =
        (text(), prop::collection::vec((text(), value()), 0..3), prop::bool::ANY).prop_map(|(content, pairs, one)| {
            let arguments: Map<String, Value> = pairs.into_iter().collect();
            let calls = vec![call("stow", "abc123DEF", &Value::Object(arguments)); if one { 1 } else { 2 }];
            json!({"role": "assistant", "content": content, "tool_calls": calls})
        });
    prop_oneof![
        3 => text().prop_map(|text| json!({"role": "user", "content": text})),
        3 => text().prop_map(|text| json!({"role": "assistant", "content": text})),
        1 => text().prop_map(|text| json!({"role": "system", "content": text})),
        2 => called,
        1 => text().prop_map(|text| json!({"role": "tool", "tool_call_id": "abc123DEF", "content": text})),
    ]
}

#[test]
fn random_conversations_render_as_in_jinja2() {
    let Some(python) = jinja::python() else { return };
    let seed = std::env::var("PLIMSOLL_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()).unwrap_or_else(rand_seed);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let strategy =
        (prop::collection::vec(message(), 1..6), any::<bool>(), any::<bool>(), prop::option::of(any::<bool>()));
    let mut cases = Vec::new();
    for round in 0..60 {
        // `pythonisms` prints lists: which of the newest letters Python escapes there depends on its Unicode version.
        for style in STYLES.into_iter().filter(|style| *style != "pythonisms") {
            let (messages, with_tools, generate, thinking) = strategy.new_tree(&mut runner).unwrap().current();
            let extra = thinking.map(|on| ("enable_thinking".to_owned(), Value::from(on))).into_iter().collect();
            let name = format!("{style} {round}, PLIMSOLL_SEED={seed}");
            cases.push(Case { style, name, messages: messages.into(), tools: with_tools.then(tools), generate, extra });
        }
    }
    let said = jinja::render(&python, &cases.iter().map(Case::for_python).collect::<Vec<_>>());
    let mut rendered = 0;
    for (case, want) in cases.iter().zip(said) {
        let got = case.rendered();
        if want.get("failed").is_some() && got.get("failed").is_some() {
            continue;
        }
        rendered += usize::from(want.get("text").is_some());
        assert!(got == want, "{}", case.difference(&got, &want));
    }
    assert!(rendered > cases.len() / 3, "{rendered} of {} rendered", cases.len());
}

fn rand_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
