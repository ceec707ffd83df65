//! Whether a data directory is ours: what belongs to something else is left alone.

use std::path::Path;

use crate::error_catalogue::{DATA_DIR, Refusal};

/// What stands in a data directory of kube-lite.
const OURS: [&str; 4] = ["server", "agent", "bin", "storage"];
/// What an empty file system has.
const NOBODYS: &str = "lost+found";
/// What the store makes first of all: its lock, or the folder beside an external datastore.
const OURS_IN_DB: [&str; 2] = ["lock", crate::server::datastore::FOLDER];

/// Looks before anything is written.
///
/// # Errors
/// Names a file that tells of another owner, or the directory that cannot be read.
pub(crate) fn check(data_dir: &Path) -> Result<(), Refusal> {
    let top: Vec<String> = names(data_dir)?
        .into_iter()
        .filter(|name| name != NOBODYS && !name.starts_with('.'))
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

fn foreign(path: &Path) -> Refusal {
    DATA_DIR.refuse(format!("{} is not of kube-lite, nothing was changed", path.display()))
}

/// What is in a directory, in order; nothing when it is not there.
fn names(directory: &Path) -> Result<Vec<String>, Refusal> {
    let bad = |e: std::io::Error| DATA_DIR.refuse(format!("{}: {e}", directory.display()));
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(bad(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(bad)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_something_else_is_refused_by_what_is_in_it() {
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
