//! See `plimsoll_fuzz_targets::settings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz_targets::settings::run(data));
