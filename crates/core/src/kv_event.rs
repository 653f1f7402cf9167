//! What an engine says about its KV cache, whatever dialect it says it in.

/// Name of a block as engines publish it: 64 bits. Signed and unsigned forms are the same bits; of longer names the last
/// eight bytes count.
pub type BlockName = u64;

/// Where a block lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Medium {
    /// The accelerator's memory: a hit costs nothing.
    #[default]
    Device,
    /// The host's memory: a hit costs a copy over PCIe.
    Host,
    /// Below that: disk or a shared store.
    Storage,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    Stored(StoredBlocks),
    Removed { names: Vec<BlockName>, medium: Medium },
    Cleared,
}

/// Blocks in a row, each behind the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    pub names: Vec<BlockName>,
    /// The block before the first; `None` at the root.
    pub parent: Option<BlockName>,
    /// Token ids of all of them; empty where the engine sends none.
    pub tokens: Vec<u32>,
    pub block_tokens: u32,
    pub medium: Medium,
    pub lora: Option<String>,
    pub cache_salt: Option<String>,
}

/// One message of the stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvBatch {
    /// Seconds since 1970 on the engine's clock.
    pub at_unix_s: f64,
    pub events: Vec<KvEvent>,
    /// DP rank, where the engine says it.
    pub rank: Option<u16>,
    /// Events in a form that is not known, passed over.
    pub skipped: u32,
}
