//! Renders containerd's configuration: version 2 for 1.x, version 3 for 2.x; unused plugins are
//! disabled.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::config::RuntimeConfig;
use crate::runtime::containerd::customization::Customization;
use crate::runtime::containerd::find::{RuntimePrograms, Version};
use crate::runtime::containerd::handlers::RuntimeHandler;
use crate::runtime::containerd::snapshotter::{FUSE_SOCKET, Snapshotter};
use crate::runtime::images::pause;

/// The version of the format of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ConfigFormat {
    /// Version 2, of containerd 1; containerd 2 reads it, too.
    V2,
    /// Version 3, of containerd 2.
    #[default]
    V3,
}

impl ConfigFormat {
    /// The newest format that a containerd reads.
    pub(super) fn of_version((major, _): Version) -> Self {
        if major >= 2 { Self::V3 } else { Self::V2 }
    }

    /// The template for this format in a folder, by k3s's name.
    pub(super) fn template(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Self::V2 => "config.toml.tmpl",
            Self::V3 => "config-v3.toml.tmpl",
        })
    }

    /// The folder of drop-in files for this format, by k3s's name.
    pub(super) fn drop_ins(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Self::V2 => "config.toml.d",
            Self::V3 => "config-v3.toml.d",
        })
    }
}

/// Properties of the machine that affect the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineTraits {
    /// How layers are mounted.
    pub(crate) snapshotter: Snapshotter,
    /// Whether the kernel rejects OOM scores below that of the process (unprivileged or nested
    /// machines).
    pub(crate) restrict_oom_score: bool,
    /// Whether containers get SELinux labels.
    pub(crate) selinux: bool,
}

/// Plugins that a node does not use. `runtime.v1.linux` of 1.6 stays enabled: the task service
/// depends on it.
const DISABLED_PLUGINS_1: &[&str] = &[
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
];

const DISABLED_PLUGINS_2: &[&str] = &[
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.differ.v1.erofs",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.monitor.container.v1.restart",
    "io.containerd.image-verifier.v1.bindir",
    "io.containerd.nri.v1.nri",
    "io.containerd.tracing.processor.v1.otlp",
];

/// Network namespaces of pods are mounted below containerd's state directory. In the default
/// `/run/netns`, an administrator's first `ip netns add` mounts that directory over itself, and no
/// namespace below it can be removed.
const NETNS: &str = "netns_mounts_under_state_dir = true";

/// The runtime of pods without a RuntimeClass, unless another one is configured. Its program is the
/// OCI runtime that was found.
pub(crate) const RUNC: &str = "runc";

/// Formats a TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A path as a TOML string.
pub(super) fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// The directory from which containerd reads the registry configuration.
pub(crate) fn registries_dir(config: &RuntimeConfig) -> PathBuf {
    config.data_dir.join("certs.d")
}

/// The tables of the runtimes: runc, and those that are installed besides it.
fn runtimes(
    config: &RuntimeConfig,
    binaries: &RuntimePrograms,
    handlers: &[RuntimeHandler],
    format: ConfigFormat,
) -> String {
    let plugin = match format {
        ConfigFormat::V2 => "io.containerd.grpc.v1.cri",
        ConfigFormat::V3 => "io.containerd.cri.v1.runtime",
    };
    let mut out = String::new();
    let mut put = |name: &str, runtime_type: &str, grouped: bool, program: Option<&Path>| {
        let _ = writeln!(
            out,
            "[plugins.\"{plugin}\".containerd.runtimes.{name}]\n  runtime_type = {}",
            quoted(runtime_type)
        );
        if grouped {
            out.push_str("  pod_annotations = [\"io.containerd.runc.v2.group\"]\n");
        }
        if let Some(program) = program {
            let _ = writeln!(
                out,
                "[plugins.\"{plugin}\".containerd.runtimes.{name}.options]\n  BinaryName = {}\n  \
                 SystemdCgroup = false",
                path(program)
            );
        }
    };
    put(RUNC, "io.containerd.runc.v2", config.grouped_shims, Some(&binaries.oci_runtime));
    for handler in handlers {
        put(handler.name, &handler.runtime_type, false, handler.oci_runtime.as_deref());
    }
    out
}

/// The settings of the security of containers.
fn security(config: &RuntimeConfig, machine: MachineTraits) -> String {
    let selinux = if machine.selinux { "  enable_selinux = true\n" } else { "" };
    format!("  device_ownership_from_security_context = {}\n{selinux}", config.nonroot_devices)
}

