//! `rxe_tests::fuzz::cm`, fed by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::cm::run(data));
