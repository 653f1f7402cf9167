//! Attention of one layer: reading the cache for decoding requests, matrix products for prompts.
//!
//! **Decode** reads every cached key and value once: `c0 + c1 x (requests x KV heads) + bytes / (efficiency x bandwidth)`,
//! times what a batch of unequal lengths adds. How much that is depends on how the kernel cuts its work, [`Kernel`].
//!
//! **Prefill** takes `c0` plus the longest of three: its floating-point operations at the rate of long prompts, the reading
//! of cached keys and values, and the largest single tile (`tile_rows`, 128, of one head) on the one SM that has it. The last is
//! what makes short prompts slow: 8 heads x 512 tokens are 32 tiles for 132 SMs. The usual form, operations divided by a
//! rate measured at the same number of new tokens *without* a prefix, takes that idleness for a property of the length
//! and multiplies it by any prefix: measured pairs of chunk and history (workload notes, section 2) contradict it by a
//! factor of 2.3 at 512 tokens behind 16,384.

use crate::profile::{Kernel, Profile};
use crate::shape::StepShape;

/// Share of the longest piece of work that nothing overlaps when it happens to be scheduled last.
const LAST_PIECE: f64 = 0.8;

/// Pieces per SM below which a kernel of family K1 cuts sequences after all: FA2's heuristic wants 0.8 of twice the SMs
/// busy. Where measured penalties begin agrees (`tests/it/skew.rs`).
const SPLIT_BELOW: f64 = 1.6;

/// Decode attention in microseconds: `(as if all lengths were equal, what unequal lengths add)`.
pub(crate) fn decode(profile: &Profile, shape: &StepShape) -> (f64, f64) {
    if shape.decodes() == 0 {
        return (0.0, 0.0);
    }
    let requests = shape.decodes() as f64;
    let rate = profile.kv_bytes_per_us();
    let bytes = profile.model.kv_bytes_token_layer;
    let mean = shape.decode_tokens() as f64 / requests;
    let excess = shape.longest_decode_tokens() as f64 - mean;
    let reading = requests * mean * bytes / rate;
    let skew = match profile.kernel {
        Kernel::K0 { skew } => skew * excess * requests * bytes / rate,
        Kernel::K1 => {
            let pieces = requests * profile.model.kv_heads;
            let sms = f64::from(profile.machine.sms);
            if pieces < SPLIT_BELOW * sms {
                0.0
            } else {
                LAST_PIECE * excess * (bytes / profile.model.kv_heads) / (rate / sms)
            }
        }
        Kernel::K2 => excess * requests * bytes / rate,
    };
    let fixed = profile.decode.c0_us + profile.decode.c1_us * requests * profile.model.kv_heads;
    (fixed + reading, skew)
}

/// Prefill attention in microseconds.
pub(crate) fn prefill(profile: &Profile, shape: &StepShape) -> f64 {
    if shape.chunks().is_empty() {
        return 0.0;
    }
    // One TFLOPS is 10^6 operations in a microsecond.
    let rate = profile.prefill.tflops * 1e6;
    let per_pair = 4.0 * profile.model.head_dim;
    let (mut operations, mut tile, mut bytes) = (0.0_f64, 0.0_f64, 0.0_f64);
    for chunk in shape.chunks() {
        let (new, cached) = (chunk.new_tokens as f64, chunk.cached_tokens as f64);
        let seen = cached + (new + profile.prefill.diagonal_tokens) / 2.0;
        operations += per_pair * profile.model.heads * new * seen;
        // A prefix is cut into pieces by work-conserving kernels, the triangle of the chunk itself is not.
        let uncut = if matches!(profile.kernel, Kernel::K0 { .. }) { 0.0 } else { cached };
        let rows = profile.prefill.tile_rows;
        tile = tile.max(per_pair * rows * (uncut + new.max(rows)));
        bytes += (cached + new) * profile.model.kv_bytes_token_layer;
    }
    let on_one_sm = tile / (rate / f64::from(profile.machine.sms));
    profile.prefill.c0_us + (operations / rate).max(on_one_sm).max(bytes / profile.kv_bytes_per_us())
}
