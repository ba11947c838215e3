//! `rxe_tests::fuzz::scenario`, fed by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::scenario::run(data));
