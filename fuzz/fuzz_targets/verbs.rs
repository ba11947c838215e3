//! `rxe_tests::fuzz::verbs`, fed by libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::verbs::run(data));
