//! Request bodies: whatever the scan accepts, a JSON parser accepts and understands the same way, and splicing an id
//! into it changes nothing else.

use crate::json;
use bytes::Bytes;
use plimsoll_protocol::request::{Api, PromptSize, RequestFacts, Set, scan, splice};
use serde_json::Value;

const RID: &str = "00000000-fuzz-4000-8000-000000000000";

pub fn run(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    for api in [Api::Chat, Api::Completions, Api::Embeddings, Api::Generate] {
        match scan(api, &body) {
            Ok(facts) => accepted(api, &body, &facts),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn accepted(api: Api, body: &Bytes, facts: &RequestFacts) {
    spliced(body, facts);
    let tree = match json::tree(body) {
        Ok(tree) => tree,
        Err(error) => panic!("{api:?}: the scan took what is not JSON: {error}"),
    };
    if let Some(tree) = tree {
        agree(api, &tree, facts);
    }
}

fn agree(api: Api, tree: &Value, facts: &RequestFacts) {
    assert!(tree.is_object());
    assert_eq!(facts.model.as_deref(), tree["model"].as_str());
    assert_eq!(facts.stream, tree["stream"] == true && api != Api::Embeddings);
    assert_eq!(facts.rid.is_some(), tree.get("rid").is_some());
    let most = match api {
        Api::Generate => tree["sampling_params"]["max_new_tokens"].as_u64(),
        _ => tree["max_completion_tokens"].as_u64().or_else(|| tree["max_tokens"].as_u64()),
    };
    assert_eq!(facts.max_output_tokens, most);
    assert!(facts.sequences > 0);
    if let PromptSize::Tokens(tokens) = facts.prompt {
        let ids = match api {
            Api::Chat | Api::Generate => &tree["input_ids"],
            Api::Completions => &tree["prompt"],
            Api::Embeddings => &tree["input"],
        };
        assert!(ids.is_array(), "{api:?}: token ids that are no list");
        assert_eq!(tokens, whole_numbers(ids), "{api:?}");
    }
}

fn whole_numbers(ids: &Value) -> u64 {
    match ids {
        Value::Array(items) => items.iter().map(whole_numbers).sum(),
        // Ids beyond 64 bits become floats in the tree; the engine refuses them.
        Value::Number(_) => 1,
        other => panic!("{other} among token ids"),
    }
}

/// Exactly one `rid`, ours, and one `priority`; every other member as it was, in its place.
fn spliced(body: &Bytes, facts: &RequestFacts) {
    let joined = splice(body, facts, &Set { rid: Some(RID), rank: Some((&["rank"], 3)), priority: Some(-7) }).concat();
    let (Some(before), Some(after)) = (json::members(body), json::members(&joined)) else {
        // A lone surrogate in a key is within the grammar, but no string.
        assert!(json::tree(body).is_ok_and(|tree| tree.is_none()), "the spliced body is no object");
        return;
    };
    let others = |all: &[(String, Box<serde_json::value::RawValue>)]| -> Vec<(String, String)> {
        let ours = ["rid", "priority", "rank"];
        let rest = all.iter().filter(|(key, _)| !ours.contains(&key.as_str()));
        rest.map(|(key, raw)| (key.clone(), raw.get().to_owned())).collect()
    };
    assert_eq!(others(&before), others(&after));
    for (key, value) in [("rid", format!("\"{RID}\"")), ("priority", "-7".to_owned())] {
        let found: Vec<_> = after.iter().filter(|(name, _)| name == key).map(|(_, raw)| raw.get()).collect();
        assert_eq!(found, [value]);
    }
    let last = after.last().map(|(key, raw)| (key.as_str(), raw.get()));
    assert_eq!(last, Some(("rank", "3")), "a later one would win");
    assert_eq!(splice(body, facts, &Set::default()).concat(), **body);
}
