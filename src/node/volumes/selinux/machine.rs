//! Whether the kernel has SELinux with a policy, and the labels of containers in the policy
//! (`GetEnabled` and `ContainerLabels` of `opencontainers/selinux`). Read once, at the start.

use std::path::{Path, PathBuf};

use nix::sys::statfs::{SELINUX_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;

use super::label::ContainerContexts;

/// Where the file system of SELinux is mounted, unless the table of mounts says otherwise.
const MOUNT: &str = "/sys/fs/selinux";
/// The label of this process: `kernel` until a policy is loaded.
const OWN_LABEL: &str = "/proc/thread-self/attr/current";
/// The label of a process without a policy.
const WITHOUT_POLICY: &str = "kernel";
/// Names the policy.
const CONFIG: &str = "/etc/selinux/config";
/// The labels of containers, of the distribution's containers.
const CONTEXTS: &str = "/usr/share/containers/selinux/contexts";
/// The labels of containers below the directory of the policy.
const POLICY_CONTEXTS: &str = "contexts/lxc_contexts";

/// Whether a writable file system of SELinux is mounted on a directory.
fn is_mounted(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| {
        found.filesystem_type() == SELINUX_MAGIC && !found.flags().contains(FsFlags::ST_RDONLY)
    })
}

/// The mount points of SELinux in a table of mounts.
fn mount_points(table: &str) -> impl Iterator<Item = &str> {
    let lines = table.lines().filter(|line| line.contains(" - selinuxfs "));
    lines.filter_map(|line| line.split(' ').nth(4))
}

fn has_mount() -> bool {
    if is_mounted(Path::new(MOUNT)) {
        return true;
    }
    let table = std::fs::read_to_string(crate::volumes::mounts::TABLE).unwrap_or_default();
    mount_points(&table).any(|point| is_mounted(Path::new(point)))
}

/// Whether the kernel of this machine has SELinux with a policy. Blocks.
pub(crate) fn is_enabled() -> bool {
    // A label that cannot be read is not that of a kernel without a policy.
    let label = std::fs::read_to_string(OWN_LABEL).unwrap_or_default();
    has_mount() && label.trim_end_matches('\0') != WITHOUT_POLICY
}

/// The directory of the policy, from the text of its configuration; `etc` is the directory of all
/// policies.
fn policy_dir(config: &str, etc: &Path) -> PathBuf {
    let lines = config.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
    let mut values = lines.filter_map(|line| line.split_once('='));
    let name = values.find(|(name, _)| *name == "SELINUXTYPE").map(|(_, value)| value);
    etc.join(name.unwrap_or_default().trim_matches('"'))
}

/// Reads the labels of containers; none if there is no file with them. Blocks.
pub(super) fn contexts() -> ContainerContexts {
    let text = std::fs::read_to_string(CONTEXTS).or_else(|_| {
        let config = std::fs::read_to_string(CONFIG).unwrap_or_default();
        let etc = Path::new(CONFIG).parent().unwrap_or(Path::new("/"));
        std::fs::read_to_string(policy_dir(&config, etc).join(POLICY_CONTEXTS))
    });
    let text = text.inspect_err(|error| {
        let policy = POLICY_CONTEXTS;
        tracing::warn!(%error, policy, "node: the SELinux policy has no labels of containers");
    });
    ContainerContexts::parse(&text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_directory_of_the_policy() {
        let of = |config| policy_dir(config, Path::new("/etc/selinux"));
        let text = "# SELINUXTYPE=x\n\n SELINUX=enforcing\nSELINUXTYPE=\"targeted\"\n";
        assert_eq!(of(text), Path::new("/etc/selinux/targeted"));
        assert_eq!(of("SELINUX=permissive\n"), Path::new("/etc/selinux"));
    }

    #[test]
    fn the_file_system_of_selinux_is_found_by_its_type() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            25 22 0:19 / /selinux rw,relatime - selinuxfs selinuxfs rw\n\
            26 22 0:20 / /x rw - tmpfs selinuxfs rw\n";
        assert_eq!(mount_points(table).collect::<Vec<_>>(), ["/selinux"]);
        assert!(!is_mounted(Path::new("/")) && !is_mounted(Path::new("/nowhere")));
    }
}
