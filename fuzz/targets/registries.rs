//! `registries.yaml` and what is derived from it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| node::fuzzing::registries(bytes));
