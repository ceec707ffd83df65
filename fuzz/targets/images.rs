//! Archives of images, compressed or not, read through a file in memory.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

/// The file of this process.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/kube-lite-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in /dev/shm");
    folder.join("archive")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| node::fuzzing::image_archive(bytes, &FILE));
