//! Conversations, tools and tokenizers, the tiny model's and a folder's.

use crate::client::{Server, config};
use plimsoll_engine::EngineConfig;
use plimsoll_engine::text::{Text, export};
use serde_json::{Value, json};

/// A server whose text comes from the tiny model's exported files, changed by `change`.
fn from_folder(change: impl Fn(&mut Value, &mut Value)) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let (mut tokenizer, mut settings) = (export::tokenizer(), export::config());
    change(&mut tokenizer, &mut settings);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    let mut config = config();
    let text = Text::open(folder.path(), &config.model).unwrap();
    config.use_text(text);
    Server::start(config)
}

fn chat(content: &str, extra: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0, "return_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The text of a chat prompt.
fn prompt(server: &Server, extra: &Value) -> String {
    let ids = server.ask("/tokenize", &chat(" ship", extra));
    assert_eq!(ids["count"], ids["tokens"].as_array().unwrap().len());
    server.ask("/detokenize", &json!({"tokens": ids["tokens"]}))["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn a_folders_text_serves_as_the_built_in_one() {
    let own = Server::start(config());
    let folder = from_folder(|_, _| {});
    let tools = json!({"tools": [{"type": "function", "function": {"name": "stow", "parameters": {"a": "<&>"}}}]});
    for extra in [json!({}), tools, json!({"seed": 3, "temperature": 1.0, "logprobs": true, "top_logprobs": 2})] {
        let ask =
            |server: &Server| server.ask("/v1/chat/completions", &chat(" ship 漢字 load, it's 7 o'clock", &extra));
        let (left, right) = (ask(&own), ask(&folder));
        assert_eq!(left["choices"], right["choices"]);
        assert_eq!(left["prompt_token_ids"], right["prompt_token_ids"]);
    }
    let completion = json!({"prompt": " ship load\n", "max_tokens": 9, "temperature": 0, "logprobs": 1, "echo": true});
    let ask = |server: &Server| server.ask("/v1/completions", &completion)["choices"].clone();
    assert_eq!(ask(&own), ask(&folder));
    let generate = json!({"text": " ship", "sampling_params": {"temperature": 0, "max_new_tokens": 9}, "stream": true});
    let last = |server: &Server| server.post("/generate", &generate).events().last().unwrap()["text"].clone();
    assert_eq!(last(&own), last(&folder));
}

#[test]
fn a_tokenizers_own_rules_hold() {
    let server = from_folder(|tokenizer, settings| {
        let first = json!({"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}});
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}},
        });
        settings["bos_token"] = json!("<|endoftext|>");
        settings["eos_token"] = json!({"content": "<|reserved_3|>"});
        settings["chat_template"] = json!(
            "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}\
             [{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}{{ strftime_now('%Y') | length }}{{ mood }}"
        );
    });
    let ids = |body: Value| server.ask("/tokenize", &body)["tokens"].clone();
    assert_eq!(ids(json!({"prompt": " ship"})), json!([256, Text::default().encode(" ship", false).unwrap()[0]]));
    assert_eq!(ids(json!({"prompt": " ship", "add_special_tokens": false})).as_array().unwrap().len(), 1);
    assert_eq!(server.ask("/tokenize", &json!({"prompt": ["a", "bc"]}))["count"], json!([2, 3]));
    let mood = json!({"chat_template_kwargs": {"mood": "calm"}});
    assert_eq!(prompt(&server, &mood), "<|endoftext|>[user]ship<|reserved_3|>4calm");
    let body = json!({"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]});
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["message"], "messages: no system messages");
    // The end token of the tokenizer's settings ends an answer as well as the model's own.
    let body = json!({"prompt": " ship", "max_tokens": 9, "logit_bias": {"258": 100}});
    assert_eq!(server.ask("/v1/completions", &body)["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_model_without_a_template_takes_no_conversations() {
    let server = from_folder(|_, settings| settings["chat_template"] = Value::Null);
    let answer = server.post("/v1/chat/completions", &chat("x", &json!({})));
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("no chat template"));
    assert_eq!(server.ask("/v1/completions", &json!({"prompt": " ship"}))["usage"]["prompt_tokens"], 1);
}

#[test]
fn chat_bodies_are_rendered_as_asked() {
    let server = Server::start(config());
    assert_eq!(prompt(&server, &json!({})), "<|im_start|>user\n ship<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(prompt(&server, &json!({"add_generation_prompt": false})), "<|im_start|>user\n ship<|im_end|>\n");
    let parts = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]});
    assert!(prompt(&server, &parts).contains("user\na b<"), "joined as SGLang joins them");
    let tools = json!([{"type": "function", "function": {"name": "stow"}}]);
    assert!(prompt(&server, &json!({"tools": tools})).contains("\"stow\""));
    assert!(!prompt(&server, &json!({"tools": tools, "tool_choice": "none"})).contains("stow"));
    let called = json!({"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "stow", "arguments": "{\"b\": 1, \"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]});
    assert!(
        prompt(&server, &called)
            .contains("<tool_call>\n{\"name\": \"stow\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>")
    );
    let begun = json!({"continue_final_message": true, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " ship load"}]});
    assert!(prompt(&server, &begun).ends_with("<|im_start|>assistant\n ship load"));
    // Token ids in place of messages are the prompt, and what a request's ids say is what was tokenised.
    let ids = server.ask("/tokenize", &chat(" ship", &json!({})))["tokens"].clone();
    let by_text = server.ask("/v1/chat/completions", &chat(" ship", &json!({})));
    assert_eq!(by_text["prompt_token_ids"], ids);
    let by_ids = json!({"input_ids": ids, "max_tokens": 12, "temperature": 0});
    let by_ids = server.ask("/v1/chat/completions", &by_ids);
    assert_eq!(by_ids["choices"][0]["message"], by_text["choices"][0]["message"]);
}

#[test]
fn wrong_conversations_are_refused_by_field() {
    let server = Server::start(EngineConfig { context_tokens: 128, ..config() });
    for (extra, name) in [
        (json!({"tools": {}}), "tools"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "stow"}}}), "tool_choice"),
        (json!({"chat_template": "{{ 1 }}"}), "chat_template"),
        (json!({"documents": [{"text": "x"}]}), "documents"),
        (json!({"chat_template_kwargs": 7}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs"),
        (json!({"reasoning_effort": 1}), "reasoning_effort"),
        (json!({"continue_final_message": true, "add_generation_prompt": true}), "continue_final_message"),
        (
            json!({"continue_final_message": true, "messages": [{"role": "assistant", "content": ""}]}),
            "continue_final_message",
        ),
        (json!({"messages": ["x"]}), "messages[0]"),
        (json!({"messages": [{"role": "user", "content": "x"}, {"content": "x"}]}), "messages[1].role"),
        (json!({"messages": [{"role": "user", "content": "x", "tool_calls": 1}]}), "messages[0].tool_calls"),
        (json!({"messages": {}}), "messages"),
        (json!({"input_ids": [5000]}), "input_ids"),
        (json!({"input_ids": []}), "messages"),
        (json!({"input_ids": "x"}), "input_ids"),
    ] {
        let answer = server.post("/v1/chat/completions", &chat(" ship", &extra));
        assert_eq!(answer.status, 400, "{extra}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], name, "{extra}: {error}");
    }
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"prompt": 7})),
        ("/detokenize", json!({"tokens": [-1]})),
        ("/v1/detokenize", json!({"tokens": "x"})),
    ] {
        assert_eq!(server.post(path, &body).status, 400, "{path} {body}");
    }
    // A large body is read beside the others, with the same answer.
    let long = server.post("/v1/chat/completions", &chat(&" ship".repeat(20_000), &json!({})));
    assert_eq!((long.status, long.json()["error"]["code"].clone()), (400, json!("context_length_exceeded")));
    server.wait_empty();
}
