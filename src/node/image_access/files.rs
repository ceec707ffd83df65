//! A directory of intents or records: one file each, named after a hash.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use super::record::RecordFile;
use crate::digest::sha256;

/// Maximum size of a file in bytes: a record with a hundred secrets for each of a few names.
const SIZE_MAX: u64 = 1 << 20;

/// A directory with files of type `T`.
#[derive(Debug)]
pub(super) struct RecordDir<T> {
    path: PathBuf,
    of: PhantomData<fn() -> T>,
}

/// The files of a directory.
pub(super) struct Listed<T> {
    pub(super) files: Vec<T>,
    /// Whether every file was read.
    pub(super) is_complete: bool,
}

fn is_record(name: &str) -> bool {
    name.starts_with("sha256-") && !name.ends_with(".tmp")
}

impl<T: RecordFile> RecordDir<T> {
    /// Creates the directory and rewrites files of older versions.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        base::fs::create_dir(&path, 0o700)?;
        let dir = Self { path, of: PhantomData };
        for file in dir.paths()? {
            let migrated = read(&file).and_then(|text| match T::decode(&text) {
                Ok((_, true)) => Ok(()),
                Ok((found, false)) => dir.write(&found),
                Err(error) => Err(io::Error::other(error)),
            });
            if let Err(error) = migrated {
                tracing::error!(file = %file.display(), %error, "cannot migrate a pull record");
            }
        }
        Ok(dir)
    }

    fn file(&self, key: &str) -> PathBuf {
        self.path.join(sha256(key.as_bytes()).replacen(':', "-", 1))
    }

    fn paths(&self) -> io::Result<Vec<PathBuf>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            if is_record(&entry.file_name().to_string_lossy()) && !entry.file_type()?.is_dir() {
                out.push(entry.path());
            }
        }
        Ok(out)
    }

    /// The number of files.
    pub(super) fn count(&self) -> usize {
        self.paths().map_or(0, |paths| paths.len())
    }

    /// Reads all files; those that cannot be read are logged.
    pub(super) fn list(&self) -> Listed<T> {
        let mut listed = Listed { files: Vec::new(), is_complete: true };
        let paths = self.paths().unwrap_or_else(|error| {
            tracing::error!(path = %self.path.display(), %error, "cannot list records of pulls");
            listed.is_complete = false;
            Vec::new()
        });
        for path in paths {
            let found = read(&path).and_then(|text| T::decode(&text).map_err(io::Error::other));
            match found {
                Ok((found, _)) => listed.files.push(found),
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "invalid record of a pull");
                    listed.is_complete = false;
                }
            }
        }
        listed
    }

    /// Reads the file for a key.
    pub(super) fn get(&self, key: &str) -> io::Result<Option<T>> {
        match read(&self.file(key)) {
            Ok(text) => {
                let (found, _) = T::decode(&text).map_err(io::Error::other)?;
                Ok(Some(found).filter(|found: &T| found.key() == key))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file. It is synced: after a power cut, an empty record would refuse its image to
    /// every pod until the image is pulled again.
    pub(super) fn write(&self, content: &T) -> io::Result<()> {
        base::fs::write_atomic(&self.file(content.key()), &content.encode(), 0o600)
    }

    /// Removes the file for a key, if there is one.
    pub(super) fn remove(&self, key: &str) -> io::Result<()> {
        match std::fs::remove_file(self.file(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(SIZE_MAX).read_to_end(&mut text)?;
    Ok(text)
}
