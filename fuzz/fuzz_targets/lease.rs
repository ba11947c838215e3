//! `rxe_tests::fuzz::lease`, fed by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::lease::run(data));
