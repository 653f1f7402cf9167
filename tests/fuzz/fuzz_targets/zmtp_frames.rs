//! See `plimsoll_fuzz_targets::zmtp_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| plimsoll_fuzz_targets::zmtp_frames::run(data));
