//! From the bytes of one message to a [`KvBatch`].

use super::msgpack::{Bad, Reader, Value};
use plimsoll_core::{BlockName, KvBatch, KvEvent, Medium, StoredBlocks};
use thiserror::Error;

/// Why a message cannot be used at all. A single event in a form that is not known is passed over and counted instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a batch of KV events: {0}")]
pub struct DecodeError(String);

impl From<Bad> for DecodeError {
    fn from(bad: Bad) -> Self {
        DecodeError(bad.to_string())
    }
}

/// Decodes one message: `[ts, events, rank]`, or a map with `ts`, `events` and the rank by name.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_batch(bytes: &[u8]) -> Result<KvBatch, DecodeError> {
    let mut reader = Reader(bytes);
    let mut batch = KvBatch::default();
    let mut seen = false;
    match reader.value()? {
        Value::Array(len) if len >= 2 => {
            batch.at_unix_s = seconds(&mut reader)?;
            events(&mut reader, &mut batch)?;
            if len > 2 {
                batch.rank = rank(&mut reader)?;
            }
            seen = true;
        }
        Value::Map(len) => {
            for _ in 0..len {
                match reader.value()? {
                    Value::Text("ts") => batch.at_unix_s = seconds(&mut reader)?,
                    Value::Text("events") => {
                        events(&mut reader, &mut batch)?;
                        seen = true;
                    }
                    Value::Text("attn_dp_rank" | "data_parallel_rank" | "dp_rank") => batch.rank = rank(&mut reader)?,
                    Value::Array(_) | Value::Map(_) => return Err(Bad::Kind("a field's name").into()),
                    _ => reader.skip()?,
                }
            }
        }
        _ => return Err(Bad::Kind("a batch").into()),
    }
    if seen { Ok(batch) } else { Err(DecodeError("no events in it".to_owned())) }
}

fn seconds(reader: &mut Reader<'_>) -> Result<f64, Bad> {
    match reader.value()? {
        Value::Float(s) if s.is_finite() => Ok(s),
        Value::Unsigned(s) => Ok(s as f64),
        _ => Err(Bad::Kind("a time in seconds")),
    }
}

fn rank(reader: &mut Reader<'_>) -> Result<Option<u16>, Bad> {
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Unsigned(rank) => u16::try_from(rank).map(Some).map_err(|_| Bad::Kind("a DP rank")),
        _ => Err(Bad::Kind("a DP rank")),
    }
}

fn events(reader: &mut Reader<'_>, batch: &mut KvBatch) -> Result<(), Bad> {
    let Value::Array(len) = reader.value()? else { return Err(Bad::Kind("a list of events")) };
    for _ in 0..len {
        // First over it, then into it: an event that is not understood takes nothing with it.
        let start = *reader;
        reader.skip()?;
        let mut inside = Reader(&start.0[..start.0.len() - reader.0.len()]);
        match event(&mut inside) {
            Ok(Some(event)) => batch.events.push(event),
            Ok(None) | Err(_) => batch.skipped += 1,
        }
    }
    Ok(())
}

/// Fields of an event by name; the array forms name them by place.
#[derive(Default)]
struct Fields {
    names: Vec<BlockName>,
    parent: Option<BlockName>,
    tokens: Vec<u32>,
    block_tokens: u32,
    medium: Medium,
    lora: Option<String>,
    cache_salt: Option<String>,
    /// Attention that does not look at all that went before: its blocks are no prefix.
    partial_attention: bool,
}

/// Places of the array forms behind the tag, as SGLang up to 0.5.18 and vLLM up to 0.25 write them.
const STORED_PLACES: [&str; 7] =
    ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "metadata"];
const REMOVED_PLACES: [&str; 2] = ["block_hashes", "medium"];

fn event(reader: &mut Reader<'_>) -> Result<Option<KvEvent>, Bad> {
    let mut fields = Fields::default();
    let kind = match reader.value()? {
        Value::Array(len) if len > 0 => {
            let Value::Text(kind) = reader.value()? else { return Err(Bad::Kind("an event's tag")) };
            let places: &[&str] = if kind == "BlockRemoved" { &REMOVED_PLACES } else { &STORED_PLACES };
            for place in 0..len as usize - 1 {
                match places.get(place) {
                    Some(name) => fields.read(name, reader)?,
                    None => reader.skip()?,
                }
            }
            Some(kind)
        }
        Value::Map(len) => {
            let mut kind = None;
            for _ in 0..len {
                match reader.value()? {
                    Value::Text("type") => match reader.value()? {
                        Value::Text(text) => kind = Some(text),
                        _ => return Err(Bad::Kind("an event's type")),
                    },
                    Value::Text(name) => fields.read(name, reader)?,
                    _ => return Err(Bad::Kind("a field's name")),
                }
            }
            kind
        }
        _ => return Err(Bad::Kind("an event")),
    };
    Ok(match kind {
        Some("BlockStored") => fields.stored().map(KvEvent::Stored),
        Some("BlockRemoved") => {
            (!fields.partial_attention).then_some(KvEvent::Removed { names: fields.names, medium: fields.medium })
        }
        Some("AllBlocksCleared") => Some(KvEvent::Cleared),
        _ => None,
    })
}

