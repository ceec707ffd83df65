//! Charts: their archives and files, what is derived from them, and their rendering. The first byte
//! selects the form.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((b't', archive)) => helm::fuzzing::archive(archive),
        Some((_, files)) => helm::fuzzing::files(files),
        None => {}
    }
});
