//! The simulator: traces through the production policies, on a virtual clock.
//!
//! What would another policy, another fleet, another tier do with last week's traffic? Real engines answer that once, for hours and at the
//! price of the fleet. Here the objects that decide in the gateway ([`plimsoll_load::Scheduler`], the fleet's cache view, the
//! admission) run unchanged before engines that exist only as a cost model ([`engine`]) and hear of them what they would
//! hear of real ones: load reports at an interval, first tokens, cached tokens, KV events. The same seed gives the same
//! bytes on any machine; nothing here reads a clock or draws an unseeded number.

pub mod agenda;
pub mod answers;
pub mod baselines;
pub mod bucket_map;
pub mod collect;
pub mod compare;
mod door;
mod eighths;
pub mod engine;
pub mod experiment;
pub mod gateway;
pub mod histogram;
pub mod html;
pub mod input;
pub mod names;
pub mod overload;
pub mod prefix_cache;
pub mod question;
pub mod report;
pub mod series;
mod session;
pub mod step_time;
pub mod tier;
pub mod world;

pub use answers::Answers;
pub use collect::{Finished, Slo};
pub use input::{Input, InputOptions, Mix, Warp};
pub use question::{Question, QuestionError};
pub use report::Report;
pub use world::{Config, FleetConfig, Nobody, RunError, Source, Status, Watcher, run};
