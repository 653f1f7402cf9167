//! What real engines sent over the wire (`shared/wire`), read as the gateway reads it.

use super::*;
use plimsoll_cache::chain::{NameFormat, Namespace};
use plimsoll_cache::view::FleetView;
use plimsoll_core::{EngineKind, InstanceId, KvEvent, Nanos, Rank, Target};
use plimsoll_pools::kv_events::decode_batch;
use serde_json::Value;

const TARGET: Target = Target { instance: InstanceId(1), rank: Rank(0) };

/// A recording is kept decoded; this is msgpack as the engines' encoders write it.
fn pack(value: &Value, out: &mut Vec<u8>) {
    let head = |out: &mut Vec<u8>, small: u8, most: usize, wide: [u8; 2], len: usize| {
        if len <= most {
            out.push(small | len as u8);
        } else if len <= 0xff && wide[0] == 0xd9 {
            out.extend([0xd9, len as u8]);
        } else {
            out.push(wide[1]);
            out.extend((len as u16).to_be_bytes());
        }
    };
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(flag) => out.push(0xc2 + u8::from(*flag)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) if n < 0x80 => out.push(n as u8),
            (Some(n), _) if n <= 0xff => out.extend([0xcc, n as u8]),
            (Some(n), _) if n <= 0xffff => {
                out.push(0xcd);
                out.extend((n as u16).to_be_bytes());
            }
            (Some(n), _) if n <= 0xffff_ffff => {
                out.push(0xce);
                out.extend((n as u32).to_be_bytes());
            }
            (Some(n), _) => {
                out.push(0xcf);
                out.extend(n.to_be_bytes());
            }
            (None, Some(n)) => {
                out.push(0xd3);
                out.extend(n.to_be_bytes());
            }
            (None, None) => {
                out.push(0xcb);
                out.extend(number.as_f64().unwrap_or_default().to_be_bytes());
            }
        },
        Value::String(text) => {
            head(out, 0xa0, 31, [0xd9, 0xda], text.len());
            out.extend(text.as_bytes());
        }
        Value::Array(list) => {
            head(out, 0x90, 15, [0, 0xdc], list.len());
            list.iter().for_each(|one| pack(one, out));
        }
        Value::Object(map) => {
            head(out, 0x80, 15, [0, 0xde], map.len());
            for (name, one) in map {
                pack(&Value::String(name.clone()), out);
                pack(one, out);
            }
        }
    }
}

/// Numbers and payloads of a recording; `None`, said on stderr, where there is none.
fn recorded(file: &str) -> Option<Vec<(u64, Vec<u8>)>> {
    let Some(shared) = std::env::var_os("PLIMSOLL_SHARED") else {
        eprintln!("skipped {file}: set PLIMSOLL_SHARED to the folder with `wire`");
        return None;
    };
    let text = std::fs::read_to_string(std::path::Path::new(&shared).join("wire").join(file)).unwrap();
    let mut messages = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let Some(seq) = line["seq"].as_u64() else { continue };
        let mut payload = Vec::new();
        pack(&line["payload"], &mut payload);
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let head = line["hex_head"].as_str().unwrap();
        // Behind the time, whose last bit does not survive JSON.
        assert_eq!(hex[20..head.len()], head[20..], "{file} {seq}");
        assert_eq!(Some(payload.len() as u64), line["bytes"].as_u64(), "{file} {seq}");
        messages.push((seq, payload));
    }
    Some(messages)
}

/// Every block that a real SGLang and a real vLLM named can be named from its tokens alone, and the view follows them.
#[test]
fn recordings_of_real_engines_are_understood_to_the_last_block() {
    let files = [
        ("kv_events_sglang.jsonl", EngineKind::Sglang, NameFormat::Sglang),
        ("kv_events_vllm.jsonl", EngineKind::Vllm, NameFormat::VllmCbor),
        ("kv_events_vllm_evict.jsonl", EngineKind::Vllm, NameFormat::VllmCbor),
        ("kv_events_vllm_replay.jsonl", EngineKind::Vllm, NameFormat::VllmCbor),
    ];
    for (file, kind, format) in files {
        let Some(messages) = recorded(file) else { return };
        let mut view = FleetView::default();
        view.add(TARGET, kind, None);
        // Recordings begin in the middle of a stream: their buffer is all there is to replay.
        let mut stored = Vec::new();
        for (seq, payload) in &messages {
            let batch = decode_batch(payload).unwrap();
            assert_eq!(batch.skipped, 0, "{file} {seq}");
            for event in &batch.events {
                if let KvEvent::Stored(blocks) = event {
                    stored.push(blocks.clone());
                }
            }
            view.live(Nanos(1), TARGET, *seq, batch);
            view.replay_ended(Nanos(1), TARGET);
        }
        let (_, state) = view.publishers(Nanos(2)).next().unwrap();
        let roots = stored.iter().filter(|blocks| blocks.parent.is_none() && blocks.cache_salt.is_none()).count();
        if roots > 0 {
            assert_eq!(state.family.map(|family| family.format), Some(format), "{file}");
        }
        assert_eq!((state.misnamed, state.skipped), (0, 0), "{file}");
        for blocks in stored.iter().filter(|blocks| blocks.parent.is_none()) {
            let namespace = Namespace { cache_salt: blocks.cache_salt.as_deref(), ..Namespace::default() };
            let names = plimsoll_cache::chain::names(format, blocks.block_tokens, namespace, &blocks.tokens);
            assert_eq!(names.as_deref(), Some(blocks.names.as_slice()), "{file}");
        }
    }
}

/// Engines serve a model under several names, and adapters on it: all of them use the KV of the one model.
#[test]
fn other_names_of_a_model_find_its_view_and_adapters_share_nothing() {
    let views = KvViews::default();
    let entry = views.add_text("base", TARGET, EngineKind::Vllm, 1 << 20);
    let alias = |adapter: Option<&str>| Alias { model: "base".to_owned(), adapter: adapter.map(str::to_owned) };
    let names = [("other".to_owned(), alias(None)), ("tuned".to_owned(), alias(Some("tuned")))];
    views.name(&names.into_iter().collect());
    let ids = PromptIds { ids: (0..640).collect(), ..PromptIds::default() };
    let prompt = |model: &str| views.prompt(Basis::Text, Some(model), &ids).map(|(_, prompt)| prompt);
    let name = ViewName { basis: Basis::Text, model: "base" };
    views.routed(Nanos(1), name, TARGET, &prompt("base").unwrap());
    let hit = |model: &str| views.hits(Nanos(2), name, &prompt(model).unwrap()).get(&TARGET).map(Hit::tokens);
    assert_eq!((hit("base"), hit("other"), hit("tuned")), (Some(576), Some(576), None));
    assert!(prompt("nobody").is_none());
    views.remove(name, TARGET, entry);
    assert!(prompt("other").is_none() && views.views.lock().aliases.is_empty());
}
