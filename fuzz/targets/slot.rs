#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ropeway_fuzz::slot(input));
