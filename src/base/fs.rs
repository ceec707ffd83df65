//! File access whose errors name the path, and atomic replacement.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

fn named(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// Reads a whole file.
///
/// # Errors
/// The I/O error, with the path in its message.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| named("read", path, &e))
}

/// Reads a whole UTF-8 file.
///
/// # Errors
/// The I/O error, with the path in its message.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path).map_err(|e| named("read", path, &e))
}

/// Creates a directory and its parents, with permission bits `mode` on the last one.
///
/// # Errors
/// The I/O error, with the path in its message.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path).map_err(|e| named("create", path, &e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|e| named("set permissions of", path, &e))
}

/// Creates an empty file in a directory, without a name: it disappears when it is closed.
///
/// # Errors
/// The I/O error, with the path in its message.
pub fn scratch(directory: &Path) -> io::Result<std::fs::File> {
    let path = directory.join(format!("scratch-{:016x}.tmp", crate::clock::random_u64()));
    let mut options = std::fs::OpenOptions::new();
    let open = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = open.map_err(|e| named("create", &path, &e))?;
    std::fs::remove_file(&path).map_err(|e| named("remove", &path, &e))?;
    Ok(file)
}

/// Removes a directory and its content without following links; a missing directory is not an
/// error.
///
/// # Errors
/// The I/O error, with the path in its message.
pub fn remove_dir(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named("remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Replaces `path` by `content` with permission bits `mode`: writes a temporary file in the same
/// directory, syncs and renames it, and syncs the directory.
///
/// # Errors
/// The I/O error, with the path in its message; the old content is then unchanged.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = parent.join(name);
    let write = || -> io::Result<()> {
        // An interrupted call may have left the file with other permissions.
        let _ = std::fs::remove_file(&temporary);
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        std::fs::File::open(parent)?.sync_all()
    };
    write().map_err(|e| named("write", path, &e))
}
