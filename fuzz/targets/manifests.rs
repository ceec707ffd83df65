//! Files of the manifests folder.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| addons::fuzzing::manifest(bytes));
