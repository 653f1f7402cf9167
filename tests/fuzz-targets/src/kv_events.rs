//! Batches of KV events, in both dialects and all forms: what the decoder takes from the bytes in one pass is what a reading of the whole as
//! a tree of values says.

mod tree;

use plimsoll_core::{KvBatch, KvEvent, Medium, StoredBlocks};
use plimsoll_pools::kv_events::decode_batch;
use tree::{Tree, parse};

pub fn run(data: &[u8]) {
    let read = decode_batch(data).ok();
    // Values follow their bytes: nobody makes us hold more than was sent.
    if let Some(batch) = &read {
        let held: usize = batch.events.iter().map(size).sum();
        assert!(held <= data.len(), "{held} values from {} bytes", data.len());
    }
    assert_eq!(read, slow(data));
}

fn size(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored(stored) => stored.names.len() + stored.tokens.len(),
        KvEvent::Removed { names, .. } => names.len(),
        KvEvent::Cleared => 0,
    }
}

fn slow(data: &[u8]) -> Option<KvBatch> {
    let mut rest = data;
    let mut batch = KvBatch::default();
    let (map, len) = tree::head(&mut rest)?;
    if !map {
        if len < 2 {
            return None;
        }
        batch.at_unix_s = seconds(&parse(&mut rest, 0)?)?;
        events(&mut rest, &mut batch)?;
        if len > 2 {
            batch.rank = rank(&parse(&mut rest, 0)?)?;
        }
        return Some(batch);
    }
    let mut seen = false;
    for _ in 0..len {
        match parse(&mut rest, 0)? {
            Tree::Text(name) => match name.as_str() {
                "ts" => batch.at_unix_s = seconds(&parse(&mut rest, 0)?)?,
                "events" => {
                    events(&mut rest, &mut batch)?;
                    seen = true;
                }
                "attn_dp_rank" | "data_parallel_rank" | "dp_rank" => batch.rank = rank(&parse(&mut rest, 0)?)?,
                _ => drop(parse(&mut rest, 0)?),
            },
            Tree::Array(_) | Tree::Map(_) => return None,
            _ => drop(parse(&mut rest, 0)?),
        }
    }
    seen.then_some(batch)
}

fn seconds(tree: &Tree) -> Option<f64> {
    match tree {
        Tree::Float(seconds) => Some(*seconds).filter(|seconds| seconds.is_finite()),
        Tree::Unsigned(seconds) => Some(*seconds as f64),
        _ => None,
    }
}

fn rank(tree: &Tree) -> Option<Option<u16>> {
    match tree {
        Tree::Nil => Some(None),
        Tree::Unsigned(rank) => u16::try_from(*rank).ok().map(Some),
        _ => None,
    }
}

fn events(rest: &mut &[u8], batch: &mut KvBatch) -> Option<()> {
    let (false, len) = tree::head(rest)? else { return None };
    for _ in 0..len {
        // Events are as deep as they like, each for itself.
        match event(&parse(rest, 0)?).flatten() {
            Some(event) => batch.events.push(event),
            None => batch.skipped += 1,
        }
    }
    Some(())
}

#[derive(Default)]
struct Fields {
    stored: StoredBlocks,
    partial: bool,
}

const STORED: [&str; 7] =
    ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "metadata"];
const REMOVED: [&str; 2] = ["block_hashes", "medium"];

