//! What one step of an inference engine takes on a named GPU and model.
//!
//! So that a laptop can stand in for a fleet (the engine's timing mode) and a simulator for both, with the same numbers:
//! a [`Profile`] holds constants fitted to public kernel measurements, [`Profile::cost`] adds them up for the batch of
//! one step, a [`StepShape`]. Pure arithmetic: the same step costs the same nanoseconds on every machine.
//!
//! The model, per step of one rank (a tensor-parallel group), for `m` new tokens:
//!
//! ```text
//! T = host + layers x ( dense(m) + layer + decode + prefill ) + head(outputs)
//! ```
//!
//! `dense` is a layer's matrix products and all-reduces, `layer` its norms and the like; [`mod@attention`] holds the other
//! two. Ranks in lock-step take as long as the slowest of them; that maximum is the caller's.

pub mod attention;
pub mod catalogue;
mod cost;
pub mod curve;
pub mod fit;
pub mod profile;
pub mod shape;

pub use catalogue::{find, names};
pub use cost::Cost;
pub use profile::{Kernel, Profile, ProfileError};
pub use shape::StepShape;
