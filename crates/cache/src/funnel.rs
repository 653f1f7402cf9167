//! The hit-rate funnel: where between theory and engine a cached token is lost.

mod curve;
mod fenwick;
mod run_stack;

pub use curve::Curve;
pub use run_stack::{Piece, Pieces, RunStack};
