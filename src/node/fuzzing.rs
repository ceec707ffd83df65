//! The entry points of the fuzzers of image archives and of `registries.yaml`.

use std::io::Cursor;
use std::path::Path;

use crate::runtime::containerd::import::archive;
use crate::runtime::images::tarball;
use crate::runtime::registries;

/// The most bytes that a compressed archive may expand to.
const ROOM: u64 = 16 << 20;

/// Reads the index of an archive and, through `file`, its images.
///
/// # Panics
/// When an entry has no end, or when the file cannot be written.
pub fn image_archive(data: &[u8], file: &Path) {
    if let Ok(entries) = tarball::index(&mut Cursor::new(data)) {
        for entry in entries {
            assert!(entry.offset.checked_add(entry.size).is_some(), "{entry:?}");
        }
    }
    let written = std::fs::write(file, data);
    assert!(written.is_ok(), "{}: {written:?}", file.display());
    let folder = file.parent().unwrap_or(Path::new("/"));
    if let Ok(contents) = archive::open(file, folder, ROOM) {
        assert!(contents.images.iter().any(|image| !image.names.is_empty()));
    }
}

/// Parses `registries.yaml` and derives containerd's configuration, credentials and rewrites.
pub fn registries(text: &[u8]) {
    registries::fuzz(text);
}
