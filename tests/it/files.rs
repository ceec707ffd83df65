//! The files that tests of the tree read.

use std::path::{Path, PathBuf};

/// Folders without files of ours: builds, generated code and recorded data.
const SKIPPED: &[&str] = &["gen", "node_modules", "target", "testdata"];

/// The files below the folders whose names end with `suffix`. Hidden folders are left out.
pub(crate) fn files(folders: &[&str], suffix: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, suffix: &str, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                    walk(&path, suffix, out);
                }
            } else if name.ends_with(suffix) {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    for folder in folders {
        walk(Path::new(folder), suffix, &mut out);
    }
    out
}
