//! The arithmetic of the model, written so that a result never depends on its surroundings.
//!
//! Rule: every output element is summed in one fixed order that depends only on its own position. A product is one
//! chain of fused multiply-adds over the inner dimension, from first to last, with one accumulator; vector lanes are
//! different outputs, never parts of one sum. Everything that makes it fast leaves that chain alone: how many rows or
//! panels share a tile ([`tile`]), where the inner dimension is cut for the caches (an accumulator that is stored as f32
//! and loaded again is the same number), which thread has which panels, and which registers hold them ([`lanes`]).
//! So a row's result has the same bits alone, in a batch, in any chunk, on any number of threads, on any processor:
//! only operations are used that IEEE defines to the last bit (add, multiply, fused multiply-add, divide, square root),
//! and `exp`, `ln`, `sin` and `cos` are polynomials made of them.

pub mod elementwise;
pub mod exact;
pub mod grid;
pub mod lanes;
pub mod matrix;
pub(crate) mod tile;

#[cfg(test)]
mod tests;

pub use elementwise::exp;
pub use grid::Grid;
pub use lanes::{Block, Isa, LANES, Square};
pub use matrix::Matrix;
