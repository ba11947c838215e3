//! `rxe_tests::fuzz::replay`, fed by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::replay::run(data));
