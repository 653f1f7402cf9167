use super::*;
use crate::tokenizer::FIRST_WORD;
use crate::words::WORDS;
use plimsoll_protocol::chat_template::Conversation;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The tiny model's text, written to files and read back.
static READ_BACK: LazyLock<Text> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    Text::default().export(None, folder.path()).unwrap();
    Text::open(folder.path(), &ModelConfig::default()).unwrap()
});

fn render(text: &Text, messages: &Value, tools: Option<&Value>) -> String {
    let conversation = Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        continue_final_message: false,
        extra: None,
        now: jiff::civil::date(2026, 1, 1).at(0, 0, 0, 0),
    };
    text.template(tools.is_some()).unwrap().render(&conversation).unwrap()
}

#[test]
fn the_next_turn_extends_the_last_one() {
    let text = Text::default();
    let mut turns =
        vec![json!({"role": "system", "content": " ship load"}), json!({"role": "user", "content": " run"})];
    let ids = |turns: &[Value]| text.encode(&render(&text, &json!(turns), None), false).unwrap();
    let mut first = ids(&turns);
    // What the engine generated after the prompt: words and the end token.
    first.extend(text.encode(" load ship<|im_end|>", false).unwrap());
    turns.push(json!({"role": "assistant", "content": " load ship"}));
    turns.push(json!({"role": "user", "content": " ship"}));
    assert!(ids(&turns).starts_with(&first));
    assert_eq!(
        render(&text, &json!([{"role": "user", "content": "a"}]), None),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn tools_are_part_of_the_prompt() {
    let tools = json!([{"type": "function", "function": {"name": "stow", "parameters": {"type": "object"}}}]);
    let call = json!({"type": "function", "function": {"name": "stow", "arguments": {"b": 1, "a": "<x>"}}});
    let messages = json!([
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "done"},
    ]);
    let text = render(&Text::default(), &messages, Some(&tools));
    assert!(text.starts_with("<|im_start|>system\nbe brief\n\n# Tools\n<tools>\n{\"type\": \"function\", "), "{text}");
    assert!(text.contains("<tool_call>\n{\"name\": \"stow\", \"arguments\": {\"b\": 1, \"a\": \"<x>\"}}\n</tool_call><|im_end|>\n<|im_start|>tool\ndone"), "{text}");
    assert_eq!(text.matches("be brief").count(), 1);
    assert_eq!(render(&READ_BACK, &messages, Some(&tools)), text);
}

#[test]
fn the_exported_tokenizer_knows_what_the_tiny_one_knows() {
    assert!(!READ_BACK.is_tiny());
    assert_eq!(READ_BACK.end_token(), Some(IM_END));
    let all: String = WORDS.iter().map(|word| format!(" {word}")).collect();
    assert_eq!(READ_BACK.encode(&all, true).unwrap(), (FIRST_WORD..VOCAB as u32).collect::<Vec<_>>());
    for id in 0..VOCAB as u32 + 3 {
        assert_eq!(READ_BACK.token_bytes(id), Text::default().token_bytes(id), "{id}");
    }
    let small = ModelConfig { vocab_tokens: 1023, ..ModelConfig::default() };
    let folder = tempfile::tempdir().unwrap();
    Text::default().export(None, folder.path()).unwrap();
    let error = Text::open(folder.path(), &small).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("another model's"), "{error}");
    // A folder's text is exported as it is.
    let copy = tempfile::tempdir().unwrap();
    READ_BACK.export(Some(folder.path()), copy.path()).unwrap();
    assert_eq!(
        std::fs::read(copy.path().join("tokenizer.json")).unwrap(),
        std::fs::read(folder.path().join("tokenizer.json")).unwrap()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A gateway with the exported files gets the ids that the engine itself makes, and reads them alike.
    #[test]
    fn the_exported_tokenizer_gives_the_same_ids(parts in prop::collection::vec(
        prop_oneof![
            any::<String>(),
            "( [a-z]{1,9}){1,4}",
            " {0,3}[a-zA-Z0-9é漢🚢<|>_\n\t]{0,6}",
            (0usize..752).prop_map(|i| format!(" {}", WORDS[i])),
            (0usize..752, "[a-z!. ]").prop_map(|(i, tail)| format!(" {}{tail}", WORDS[i])),
            prop::sample::select(vec!["<|im_end|>", "<|im_start|>", "<|reserved_15|>", "<|reserved_1|>", "<|im_", "|>", "<<|im_end|>"]).prop_map(str::to_owned),
        ], 0..8)
    ) {
        let text = parts.concat();
        let own = Text::default().encode(&text, true).unwrap();
        prop_assert_eq!(&READ_BACK.encode(&text, true).unwrap(), &own);
        prop_assert_eq!(READ_BACK.decode(&own), text);
    }

    #[test]
    fn the_exported_tokenizer_reads_the_same(ids in prop::collection::vec(0u32..1030, 0..40), skip: bool) {
        let (mut own, mut other) = (Text::default().stream(skip), READ_BACK.stream(skip));
        for id in ids {
            own.push(id);
            other.push(id);
            prop_assert_eq!(own.text(), other.text());
        }
        own.finish();
        other.finish();
        prop_assert_eq!(own.text(), other.text());
    }
}