/// The settings of the process: its directories, sockets and plugins.
fn process_settings(
    config: &RuntimeConfig,
    major: u32,
    environment: &str,
    customization: &Customization,
) -> String {
    let off = if major >= 2 { DISABLED_PLUGINS_2 } else { DISABLED_PLUGINS_1 };
    let off: Vec<String> = off.iter().map(|p| quoted(p)).collect();
    let socket = config.supervised_socket();
    let imports = customization.imports.as_deref().map(path).unwrap_or_default();
    let imported = customization.imported.as_deref();
    let imported = imported.map(|of| format!("# Drop-in files: {of}\n")).unwrap_or_default();
    format!(
        "# Written by kube-lite at every start; changes are lost.\n\
         # Variables: {environment}\n{imported}version = {}\nroot = {}\nstate = {}\n\
         imports = [{imports}]\ndisabled_plugins = [{}]\n\n\
         [grpc]\n  address = {}\n[ttrpc]\n  address = {}\n[debug]\n  level = \"warn\"\n",
        if customization.format == ConfigFormat::V3 { 3 } else { 2 },
        path(&config.containerd_root()),
        path(&config.containerd_state()),
        off.join(", "),
        path(&socket),
        path(&socket.with_extension("sock.ttrpc")),
    )
}

/// Renders the configuration file. `environment` is the digest of containerd's variables: a change
/// restarts it, as any change of the file and of the drop-in files does.
pub(crate) fn render(
    config: &RuntimeConfig,
    binaries: &RuntimePrograms,
    machine: MachineTraits,
    handlers: &[RuntimeHandler],
    environment: &str,
    customization: &Customization,
) -> String {
    let (major, minor) = binaries.version;
    let format = customization.format;
    let mut out = process_settings(config, major, environment, customization);
    let snapshotter = machine.snapshotter.name();
    if machine.snapshotter == Snapshotter::FuseOverlayfs {
        let socket = path(Path::new(FUSE_SOCKET));
        let _ = write!(
            out,
            "\n[proxy_plugins.fuse-overlayfs]\n  type = \"snapshot\"\n  address = {socket}\n"
        );
    }
    let idle = if config.short_streams { "  stream_idle_timeout = \"5m0s\"\n" } else { "" };
    // A single directory: containerd 2.1 and later read a list as the name of one.
    let registry = format!("\n  config_path = {}", path(&registries_dir(config)));
    let (restrict, security) = (machine.restrict_oom_score, security(config, machine));
    let (conf_dir, bin_dir) = (path(&config.cni_conf_dir), path(&config.cni_bin_dir));
    let pause = quoted(config.pause_image.as_deref().unwrap_or(pause::IMAGE));
    let default = quoted(config.default_runtime.as_deref().unwrap_or(RUNC));
    let runtimes = runtimes(config, binaries, handlers, format);
    // From 2.0 on, devices of the Container Device Interface are enabled by default.
    let cdi = if (major, minor) == (1, 7) { "  enable_cdi = true\n" } else { "" };
    let body = if format == ConfigFormat::V3 {
        let bin = if minor >= 1 {
            format!("bin_dirs = [{bin_dir}]")
        } else {
            format!("bin_dir = {bin_dir}")
        };
        format!(
            "[plugins.\"io.containerd.cri.v1.images\"]\n  snapshotter = \"{snapshotter}\"\n\
             [plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = {pause}\n\
             [plugins.\"io.containerd.cri.v1.images\".registry]{registry}\n\
             [plugins.\"io.containerd.cri.v1.runtime\"]\n  restrict_oom_score_adj = {restrict}\n  \
             tolerate_missing_hugetlb_controller = true\n  {NETNS}\n{security}\
             [plugins.\"io.containerd.cri.v1.runtime\".containerd]\n  default_runtime_name \
             = {default}\n\
             {runtimes}\
             [plugins.\"io.containerd.cri.v1.runtime\".cni]\n  {bin}\n  conf_dir = {conf_dir}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\n  stream_server_address = \"127.0.0.1\"\n  \
             stream_server_port = \"0\"\n{idle}"
        )
    } else {
        format!(
            "[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = {pause}\n  \
             restrict_oom_score_adj = {restrict}\n  \
             tolerate_missing_hugetlb_controller = true\n  {NETNS}\n{security}  \
             enable_unprivileged_ports = true\n  enable_unprivileged_icmp = true\n{cdi}  \
             stream_server_address = \"127.0.0.1\"\n  stream_server_port = \"0\"\n{idle}\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter \
             = \"{snapshotter}\"\n  default_runtime_name = {default}\n\
             {runtimes}\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = {bin_dir}\n  conf_dir = \
             {conf_dir}\n\
             [plugins.\"io.containerd.grpc.v1.cri\".registry]{registry}\n"
        )
    };
    out.push_str(&body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// No files of an administrator.
    fn plain(version: Version) -> Customization {
        Customization::read(Path::new("/none"), version).unwrap()
    }

    #[test]
    fn the_file_version_depends_on_the_containerd_version() {
        let config = Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into()).runtime;
        let machine = MachineTraits {
            snapshotter: Snapshotter::Overlayfs,
            restrict_oom_score: true,
            selinux: false,
        };
        let render = |version| {
            let binaries = RuntimePrograms {
                containerd: "/c".into(),
                version,
                oci_runtime: "/usr/bin/\"x".into(),
                vulnerability: None,
            };
            super::render(&config, &binaries, machine, &[], "", &plain(version))
        };
        let old = render((1, 6));
        assert!(
            old.contains("version = 2\nroot = \"/d/containerd\"") && old.contains("sandbox_image")
        );
        let registries = "config_path = \"/d/certs.d\"";
        assert!(old.contains(registries));
        assert!(old.contains(r#"BinaryName = "/usr/bin/\"x""#));
        assert!(!old.contains("enable_cdi") && !old.contains("enable_selinux"));
        assert!(render((1, 7)).contains("\n  enable_cdi = true\n  stream_server_address"));
        let new = render((2, 4));
        assert!(new.contains(registries));
        assert!(new.contains("version = 3") && new.contains("bin_dirs = [\"/opt/cni/bin\"]"));
        assert!(render((2, 0)).contains("bin_dir = \"/opt/cni/bin\""));
    }

    #[test]
    fn flags_and_installed_runtimes_are_in_the_file_of_both_versions() {
        let mut config = Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into()).runtime;
        config.pause_image = Some("r.io/pause:3".to_owned());
        config.default_runtime = Some("crun".to_owned());
        config.nonroot_devices = true;
        config.grouped_shims = true;
        let machine = MachineTraits {
            snapshotter: Snapshotter::FuseOverlayfs,
            restrict_oom_score: true,
            selinux: true,
        };
        let handlers = [
            RuntimeHandler {
                name: "crun",
                runtime_type: "io.containerd.runc.v2".to_owned(),
                oci_runtime: Some("/usr/bin/crun".into()),
                shim_dir: None,
            },
            RuntimeHandler {
                name: "spin",
                runtime_type: "io.containerd.spin.v2".to_owned(),
                oci_runtime: None,
                shim_dir: Some("/opt/kwasm/bin".into()),
            },
        ];
        for version in [(1, 6), (2, 4)] {
            let binaries = RuntimePrograms {
                containerd: "/c".into(),
                version,
                oci_runtime: "/usr/bin/runc".into(),
                vulnerability: None,
            };
            let text =
                super::render(&config, &binaries, machine, &handlers, "sha256:0", &plain(version));
            for part in [
                "# Variables: sha256:0\n",
                "\"r.io/pause:3\"\n",
                "default_runtime_name = \"crun\"\n",
                "device_ownership_from_security_context = true\n  enable_selinux = true\n",
                "[proxy_plugins.fuse-overlayfs]\n  type = \"snapshot\"\n  address = \
                 \"/run/containerd-fuse-overlayfs.sock\"\n",
                "snapshotter = \"fuse-overlayfs\"\n",
                ".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n  \
                 pod_annotations",
                ".containerd.runtimes.crun.options]\n  BinaryName = \"/usr/bin/crun\"\n",
                ".containerd.runtimes.spin]\n  runtime_type = \"io.containerd.spin.v2\"\n[",
            ] {
                assert!(text.contains(part), "{part} is missing in:\n{text}");
            }
        }
    }

    #[test]
    fn network_namespaces_are_mounted_below_the_state_directory() {
        let config = Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into()).runtime;
        let machine = MachineTraits {
            snapshotter: Snapshotter::Overlayfs,
            restrict_oom_score: true,
            selinux: false,
        };
        // The table of the plugin that runs sandboxes, in both versions of the file.
        for (version, plugin) in [
            ((1, 6), "[plugins.\"io.containerd.grpc.v1.cri\"]"),
            ((2, 0), "[plugins.\"io.containerd.cri.v1.runtime\"]"),
            ((2, 4), "[plugins.\"io.containerd.cri.v1.runtime\"]"),
        ] {
            let binaries = RuntimePrograms {
                containerd: "/c".into(),
                version,
                oci_runtime: "/runc".into(),
                vulnerability: None,
            };
            let text = super::render(&config, &binaries, machine, &[], "", &plain(version));
            let table = text.split_once(plugin).unwrap().1;
            let table = table.split("\n[").next().unwrap();
            assert!(table.lines().any(|l| l == "  netns_mounts_under_state_dir = true"), "{text}");
        }
    }
}
