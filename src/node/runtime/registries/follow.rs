//! Applies the file at the start and after each change.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Shutdown;
use tokio::sync::watch;

use super::config::Registries;
use super::file::{InvalidRegistries, load};
use super::hosts::HEADER;
use crate::file_watcher::FileWatcher;
use arc_swap::ArcSwap;

/// Key of the problem entry of a rejected file.
const PROBLEM: &str = "registries";

/// Writes the directories that containerd reads, and removes outdated ones. Directories with other
/// content are kept.
///
/// # Errors
///
/// A directory or file cannot be written.
pub(crate) fn write_hosts(registries: &Registries, dir: &Path) -> io::Result<()> {
    base::fs::create_dir(dir, 0o700)?;
    let wanted: BTreeMap<String, String> = registries.hosts();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let known = wanted.contains_key(&*entry.file_name().to_string_lossy());
        let file = entry.path().join("hosts.toml");
        if !known && base::fs::read_to_string(&file).is_ok_and(|text| text.starts_with(HEADER)) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    for (folder, text) in wanted {
        let file = dir.join(&folder).join("hosts.toml");
        if base::fs::read_to_string(&file).unwrap_or_default() != text {
            base::fs::create_dir(&dir.join(folder), 0o700)?;
            base::fs::write_atomic(&file, text.as_bytes(), 0o600)?;
        }
    }
    Ok(())
}

/// Why a changed file does not take effect.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Load(#[from] InvalidRegistries),
    #[error("{}: {source}", .dir.display())]
    WriteHosts { dir: PathBuf, source: io::Error },
}

/// Watches the file until shutdown and reports changes to `changed`. If it becomes invalid, a
/// problem is reported and the previous configuration stays in effect.
pub(crate) async fn watch_file(
    current: Arc<ArcSwap<Registries>>,
    file: Option<PathBuf>,
    dir: PathBuf,
    changed: watch::Sender<()>,
    problems: base::Problems,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let Some(path) = file else { return idle(shutdown).await };
    let folders: Vec<PathBuf> = path.parent().map(Path::to_path_buf).into_iter().collect();
    let mut watcher = match FileWatcher::new() {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::error!(file = %path.display(), %error, "cannot watch the registries file; \
                changes take effect at the next start");
            return idle(shutdown).await;
        }
    };
    loop {
        watcher.watch(&folders);
        let (file, dir, now) = (path.clone(), dir.clone(), current.load_full());
        let options = now.options;
        let read = base::tasks::blocking(move || -> Result<Option<Registries>, ReloadError> {
            let new = load(&file)?.with_options(options);
            if new == *now {
                return Ok(None);
            }
            write_hosts(&new, &dir).map_err(|source| ReloadError::WriteHosts { dir, source })?;
            Ok(Some(new))
        });
        match read.await {
            Ok(Ok(Some(new))) => {
                current.store(Arc::new(new));
                changed.send_replace(());
                problems.clear(PROBLEM);
                tracing::info!(file = %path.display(), "registries changed");
            }
            Ok(Ok(None)) => problems.clear(PROBLEM),
            Ok(Err(error)) => {
                let what = format!(
                    "{} is invalid, so the previous registries stay in effect: {error}",
                    path.display()
                );
                let fix = "correct the file; it is read again when it changes";
                problems.put(PROBLEM, what, fix);
            }
            Err(_) => return Ok(()),
        }
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = watcher.changed(&folders) => {}
        }
    }
}

async fn idle(shutdown: Shutdown) -> Result<(), std::convert::Infallible> {
    shutdown.requested().await;
    Ok(())
}
