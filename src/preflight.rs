//! What this machine must have for a node; each finding says how to mend it.

use std::path::Path;

use crate::catalogue::{BAD_CLOCK, Entry, NEED_ROOT, NO_CGROUPS, NO_KERNEL_FEATURE, NO_RUNTIME};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Works, but not well.
    Warning,
    /// The node cannot run.
    Fail,
}

/// One check.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// The refusal it leads to.
    pub entry: Entry,
}

/// cgroup controllers that pods need.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
/// Build time of this program is after this (2026-01-01): an earlier clock is wrong.
const EARLIEST_SECONDS: u64 = 1_767_225_600;

/// Checks this machine; `runtime` is the CRI endpoint given, if any, `path` the variable PATH.
pub fn check(runtime: Option<&str>, path: &str) -> Vec<Finding> {
    vec![
        root(),
        cgroups(Path::new("/sys/fs/cgroup"), "/proc/cgroups"),
        file_systems(),
        clock(),
        containerd(runtime, path),
    ]
}

fn finding(check: &'static str, entry: Entry, fault: Option<String>, pass: &str) -> Finding {
    match fault {
        Some(detail) => Finding { check, verdict: Verdict::Fail, detail, entry },
        None => Finding { check, verdict: Verdict::Pass, detail: pass.to_owned(), entry },
    }
}

fn root() -> Finding {
    let fault = (!nix::unistd::geteuid().is_root())
        .then(|| format!("runs as uid {}", nix::unistd::geteuid()));
    finding("root", NEED_ROOT, fault, "runs as root")
}

/// Version 2 lists its controllers in one file, version 1 has a hierarchy per controller.
fn cgroups(mount: &Path, table: &str) -> Finding {
    let unified = std::fs::read_to_string(mount.join("cgroup.controllers")).ok();
    let version = if unified.is_some() { "v2" } else { "v1" };
    let has = |controller: &&&str| match &unified {
        Some(list) => list.split_whitespace().any(|c| c == **controller),
        None => mount.join(controller).is_dir(),
    };
    // cgroup v2 has no separate cpuset on all kernels built small; there the kernel table decides.
    let missing: Vec<&str> = CONTROLLERS.iter().filter(|c| !has(c)).copied().collect();
    let fault = if missing.is_empty() {
        None
    } else {
        let disabled = std::fs::read_to_string(table).unwrap_or_default();
        let off =
            missing.iter().any(|m| disabled.lines().any(|l| l.starts_with(m) && l.ends_with('0')));
        Some(format!(
            "cgroup controllers missing: {}{}",
            missing.join(", "),
            if off { " (disabled on the kernel command line)" } else { "" }
        ))
    };
    finding(
        "cgroups",
        NO_CGROUPS,
        fault,
        &format!("cgroup {version} with {}", CONTROLLERS.join(", ")),
    )
}

fn file_systems() -> Finding {
    let list = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let built_in = list.lines().any(|l| l.trim_start_matches("nodev").trim() == "overlay");
    let release = nix::sys::utsname::uname()
        .map(|u| u.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let module = Path::new("/lib/modules").join(&release).exists();
    let fault = (!built_in && !module)
        .then(|| "no overlay file system in /proc/filesystems and no modules to load".to_owned());
    finding("overlay", NO_KERNEL_FEATURE, fault, "overlay file systems")
}

fn clock() -> Finding {
    let now = base::clock::unix_time().as_secs();
    finding(
        "clock",
        BAD_CLOCK,
        (now < EARLIEST_SECONDS).then(|| format!("the clock says {now} s after 1970")),
        "plausible",
    )
}

fn containerd(runtime: Option<&str>, path: &str) -> Finding {
    let fault = match runtime {
        Some(endpoint) => {
            let socket = endpoint.trim_start_matches("unix://");
            (!Path::new(socket).exists()).then(|| format!("{endpoint} does not exist"))
        }
        None => {
            let found = path.split(':').any(|d| Path::new(d).join("containerd").is_file());
            (!found).then(|| "containerd is not on PATH".to_owned())
        }
    };
    finding("runtime", NO_RUNTIME, fault, runtime.unwrap_or("containerd on PATH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_memory_controller_is_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("cgroup.controllers"), "cpuset cpu io pids\n")
            .unwrap();
        let table = directory.path().join("cgroups");
        std::fs::write(&table, "cpuset\t0\t1\t1\nmemory\t0\t1\t0\n").unwrap();
        let found = cgroups(directory.path(), table.to_str().unwrap());
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(
            found.detail,
            "cgroup controllers missing: memory (disabled on the kernel command line)"
        );
    }

    #[test]
    fn a_runtime_endpoint_that_is_not_there_is_refused() {
        assert_eq!(
            containerd(Some("unix:///nonexistent.sock"), "").detail,
            "unix:///nonexistent.sock does not exist"
        );
        assert_eq!(containerd(None, "/nonexistent").verdict, Verdict::Fail);
    }
}
