//! How loaded a rank is, as the ledger and the engine's reports together say: what `load` tells and `traffic` asks for.

use serde::Serialize;

/// Load of one rank of one instance. What nobody knows is `None`, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct InstanceLoad {
    /// Uncached prompt tokens placed there and not yet computed.
    pub backlog_tokens: u64,
    /// Uncached prompt tokens it computes per second.
    pub prefill_tokens_per_s: Option<f64>,
    /// KV tokens held now and promised.
    pub reserved_kv_tokens: u64,
    pub kv_capacity_tokens: Option<u64>,
    /// Requests in flight there.
    pub running: u32,
    /// It is in service and its health keeps it out, as that of all others does: placement would choose it all the same, not knowing better.
    pub out: bool,
}
