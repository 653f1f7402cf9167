//! The hit-rate funnel: where between theory and engine a cached token is lost.

mod curve;
mod fenwick;
mod online;
mod recent;
mod run_stack;
mod sums;

pub use curve::Curve;
pub use online::{Answer, Arrival, CURVE_EIGHTHS, Funnel, FunnelConfig, FunnelReport, Reported};
pub use recent::Recent;
pub use run_stack::{Piece, Pieces, RunStack};
pub use sums::{CellKey, Gain, Layer, Loss, Sums, Unmeasured};
