//! Calls of etcd's interface, each with its length before it and its kind as the first byte, to a
//! store in memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| etcd::fuzzing::calls(bytes));
