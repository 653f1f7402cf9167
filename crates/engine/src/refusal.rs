//! Why the engine does not serve a request that was understood: typed, so that every face says the same thing in its own
//! form and a client can decide by machine whether and when to repeat.

use plimsoll_core::Nanos;

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
    #[error("{0}")]
    SloUnattainable(Late),
}

/// What was promised and what would come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// `ttft` or `tpot`.
    pub goal: &'static str,
    /// From arrival, or between tokens.
    pub predicted: Nanos,
    pub wanted: Nanos,
    /// It would be late with the engine to itself.
    pub alone: bool,
    /// It is late because none of so many places among the running came free, and not for what is to be computed.
    pub no_place_of: Option<usize>,
}

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Late { goal, predicted, wanted, alone, no_place_of } = self;
        if let Some(places) = no_place_of {
            return write!(
                f,
                "{goal}: all {places} places among the running (--max-running) are taken; with one now it would take \
                 {:.0} ms, wanted {:.0} ms: repeat later or elsewhere, or ask for more time",
                predicted.as_millis_f64(),
                wanted.as_millis_f64()
            );
        }
        let whose = if *alone { "even with the engine to itself" } else { "behind the requests that come before it" };
        write!(
            f,
            "{goal}: predicted {:.0} ms {whose}, wanted {:.0} ms: repeat later or elsewhere, or ask for more time",
            predicted.as_millis_f64(),
            wanted.as_millis_f64()
        )
    }
}

impl Refusal {
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Refusal::QueueFull | Refusal::Displaced => 503,
            Refusal::NeverFits { .. } => 400,
            Refusal::SloUnattainable(_) => 429,
        }
    }

    /// `error.code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::QueueFull => "queue_full",
            Refusal::Displaced => "displaced",
            Refusal::NeverFits { .. } => "context_length_exceeded",
            Refusal::SloUnattainable(_) => "slo_unattainable",
        }
    }

    /// Seconds after which it may be repeated, at least 1; `None` when that would not help or is not known.
    #[must_use]
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Refusal::SloUnattainable(late) => {
                Some(late.predicted.since(late.wanted).as_secs_f64().ceil().max(1.0) as u64)
            }
            Refusal::QueueFull | Refusal::Displaced => Some(1),
            Refusal::NeverFits { .. } => None,
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
