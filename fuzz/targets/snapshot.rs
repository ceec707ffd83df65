//! Database files of etcd. The sums of the file and of its first pages would stop every change, so
//! that it is read without them, too. Seeds have the smallest pages: `small` is one of etcd's, 4
//! KiB each, which is longer than what is fed; `pages` is the same in 1 KiB, `trees` has a branch
//! and buckets within a page.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| store::fuzzing::snapshot(bytes));
