use super::*;
use crate::chat_template::Conversation;
use serde_json::json;

/// A folder with the smallest tokenizer, and these further files.
fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "added_tokens": [{"id": 2, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<end>": 2}, "unk_token": "a"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, content) in files {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(file, text).unwrap();
    }
    folder
}

fn rendered(text: &ModelText, with_tools: bool) -> String {
    let messages = json!([{"role": "user", "content": "x"}]);
    let conversation = Conversation {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        continue_final_message: false,
        extra: None,
        now: jiff::civil::date(2026, 1, 1).at(0, 0, 0, 0),
    };
    text.template(with_tools).unwrap().render(&conversation).unwrap()
}

fn opened(files: &[(&str, Value)]) -> Result<ModelText, FolderError> {
    ModelText::open(folder(files).path(), 3)
}

#[test]
fn templates_are_found_wherever_they_are() {
    let config = json!({"chat_template": "config{{ eos_token }}", "eos_token": {"content": "<end>", "lstrip": false}});
    let text = opened(&[("tokenizer_config.json", config.clone())]).unwrap();
    assert_eq!((rendered(&text, false), text.eos_token), ("config<end>".to_owned(), Some(2)));
    let text = opened(&[
        ("tokenizer_config.json", config.clone()),
        ("chat_template.json", json!({"chat_template": "legacy"})),
    ]);
    assert_eq!(rendered(&text.unwrap(), false), "legacy");
    let text = opened(&[("tokenizer_config.json", config), ("chat_template.jinja", json!("file{{ eos_token }}"))]);
    assert_eq!(rendered(&text.unwrap(), true), "file<end>");
    let list =
        json!({"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]});
    let text =
        opened(&[("tokenizer_config.json", list), ("special_tokens_map.json", json!({"eos_token": "<end>"}))]).unwrap();
    assert_eq!(
        (rendered(&text, false), rendered(&text, true), text.eos_token),
        ("plain".into(), "tools".into(), Some(2))
    );
    let extra = [("chat_template.jinja", json!("plain")), ("additional_chat_templates/tool_use.jinja", json!("tools"))];
    assert_eq!(rendered(&opened(&extra).unwrap(), true), "tools");
    let bare = opened(&[]).unwrap();
    assert!(bare.template(false).is_none() && bare.eos_token.is_none());
}

#[test]
fn what_does_not_fit_is_named_with_its_file() {
    let error = ModelText::open(folder(&[]).path(), 2).unwrap_err();
    assert!(matches!(error, FolderError::DoesNotFit { largest: 2, vocab_tokens: 2, .. }), "{error}");
    assert!(error.to_string().contains("tokenizer.json: has token 2"), "{error}");
    let missing = ModelText::open(Path::new("/nowhere"), 3).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/tokenizer.json: cannot be read"), "{missing}");
    for (file, content, what) in [
        ("tokenizer_config.json", json!("{"), "not valid JSON"),
        ("tokenizer_config.json", json!([1]), "not a JSON object"),
        ("tokenizer_config.json", json!({"chat_template": 7}), "neither a text nor a list"),
        ("tokenizer_config.json", json!({"chat_template": "{% if %}"}), "chat template is not valid"),
        ("chat_template.jinja", json!("{{ x"), "chat template is not valid"),
    ] {
        let error = opened(&[(file, content)]).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(what), "{error}");
    }
}
