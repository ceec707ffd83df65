//! Files that administrators write: kubeconfigs, audit policies, configurations of authentication
//! and authorization. The first byte says which.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((which, text)) = bytes.split_first() {
        apiserver::fuzzing::configuration(*which, text);
    }
});
