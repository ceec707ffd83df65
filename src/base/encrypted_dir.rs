//! A folder of small encrypted files: written as a whole, checked when read, and unreadable without
//! the key stored in the same folder.
//!
//! Purpose: a copy of single files (a backup, a support archive, blocks of a worn-out card) reveals
//! no secret, and losing the key makes all files unreadable at once. Root on the machine can read
//! both the key and the files.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::{SecretValue, clock};

const KEY_FILE: &str = "key";
const KEY_LEN: usize = 32;
/// Magic bytes and version of a file.
const MAGIC: &[u8; 4] = b"KLS1";
const HEAD_LEN: usize = 8 + NONCE_LEN;
/// Suffix of a file that could not be read.
const BAD: &str = "bad";

/// The files of one folder. Calls block on disk operations.
#[derive(Debug)]
pub struct EncryptedDir {
    directory: PathBuf,
    key: LessSafeKey,
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl EncryptedDir {
    /// Opens a folder and creates it with its key if it is missing (folder 0700, files 0600). An
    /// invalid key is replaced: files encrypted with the former key are lost and set aside when
    /// they are read.
    ///
    /// # Errors
    /// The I/O error, with the path in its message.
    pub fn open(directory: &Path) -> io::Result<Self> {
        crate::fs::create_dir(directory, 0o700)?;
        let path = directory.join(KEY_FILE);
        let known = match crate::fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(_) if !path.exists() => None,
            Err(error) => return Err(error),
        };
        let bytes = match known {
            Some(bytes) if bytes.len() == KEY_LEN => SecretValue::from(bytes),
            damaged => {
                if damaged.is_some() {
                    tracing::warn!(path = %path.display(), "the key is damaged, a new one is made; what it sealed is lost");
                }
                let mut bytes = vec![0; KEY_LEN];
                clock::random_bytes(&mut bytes);
                let bytes = SecretValue::from(bytes);
                crate::fs::write_atomic(&path, &bytes, 0o600)?;
                bytes
            }
        };
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| invalid("no key"))?;
        Ok(Self { directory: directory.to_owned(), key: LessSafeKey::new(key) })
    }

    /// Replaces a file. Its name is one path component without a dot.
    ///
    /// # Errors
    /// The I/O error, with the path in its message; the old content is then unchanged.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.path(name)?;
        let mut nonce = [0; NONCE_LEN];
        clock::random_bytes(&mut nonce);
        let mut sealed = content.to_vec();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(name.as_bytes()),
                &mut sealed,
            )
            .map_err(|_| invalid("content cannot be sealed"))?;
        let mut out = Vec::with_capacity(HEAD_LEN + sealed.len());
        out.extend_from_slice(MAGIC);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&nonce), &sealed);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        crate::fs::write_atomic(&path, &out, 0o600)
    }

    /// The content of a file; `None` if it is missing. An unusable file is logged and set aside,
    /// and counts as missing.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.path(name).ok()?;
        let outcome = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error),
            Ok(bytes) => self.unseal(name, bytes),
        };
        match outcome {
            Ok(content) => Some(content),
            Err(error) => {
                self.set_aside(name, &error);
                None
            }
        }
    }

    /// Sets a file with invalid content aside, and logs it.
    pub fn set_aside(&self, name: &str, why: &dyn std::fmt::Display) {
        let Ok(path) = self.path(name) else { return };
        let aside = path.with_extension(BAD);
        tracing::warn!(path = %path.display(), error = %why, aside = %aside.display(), "set the file aside; it is written again when a server answers");
        if let Err(error) = std::fs::rename(&path, &aside) {
            tracing::warn!(path = %path.display(), %error, "cannot be set aside");
        }
    }

    fn unseal(&self, name: &str, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let short = || invalid("it is too short");
        let (head, body) = bytes.split_at_checked(HEAD_LEN).ok_or_else(short)?;
        let (magic, head) = head.split_at_checked(4).ok_or_else(short)?;
        let (sum, nonce) = head.split_at_checked(4).ok_or_else(short)?;
        if magic != MAGIC {
            return Err(invalid("it is of another kind or version"));
        }
        let told = u32::from_le_bytes(sum.try_into().map_err(|_| short())?);
        if crc32c::crc32c_append(crc32c::crc32c(nonce), body) != told {
            return Err(invalid("its checksum is wrong"));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| short())?;
        let mut body = body.to_vec();
        let content = self
            .key
            .open_in_place(nonce, Aad::from(name.as_bytes()), &mut body)
            .map_err(|_| invalid("it was sealed with another key or under another name"))?;
        Ok(content.to_vec())
    }

    /// Removes a file; a missing file is not an error.
    ///
    /// # Errors
    /// The I/O error, with the path in its message.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io::Error::new(
                error.kind(),
                format!("cannot remove {}: {error}", path.display()),
            )),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Names of all files and their modification times, without the key and files set aside.
    pub fn names(&self) -> Vec<(String, SystemTime)> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let fine = name != KEY_FILE && !name.contains('.');
                let written = entry.metadata().ok()?.modified().ok()?;
                fine.then_some((name, written))
            })
            .collect()
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > 200 || name == KEY_FILE || !name.bytes().all(fine) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} cannot name a sealed file"),
            ));
        }
        Ok(self.directory.join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_readable_after_a_restart_and_only_with_the_key() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("known");
        EncryptedDir::open(&directory).unwrap().write("a", b"very secret").unwrap();
        assert_eq!(mode(&directory), 0o700);
        assert_eq!((mode(&directory.join("a")), mode(&directory.join("key"))), (0o600, 0o600));
        let on_disk = std::fs::read(directory.join("a")).unwrap();
        assert!(!on_disk.windows(6).any(|w| w == b"secret"));
        let sealed = EncryptedDir::open(&directory).unwrap();
        assert_eq!(sealed.read("a").unwrap(), b"very secret");
        assert_eq!(sealed.names().into_iter().map(|(n, _)| n).collect::<Vec<_>>(), ["a"]);
        assert!(sealed.read("b").is_none());
        sealed.remove("a").unwrap();
        sealed.remove("a").unwrap();
        assert!(sealed.read("a").is_none());
        assert!(sealed.write("../a", b"").is_err() && sealed.write("key", b"").is_err());
    }

    #[test]
    fn a_damaged_or_foreign_file_is_set_aside() {
        let home = tempfile::tempdir().unwrap();
        let sealed = EncryptedDir::open(home.path()).unwrap();
        for damage in ["flip", "cut", "rename", "key"] {
            sealed.write("a", b"content").unwrap();
            let path = home.path().join("a");
            let mut bytes = std::fs::read(&path).unwrap();
            let mut reader = EncryptedDir::open(home.path()).unwrap();
            match damage {
                "flip" => bytes[HEAD_LEN + 1] ^= 1,
                "cut" => bytes.truncate(11),
                "rename" => {
                    sealed.write("b", b"other").unwrap();
                    bytes = std::fs::read(home.path().join("b")).unwrap();
                }
                _ => {
                    std::fs::write(home.path().join("key"), b"short").unwrap();
                    reader = EncryptedDir::open(home.path()).unwrap();
                }
            }
            std::fs::write(&path, bytes).unwrap();
            assert!(reader.read("a").is_none(), "{damage}");
            assert!(!path.exists() && home.path().join("a.bad").exists(), "{damage}");
        }
    }
}
