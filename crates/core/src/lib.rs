//! The words of the field, shared by decisions, adapters and programs.
//!
//! Nothing here decides, does IO or reads a clock. Time is [`Nanos`] handed in by the caller, so that the same
//! decision code runs in the gateway and in the simulator (design rule 1). A quantity that may be unknown is an
//! `Option`: unknown is never zero (design rule 4).

pub mod class;
pub mod code;
pub mod engine;
pub mod gateway_report;
pub mod id;
pub mod instance_load;
pub mod kv_event;
pub mod load_report;
pub mod outcome;
pub mod time;

pub use class::Class;
pub use code::ErrorCode;
pub use engine::{EngineKind, LegRole};
pub use gateway_report::{GatewayId, GatewayReport, ModelDemand};
pub use id::{InstanceId, Rank, RequestId, Target};
pub use instance_load::InstanceLoad;
pub use kv_event::{BlockName, KvBatch, KvEvent, Medium, StoredBlocks};
pub use load_report::LoadReport;
pub use outcome::Outcome;
pub use time::Nanos;
