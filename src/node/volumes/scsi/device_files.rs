//! Devices in `/sys` and `/dev`: multipath devices and their paths, sessions of iSCSI targets,
//! scans of SCSI hosts, and the removal of devices (`device_util_linux.go` of upstream). Everything
//! here blocks, except the wait for a link.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sorting::CompactSort as _;

use crate::file_watcher::FileWatcher;

/// Where devices are found; tests use directories of their own.
#[derive(Debug, Clone)]
pub(crate) struct DeviceFiles {
    sys: PathBuf,
    dev: PathBuf,
}

/// The names in a directory, sorted; none if it does not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut out = Vec::new();
    for entry in entries {
        // A name that is no text is none of the kernel's.
        out.extend(entry?.file_name().into_string().ok());
    }
    out.compact_sort();
    Ok(out)
}

/// Writes to a file of the kernel, which exists.
fn write(path: &Path, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// The number in a name such as `host3`.
fn number_after(prefix: &str, name: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// A host and port, with brackets around an IPv6 address (`net.JoinHostPort`).
fn join_host_port(host: &str, port: &str) -> String {
    let (host, port) = (host.trim(), port.trim());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A session of an iSCSI target.
struct Session {
    host: u32,
    path: PathBuf,
}

impl DeviceFiles {
    /// Those of this machine.
    pub(crate) fn of_machine() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into() }
    }

    /// Those in the directories `sys` and `dev` below `root`.
    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        Self { sys: root.join("sys"), dev: root.join("dev") }
    }

    /// The directory `/dev/disk/by-path`.
    pub(crate) fn by_path(&self) -> PathBuf {
        self.dev.join("disk/by-path")
    }

    /// The directory `/dev/disk/by-id`.
    pub(crate) fn by_id(&self) -> PathBuf {
        self.dev.join("disk/by-id")
    }

    /// The device with this name in `/dev`.
    pub(crate) fn device(&self, name: &str) -> PathBuf {
        self.dev.join(name)
    }

    /// The name of a device in `/dev` to which a link leads (`findDeviceForPath`).
    pub(crate) fn device_name(&self, path: &Path) -> Option<String> {
        let (device, dev) = (path.canonicalize().ok()?, self.dev.canonicalize().ok()?);
        let below = device.strip_prefix(&dev).ok()?;
        let is_one = below.components().count() == 1;
        below.to_str().filter(|_| is_one).map(str::to_owned)
    }

    /// The multipath device of a device or of a link to it; `None` if it has none
    /// (`FindMultipathDeviceForDevice`).
    pub(crate) fn multipath_of(&self, device: &Path) -> Option<PathBuf> {
        let name = self.device_name(device)?;
        if name.starts_with("dm-") {
            return Some(self.device(&name));
        }
        let block = self.sys.join("block");
        let devices = names(&block).unwrap_or_default();
        let has = |dm: &&String| {
            let slave = block.join(dm).join("slaves").join(&name);
            dm.starts_with("dm-") && std::fs::symlink_metadata(slave).is_ok()
        };
        devices.iter().find(has).map(|dm| self.device(dm))
    }

    /// The names of the devices of a multipath device (`FindSlaveDevicesOnMultipath`).
    pub(crate) fn slaves_of(&self, multipath: &Path) -> Vec<String> {
        let Some(name) = multipath.file_name() else { return Vec::new() };
        names(&self.sys.join("block").join(name).join("slaves")).unwrap_or_default()
    }

    /// The sessions of a target.
    fn sessions(&self, iqn: &str) -> io::Result<Vec<Session>> {
        let hosts = self.sys.join("class/iscsi_host");
        let mut out = Vec::new();
        for name in names(&hosts)? {
            let Some(host) = number_after("host", &name) else { continue };
            let device = hosts.join(&name).join("device");
            for session in names(&device)?.iter().filter(|name| name.starts_with("session")) {
                let path = device.join(session);
                let file = path.join("iscsi_session").join(session).join("targetname");
                // A session may end meanwhile.
                if std::fs::read_to_string(file).is_ok_and(|name| name.trim() == iqn) {
                    out.push(Session { host, path });
                }
            }
        }
        Ok(out)
    }

    /// The SCSI hosts that are logged in to a target, by its portals
    /// (`GetISCSIPortalHostMapForTarget`).
    pub(crate) fn portal_hosts(&self, iqn: &str) -> io::Result<BTreeMap<String, u32>> {
        let mut out = BTreeMap::new();
        for Session { host, path } in self.sessions(iqn)? {
            let Ok(found) = names(&path) else { continue };
            for name in found.iter().filter(|name| name.starts_with("connection")) {
                let connection = path.join(name).join("iscsi_connection").join(name);
                let file = |file| std::fs::read_to_string(connection.join(file));
                let read = || -> io::Result<[String; 2]> {
                    let now = join_host_port(&file("address")?, &file("port")?);
                    let at_login =
                        join_host_port(&file("persistent_address")?, &file("persistent_port")?);
                    Ok([now, at_login])
                };
                // A connection may end meanwhile.
                for portal in read().into_iter().flatten() {
                    out.insert(portal, host);
                }
            }
        }
        Ok(out)
    }

    /// The names of the devices of a LUN, one for each session (`FindDevicesForISCSILun`).
    pub(crate) fn devices_of_lun(&self, iqn: &str, lun: u32) -> io::Result<Vec<String>> {
        let mut out = Vec::new();
        for Session { host, path } in self.sessions(iqn)? {
            let device = path.join(format!("target{host}:0:0")).join(format!("{host}:0:0:{lun}"));
            out.extend(names(&device.join("block"))?.into_iter().next());
        }
        Ok(out)
    }

    /// Has a SCSI host look for one LUN. A scan of all LUNs would add devices that this node must
    /// not use (`scanOneLun`).
    pub(crate) fn scan_lun(&self, host: u32, lun: u32) -> io::Result<()> {
        let path = self.sys.join(format!("class/scsi_host/host{host}/scan"));
        write(&path, &format!("0 0 {lun}"))
    }

    /// Has all SCSI hosts look for new devices (`scsiHostRescan`).
    pub(crate) fn rescan_hosts(&self) {
        let hosts = self.sys.join("class/scsi_host");
        for host in names(&hosts).unwrap_or_default() {
            if let Err(error) = write(&hosts.join(&host).join("scan"), "- - -") {
                tracing::debug!(host, %error, "node: cannot scan SCSI host");
            }
        }
    }

    /// Removes a device such as `sda` from the kernel; does nothing if it is no SCSI device
    /// (`deleteDevice`).
    pub(crate) fn delete_device(&self, name: &str) -> io::Result<()> {
        match write(&self.sys.join("block").join(name).join("device/delete"), "1") {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// The device with this number, such as `8:0`; `None` if there is none.
    pub(crate) fn device_with_number(&self, number: &str) -> Option<PathBuf> {
        let link = std::fs::read_link(self.sys.join("dev/block").join(number)).ok()?;
        Some(self.device(link.file_name()?.to_str()?))
    }

    /// Waits until `find` returns something, and looks again when a link in `directory` appears, at
    /// most for `timeout`; `find` may block.
    pub(crate) async fn wait_for<T: Send + 'static>(
        &self,
        directory: PathBuf,
        timeout: Duration,
        find: impl Fn() -> Option<T> + Clone + Send + 'static,
    ) -> io::Result<Option<T>> {
        let folders = [directory];
        let first = find.clone();
        let found = async move {
            loop {
                // Before the look, so that nothing that happens after it is missed; again each
                // time, as the directory may appear first.
                let mut watcher = FileWatcher::new()?;
                watcher.watch(&folders);
                let look = first.clone();
                if let Some(found) = base::tasks::blocking(look).await.map_err(io::Error::other)? {
                    return Ok(found);
                }
                watcher.changed(&folders).await;
            }
        };
        match tokio::time::timeout(timeout, found).await {
            Ok(found) => found.map(Some),
            // Device files without a link cause no event.
            Err(_) => base::tasks::blocking(find).await.map_err(io::Error::other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const IQN: &str = "iqn.2003-01.io.k8s:e2e.volume-1";

    fn file(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A session of host `host`, with the LUN 1 as device `device`.
    fn session(root: &Path, host: u32, iqn: &str, portal: (&str, &str), device: &str) {
        let at = format!("sys/class/iscsi_host/host{host}/device/session{host}");
        file(root, &format!("{at}/iscsi_session/session{host}/targetname"), &format!("{iqn}\n"));
        let connection = format!("connection{host}:0");
        let connection = format!("{at}/{connection}/iscsi_connection/{connection}");
        for (name, text) in [
            ("address", portal.0),
            ("port", portal.1),
            ("persistent_address", portal.0),
            ("persistent_port", portal.1),
        ] {
            file(root, &format!("{connection}/{name}"), &format!("{text}\n"));
        }
        file(root, &format!("{at}/target{host}:0:0/{host}:0:0:1/block/{device}/size"), "1\n");
    }

    /// Cases of `TestGetISCSIPortalHostMapForTarget` and `TestFindDevicesForISCSILun`.
    #[test]
    fn sessions_lead_to_hosts_and_devices() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let files = DeviceFiles::below(root);
        assert!(files.portal_hosts(IQN).unwrap().is_empty());
        assert!(files.devices_of_lun(IQN, 1).unwrap().is_empty());
        session(root, 2, IQN, ("10.0.0.1", "3260"), "sda");
        session(root, 3, IQN, ("fd00::7", "3261"), "sdb");
        session(root, 4, "iqn.2003-01.io.k8s:other", ("10.0.0.1", "3260"), "sdc");
        file(root, "sys/class/iscsi_host/none/device/session9/x", "");
        let hosts = files.portal_hosts(IQN).unwrap();
        let want = [("10.0.0.1:3260", 2), ("[fd00::7]:3261", 3)];
        assert_eq!(hosts, want.map(|(portal, host)| (portal.to_owned(), host)).into());
        assert_eq!(files.devices_of_lun(IQN, 1).unwrap(), ["sda", "sdb"]);
        assert!(files.devices_of_lun(IQN, 2).unwrap().is_empty());
    }

    /// Cases of `TestFindMultipathDeviceForDevice` and `TestFindSlaveDevicesOnMultipath`.
    #[test]
    fn a_multipath_device_is_found_by_its_paths() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let files = DeviceFiles::below(root);
        for name in ["sda", "sdb", "dm-1"] {
            file(root, &format!("dev/{name}"), "");
        }
        file(root, "sys/block/dm-1/slaves/sda", "");
        file(root, "sys/block/dm-2/slaves/sdz", "");
        std::fs::create_dir_all(files.by_path()).unwrap();
        symlink(root.join("dev/sda"), files.by_path().join("link")).unwrap();
        let multipath = Some(files.device("dm-1"));
        assert_eq!(files.multipath_of(&files.by_path().join("link")), multipath);
        assert_eq!(files.multipath_of(&files.device("dm-1")), multipath);
        assert_eq!(files.multipath_of(&files.device("sdb")), None);
        assert_eq!(files.multipath_of(&files.by_path().join("none")), None);
        assert_eq!(files.slaves_of(&files.device("dm-1")), ["sda"]);
        assert!(files.slaves_of(&files.device("dm-9")).is_empty());
    }

    #[test]
    fn hosts_are_scanned_and_devices_removed() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let files = DeviceFiles::below(root);
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        assert!(files.scan_lun(1, 7).is_err(), "no such host");
        for host in ["host1", "host2"] {
            file(root, &format!("sys/class/scsi_host/{host}/scan"), "");
        }
        files.scan_lun(1, 7).unwrap();
        assert_eq!(read("sys/class/scsi_host/host1/scan"), "0 0 7");
        files.rescan_hosts();
        assert_eq!(read("sys/class/scsi_host/host2/scan"), "- - -");
        file(root, "sys/block/sda/device/delete", "");
        files.delete_device("sda").unwrap();
        files.delete_device("loop0").unwrap();
        assert_eq!(read("sys/block/sda/device/delete"), "1");
        std::fs::create_dir_all(root.join("sys/dev/block")).unwrap();
        symlink("../../devices/x/block/sda", root.join("sys/dev/block/8:0")).unwrap();
        assert_eq!(files.device_with_number("8:0"), Some(root.join("dev/sda")));
        assert_eq!(files.device_with_number("8:16"), None);
    }

    #[tokio::test]
    async fn a_link_that_appears_ends_the_wait() {
        let home = tempfile::tempdir().unwrap();
        let files = DeviceFiles::below(home.path());
        let link = files.by_path().join("link");
        let wanted = link.clone();
        let find = move || wanted.exists().then_some(());
        let short = Duration::from_millis(50);
        assert_eq!(files.wait_for(files.by_path(), short, find.clone()).await.unwrap(), None);
        let wait = files.wait_for(files.by_path(), Duration::from_secs(30), find);
        let create = async {
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::fs::write(&link, "").unwrap();
        };
        assert_eq!(tokio::join!(wait, create).0.unwrap(), Some(()));
    }
}
