//! Why the engine does not serve a request that was understood: typed, so that every face says the same thing in its own
//! form and a client can decide by machine whether and when to repeat.

/// A request was turned away, before it was given a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// SGLang's own words, here and in the next one.
    #[error("The request queue is full.")]
    QueueFull,
    #[error("The request is aborted by a higher priority request.")]
    Displaced,
    #[error(
        "the request can grow to {tokens} tokens, which is more than the KV cache has room for ({room} tokens): ask \
             for fewer output tokens or shorten the prompt"
    )]
    NeverFits { tokens: usize, room: usize },
}

impl Refusal {
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Refusal::QueueFull | Refusal::Displaced => 503,
            Refusal::NeverFits { .. } => 400,
        }
    }

    /// `error.code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::QueueFull => "queue_full",
            Refusal::Displaced => "displaced",
            Refusal::NeverFits { .. } => "context_length_exceeded",
        }
    }

    /// SGLang's `err_type` inside a stream.
    #[must_use]
    pub fn err_type(&self) -> &'static str {
        match self.status() {
            400 => "BadRequestError",
            429 => "TooManyRequestsError",
            _ => "ServiceUnavailableError",
        }
    }
}
