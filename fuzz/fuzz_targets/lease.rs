//! Runs `rxe_tests::fuzz::lease` on the inputs of libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_tests::fuzz::lease::run(data));
