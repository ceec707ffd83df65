//! Checks that a data directory belongs to kube-lite before anything in it changes.

use std::path::Path;

use sorting::CompactSort as _;

use crate::error_catalogue::{CommandError, DATA_DIR};

/// Top-level entries of a data directory of kube-lite.
const OURS: [&str; 4] = ["server", "agent", "bin", "storage"];
/// Entry of an empty file system.
const LOST_AND_FOUND: &str = "lost+found";
/// What the store creates first: its lock, or the folder next to an external datastore.
const OURS_IN_DB: [&str; 2] = ["lock", crate::server::datastore::FOLDER];

/// Checks an existing data directory.
///
/// # Errors
/// A file of another program, or a directory that cannot be read.
pub(crate) fn check(data_dir: &Path) -> Result<(), CommandError> {
    let top: Vec<String> = names(data_dir)?
        .into_iter()
        .filter(|name| name != LOST_AND_FOUND && !name.starts_with('.'))
        .collect();
    if let Some(first) = top.first()
        && !top.iter().any(|name| OURS.contains(&name.as_str()))
    {
        return Err(foreign(&data_dir.join(first)));
    }
    let db = data_dir.join("server/db");
    let stored = names(&db)?;
    match stored.first() {
        Some(first) if !stored.iter().any(|name| OURS_IN_DB.contains(&name.as_str())) => {
            Err(foreign(&db.join(first)))
        }
        _ => Ok(()),
    }
}

fn foreign(path: &Path) -> CommandError {
    DATA_DIR.error(format!("{} does not belong to kube-lite, nothing was changed", path.display()))
}

/// The sorted names in a directory; none if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>, CommandError> {
    let bad = |e: std::io::Error| DATA_DIR.error(format!("{}: {e}", directory.display()));
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(bad(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(bad)?.file_name().to_string_lossy().into_owned());
    }
    names.compact_sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_program_is_rejected_by_its_first_file() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let make = |path: &str| {
            std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            std::fs::write(at(path), "x").unwrap();
        };
        make("disk/lost+found/x");
        make("disk/.trash");
        make("images/agent/images/app.tar");
        make("own/server/db/lock");
        make("own/server/db/log-0000000000000001");
        make("own/notes.txt");
        for good in ["absent", "disk", "images", "own"] {
            assert!(check(&at(good)).is_ok(), "{good}");
        }
        make("home/letters.txt");
        make("k3s/server/db/state.db");
        for (bad, named) in [("home", "letters.txt"), ("k3s", "state.db"), ("home/letters.txt", "")]
        {
            let text = check(&at(bad)).unwrap_err().to_string();
            assert!(text.contains("KL0301") && text.contains(named), "{bad}: {text}");
        }
    }
}
