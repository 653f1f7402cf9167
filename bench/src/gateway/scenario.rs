//! The kinds of traffic that are measured.

use crate::upstream::Knobs;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// 1 KB request, whole answer.
    Plain1Kb,
    /// 1 KB request, stream of 33 events back to back.
    Stream33,
    /// 1 KB request, stream of 2 events: what a stream costs before its events do.
    Stream2,
    /// 1 KB request, stream of 200 events a millisecond apart, so that none can be moved together with the next.
    Paced200,
    /// 300 KB request, whole answer.
    Plain300Kb,
    /// 1 KB request, first token after 20 ms, then one every 2 ms.
    Realistic,
}

/// Connections of the load client in every scenario.
pub const CONCURRENCY: u32 = 32;

impl Scenario {
    pub const ALL: [Scenario; 6] = [
        Scenario::Plain1Kb,
        Scenario::Stream33,
        Scenario::Stream2,
        Scenario::Paced200,
        Scenario::Plain300Kb,
        Scenario::Realistic,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Scenario::Plain1Kb => "1 KB request, not streamed",
            Scenario::Stream33 => "1 KB request, stream of 33 events back to back",
            Scenario::Stream2 => "1 KB request, stream of 2 events",
            Scenario::Paced200 => "1 KB request, stream of 200 events, 1 ms apart",
            Scenario::Plain300Kb => "300 KB request, not streamed",
            Scenario::Realistic => "realistic pace: engine TTFT 20 ms, 2 ms per token, 32 tokens",
        }
    }

    /// What the engines answer. `[DONE]` is an event too: a stream has one more than it has tokens.
    pub fn knobs(self) -> Knobs {
        let stream = Knobs { stream: true, ..Knobs::default() };
        match self {
            Scenario::Plain1Kb | Scenario::Plain300Kb => Knobs::default(),
            Scenario::Stream33 => Knobs { tokens: 32, ..stream },
            Scenario::Stream2 => Knobs { tokens: 1, ..stream },
            Scenario::Paced200 => Knobs { tokens: 199, ttft_us: 1_000, itl_us: 1_000, ..stream },
            Scenario::Realistic => Knobs { tokens: 32, ttft_us: 20_000, itl_us: 2_000, ..stream },
        }
    }

    pub fn body_bytes(self) -> usize {
        if self == Scenario::Plain300Kb { 300 * 1024 } else { 1024 }
    }

    /// How long requests are started for.
    pub fn for_ms(self, quick: bool) -> u64 {
        match (self, quick) {
            (Scenario::Realistic, false) => 3_000,
            (Scenario::Realistic, true) => 2_000,
            (Scenario::Paced200, false) => 2_500,
            (Scenario::Paced200, true) => 1_500,
            (_, false) => 2_000,
            (_, true) => 800,
        }
    }

    /// Connections at a set pace would move in step if all began at once; the load client spreads them over the
    /// length of a request.
    pub fn spread_ms(self) -> u64 {
        match self {
            Scenario::Paced200 => 200,
            Scenario::Realistic => 84,
            _ => 0,
        }
    }
}
