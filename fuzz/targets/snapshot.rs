//! Database files of etcd. The sum at their end would stop every change, so that the pages are read without it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzzing::snapshot(bytes));