/// `None`: broken; `Some(None)`: whole, and of no use.
fn event(tree: &Tree) -> Option<Option<KvEvent>> {
    let mut fields = Fields::default();
    let mut kind = None;
    match tree {
        Tree::Array(values) => {
            let (Tree::Text(tag), values) = values.split_first()? else { return None };
            let places = if tag == "BlockRemoved" { &REMOVED[..] } else { &STORED[..] };
            for (place, value) in places.iter().zip(values) {
                fields.read(place, value)?;
            }
            kind = Some(tag.as_str());
        }
        Tree::Map(pairs) => {
            for (name, value) in pairs {
                match (name, value) {
                    (Tree::Text(name), Tree::Text(text)) if name == "type" => kind = Some(text),
                    (Tree::Text(name), _) if name == "type" => return None,
                    (Tree::Text(name), value) => fields.read(name, value)?,
                    _ => return None,
                }
            }
        }
        _ => return None,
    }
    let Fields { stored, partial } = fields;
    let whole = stored.tokens.is_empty()
        || stored.tokens.len() as u128 == stored.names.len() as u128 * u128::from(stored.block_tokens);
    Some(match kind {
        Some("BlockStored") if whole && !partial && !stored.names.is_empty() => Some(KvEvent::Stored(stored)),
        Some("BlockRemoved") if !partial => Some(KvEvent::Removed { names: stored.names, medium: stored.medium }),
        Some("AllBlocksCleared") => Some(KvEvent::Cleared),
        _ => None,
    })
}

impl Fields {
    fn read(&mut self, name: &str, value: &Tree) -> Option<()> {
        match (name, value) {
            ("block_hashes", Tree::Array(names)) => {
                self.stored.names = names.iter().map(|name| block_name(name)?).collect::<Option<_>>()?;
            }
            ("parent_block_hash", value) => self.stored.parent = block_name(value)?,
            ("token_ids", Tree::Array(ids)) => {
                let id = |id: &Tree| match id {
                    Tree::Unsigned(id) => u32::try_from(*id).ok(),
                    _ => None,
                };
                self.stored.tokens = ids.iter().map(id).collect::<Option<_>>()?;
            }
            ("block_size", Tree::Unsigned(size)) => self.stored.block_tokens = u32::try_from(*size).ok()?,
            ("medium", Tree::Nil) => {}
            ("medium", Tree::Text(text)) => {
                self.stored.medium = match text.as_str() {
                    "GPU" | "gpu" => Medium::Device,
                    "CPU" | "CPU_PINNED" | "cpu" => Medium::Host,
                    "DISK" | "STORAGE" | "EXTERNAL" => Medium::Storage,
                    _ => return None,
                };
            }
            ("lora_name", value) => self.stored.lora = text(value)?,
            ("cache_salt", value) => self.stored.cache_salt = text(value)?,
            ("kv_cache_spec_kind", value) => {
                self.partial = text(value)?.is_some_and(|kind| kind != "full_attention" && kind != "mla_attention");
            }
            ("metadata", Tree::Map(pairs)) => {
                for (name, value) in pairs {
                    let Tree::Text(name) = name else { return None };
                    self.read(name, value)?;
                }
            }
            ("extra_keys", Tree::Array(blocks)) => {
                let Some(Tree::Array(keys)) = blocks.first() else { return Some(()) };
                for key in keys {
                    match key {
                        Tree::Text(salt) => self.stored.cache_salt = Some(salt.clone()),
                        Tree::Array(pair) => {
                            if let [Tree::Text(word), Tree::Text(salt)] = pair.as_slice()
                                && word == "cache_salt"
                            {
                                self.stored.cache_salt = Some(salt.clone());
                            }
                        }
                        _ => {}
                    }
                }
            }
            ("block_hashes" | "token_ids" | "block_size" | "medium", _) => return None,
            _ => {}
        }
        Some(())
    }
}

fn text(value: &Tree) -> Option<Option<String>> {
    match value {
        Tree::Text(text) => Some(Some(text.clone())),
        Tree::Nil => Some(None),
        _ => None,
    }
}

fn block_name(value: &Tree) -> Option<Option<u64>> {
    match value {
        Tree::Nil => Some(None),
        Tree::Unsigned(name) => Some(Some(*name)),
        Tree::Signed(name) => Some(Some(*name as u64)),
        Tree::Bytes(bytes) if bytes.len() >= 8 => {
            Some(Some(bytes[bytes.len() - 8..].iter().fold(0, |name, byte| name << 8 | u64::from(*byte))))
        }
        _ => None,
    }
}
