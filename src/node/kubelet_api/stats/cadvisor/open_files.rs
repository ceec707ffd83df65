//! The open files of the processes of a group, from `/proc`.

use std::path::Path;

/// Maximum number of descriptors of a group that are looked at: a group with more would make a
/// scrape slow. Further ones are not counted.
const DESCRIPTORS_MAX: u64 = 1 << 16;

/// Descriptors and sockets of the processes of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OpenFiles {
    pub(super) descriptors: u64,
    pub(super) sockets: u64,
}

/// Counts the open files of processes. Those that end meanwhile have none.
pub(super) fn count(proc: &Path, pids: &[u32]) -> OpenFiles {
    let mut files = OpenFiles::default();
    for pid in pids {
        let folder = proc.join(pid.to_string()).join("fd");
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if files.descriptors >= DESCRIPTORS_MAX {
                return files;
            }
            files.descriptors = files.descriptors.saturating_add(1);
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            if target.to_string_lossy().starts_with("socket") {
                files.sockets = files.sockets.saturating_add(1);
            }
        }
    }
    files
}

/// The soft limit of open files of a process; -1 without a limit.
pub(super) fn limit(proc: &Path, pid: u32) -> Option<i64> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_sockets_and_the_limit_are_read_from_proc() {
        let root = tempfile::tempdir().unwrap();
        let proc = root.path();
        let link = |pid: &str, name: &str, target: &str| {
            let folder = proc.join(pid).join("fd");
            std::fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        };
        link("7", "0", "/dev/null");
        link("7", "1", "socket:[123]");
        link("8", "0", "pipe:[5]");
        let files = OpenFiles { descriptors: 3, sockets: 1 };
        assert_eq!(count(proc, &[7, 8, 9]), files);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 4096                 files\n";
        std::fs::write(proc.join("7/limits"), limits).unwrap();
        std::fs::write(proc.join("8/limits"), limits.replace("1024", "unlimited")).unwrap();
        assert_eq!([limit(proc, 7), limit(proc, 8), limit(proc, 9)], [Some(1024), Some(-1), None]);
    }
}
