//! The file of server addresses: after a restart the agent does not depend on the server in its
//! flag.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Maximum size of the file in bytes; more than the largest list needs.
const BYTES_MAX: usize = 64 * 1024;

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ServerFile {
    servers: Vec<String>,
}

/// Reads the addresses; none without a file or with one that cannot be parsed.
pub(super) fn read(path: &Path) -> io::Result<Vec<String>> {
    let bytes = match base::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let file = if bytes.len() > BYTES_MAX {
        ServerFile::default()
    } else {
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot parse the server addresses; using --server");
            ServerFile::default()
        })
    };
    let mut all = Vec::new();
    for address in file.servers.iter().filter_map(|a| super::parse(a).ok()) {
        if !all.contains(&address) && all.len() < super::SERVERS_MAX {
            all.push(address);
        }
    }
    Ok(all)
}

/// Writes the addresses, unless the file holds them already.
pub(super) fn write_changed(path: &Path, addresses: &[String]) -> io::Result<()> {
    let text = serde_json::to_vec(&ServerFile { servers: addresses.to_vec() })?;
    if base::fs::read(path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|p| !p.exists()) {
        base::fs::create_dir(parent, 0o700)?;
    }
    base::fs::write_atomic(path, &text, 0o600)
}
