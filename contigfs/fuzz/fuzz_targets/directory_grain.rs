#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| contigfs::fuzz::directory_grain(data));
