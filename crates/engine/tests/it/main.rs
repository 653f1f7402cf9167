//! The engine over real sockets.

mod client;
mod errors;
mod faults;
mod lifecycle;
mod streams;