impl Fields {
    fn read(&mut self, name: &str, reader: &mut Reader<'_>) -> Result<(), Bad> {
        match name {
            "block_hashes" => {
                let Value::Array(len) = reader.value()? else { return Err(Bad::Kind("a list of block names")) };
                self.names =
                    (0..len).map(|_| block_name(reader)?.ok_or(Bad::Kind("a block name"))).collect::<Result<_, _>>()?;
            }
            "parent_block_hash" => self.parent = block_name(reader)?,
            "token_ids" => self.tokens = tokens(reader)?,
            "block_size" => match reader.value()? {
                Value::Unsigned(size) => {
                    self.block_tokens = u32::try_from(size).map_err(|_| Bad::Kind("a block size"))?;
                }
                _ => return Err(Bad::Kind("a block size")),
            },
            "medium" => match reader.value()? {
                Value::Text(text) => self.medium = medium(text).ok_or(Bad::Kind("a known medium"))?,
                Value::Nil => {}
                _ => return Err(Bad::Kind("a medium")),
            },
            "lora_name" => self.lora = optional_text(reader)?,
            "cache_salt" => self.cache_salt = optional_text(reader)?,
            "kv_cache_spec_kind" => {
                self.partial_attention =
                    optional_text(reader)?.is_some_and(|kind| kind != "full_attention" && kind != "mla_attention");
            }
            "metadata" => {
                let mut inside = *reader;
                reader.skip()?;
                if let Value::Map(len) = inside.value()? {
                    for _ in 0..len {
                        match inside.value()? {
                            Value::Text(name) => self.read(name, &mut inside)?,
                            _ => return Err(Bad::Kind("a field's name")),
                        }
                    }
                }
            }
            "extra_keys" => self.extra_keys(reader)?,
            _ => reader.skip()?,
        }
        Ok(())
    }

    /// vLLM: one entry per block, nil or a list. The salt stands in the first block's, as a text of its own (0.32) or as
    /// `["cache_salt", "…"]`.
    fn extra_keys(&mut self, reader: &mut Reader<'_>) -> Result<(), Bad> {
        let mut seek = *reader;
        reader.skip()?;
        let Value::Array(blocks) = seek.value()? else { return Ok(()) };
        if blocks == 0 {
            return Ok(());
        }
        let Value::Array(keys) = seek.value()? else { return Ok(()) };
        for _ in 0..keys {
            let mut inside = seek;
            seek.skip()?;
            match inside.value()? {
                Value::Text(salt) => self.cache_salt = Some(salt.to_owned()),
                Value::Array(2) => {
                    if let (Ok(Value::Text("cache_salt")), Ok(Value::Text(salt))) = (inside.value(), inside.value()) {
                        self.cache_salt = Some(salt.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn stored(self) -> Option<StoredBlocks> {
        let whole = self.tokens.is_empty()
            || self.tokens.len() as u64 == self.names.len() as u64 * u64::from(self.block_tokens);
        // One host chunk announced as many device blocks, or a window's worth of tokens: not to be credited.
        (whole && !self.partial_attention && !self.names.is_empty()).then_some(StoredBlocks {
            names: self.names,
            parent: self.parent,
            tokens: self.tokens,
            block_tokens: self.block_tokens,
            medium: self.medium,
            lora: self.lora,
            cache_salt: self.cache_salt,
        })
    }
}

fn optional_text(reader: &mut Reader<'_>) -> Result<Option<String>, Bad> {
    match reader.value()? {
        Value::Text(text) => Ok(Some(text.to_owned())),
        Value::Nil => Ok(None),
        _ => Err(Bad::Kind("a text")),
    }
}

/// Signed, unsigned or bytes; of bytes the last eight, as vLLM shortens its own.
fn block_name(reader: &mut Reader<'_>) -> Result<Option<BlockName>, Bad> {
    match reader.value()? {
        Value::Unsigned(name) => Ok(Some(name)),
        Value::Signed(name) => Ok(Some(name as u64)),
        Value::Bytes(bytes) => {
            let last = bytes.last_chunk::<8>().ok_or(Bad::Kind("a block name of at least 8 bytes"))?;
            Ok(Some(u64::from_be_bytes(*last)))
        }
        Value::Nil => Ok(None),
        _ => Err(Bad::Kind("a block name")),
    }
}

fn tokens(reader: &mut Reader<'_>) -> Result<Vec<u32>, Bad> {
    let Value::Array(len) = reader.value()? else { return Err(Bad::Kind("a list of token ids")) };
    let mut tokens = Vec::with_capacity(len as usize);
    for _ in 0..len {
        match reader.value()? {
            Value::Unsigned(id) => tokens.push(u32::try_from(id).map_err(|_| Bad::Kind("a token id"))?),
            _ => return Err(Bad::Kind("a token id")),
        }
    }
    Ok(tokens)
}

fn medium(text: &str) -> Option<Medium> {
    match text {
        "GPU" | "gpu" => Some(Medium::Device),
        "CPU" | "CPU_PINNED" | "cpu" => Some(Medium::Host),
        "DISK" | "STORAGE" | "EXTERNAL" => Some(Medium::Storage),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
