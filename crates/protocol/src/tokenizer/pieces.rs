//! What each token adds to a text, made once from a tokenizer's decoder.
//!
//! Nearly all models have one of two decoders. *Byte-level* (GPT-2, Llama 3, Qwen, DeepSeek): a token is bytes, a text is
//! the bytes of its tokens as UTF-8. *Byte fallback* (Llama 2, Mistral, Gemma; from SentencePiece): a token is text, and
//! `<0xE6>` is a byte; a run of such bytes is text if it is UTF-8 as a whole, else one U+FFFD per byte. Others are decoded
//! by the crate.

use std::collections::BTreeMap;
use tokenizers::Decoder as _;
use tokenizers::decoders::DecoderWrapper;

/// The pieces of a vocabulary, in one allocation.
#[derive(Debug)]
pub struct Pieces {
    kind: Kind,
    /// Piece `id` is `bytes[ends[id - 1]..ends[id]]`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    flags: Vec<Flags>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) known: bool,
    pub(super) special: bool,
    /// The piece is one byte of a run.
    pub(super) byte: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ByteLevel,
    /// So many of this character are taken off the start of the text.
    Fallback {
        strip: Option<(char, usize)>,
    },
    Other,
}

impl Pieces {
    /// A byte-level vocabulary that comes from no file: the bytes of each id in order, and whether it is special.
    #[must_use]
    pub fn byte_level(pieces: impl IntoIterator<Item = (Vec<u8>, bool)>) -> Self {
        let mut all = Pieces { kind: Kind::ByteLevel, bytes: Vec::new(), ends: Vec::new(), flags: Vec::new() };
        for (bytes, special) in pieces {
            all.add(&bytes, Flags { known: true, special, byte: false });
        }
        all
    }

    pub(super) fn of(tokenizer: &tokenizers::Tokenizer, specials: &BTreeMap<u32, String>) -> Result<Self, String> {
        let count = tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        if count == 0 || count > MOST_TOKENS {
            return Err(format!("{count} tokens, expected 1 to {MOST_TOKENS}"));
        }
        let (kind, before) = classify(tokenizer.get_decoder());
        let mut all = Pieces { kind, bytes: Vec::new(), ends: Vec::new(), flags: Vec::new() };
        for id in 0..count as u32 {
            let Some(token) = tokenizer.id_to_token(id) else {
                all.add(&[], Flags::default());
                continue;
            };
            let flags = Flags { known: true, special: specials.contains_key(&id), byte: false };
            match kind {
                Kind::ByteLevel => all.add(&byte_level(&token), flags),
                Kind::Fallback { .. } => match byte_token(&token) {
                    Some(byte) => all.add(&[byte], Flags { byte: true, ..flags }),
                    None => {
                        let mut tokens = vec![token];
                        for decoder in &before {
                            tokens = decoder.decode_chain(tokens).map_err(|error| error.to_string())?;
                        }
                        all.add(tokens.concat().as_bytes(), flags);
                    }
                },
                Kind::Other => all.add(token.as_bytes(), flags),
            }
        }
        Ok(all)
    }

    fn add(&mut self, bytes: &[u8], flags: Flags) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u32);
        self.flags.push(flags);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// What is known of an id; the default for one outside the vocabulary.
    pub(super) fn flags(&self, id: u32) -> Flags {
        self.flags.get(id as usize).copied().unwrap_or_default()
    }

    pub(super) fn raw(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let Some(end) = self.ends.get(at) else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }

    /// The bytes of a token; `None` where a token alone is not bytes.
    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        (self.kind != Kind::Other).then(|| self.raw(id))
    }
}

/// A larger vocabulary is a mistake in a file.
const MOST_TOKENS: usize = 1 << 24;

/// The kind, and the decoders that change a token before byte tokens are gathered.
fn classify(decoder: Option<&DecoderWrapper>) -> (Kind, Vec<DecoderWrapper>) {
    let other = || (Kind::Other, Vec::new());
    let list = match decoder {
        Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders().to_vec(),
        Some(one) => vec![one.clone()],
        None => return other(),
    };
    if let [DecoderWrapper::ByteLevel(_)] = list.as_slice() {
        return (Kind::ByteLevel, Vec::new());
    }
    let before: Vec<_> = list.iter().take_while(|one| matches!(one, DecoderWrapper::Replace(_))).cloned().collect();
    match &list[before.len()..] {
        [DecoderWrapper::ByteFallback(_)] | [DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_)] => {
            (Kind::Fallback { strip: None }, before)
        }
        [DecoderWrapper::ByteFallback(_), DecoderWrapper::Fuse(_), strip @ DecoderWrapper::Strip(_)] => {
            match strip_rule(strip) {
                Some(strip) => (Kind::Fallback { strip: Some(strip) }, before),
                None => other(),
            }
        }
        _ => other(),
    }
}

/// What is taken off the start; `None` when something is taken off the end, which nobody knows while it streams.
fn strip_rule(decoder: &DecoderWrapper) -> Option<(char, usize)> {
    let json = serde_json::to_value(decoder).ok()?;
    let content = json["content"].as_str()?.chars().next()?;
    (json["stop"] == 0).then_some((content, json["start"].as_u64()? as usize))
}

/// `<0xE6>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (token.len() == 6).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// GPT-2's spelling of bytes: printable ones are themselves, the others follow from U+0100 on. A token with any other
/// character is its own text.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of(letter: char) -> Option<u8> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match letter as u32 {
        byte if printable(byte) => u8::try_from(byte).ok(),
        // 0x00 to 0x20, 0x7f to 0xa0, 0xad.
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}
