//! The subcommands, one file each.

pub mod bench;
pub mod check;
pub mod completions;
pub mod demo;
pub mod engine;
pub mod funnel;
mod outputs;
pub mod serve;
pub mod sim;
pub mod top;
pub mod version;
