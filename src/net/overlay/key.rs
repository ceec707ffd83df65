//! This node's private key of WireGuard: made once, kept in the data directory, read by root alone.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::netlink::wireguard::PrivateKey;

/// The file in the network's state directory; `wg` reads its form.
const FILE: &str = "wireguard.key";
const MODE: u32 = 0o600;

/// The node's key. A file that is missing or holds no key is replaced by a new key, which other
/// nodes read from the node's annotations: removing the file changes the key, and a lost file
/// heals.
///
/// # Errors
/// When the file can neither be read nor written; the message names it.
pub(crate) fn load_or_make(directory: &Path) -> io::Result<PrivateKey> {
    let path = directory.join(FILE);
    match base::fs::read_to_string(&path) {
        Ok(text) => match PrivateKey::of_file(&text) {
            Some(key) => {
                let mode = std::fs::metadata(&path)?.permissions().mode();
                if mode & 0o077 != 0 {
                    tracing::warn!(path = %path.display(), "others could read the private key");
                    std::fs::set_permissions(&path, PermissionsExt::from_mode(MODE))?;
                }
                return Ok(key);
            }
            None => {
                tracing::warn!(path = %path.display(), "holds no key of WireGuard; a new one is made");
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(path = %path.display(), "holds no key of WireGuard; a new one is made");
        }
        Err(error) => return Err(error),
    }
    let mut bytes = [0; 32];
    base::clock::random_bytes(&mut bytes);
    let key = PrivateKey::new(bytes);
    base::fs::create_dir(directory, 0o700)?;
    base::fs::write_atomic(&path, key.to_file().as_bytes(), MODE)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_made_once_and_only_root_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("net");
        let key = load_or_make(&state).unwrap();
        let path = state.join("wireguard.key");
        assert_eq!(mode(&path), 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            (text.len(), text.as_bytes()[43]),
            (45, b'='),
            "base64 of 32 bytes and a line end"
        );
        assert_eq!(load_or_make(&state).unwrap(), key);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(load_or_make(&state).unwrap(), key);
        assert_eq!(mode(&path), 0o600);
        std::fs::remove_file(&path).unwrap();
        let second = load_or_make(&state).unwrap();
        assert_ne!(second, key);
        for broken in [&b""[..], b"nonsense\n", b"\xff\xfe"] {
            std::fs::write(&path, broken).unwrap();
            let made = load_or_make(&state).unwrap();
            assert_eq!(load_or_make(&state).unwrap(), made);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(load_or_make(&state).unwrap_err().to_string().contains("wireguard.key"));
    }
}
