//! Rotates and compresses container logs that exceed the size limit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sorting::CompactSort as _;

use crate::config::Config;
use crate::context::RuntimeHandles;
use crate::pods::observed::ObservedState;
use crate::pods::table::PodTable;

/// Rotates the log of each running container that exceeds the size limit.
pub(super) async fn rotate_logs(config: &Config, runtime: &RuntimeHandles, table: &PodTable) {
    for (pod, handle) in table.all() {
        let observed = Arc::clone(&handle.reported.lock().observed);
        for container in observed.containers.iter().filter(|c| c.state == ObservedState::Running) {
            let path = PathBuf::from(&container.log_path);
            let size = std::fs::metadata(&path).map_or(0, |m| m.len());
            if size <= config.log_max_size {
                continue;
            }
            let keep = config.log_max_files;
            if let Err(error) = rotate(runtime, &path, &container.id, keep).await {
                let container = &container.name;
                tracing::warn!(pod = %pod.key, container, %error, "cannot rotate the container log");
            }
        }
    }
}

/// Returns the rotated files `0.log.<timestamp>` of a log, oldest first; all but the newest are
/// compressed.
fn rotated_files(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name().map(|n| format!("{}.", n.to_string_lossy())) else {
        return Vec::new();
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out: Vec<PathBuf> = entries
        .filter(|e| e.file_name().to_string_lossy().starts_with(&name))
        .map(|e| e.path())
        .collect();
    out.compact_sort();
    out
}

async fn rotate(
    runtime: &RuntimeHandles,
    path: &Path,
    id: &str,
    keep: usize,
) -> std::io::Result<()> {
    let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default();
    let stamp = jiff::Timestamp::from_second(now)
        .map(|t| t.strftime("%Y%m%d-%H%M%S").to_string())
        .unwrap_or_default();
    let target = PathBuf::from(format!("{}.{stamp}", path.display()));
    let log = path.to_owned();
    let compressed = move || -> std::io::Result<()> {
        let mut old = rotated_files(&log);
        // Leave room for the current file and for the one that is about to be rotated.
        while old.len() > keep.saturating_sub(2) {
            std::fs::remove_file(old.remove(0))?;
        }
        for path in old.iter().filter(|p| p.extension().is_none_or(|e| e != "gz")) {
            compress(path)?;
        }
        Ok(())
    };
    base::tasks::blocking(compressed).await.map_err(std::io::Error::other)??;
    std::fs::rename(path, &target)?;
    if let Err(error) = runtime.cri.reopen_log(id).await {
        // The runtime still writes to the old file: restore its name.
        std::fs::rename(&target, path)?;
        return Err(std::io::Error::other(error));
    }
    Ok(())
}

fn compress(path: &Path) -> std::io::Result<()> {
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    let mut encoder = flate2::write::GzEncoder::new(
        std::fs::File::create(&temporary)?,
        flate2::Compression::fast(),
    );
    std::io::copy(&mut std::fs::File::open(path)?, &mut encoder)?;
    encoder.finish()?;
    std::fs::rename(&temporary, format!("{}.gz", path.display()))?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_those_of_the_log() {
        let directory = tempfile::tempdir().unwrap();
        for name in
            ["0.log", "0.log.20260101-000000.gz", "0.log.20260102-000000", "1.log.20260101-000000"]
        {
            std::fs::write(directory.path().join(name), name).unwrap();
        }
        let found = rotated_files(&directory.path().join("0.log"));
        assert_eq!(found.len(), 2);
        compress(&found[1]).unwrap();
        assert!(directory.path().join("0.log.20260102-000000.gz").exists() && !found[1].exists());
    }
}
