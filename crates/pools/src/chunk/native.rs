//! Events of SGLang's `/generate`.

use super::scan::{self, Counts};
use super::{ChunkFacts, ChunkKind, finish, wire_error};
use serde_json::Value;

/// Facts of one event of a native SGLang stream. Runs for every event of every stream; `usage` is there on each, with
/// the counts so far of the event's index.
#[must_use]
pub fn inspect_sglang_chunk(data: &[u8]) -> ChunkFacts {
    let mut facts = ChunkFacts { kind: scan::kind(data), ..ChunkFacts::default() };
    if facts.kind != ChunkKind::Event {
        return facts;
    }
    let mut counts = Counts::default();
    let mut must_parse = false;
    for (key, value) in scan::keys(data) {
        match key {
            b"text" | b"output_ids" => facts.tokens |= scan::is_filled(value),
            b"finish_reason" | b"error" | b"detail" => must_parse |= !scan::is_null(value),
            b"object" => must_parse |= value.starts_with(b"\"error\""),
            b"index" => {
                facts.index = scan::number(value).and_then(|i| u32::try_from(i).ok()).unwrap_or(0);
            }
            _ => counts.see(key, value),
        }
    }
    facts.usage = counts.usage();
    if must_parse {
        match serde_json::from_slice::<Value>(data) {
            Ok(event) => parse(&event, &mut facts),
            Err(_) => return scan::garbage(),
        }
    }
    facts
}

#[cold]
fn parse(event: &Value, facts: &mut ChunkFacts) {
    facts.error = wire_error::read(event);
    let Some(meta) = event.get("meta_info") else { return };
    facts.index = finish::index(event.get("index"));
    let Some((finish, abort)) = finish::read(facts.index, meta.get("finish_reason")) else { return };
    if abort.is_some() {
        // An abort of a waiting request may send the whole text and the last token again.
        facts.tokens = false;
    }
    super::openai::note(&finish.reason, abort, &mut facts.error, &mut facts.abort);
    facts.finishes.push(finish);
}
