//! Segments of the log and the payloads of their records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzzing::records(bytes));
