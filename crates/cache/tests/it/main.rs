//! The cache decisions against traces of real traffic.

mod funnel_on_traces;
