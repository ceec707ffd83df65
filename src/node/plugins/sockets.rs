//! The sockets in the directory in which plugins announce themselves.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sorting::CompactSort as _;

/// Maximum number of sockets and of directories: a node has some ten plugins.
const SOCKETS_MAX: usize = 256;
const DIRECTORIES_MAX: usize = 256;

/// Identity of a socket: a socket that is removed and created again under the same name differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketIdentity {
    device: u64,
    inode: u64,
    /// Inode numbers are used again; unknown on file systems without times of creation.
    created: Option<SystemTime>,
}

/// The content of the directory, with everything below.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RegistryContent {
    pub(super) sockets: BTreeMap<PathBuf, SocketIdentity>,
    /// The directory and those below.
    pub(super) directories: Vec<PathBuf>,
}

/// Reads `root`. Names that begin with a dot are ignored, and so is everything that is neither a
/// directory nor a socket. Blocks.
pub(super) fn read(root: &Path) -> RegistryContent {
    let mut out = RegistryContent { directories: vec![root.to_owned()], ..Default::default() };
    let mut unread = vec![root.to_owned()];
    while let Some(directory) = unread.pop() {
        // What disappears meanwhile causes another event.
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            // Links are not followed, so that there are no loops.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && out.directories.len() < DIRECTORIES_MAX {
                out.directories.push(path.clone());
                unread.push(path);
            } else if metadata.file_type().is_socket() && out.sockets.len() < SOCKETS_MAX {
                let identity = SocketIdentity {
                    device: metadata.dev(),
                    inode: metadata.ino(),
                    created: metadata.created().ok(),
                };
                out.sockets.insert(path, identity);
            }
        }
    }
    out.directories.compact_sort();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_found_at_any_depth_unless_hidden() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join(".hidden")).unwrap();
        std::fs::write(root.join("file.sock"), "").unwrap();
        let bound = ["one.sock", "a/b/two.sock", ".hidden/three.sock", ".four.sock"];
        let _listeners = bound.map(|name| UnixListener::bind(root.join(name)).unwrap());
        let content = read(root);
        let found: Vec<&PathBuf> = content.sockets.keys().collect();
        assert_eq!(found, [&root.join("a/b/two.sock"), &root.join("one.sock")]);
        assert_eq!(content.directories, [root.to_owned(), root.join("a"), root.join("a/b")]);
        assert_eq!(read(&root.join("missing")).sockets, BTreeMap::new());
    }

    #[test]
    fn a_socket_that_is_replaced_differs() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("one.sock");
        let _first = UnixListener::bind(&path).unwrap();
        let identity = || read(home.path()).sockets.get(&path).copied();
        let first = identity();
        assert_eq!(first, identity());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(identity(), None);
        let _second = UnixListener::bind(&path).unwrap();
        assert_ne!(first, identity());
    }
}
