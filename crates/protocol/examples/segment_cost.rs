//! What a 100k-token turn costs: tokenised whole by the `tokenizers` crate, at first sight, and once all but its last message
//! is known. With a path, the model folder there (`tokenizer.json` and chat template) instead of one trained here.

#![allow(clippy::unwrap_used, reason = "an example may panic")]

use plimsoll_protocol::chat_template::messages::SGLANG_JOINT;
use plimsoll_protocol::chat_template::{ChatTemplate, Conversation};
use plimsoll_protocol::prompt::{Context, text_ids};
use plimsoll_protocol::request::Api;
use plimsoll_protocol::tokenizer::{ModelText, SegmentCache, Tokenizer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Instant;
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// As in the gateway.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const QWEN: &str = include_str!("../tests/templates/qwen.jinja");
const PATTERN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const ROUNDS: usize = 15;
const TOKENS: usize = 100_000;

/// Words of a few syllables, the frequent ones often, in sentences, lists and lines of code.
struct Writer {
    state: u64,
    words: Vec<String>,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let mut writer = Writer { state: seed | 1, words: Vec::new() };
        let sounds = [
            "ka", "shi", "p", "lo", "ad", "ing", "re", "con", "ti", "on", "er", "s", "ment", "a", "un", "ly", "th",
            "qu", "é",
        ];
        for _ in 0..20_000 {
            let count = 1 + writer.below(4);
            let word = (0..count).map(|_| sounds[writer.below(sounds.len())]).collect();
            writer.words.push(word);
        }
        writer
    }

    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % end as u64) as usize
    }

    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 64);
        while text.len() < bytes {
            let end = 1 + self.below(self.words.len());
            let at = self.below(end);
            match self.below(24) {
                0 => text.push_str(".\n\n"),
                1 => text.push_str(",\n    "),
                2 => write!(text, " {}", self.below(100_000)).unwrap(),
                3 => write!(text, " {}_{}(\"x\")", self.words[at], self.words[end - 1]).unwrap(),
                _ => write!(text, " {}", self.words[at]).unwrap(),
            }
        }
        text
    }
}

fn trained(writer: &mut Writer) -> ModelText {
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    let pre = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    tokenizer.with_pre_tokenizer(Some(serde_json::from_value::<PreTokenizerWrapper>(pre).unwrap()));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder().vocab_size(24_000).show_progress(false);
    let trainer = trainer.initial_alphabet(ByteLevel::alphabet().into_iter().collect()).build();
    let corpus: Vec<String> = (0..300).map(|_| writer.text(8_000)).collect();
    tokenizer.train(&mut TrainerWrapper::from(trainer), corpus.into_iter()).unwrap();
    let marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>"];
    tokenizer.add_tokens(marks.map(|mark| AddedToken::from(mark, true))).unwrap();
    let tokenizer = Tokenizer::from_bytes(tokenizer.to_string(false).unwrap().as_bytes()).unwrap();
    let chat = ChatTemplate::compile(QWEN, Vec::new()).unwrap();
    ModelText { tokenizer, chat: Some(chat), chat_with_tools: None, eos_token: None }
}

/// The least and the median of some runs, in milliseconds. On a busy machine the least is nearer to what the work takes.
struct Times {
    least: f64,
    median: f64,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:8.2} ms, median {:.2}", self.least, self.median)
    }
}

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Times { least: times[0], median: times[times.len() / 2] }
    }
}

fn times_of(mut run: impl FnMut()) -> Times {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e3
    });
    Times::of(times.collect())
}

fn main() {
    let mut writer = Writer::new(0x9e37_79b9_7f4a_7c15);
    let model = match std::env::args().nth(1) {
        Some(folder) => ModelText::open(folder.as_ref(), usize::MAX).unwrap(),
        None => trained(&mut writer),
    };
    println!("messages of 200, 2,000 and 20,000 bytes; a system message of the rest");
    for message_bytes in [200, 2_000, 20_000] {
        measure(&model, &mut writer, message_bytes);
    }
}

fn measure(model: &ModelText, writer: &mut Writer, message_bytes: usize) {
    let template = model.template(false).unwrap();
    let mut messages = vec![json!({"role": "system", "content": writer.text(20_000)})];
    let now = "2026-11-05T07:08:09".parse().unwrap();
    let render = |messages: &[Value]| {
        let messages = template.prepare(messages.to_vec(), SGLANG_JOINT).unwrap();
        let conversation = Conversation {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            continue_final_message: false,
            extra: None,
            now,
        };
        template.render(&conversation).unwrap()
    };
    let mut turn = |messages: &mut Vec<Value>| {
        messages.push(json!({"role": "user", "content": writer.text(message_bytes / 2)}));
        messages.push(json!({"role": "assistant", "content": writer.text(message_bytes)}));
        messages.push(json!({"role": "user", "content": writer.text(200)}));
    };
    let mut tokens = 0;
    while tokens < TOKENS {
        for _ in 0..1 + (TOKENS - tokens) / message_bytes {
            turn(&mut messages);
        }
        tokens = model.tokenizer.encode(&render(&messages), false).unwrap().len();
    }
    let body = |messages: &[Value]| json!({"model": "m", "messages": messages, "stream": true}).to_string();
    let text = render(&messages);
    println!("\n{} messages, {tokens} tokens, {} bytes of text", messages.len(), text.len());
    let crate_ms = times_of(|| drop(model.tokenizer.encode(&text, false).unwrap()));
    println!("  tokenizers crate, whole text          {crate_ms}");
    let first_ms = times_of(|| {
        let cache = SegmentCache::new(64 << 20, [1; 32]);
        drop(model.tokenizer.encode_known(&cache, "", &text, false).unwrap());
    });
    let ratio = first_ms.least / crate_ms.least;
    println!("  first sight                           {first_ms}; {ratio:.2} times the crate's");
    let cache = SegmentCache::new(64 << 20, [1; 32]);
    let context = Context { text: model, cache: &cache, owner: "", joint: SGLANG_JOINT, now };
    text_ids(&context, Api::Chat, body(&messages).as_bytes()).unwrap();
    let known_ms = times_of(|| drop(model.tokenizer.encode_known(&cache, "", &text, false).unwrap()));
    println!("  all known: cut, hash, look up         {known_ms}");
    let render_ms = times_of(|| drop(render(&messages)));
    println!("  rendering alone                       {render_ms}");
    let mut new = 0;
    let mut times = Vec::new();
    let history = messages.len();
    for _ in 0..ROUNDS {
        messages.truncate(history);
        turn(&mut messages);
        let body = body(&messages);
        let start = Instant::now();
        let made = text_ids(&context, Api::Chat, body.as_bytes()).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let text = render(&messages);
        assert_eq!(made.prompt.ids, model.tokenizer.encode(&text, false).unwrap());
        new = text.len() - made.known_bytes;
    }
    let turn_ms = Times::of(times);
    println!("  next turn, from its body to its ids   {turn_ms}; {new} bytes of it new");
    let body = body(&messages);
    let parse_ms = times_of(|| drop(serde_json::from_slice::<Value>(body.as_bytes()).unwrap()));
    println!("  parsing alone                         {parse_ms}");
    let again_ms = times_of(|| drop(text_ids(&context, Api::Chat, body.as_bytes()).unwrap()));
    println!("  the same turn once more               {again_ms}; the cache holds {:?}", cache.size());
}
