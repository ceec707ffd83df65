//! The files of the folder: which are archives, which are lists, and their contents.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;

/// Suffixes of archives (wharfie's `tarfile.SupportedExtensions`, which k3s uses), in lower case.
const ARCHIVES: [&str; 9] =
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.lz4", ".tar.bz2", ".tbz", ".tar.xz"];
/// Maximum size of a list in bytes.
const LIST_MAX: u64 = 1 << 20;

/// What a file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    /// An archive of images.
    Archive,
    /// A list of names of images, one a line.
    List,
}

impl FileKind {
    /// `None` for hidden files, which are ignored.
    ///
    /// # Errors
    ///
    /// Why the file cannot be imported.
    pub(super) fn of(name: &str) -> Result<Option<Self>, &'static str> {
        let lower = name.to_lowercase();
        if name.starts_with('.') {
            Ok(None)
        } else if lower.ends_with(".txt") {
            Ok(Some(Self::List))
        } else if ARCHIVES.iter().any(|end| lower.ends_with(end)) {
            Ok(Some(Self::Archive))
        } else {
            Err(
                "the name ends neither with .tar, .tar.gz, .tgz, .tar.zst or .tar.lz4 (an archive) \
                nor with .txt (a list of names)",
            )
        }
    }
}

/// Size and modification time of a file, by which a change is recognized.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    size: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
}

/// Returns the names of a folder's files, sorted; directories are left out.
pub(super) fn list(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.compact_sort();
    Ok(names)
}

/// The state of a file, through links; `None` if it is not a regular file: opening a FIFO would
/// block forever.
pub(super) fn state(path: &Path) -> io::Result<Option<FileState>> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    Ok(metadata.is_file().then_some(FileState { size: metadata.len(), modified }))
}

/// The names in a list; blank lines and lines that begin with `#` are left out.
pub(super) fn names(path: &Path) -> io::Result<Vec<String>> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(LIST_MAX + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > LIST_MAX {
        let why = format!("a list has at most {LIST_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_decides_what_it_is() {
        for (name, kind) in [
            ("a.tar", Some(FileKind::Archive)),
            ("k3s-airgap-images-amd64.tar.zst", Some(FileKind::Archive)),
            ("A.TAR.GZ", Some(FileKind::Archive)),
            ("a.tgz", Some(FileKind::Archive)),
            ("k3s-images.txt", Some(FileKind::List)),
            (".cache.json", None),
            (".a.tar.part", None),
        ] {
            assert_eq!(FileKind::of(name), Ok(kind), "{name}");
        }
        assert!(FileKind::of("a.zip").unwrap_err().contains("a list of names"));
    }

    #[test]
    fn only_regular_files_have_a_state_and_lists_skip_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("b.txt"), "\n# bundle\n  busybox:1 \nr.io/a@sha256:0\n").unwrap();
        nix::unistd::mkfifo(&path("a.tar"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::fs::create_dir(path("folder.tar")).unwrap();
        assert_eq!(list(folder.path()).unwrap(), ["a.tar", "b.txt"]);
        assert_eq!(state(&path("a.tar")).unwrap(), None);
        let before = state(&path("b.txt")).unwrap();
        assert_eq!(names(&path("b.txt")).unwrap(), ["busybox:1", "r.io/a@sha256:0"]);
        std::fs::write(path("b.txt"), "").unwrap();
        assert_ne!(before, state(&path("b.txt")).unwrap());
        let error = state(&path("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
