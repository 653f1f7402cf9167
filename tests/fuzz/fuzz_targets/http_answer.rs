//! See `plimsoll_fuzz_targets::http_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz_targets::http_answer::run(data));
