//! `/dev` and `/sys` of the machine, below a root directory that tests replace. Only reads.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use nix::sys::stat::{major, minor};
use sorting::CompactSort as _;

/// Maximum number of names of one directory that are considered; `/dev` has a few hundred.
const NAMES_MAX: usize = 10_000;
/// Maximum number of bytes of an attribute in `/sys`: a page.
const ATTRIBUTE_MAX: u64 = 4096;

/// A tree with `/dev` and `/sys`. Paths are those on the machine, without the root directory.
#[derive(Debug, Clone)]
pub(crate) struct HostTree {
    /// Absolute and without symbolic links.
    root: PathBuf,
    /// Whether a file is a device node.
    is_device: fn(&fs::Metadata) -> bool,
}

impl HostTree {
    /// The tree of this machine.
    pub(crate) fn host() -> Self {
        let is_device = |metadata: &fs::Metadata| {
            let kind = metadata.file_type();
            kind.is_char_device() || kind.is_block_device()
        };
        Self { root: PathBuf::from("/"), is_device }
    }

    /// A tree below `root`, in which regular files are device nodes.
    #[cfg(test)]
    pub(crate) fn fake(root: &Path) -> Self {
        let is_device = |metadata: &fs::Metadata| metadata.is_file();
        Self { root: root.canonicalize().unwrap(), is_device }
    }

    /// The path in the file system of this process.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The path without symbolic links; `None` for a missing one.
    pub(crate) fn real(&self, path: &Path) -> Option<PathBuf> {
        let real = fs::canonicalize(self.outside(path)).ok()?;
        Some(Path::new("/").join(real.strip_prefix(&self.root).ok()?))
    }

    /// The names in a directory, sorted; none for a missing directory.
    pub(crate) fn names(&self, directory: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.outside(directory)) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.take(NAMES_MAX).collect();
        names.compact_sort();
        names
    }

    /// The names of the directories in a directory, without symbolic links to some, sorted.
    pub(crate) fn directories(&self, directory: &Path) -> Vec<String> {
        let mut names = self.names(directory);
        names.retain(|name| {
            let metadata = fs::symlink_metadata(self.outside(&directory.join(name)));
            metadata.is_ok_and(|metadata| metadata.is_dir())
        });
        names
    }

    pub(crate) fn is_directory(&self, path: &Path) -> bool {
        self.outside(path).is_dir()
    }

    pub(crate) fn is_link(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.outside(path)).is_ok_and(|metadata| metadata.is_symlink())
    }

    /// The text of an attribute without white space around it; `None` for a missing, empty or
    /// unreadable one.
    pub(crate) fn attribute(&self, path: &Path) -> Option<String> {
        let file = fs::File::open(self.outside(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(ATTRIBUTE_MAX).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// The device node at a path below `/dev`, with symbolic links resolved; `None` if it is
    /// missing, no device, or not below `/dev`.
    pub(crate) fn device_node(&self, path: &Path) -> Option<String> {
        let real = self.real(path)?;
        let is_below_dev = real.starts_with("/dev");
        let metadata = fs::metadata(self.outside(&real)).ok()?;
        let is_device = is_below_dev && (self.is_device)(&metadata);
        is_device.then(|| real.to_str().map(str::to_owned)).flatten()
    }

    /// The name of the device node that a directory of `/sys` describes, such as `bus/usb/001/004`.
    pub(crate) fn node_name(&self, directory: &Path) -> Option<String> {
        let uevent = self.attribute(&directory.join("uevent"))?;
        let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        let is_plain = |part| matches!(part, Component::Normal(_));
        Path::new(name).components().all(is_plain).then(|| name.to_owned())
    }

    /// The directory of `/sys` that describes a device node.
    pub(crate) fn described_at(&self, node: &str) -> Option<PathBuf> {
        let metadata = fs::metadata(self.outside(Path::new(node))).ok()?;
        let class = if metadata.file_type().is_block_device() { "block" } else { "char" };
        let number = metadata.rdev();
        let link = format!("/sys/dev/{class}/{}:{}", major(number), minor(number));
        self.real(Path::new(&link))
    }

    /// The NUMA node of a device of `/sys`: that of the nearest device above it that has one.
    pub(crate) fn numa_node(&self, device: &Path) -> Option<i64> {
        let mut above = device.ancestors().take_while(|path| *path != Path::new("/sys/devices"));
        let node = above.find_map(|path| self.attribute(&path.join("numa_node")))?;
        // -1 is a machine without NUMA nodes.
        node.parse().ok().filter(|node: &i64| *node >= 0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A fake tree, whose files and links are made by the path on the machine.
    pub(crate) struct FakeTree(tempfile::TempDir);

    impl FakeTree {
        pub(crate) fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            fs::create_dir(tree.0.path().join("dev")).unwrap();
            tree
        }

        pub(crate) fn tree(&self) -> HostTree {
            HostTree::fake(self.0.path())
        }

        fn place(&self, path: &str) -> PathBuf {
            let place = self.tree().outside(Path::new(path));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            place
        }

        pub(crate) fn file(&self, path: &str, text: &str) {
            fs::write(self.place(path), text).unwrap();
        }

        /// A link to a path on the machine.
        pub(crate) fn link(&self, path: &str, to: &str) {
            symlink(self.tree().outside(Path::new(to)), self.place(path)).unwrap();
        }

        pub(crate) fn remove(&self, path: &str) {
            let place = self.place(path);
            match fs::symlink_metadata(&place).unwrap().is_dir() {
                true => fs::remove_dir_all(place).unwrap(),
                false => fs::remove_file(place).unwrap(),
            }
        }
    }

    #[test]
    fn device_nodes_are_below_dev_and_links_are_resolved() {
        let fake = FakeTree::new();
        fake.file("/dev/ttyUSB0", "");
        fake.link("/dev/serial/by-id/usb-x", "/dev/ttyUSB0");
        fake.file("/etc/passwd", "");
        fake.link("/dev/passwd", "/etc/passwd");
        fake.link("/dev/dangling", "/dev/gone");
        let node = |path: &str| fake.tree().device_node(Path::new(path));
        assert_eq!(node("/dev/ttyUSB0").as_deref(), Some("/dev/ttyUSB0"));
        assert_eq!(node("/dev/serial/by-id/usb-x").as_deref(), Some("/dev/ttyUSB0"));
        for path in ["/dev/passwd", "/dev/dangling", "/dev/serial", "/etc/passwd"] {
            assert_eq!(node(path), None, "{path}");
        }
    }

    #[test]
    fn only_character_and_block_devices_of_the_machine_are_device_nodes() {
        let host = HostTree::host();
        assert_eq!(host.device_node(Path::new("/dev/null")).as_deref(), Some("/dev/null"));
        assert_eq!(host.device_node(Path::new("/dev")), None);
    }

    #[test]
    fn the_numa_node_is_that_of_the_nearest_device_above() {
        let fake = FakeTree::new();
        fake.file("/sys/devices/pci0/0000:00:14.0/numa_node", "1\n");
        fake.file("/sys/devices/pci0/0000:00:14.0/usb1/1-1/idVendor", "10c4\n");
        fake.file("/sys/devices/pci1/numa_node", "-1\n");
        fake.file("/sys/devices/platform/x", "");
        let node = |path: &str| fake.tree().numa_node(Path::new(path));
        assert_eq!(node("/sys/devices/pci0/0000:00:14.0/usb1/1-1"), Some(1));
        assert_eq!(node("/sys/devices/pci1"), None);
        assert_eq!(node("/sys/devices/platform"), None);
    }
}
