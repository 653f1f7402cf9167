//! See `plimsoll_fuzz_targets::kv_events`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz_targets::kv_events::run(data));
