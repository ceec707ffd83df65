//! The runtimes besides runc that are installed on this machine, under the names and in the
//! directories in which k3s looks for them.

use std::path::{Path, PathBuf};

use super::find::find_program;

/// A runtime that pods select by the handler of their RuntimeClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeHandler {
    pub(crate) name: &'static str,
    /// containerd's name of its shim.
    pub(crate) runtime_type: String,
    /// The OCI runtime that the shim of runc starts; `None` for other shims.
    pub(crate) oci_runtime: Option<PathBuf>,
    /// The directory of the shim, which containerd searches for it.
    pub(crate) shim_dir: Option<PathBuf>,
}

/// Directories of package managers and of manual installations.
const PROGRAMS: &[&str] = &["/usr/sbin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin"];
/// The GPU operator's directory precedes that of packages.
const NVIDIA: &[&str] = &["/usr/local/nvidia/toolkit", "/usr/bin"];
/// The directory of the kwasm operator precedes those of packages.
const WASM: &[&str] = &["/opt/kwasm/bin", "/usr/bin", "/usr/sbin", "/usr/local/bin"];

/// Name and program of each OCI runtime, and where it is searched.
const OCI_RUNTIMES: &[(&str, &str, &[&str])] = &[
    ("crun", "crun", PROGRAMS),
    ("nvidia", "nvidia-container-runtime", NVIDIA),
    ("nvidia-cdi", "nvidia-container-runtime.cdi", NVIDIA),
    ("nvidia-experimental", "nvidia-container-runtime-experimental", NVIDIA),
];

/// Runtimes of WebAssembly; each has a shim.
const WASM_RUNTIMES: &[&str] =
    &["lunatic", "slight", "spin", "wasmedge", "wasmer", "wasmtime", "wws"];

/// Returns the runtimes below `root`, which is `/`.
pub(crate) fn find(root: &Path) -> Vec<RuntimeHandler> {
    let below = |dirs: &[&str]| -> Vec<PathBuf> {
        dirs.iter().map(|dir| root.join(dir.trim_start_matches('/'))).collect()
    };
    let oci = OCI_RUNTIMES.iter().filter_map(|&(name, program, dirs)| {
        let oci_runtime = find_program(&below(dirs), "", program)?;
        Some(RuntimeHandler {
            name,
            runtime_type: "io.containerd.runc.v2".to_owned(),
            oci_runtime: Some(oci_runtime),
            shim_dir: None,
        })
    });
    let wasm = WASM_RUNTIMES.iter().filter_map(|&name| {
        let find = |version: &'static str| {
            let shim = find_program(&below(WASM), "", &format!("containerd-shim-{name}-{version}"));
            shim.map(|shim| (version, shim))
        };
        let (version, shim) = find("v2").or_else(|| find("v1"))?;
        Some(RuntimeHandler {
            name,
            runtime_type: format!("io.containerd.{name}.{version}"),
            oci_runtime: None,
            shim_dir: shim.parent().map(Path::to_owned),
        })
    });
    oci.chain(wasm).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn installed_runtimes_are_found_in_the_directories_of_k3s() {
        let root = tempfile::tempdir().unwrap();
        let install = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        assert_eq!(find(root.path()), []);
        let crun = install("usr/bin/crun");
        install("usr/bin/nvidia-container-runtime");
        let nvidia = install("usr/local/nvidia/toolkit/nvidia-container-runtime");
        install("opt/kwasm/bin/containerd-shim-spin-v2");
        install("usr/bin/containerd-shim-wasmtime-v1");
        let found = find(root.path());
        let names: Vec<_> = found.iter().map(|h| (h.name, h.runtime_type.as_str())).collect();
        assert_eq!(
            names,
            [
                ("crun", "io.containerd.runc.v2"),
                ("nvidia", "io.containerd.runc.v2"),
                ("spin", "io.containerd.spin.v2"),
                ("wasmtime", "io.containerd.wasmtime.v1"),
            ]
        );
        assert_eq!(found[0].oci_runtime.as_deref(), Some(crun.as_path()));
        assert_eq!(found[1].oci_runtime.as_deref(), Some(nvidia.as_path()));
        assert_eq!(found[2].shim_dir, Some(root.path().join("opt/kwasm/bin")));
    }
}
