//! Values of charts, expressions of `--set`, schemas, rendered manifests and ranges of versions.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| helm::fuzzing::values(bytes));
