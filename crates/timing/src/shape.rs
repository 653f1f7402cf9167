//! What a step computes, as far as its time depends on it.

/// New tokens of one prompt behind those already in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    pub new_tokens: u64,
    pub cached_tokens: u64,
}

/// The batch of one step on one rank. Decoding requests are summed up, so that a step of 256 costs no more to describe
/// than one of 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    decodes: u64,
    decode_tokens: u64,
    longest_decode_tokens: u64,
    chunks: Vec<Chunk>,
    outputs: u64,
}

impl StepShape {
    /// Empties it for the next step, keeping its memory.
    pub fn clear(&mut self) {
        self.chunks.clear();
        *self = StepShape { chunks: std::mem::take(&mut self.chunks), ..StepShape::default() };
    }

    /// A request that generates one token and attends to `context_tokens`, the new one included.
    pub fn add_decode(&mut self, context_tokens: u64) {
        self.decodes += 1;
        self.decode_tokens += context_tokens;
        self.longest_decode_tokens = self.longest_decode_tokens.max(context_tokens);
        self.outputs += 1;
    }

    /// Requests that generate one token each: how many, the sum of their contexts and the longest of them, as
    /// [`Self::add_decode`] would have found them.
    pub fn add_decodes(&mut self, requests: u64, context_tokens: u64, longest_tokens: u64) {
        self.decodes += requests;
        self.decode_tokens += context_tokens;
        self.longest_decode_tokens = self.longest_decode_tokens.max(longest_tokens);
        self.outputs += requests;
    }

    /// A part of a prompt. `last` when it is the prompt's end, so that a token comes out.
    pub fn add_prefill(&mut self, new_tokens: u64, cached_tokens: u64, last: bool) {
        self.chunks.push(Chunk { new_tokens, cached_tokens });
        self.outputs += u64::from(last);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decodes == 0 && self.chunks.is_empty()
    }

    /// Decoding requests.
    #[must_use]
    pub fn decodes(&self) -> u64 {
        self.decodes
    }

    /// Tokens that the decoding requests attend to, all together.
    #[must_use]
    pub fn decode_tokens(&self) -> u64 {
        self.decode_tokens
    }

    /// Tokens that the longest of the decoding requests attends to.
    #[must_use]
    pub fn longest_decode_tokens(&self) -> u64 {
        self.longest_decode_tokens
    }

    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Rows of the language-model head.
    #[must_use]
    pub fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Tokens that go through the layers.
    #[must_use]
    pub fn new_tokens(&self) -> u64 {
        self.decodes + self.chunks.iter().map(|chunk| chunk.new_tokens).sum::<u64>()
    }
}
