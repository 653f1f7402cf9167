//! Flags of the engine's scheduler.

use clap::Args;
use plimsoll_engine::{Order, SchedulePolicy};

/// In what order the engine serves requests.
#[derive(Clone, Debug, Args)]
pub struct ScheduleArgs {
    /// Order of requests: by deadline where one is named and else by arrival, by arrival, or by the body's `priority`
    #[arg(long, value_name = "NAME", default_value = SchedulePolicy::default().as_str(),
          value_parser = SchedulePolicy::ALL.map(SchedulePolicy::as_str))]
    pub schedule_policy: String,
    /// With `slo`, a request without a deadline takes its turn as if it had this one, in milliseconds; it is never refused
    #[arg(long, value_name = "MS", default_value_t = Order::default().patience.as_millis() as u64)]
    pub slo_patience_ms: u64,
    /// With `priority`, smaller numbers come first instead of larger ones
    #[arg(long)]
    pub schedule_low_priority_values_first: bool,
    /// With `priority`, a waiting request pushes a running one aside if it is more important by more than this
    #[arg(long, value_name = "N", default_value_t = Order::default().preemption_threshold)]
    pub priority_scheduling_preemption_threshold: u32,
}
