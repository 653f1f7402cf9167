//! The bytes of a batch, as the stock engines write them: msgpack, integers in the fewest bytes, the batch an array
//! `[ts, events, rank]`.
//!
//! Written by hand because the forms are: SGLang up to 0.5.18 and old vLLM write events as arrays with the tag first,
//! newer ones as maps with the key `type`, and each leaves out other empty fields. Golden bytes are in the tests.

use super::{KvEvent, Medium, Owner};
use plimsoll_cache::EventHash;

#[cfg(test)]
mod tests;

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// SGLang 0.5.20 and later: tagged maps, empty fields left out.
    #[default]
    SglangMap,
    /// SGLang 0.5.10 to 0.5.18: arrays; a salt goes into a map at index 7.
    SglangArray,
    /// vLLM 0.26 and later: tagged maps with per-block extra keys and the KV cache group.
    Vllm,
}

/// Encodes one batch. `ts` is in seconds since 1970.
#[must_use]
pub fn batch(form: Form, ts: f64, events: &[KvEvent], rank: u32) -> Vec<u8> {
    let mut out = Pack(Vec::with_capacity(256));
    out.array(3);
    out.float(ts);
    // vLLM withdraws block by block.
    let count = |event: &KvEvent| match event {
        KvEvent::Removed { names, .. } if form == Form::Vllm => names.len(),
        _ => 1,
    };
    out.array(events.iter().map(count).sum());
    for event in events {
        match form {
            Form::SglangMap => sglang_map(&mut out, event),
            Form::SglangArray => sglang_array(&mut out, event),
            Form::Vllm => vllm(&mut out, event),
        }
    }
    out.unsigned(u64::from(rank));
    out.0
}

fn sglang_map(out: &mut Pack, event: &KvEvent) {
    match event {
        KvEvent::Stored { names, parent, tokens, owner, medium } => {
            let optional = optional(owner);
            let present = optional.iter().filter(|(_, value)| value.is_some()).count();
            out.map(7 + present);
            out.entry("type", "BlockStored");
            stored_fields(out, names, *parent, tokens, i64_name);
            out.text("lora_id");
            out.nil();
            out.entry("medium", sglang_medium(*medium));
            for (name, value) in optional {
                if let Some(value) = value {
                    out.entry(name, value);
                }
            }
        }
        KvEvent::Removed { names, medium } => {
            out.map(3);
            out.entry("type", "BlockRemoved");
            out.text("block_hashes");
            name_list(out, names, i64_name);
            out.entry("medium", sglang_medium(*medium));
        }
        KvEvent::Cleared => {
            out.map(1);
            out.entry("type", "AllBlocksCleared");
        }
    }
}

fn sglang_array(out: &mut Pack, event: &KvEvent) {
    match event {
        KvEvent::Stored { names, parent, tokens, owner, medium } => {
            let salt = owner.namespace.cache_salt.as_deref();
            out.array(7 + usize::from(salt.is_some()));
            out.text("BlockStored");
            name_list(out, names, i64_name);
            out.optional_name(*parent, i64_name);
            token_list(out, tokens);
            out.unsigned((tokens.len() / names.len().max(1)) as u64);
            out.nil();
            out.text(sglang_medium(*medium));
            if let Some(salt) = salt {
                out.map(1);
                out.entry("cache_salt", salt);
            }
        }
        KvEvent::Removed { names, medium } => {
            out.array(3);
            out.text("BlockRemoved");
            name_list(out, names, i64_name);
            out.text(sglang_medium(*medium));
        }
        KvEvent::Cleared => {
            out.array(1);
            out.text("AllBlocksCleared");
        }
    }
}

fn vllm(out: &mut Pack, event: &KvEvent) {
    match event {
        KvEvent::Stored { names, parent, tokens, owner, medium } => {
            let session = owner.session_id.as_deref();
            out.map(11 + usize::from(session.is_some()));
            out.entry("type", "BlockStored");
            stored_fields(out, names, *parent, tokens, u64_name);
            out.text("lora_id");
            out.nil();
            out.entry("medium", vllm_medium(*medium));
            out.text("lora_name");
            out.optional_text(owner.namespace.lora.as_deref());
            out.text("extra_keys");
            out.array(names.len());
            for index in 0..names.len() {
                vllm_extra_keys(out, owner, index == 0 && parent.is_none());
            }
            out.text("group_idx");
            out.unsigned(0);
            out.entry("kv_cache_spec_kind", "full_attention");
            if let Some(session) = session {
                out.entry("session_id", session);
            }
        }
        KvEvent::Removed { names, medium } => {
            for name in names {
                out.map(4);
                out.entry("type", "BlockRemoved");
                out.text("block_hashes");
                name_list(out, std::slice::from_ref(name), u64_name);
                out.entry("medium", vllm_medium(*medium));
                out.text("group_idx");
                out.unsigned(0);
            }
        }
        KvEvent::Cleared => {
            out.map(1);
            out.entry("type", "AllBlocksCleared");
        }
    }
}

