#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flashnet_client::fuzz::denial(data));
