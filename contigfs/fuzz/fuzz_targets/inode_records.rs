#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| contigfs::fuzz::inode_records(data));
