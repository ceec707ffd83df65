//! The record of imported files, which outlives a restart: an unchanged file is not imported again.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::FileState;

/// One imported file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    /// The file when it was read.
    pub(super) state: FileState,
    /// Whether all its images are present; images of a list may be missing.
    pub(super) complete: bool,
    /// The registries whose names its images also got.
    #[serde(default)]
    pub(super) registries: Vec<String>,
    /// The digests of its images by name.
    pub(super) images: BTreeMap<String, String>,
}

impl FileRecord {
    /// Whether the file and the extra registries are unchanged and containerd, whose digest of a
    /// name `stored` returns, still has its images.
    pub(super) fn is_current<'a>(
        &self,
        now: &FileState,
        registries: &[String],
        stored: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        self.complete
            && self.state == *now
            && self.registries == registries
            && self.images.iter().all(|(name, digest)| stored(name) == Some(digest))
    }
}

/// All imported files, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) files: BTreeMap<String, FileRecord>,
}

impl Record {
    /// Reads the record; a missing or unreadable one is empty, and the files are imported again.
    pub(super) fn read(path: &Path) -> Self {
        let text = base::fs::read(path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Replaces the record.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        base::fs::write_atomic(path, &serde_json::to_vec(self)?, 0o600)
    }

    /// The names of all images.
    pub(super) fn names(&self) -> HashSet<String> {
        self.files.values().flat_map(|file| file.images.keys().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(size: u64) -> FileState {
        serde_json::from_value(serde_json::json!({"size": size, "modified": [1, 2]})).unwrap()
    }

    #[test]
    fn a_file_is_imported_again_if_it_or_its_images_changed() {
        let images = [("r.io/a:1".to_owned(), "sha256:1".to_owned())].into();
        let file = FileRecord { state: state(5), complete: true, registries: Vec::new(), images };
        assert!(file.is_current(&state(5), &[], |_| Some("sha256:1")));
        assert!(!file.is_current(&state(6), &[], |_| Some("sha256:1")), "the file changed");
        assert!(!file.is_current(&state(5), &[], |_| None), "the image was removed");
        assert!(!file.is_current(&state(5), &[], |_| Some("sha256:2")), "the tag was moved");
        let registries = ["x.io".to_owned()];
        assert!(!file.is_current(&state(5), &registries, |_| Some("sha256:1")), "a new registry");
        let partial = FileRecord { complete: false, ..file };
        assert!(!partial.is_current(&state(5), &[], |_| Some("sha256:1")));
    }

    #[test]
    fn a_record_is_equal_after_a_restart_and_a_corrupt_one_is_empty() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        assert_eq!(Record::read(&path), Record::default());
        let images = [("a".to_owned(), "sha256:1".to_owned())].into();
        let file = FileRecord { state: state(5), complete: true, registries: Vec::new(), images };
        let record = Record { files: [("a.tar".to_owned(), file)].into() };
        record.write(&path).unwrap();
        assert_eq!(Record::read(&path), record);
        assert_eq!(record.names(), HashSet::from(["a".to_owned()]));
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Record::read(&path), Record::default());
    }
}
