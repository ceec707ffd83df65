//! The requirements of a node on its machine; each finding names its fix.

use std::path::{Path, PathBuf};

use crate::error_catalogue::{
    BAD_CLOCK, CatalogueEntry, KERNEL_DEFAULTS, NEED_ROOT, NO_CGROUPS, NO_KERNEL_FEATURE,
    NO_RUNTIME, OLD_RUNC,
};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The requirement is met.
    Pass,
    /// The node runs with restrictions.
    Warning,
    /// The node cannot run.
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The finding in words.
    pub detail: String,
    /// The error of a failed check.
    pub entry: CatalogueEntry,
}

/// cgroup controllers that pods need.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
/// 2026-01-01, which is before the build of this program: an earlier clock is wrong.
const EARLIEST_SECONDS: u64 = 1_767_225_600;

/// Kernel settings that the kubelet expects (`pkg/util/sysctl`). Upstream's kubelet sets them,
/// unless it has --protect-kernel-defaults.
const KERNEL_SETTINGS: [(&str, u64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// The directories of programs.
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

/// Checks this machine; `runtime` is the CRI endpoint of the flag, if any. With `protect_defaults`
/// other kernel settings than the kubelet's are a failure instead of a warning.
pub fn check(runtime: Option<&str>, programs: &Programs, protect_defaults: bool) -> Vec<Finding> {
    vec![
        root(),
        cgroups(Path::new("/sys/fs/cgroup"), "/proc/cgroups"),
        file_systems(),
        clock(),
        containerd(runtime, programs),
        oci_runtime(runtime, programs),
        kernel_settings(Path::new("/proc/sys"), protect_defaults),
    ]
}

fn kernel_settings(root: &Path, protect_defaults: bool) -> Finding {
    let other: Vec<String> = KERNEL_SETTINGS
        .iter()
        .filter_map(|(file, want)| {
            let name = file.replace('/', ".");
            match std::fs::read_to_string(root.join(file)) {
                Ok(text) if text.trim() == want.to_string() => None,
                Ok(text) => Some(format!("{name}={} (expected {want})", text.trim())),
                // A kernel without keyrings lacks their limits.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => Some(format!("{name} cannot be read: {error}")),
            }
        })
        .collect();
    let failure = (!other.is_empty()).then(|| other.join(", "));
    let result =
        finding("kernel", KERNEL_DEFAULTS, failure, "settings as the kubelet expects them");
    match result.verdict {
        Verdict::Fail if !protect_defaults => Finding { verdict: Verdict::Warning, ..result },
        _ => result,
    }
}

fn finding(
    check: &'static str,
    entry: CatalogueEntry,
    failure: Option<String>,
    pass: &str,
) -> Finding {
    match failure {
        Some(detail) => Finding { check, verdict: Verdict::Fail, detail, entry },
        None => Finding { check, verdict: Verdict::Pass, detail: pass.to_owned(), entry },
    }
}

fn root() -> Finding {
    let failure = (!nix::unistd::geteuid().is_root())
        .then(|| format!("runs as uid {}", nix::unistd::geteuid()));
    finding("root", NEED_ROOT, failure, "runs as root")
}

/// Version 2 lists its controllers in one file, version 1 has a hierarchy per controller.
fn cgroups(mount: &Path, table: &str) -> Finding {
    let unified = std::fs::read_to_string(mount.join("cgroup.controllers")).ok();
    let version = if unified.is_some() { "v2" } else { "v1" };
    let has = |controller: &&&str| match &unified {
        Some(list) => list.split_whitespace().any(|c| c == **controller),
        None => mount.join(controller).is_dir(),
    };
    let missing: Vec<&str> = CONTROLLERS.iter().filter(|c| !has(c)).copied().collect();
    let failure = if missing.is_empty() {
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
        failure,
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
    let failure = (!built_in && !module)
        .then(|| "no overlay file system in /proc/filesystems and no modules to load".to_owned());
    finding("overlay", NO_KERNEL_FEATURE, failure, "overlay file systems")
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
    let (failure, pass) = match (runtime, programs.find("containerd")) {
        (Some(endpoint), _) => {
            let socket = endpoint.trim_start_matches("unix://");
            let missing = !Path::new(socket).exists();
            (missing.then(|| format!("{endpoint} does not exist")), endpoint.to_owned())
        }
        (None, Some(path)) => (None, path.display().to_string()),
        (None, None) => {
            let bin_dir = programs.bin_dir.display();
            (Some(format!("containerd is neither in {bin_dir} nor on PATH")), String::new())
        }
    };
    finding("runtime", NO_RUNTIME, failure, &pass)
}

/// The version of runc, if kube-lite's own containerd would use it. Another runtime chooses its
/// own.
fn oci_runtime(runtime: Option<&str>, programs: &Programs) -> Finding {
    let own = runtime.is_none() && programs.find("crun").is_none();
    let printed = programs.find("runc").filter(|_| own).and_then(|runc| {
        let output = std::process::Command::new(runc).arg("--version").output().ok()?;
        String::from_utf8(output.stdout).ok()
    });
    let failure = printed.as_deref().and_then(node::runc_vulnerability);
    let result = finding("engine", OLD_RUNC, failure, "no vulnerability of its version is known");
    match result.verdict {
        Verdict::Fail => Finding { verdict: Verdict::Warning, ..result },
        _ => result,
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
        let result = cgroups(directory.path(), table.to_str().unwrap());
        assert_eq!(result.verdict, Verdict::Fail);
        assert_eq!(
            result.detail,
            "cgroup controllers missing: memory (disabled on the kernel command line)"
        );
    }

    /// Other settings are a warning and never changed; with --protect-kernel-defaults they are a
    /// failure.
    #[test]
    fn other_kernel_settings_are_reported_and_not_changed() {
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
        let detail = "vm.overcommit_memory=0 (expected 1), kernel.panic=0 (expected 10)";
        for (protect_defaults, verdict) in [(false, Verdict::Warning), (true, Verdict::Fail)] {
            let result = kernel_settings(root, protect_defaults);
            assert_eq!((result.verdict, result.detail.as_str()), (verdict, detail));
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
        // A file without execute permission is not a program.
        assert_eq!(containerd(None, &none).verdict, Verdict::Fail);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        for programs in [none, programs("other", &bin)] {
            let result = containerd(None, &programs);
            assert_eq!(
                (result.verdict, result.detail),
                (Verdict::Pass, file.display().to_string())
            );
        }
    }
}
