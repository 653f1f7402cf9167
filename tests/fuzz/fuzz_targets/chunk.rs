//! See `plimsoll_fuzz_targets::chunk`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz_targets::chunk::run(data));
