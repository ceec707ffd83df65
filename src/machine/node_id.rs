//! `--with-node-id`: a random id that is appended to the node name, so that machines with the same
//! host name join as different nodes.

use std::io;
use std::path::Path;

use crate::error_catalogue::{CommandError, DATA_DIR};

/// The file with the id, in the node's directory.
const FILE: &str = "node-id";
/// The file of k3s: a machine that ran k3s with `--with-node-id` keeps its name.
const K3S_FILE: &str = "/etc/rancher/node/id";

/// Reads an id of eight hexadecimal digits; `None` if the file is missing or has another content.
fn read(path: &Path) -> io::Result<Option<String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let id = text.trim();
    let is_id = id.len() == 8 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    Ok(is_id.then(|| id.to_owned()))
}

/// The id of this machine; the first call stores it.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn ensure(directory: &Path) -> Result<String, CommandError> {
    ensure_at(directory, Path::new(K3S_FILE)).map_err(|e| DATA_DIR.error(e))
}

fn ensure_at(directory: &Path, former: &Path) -> io::Result<String> {
    let path = directory.join(FILE);
    if let Some(id) = read(&path)? {
        return Ok(id);
    }
    let id = match read(former)? {
        Some(id) => id,
        None => {
            let mut bytes = [0; 4];
            base::clock::random_bytes(&mut bytes);
            base::hex(&bytes)
        }
    };
    base::fs::create_dir(directory, 0o700)?;
    base::fs::write_atomic(&path, format!("{id}\n").as_bytes(), 0o600)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_once_and_taken_over_from_k3s() {
        let root = tempfile::tempdir().unwrap();
        let (own, former) = (root.path().join("agent"), root.path().join("id"));
        let id = ensure_at(&own, &former).unwrap();
        assert!(id.len() == 8 && u32::from_str_radix(&id, 16).is_ok(), "{id}");
        assert_eq!(ensure_at(&own, &former).unwrap(), id);
        std::fs::write(&former, "0a1b2c3d\n").unwrap();
        assert_eq!(ensure_at(&own, &former).unwrap(), id);
        assert_eq!(ensure_at(&root.path().join("new"), &former).unwrap(), "0a1b2c3d");
        std::fs::write(&former, "not an id").unwrap();
        assert_ne!(ensure_at(&root.path().join("other"), &former).unwrap(), "not an id");
    }
}
