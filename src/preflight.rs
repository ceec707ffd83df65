//! What this machine must have for a node; each finding says how to mend it.

use std::path::{Path, PathBuf};

use crate::error_catalogue::{
    BAD_CLOCK, Entry, KERNEL_DEFAULTS, NEED_ROOT, NO_CGROUPS, NO_KERNEL_FEATURE, NO_RUNTIME,
    OLD_RUNC,
};

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

/// Settings of the kernel that the kubelet wants (`pkg/util/sysctl`), which upstream's sets unless it is to protect them.
const KERNEL_SETTINGS: [(&str, u64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// Where the node looks for programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `bin` in the data directory; searched first.
    pub bin_dir: PathBuf,
    /// The variable `PATH`.
    pub path: String,
}

impl Programs {
    fn find(&self, name: &str) -> Option<PathBuf> {
        node::find_program(std::slice::from_ref(&self.bin_dir), &self.path, name)
    }
}

/// Checks this machine; `runtime` is the CRI endpoint given, if any. With `protect` other settings of
/// the kernel than the kubelet's are no warning but a failure.
pub fn check(runtime: Option<&str>, programs: &Programs, protect: bool) -> Vec<Finding> {
    vec![
        root(),
        cgroups(Path::new("/sys/fs/cgroup"), "/proc/cgroups"),
        file_systems(),
        clock(),
        containerd(runtime, programs),
        engine(runtime, programs),
        kernel_settings(Path::new("/proc/sys"), protect),
    ]
}

fn kernel_settings(root: &Path, protect: bool) -> Finding {
    let other: Vec<String> = KERNEL_SETTINGS
        .iter()
        .filter_map(|(file, want)| {
            let name = file.replace('/', ".");
            match std::fs::read_to_string(root.join(file)) {
                Ok(text) if text.trim() == want.to_string() => None,
                Ok(text) => Some(format!("{name}={} (wanted {want})", text.trim())),
                // A kernel without keyrings has none to bound.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => Some(format!("{name} cannot be read: {error}")),
            }
        })
        .collect();
    let fault = (!other.is_empty()).then(|| other.join(", "));
    let found = finding("kernel", KERNEL_DEFAULTS, fault, "settings as the kubelet wants them");
    match found.verdict {
        Verdict::Fail if !protect => Finding { verdict: Verdict::Warning, ..found },
        _ => found,
    }
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

fn containerd(runtime: Option<&str>, programs: &Programs) -> Finding {
    let (fault, pass) = match (runtime, programs.find("containerd")) {
        (Some(endpoint), _) => {
            let socket = endpoint.trim_start_matches("unix://");
            let missing = !Path::new(socket).exists();
            (missing.then(|| format!("{endpoint} does not exist")), endpoint.to_owned())
        }
        (None, Some(found)) => (None, found.display().to_string()),
        (None, None) => {
            let place = programs.bin_dir.display();
            (Some(format!("containerd is neither in {place} nor on PATH")), String::new())
        }
    };
    finding("runtime", NO_RUNTIME, fault, &pass)
}

/// The version of runc, where the own containerd would use it; another runtime knows its own.
fn engine(runtime: Option<&str>, programs: &Programs) -> Finding {
    let own = runtime.is_none() && programs.find("crun").is_none();
    let printed = programs.find("runc").filter(|_| own).and_then(|runc| {
        let output = std::process::Command::new(runc).arg("--version").output().ok()?;
        String::from_utf8(output.stdout).ok()
    });
    let fault = printed.as_deref().and_then(node::runc_vulnerability);
    let found = finding("engine", OLD_RUNC, fault, "no fault of its version is known");
    match found.verdict {
        Verdict::Fail => Finding { verdict: Verdict::Warning, ..found },
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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

    /// C3.18: other settings are told and never changed; with --protect-kernel-defaults there is no node on them.
    #[test]
    fn settings_of_the_kernel_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("vm")).unwrap();
        std::fs::create_dir_all(root.join("kernel/keys")).unwrap();
        for (file, value) in KERNEL_SETTINGS {
            std::fs::write(root.join(file), format!("{value}\n")).unwrap();
        }
        assert_eq!(kernel_settings(root, true).verdict, Verdict::Pass);
        std::fs::write(root.join("vm/overcommit_memory"), "0\n").unwrap();
        std::fs::write(root.join("kernel/panic"), "0\n").unwrap();
        let detail = "vm.overcommit_memory=0 (wanted 1), kernel.panic=0 (wanted 10)";
        for (protect, verdict) in [(false, Verdict::Warning), (true, Verdict::Fail)] {
            let found = kernel_settings(root, protect);
            assert_eq!((found.verdict, found.detail.as_str()), (verdict, detail));
        }
        assert_eq!(std::fs::read_to_string(root.join("kernel/panic")).unwrap(), "0\n");
    }

    #[test]
    fn containerd_is_found_in_the_data_directory_and_on_path() {
        let directory = tempfile::tempdir().unwrap();
        let programs = |bin: &str, path: &Path| Programs {
            bin_dir: directory.path().join(bin),
            path: path.display().to_string(),
        };
        let none = programs("bin", Path::new("/nonexistent"));
        assert_eq!(
            containerd(Some("unix:///nonexistent.sock"), &none).detail,
            "unix:///nonexistent.sock does not exist"
        );
        let missing = containerd(None, &none);
        assert_eq!(missing.verdict, Verdict::Fail);
        let bin = directory.path().join("bin");
        assert_eq!(
            missing.detail,
            format!("containerd is neither in {} nor on PATH", bin.display())
        );
        std::fs::create_dir(&bin).unwrap();
        let file = bin.join("containerd");
        std::fs::write(&file, "").unwrap();
        // A file that cannot be executed is no program.
        assert_eq!(containerd(None, &none).verdict, Verdict::Fail);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        for programs in [none, programs("other", &bin)] {
            let found = containerd(None, &programs);
            assert_eq!((found.verdict, found.detail), (Verdict::Pass, file.display().to_string()));
        }
    }
}
