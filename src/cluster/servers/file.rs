//! The file that remembers addresses of servers: a restart works without the server that was named
//! first.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Bytes read of the file: as many addresses as are kept, with room.
const BYTES_MAX: usize = 64 * 1024;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Remembered {
    servers: Vec<String>,
}

/// The addresses; none where there is no file, or one that cannot be understood.
pub(super) fn read(path: &Path) -> io::Result<Vec<String>> {
    let bytes = match base::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let remembered = if bytes.len() > BYTES_MAX {
        Remembered::default()
    } else {
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "the addresses of servers cannot be read; --server is used");
            Remembered::default()
        })
    };
    let mut all = Vec::new();
    for address in remembered.servers.iter().filter_map(|a| super::parse(a).ok()) {
        if !all.contains(&address) && all.len() < super::SERVERS_MAX {
            all.push(address);
        }
    }
    Ok(all)
}

/// Writes the addresses, unless the file holds them already.
pub(super) fn write_changed(path: &Path, addresses: &[String]) -> io::Result<()> {
    let text = serde_json::to_vec(&Remembered { servers: addresses.to_vec() })?;
    if base::fs::read(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|p| !p.exists()) {
        base::fs::create_dir(parent, 0o700)?;
    }
    base::fs::write_atomic(path, &text, 0o600)
}