fn stored_fields(out: &mut Pack, names: &[EventHash], parent: Option<EventHash>, tokens: &[u32], name: NameForm) {
    out.text("block_hashes");
    name_list(out, names, name);
    out.text("parent_block_hash");
    out.optional_name(parent, name);
    out.text("token_ids");
    token_list(out, tokens);
    out.text("block_size");
    out.unsigned((tokens.len() / names.len().max(1)) as u64);
}

/// SGLang's fields that are left out while empty, in its order.
fn optional(owner: &Owner) -> [(&'static str, Option<&str>); 3] {
    [
        ("cache_salt", owner.namespace.cache_salt.as_deref()),
        ("session_id", owner.session_id.as_deref()),
        ("lora_name", owner.namespace.lora.as_deref()),
    ]
}

fn vllm_extra_keys(out: &mut Pack, owner: &Owner, first: bool) {
    let space = &owner.namespace;
    let of_first = |key: &'_ Option<std::sync::Arc<str>>| key.clone().filter(|_| first);
    let keys: Vec<_> =
        [space.lora.clone(), of_first(&space.cache_salt), of_first(&space.extra_key)].into_iter().flatten().collect();
    if keys.is_empty() {
        return out.nil();
    }
    out.array(keys.len());
    for key in &keys {
        out.text(key);
    }
}

fn sglang_medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU_PINNED",
    }
}

fn vllm_medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU",
    }
}

type NameForm = fn(&mut Pack, EventHash);

fn i64_name(out: &mut Pack, name: EventHash) {
    out.signed(name);
}

fn u64_name(out: &mut Pack, name: EventHash) {
    out.unsigned(name.cast_unsigned());
}

fn name_list(out: &mut Pack, names: &[EventHash], write: NameForm) {
    out.array(names.len());
    for name in names {
        write(out, *name);
    }
}

fn token_list(out: &mut Pack, tokens: &[u32]) {
    out.array(tokens.len());
    for token in tokens {
        out.unsigned(u64::from(*token));
    }
}

/// msgpack, the part of it that batches need.
struct Pack(Vec<u8>);

impl Pack {
    fn nil(&mut self) {
        self.0.push(0xc0);
    }

    fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend_from_slice(&value.to_be_bytes());
    }

    fn unsigned(&mut self, value: u64) {
        let bytes = value.to_be_bytes();
        let (tag, from) = match value {
            0..0x80 => return self.0.push(value as u8),
            0x80..0x100 => (0xcc, 7),
            0x100..0x1_0000 => (0xcd, 6),
            0x1_0000..0x1_0000_0000 => (0xce, 4),
            _ => (0xcf, 0),
        };
        self.0.push(tag);
        self.0.extend_from_slice(&bytes[from..]);
    }

    fn signed(&mut self, value: i64) {
        let bytes = value.to_be_bytes();
        let (tag, from) = match value {
            0.. => return self.unsigned(value.cast_unsigned()),
            -0x20..0 => return self.0.push(bytes[7]),
            -0x80..-0x20 => (0xd0, 7),
            -0x8000..-0x80 => (0xd1, 6),
            -0x8000_0000..-0x8000 => (0xd2, 4),
            _ => (0xd3, 0),
        };
        self.0.push(tag);
        self.0.extend_from_slice(&bytes[from..]);
    }

    fn length(&mut self, length: usize, short: u8, short_below: usize, tags: [u8; 2]) {
        let bytes = (length as u32).to_be_bytes();
        if length < short_below {
            self.0.push(short | length as u8);
        } else if length < 0x1_0000 {
            self.0.push(tags[0]);
            self.0.extend_from_slice(&bytes[2..]);
        } else {
            self.0.push(tags[1]);
            self.0.extend_from_slice(&bytes);
        }
    }

    fn array(&mut self, length: usize) {
        self.length(length, 0x90, 16, [0xdc, 0xdd]);
    }

    fn map(&mut self, length: usize) {
        self.length(length, 0x80, 16, [0xde, 0xdf]);
    }

    fn text(&mut self, text: &str) {
        if (32..256).contains(&text.len()) {
            self.0.extend_from_slice(&[0xd9, text.len() as u8]);
        } else {
            self.length(text.len(), 0xa0, 32, [0xda, 0xdb]);
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    fn entry(&mut self, key: &str, value: &str) {
        self.text(key);
        self.text(value);
    }

    fn optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn optional_name(&mut self, name: Option<EventHash>, write: NameForm) {
        match name {
            Some(name) => write(self, name),
            None => self.nil(),
        }
    }
}
