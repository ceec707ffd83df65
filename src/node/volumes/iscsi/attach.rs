//! Attaches a LUN: logs in to the portals of its target, has their SCSI hosts look for the LUN, and
//! waits for its devices (`AttachDisk`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sorting::CollectOrdered as _;

use super::disk::{IscsiDisk, IscsiSource};
use super::{iface, iscsiadm};
use crate::volumes::scsi::{DeviceFiles, Programs, Scsi, ScsiError};

/// Paths of a volume with several portals that are enough (`minMultipathCount`).
const ENOUGH_PATHS: usize = 2;
/// Attempts for all portals before [`ENOUGH_PATHS`] count (`minAttachAttempts`).
const ATTEMPTS_MIN: usize = 2;
/// Attempts before a single path counts (`maxAttachAttempts`).
const ATTEMPTS_MAX: usize = 5;
/// How long a device may take to appear (`deviceDiscoveryTimeout`).
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a multipath device may take to appear (`multipathDeviceTimeout`).
const MULTIPATH_TIMEOUT: Duration = Duration::from_secs(10);

/// The values of a Secret.
pub(crate) type Credentials = BTreeMap<String, String>;

/// A volume that is being attached.
struct Attachment<'a> {
    scsi: &'a Scsi,
    source: &'a IscsiSource,
    credentials: &'a Credentials,
    /// The transport of the interface: `tcp`, or that of an adapter.
    transport: String,
    lun: u32,
}

/// Attaches a volume and writes `iscsi.json` in `global`, unless something is mounted there;
/// returns its device. The caller holds the lock of the volume.
///
/// # Errors
///
/// No portal leads to a device.
pub(crate) async fn attach(
    scsi: &Scsi,
    source: &IscsiSource,
    credentials: &Credentials,
    global: &Path,
) -> Result<PathBuf, ScsiError> {
    let disk = &source.disk;
    let lun = disk.lun()?;
    let programs = &*scsi.programs;
    let show = iscsiadm::iface(&disk.init_iface, &["-o", "show"]);
    let shown = iscsiadm::run(programs, &show).await?;
    if !shown.is_success() {
        return Err(ScsiError::ReadIface {
            iface: disk.init_iface.clone(),
            status: shown.status(),
            output: shown.shown(),
        });
    }
    let transport = iface::transport(&shown.text).unwrap_or_default().to_owned();
    if !disk.initiator_name.is_empty() {
        iface::clone_iface(programs, disk).await?;
    }
    let _target = scsi.lock_target(&disk.iqn).await;
    let attachment = Attachment { scsi, source, credentials, transport, lun };
    let paths = attachment.paths().await?;
    let device = attachment.device(paths).await?;
    persist(disk, global).await?;
    Ok(device)
}

/// Writes `iscsi.json` below the global path, from which the volume is detached. A mount there
/// means that the file is written already, and hides it.
async fn persist(disk: &IscsiDisk, global: &Path) -> Result<(), ScsiError> {
    let (disk, global) = (disk.clone(), global.to_owned());
    let written = base::tasks::blocking(move || {
        crate::volumes::directory::create_dir(&global)?;
        if crate::volumes::mounts::is_mount_point(&global)? {
            return Ok(());
        }
        disk.save(&global)
    });
    Ok(written.await??)
}

impl Attachment<'_> {
    fn programs(&self) -> &dyn Programs {
        &*self.scsi.programs
    }

    /// Logs in to the portals, and returns the links to the devices behind them.
    async fn paths(&self) -> Result<BTreeMap<String, PathBuf>, ScsiError> {
        let disk = &self.source.disk;
        let mut hosts = self.hosts().await?;
        let mut paths = BTreeMap::new();
        let mut last = None;
        for attempt in 1..=ATTEMPTS_MAX {
            for portal in &disk.portals {
                if paths.contains_key(portal) {
                    continue;
                }
                match self.path(portal, &mut hosts).await {
                    Ok(path) => {
                        paths.insert(portal.clone(), path);
                    }
                    Err(error) if error.ends_attach() => return Err(error),
                    Err(error) => {
                        tracing::debug!(portal, %error, "node: no path to iSCSI volume");
                        last = Some(error);
                    }
                }
            }
            if paths.is_empty() {
                if !disk.initiator_name.is_empty() {
                    // The copy that was made for this volume.
                    let delete = iscsiadm::iface(&disk.iface, &["-o", "delete"]);
                    iscsiadm::run(self.programs(), &delete).await?;
                }
                return Err(ScsiError::NoPath(last.map(Box::new)));
            }
            let is_enough = paths.len() >= ENOUGH_PATHS && attempt >= ATTEMPTS_MIN;
            if is_enough || disk.portals.iter().all(|portal| paths.contains_key(portal)) {
                break;
            }
        }
        if let Some(error) = last {
            tracing::warn!(iqn = disk.iqn, %error, "node: a path of an iSCSI volume is missing");
        }
        Ok(paths)
    }

    /// The SCSI hosts that are logged in to the target, by portal.
    async fn hosts(&self) -> Result<BTreeMap<String, u32>, ScsiError> {
        let (files, iqn) = (self.scsi.files.clone(), self.source.disk.iqn.clone());
        Ok(base::tasks::blocking(move || files.portal_hosts(&iqn)).await??)
    }

    /// Logs in to a portal unless that was done, and returns the link to the device behind it.
    async fn path(
        &self,
        portal: &str,
        hosts: &mut BTreeMap<String, u32>,
    ) -> Result<PathBuf, ScsiError> {
        let host = match hosts.get(portal) {
            Some(host) => *host,
            None => {
                self.log_in(portal).await?;
                *hosts = self.hosts().await?;
                let found = hosts.get(portal).copied();
                found.ok_or_else(|| ScsiError::NoHost(portal.to_owned()))?
            }
        };
        let (files, lun) = (self.scsi.files.clone(), self.lun);
        let scanned = base::tasks::blocking(move || files.scan_lun(host, lun)).await?;
        scanned.map_err(|source| ScsiError::Scan { host, source })?;
        if self.transport.is_empty() {
            return Err(ScsiError::NoTransport(self.source.disk.iface.clone()));
        }
        let files = &self.scsi.files;
        let pattern = link_name(&self.transport, portal, &self.source.disk);
        let (find, directory) = (pattern.clone(), files.by_path());
        let found =
            files.wait_for(files.by_path(), DEVICE_TIMEOUT, move || find.find(&directory)).await?;
        found.ok_or_else(|| ScsiError::NoDevice {
            path: files.by_path().join(pattern.shown()),
            seconds: DEVICE_TIMEOUT.as_secs(),
        })
    }

    /// Discovers the target behind a portal and logs in.
    async fn log_in(&self, portal: &str) -> Result<(), ScsiError> {
        let disk = &self.source.disk;
        let programs = self.programs();
        let discovery = |operation: &[&str]| iscsiadm::discovery(disk, portal, operation);
        let node = |operation: &[&str]| iscsiadm::node(disk, portal, operation);
        // One that exists is an error that does not matter.
        iscsiadm::run(programs, &discovery(&["-o", "new"])).await?;
        self.set_discovery_credentials(portal).await?;
        let discovered = iscsiadm::run(programs, &discovery(&["--discover"])).await?;
        if !discovered.is_success() {
            iscsiadm::run(programs, &discovery(&["-o", "delete"])).await?;
            let (output, status) = (discovered.shown(), discovered.status());
            return Err(ScsiError::Discover { portal: portal.to_owned(), output, status });
        }
        // Otherwise the kernel adds all LUNs of the target. Old versions do not have it.
        let manual = node(&iscsiadm::update("node.session.scan", "manual"));
        if !iscsiadm::run(programs, &manual).await?.is_success() {
            tracing::warn!(portal, iqn = disk.iqn, "node: cannot set node.session.scan=manual");
        }
        self.set_session_credentials(portal).await?;
        let login = iscsiadm::run(programs, &node(&["--login"])).await?;
        if !login.is_success() {
            let delete = ["-m", "node", "-p", portal, "-I", &disk.iface, "-T", &disk.iqn];
            let mut delete: Vec<String> = delete.iter().map(|text| (*text).to_owned()).collect();
            delete.extend(["-o".to_owned(), "delete".to_owned()]);
            iscsiadm::run(programs, &delete).await?;
            let (output, status) = (login.shown(), login.status());
            return Err(ScsiError::LogIn { output, status });
        }
        // A target that does not answer must not delay the boot of the machine.
        let manual = iscsiadm::update("node.startup", "manual");
        let manual = iscsiadm::node_of_any_iface(disk, portal, &manual);
        if !iscsiadm::run(programs, &manual).await?.is_success() {
            tracing::warn!(portal, iqn = disk.iqn, "node: cannot set node.startup=manual");
        }
        Ok(())
    }

    async fn set_discovery_credentials(&self, portal: &str) -> Result<(), ScsiError> {
        if !self.source.chap_discovery {
            return Ok(());
        }
        let disk = &self.source.disk;
        let set = |name: &str, value: &str| {
            iscsiadm::discovery(disk, portal, &iscsiadm::update(name, value))
        };
        let method = set("discovery.sendtargets.auth.authmethod", "CHAP");
        self.set_credentials(portal, "discoverydb", method, &iscsiadm::DISCOVERY_KEYS, set).await
    }

    async fn set_session_credentials(&self, portal: &str) -> Result<(), ScsiError> {
        if !self.source.chap_session {
            return Ok(());
        }
        let disk = &self.source.disk;
        let set =
            |name: &str, value: &str| iscsiadm::node(disk, portal, &iscsiadm::update(name, value));
        let method = set("node.session.auth.authmethod", "CHAP");
        self.set_credentials(portal, "iscsi node", method, &iscsiadm::SESSION_KEYS, set).await
    }

    /// Sets the method of authentication, then the values of the Secret. No output is shown: it
    /// could contain them.
    async fn set_credentials(
        &self,
        portal: &str,
        record: &'static str,
        method: Vec<String>,
        keys: &[&'static str],
        set: impl Fn(&str, &str) -> Vec<String>,
    ) -> Result<(), ScsiError> {
        let failed = |key| ScsiError::Chap { record, portal: portal.to_owned(), key };
        if !iscsiadm::run(self.programs(), &method).await?.is_success() {
            return Err(failed("auth.authmethod"));
        }
        for key in keys.iter().copied() {
            let Some(value) = self.credentials.get(key).filter(|value| !value.is_empty()) else {
                continue;
            };
            if !iscsiadm::run(self.programs(), &set(key, value)).await?.is_success() {
                return Err(failed(key));
            }
        }
        Ok(())
    }

    /// Returns the multipath device of the paths, or else the first path. A multipath device of
    /// several portals may take a moment to appear.
    async fn device(&self, paths: BTreeMap<String, PathBuf>) -> Result<PathBuf, ScsiError> {
        let files = &self.scsi.files;
        let first = paths.values().next().cloned().ok_or(ScsiError::NoPath(None))?;
        let (all, found): (Vec<PathBuf>, DeviceFiles) =
            (paths.into_values().collect(), files.clone());
        let find = move || all.iter().find_map(|path| found.multipath_of(path));
        let multipath = if self.source.disk.portals.len() > 1 {
            files.wait_for(files.device("mapper"), MULTIPATH_TIMEOUT, find).await?
        } else {
            base::tasks::blocking(find).await?
        };
        Ok(multipath.unwrap_or(first))
    }
}

/// The link to a device in `/dev/disk/by-path`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkName {
    Exact(String),
    /// With the address of the adapter between this prefix and this suffix.
    OfAdapter(&'static str, String),
}

impl LinkName {
    /// Returns the link in a directory. If several adapters have one, the first counts.
    fn find(&self, directory: &Path) -> Option<PathBuf> {
        let name = match self {
            Self::Exact(name) => name.clone(),
            Self::OfAdapter(prefix, suffix) => {
                let entries = std::fs::read_dir(directory).ok()?.flatten();
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                let is_it = |name: &String| {
                    let rest = name.strip_prefix(prefix);
                    rest.is_some_and(|rest| rest.ends_with(suffix.as_str()))
                };
                let mut found: BTreeSet<String> = names.filter(is_it).collect_set();
                found.pop_first()?
            }
        };
        let path = directory.join(name);
        path.exists().then_some(path)
    }

    /// The name in messages.
    fn shown(&self) -> String {
        match self {
            Self::Exact(name) => name.clone(),
            Self::OfAdapter(prefix, suffix) => format!("{prefix}*{suffix}"),
        }
    }
}

/// The name of the link that udev creates. Links have no brackets around addresses.
fn link_name(transport: &str, portal: &str, disk: &IscsiDisk) -> LinkName {
    let address =
        if portal.starts_with('[') { portal.replace(['[', ']'], "") } else { portal.to_owned() };
    let name = format!("ip-{address}-iscsi-{}-lun-{}", disk.iqn, disk.lun);
    if transport == "tcp" {
        LinkName::Exact(name)
    } else {
        LinkName::OfAdapter("pci-", format!("-{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> IscsiDisk {
        IscsiDisk { iqn: "iqn.2014-12.com.example:d".into(), lun: "3".into(), ..Default::default() }
    }

    #[test]
    fn links_are_named_by_transport_portal_target_and_lun() {
        let tcp = link_name("tcp", "10.0.0.1:3260", &disk());
        let name = "ip-10.0.0.1:3260-iscsi-iqn.2014-12.com.example:d-lun-3";
        assert_eq!(tcp, LinkName::Exact(name.into()));
        let v6 = link_name("tcp", "[fd00::1]:3260", &disk());
        assert_eq!(v6.shown(), "ip-fd00::1:3260-iscsi-iqn.2014-12.com.example:d-lun-3");
        assert_eq!(
            link_name("be2iscsi", "10.0.0.1:3260", &disk()).shown(),
            format!("pci-*-{name}")
        );
    }

    /// Cases of `TestWaitForPathToExist`.
    #[test]
    fn the_link_of_an_adapter_is_found_without_its_address() {
        let home = tempfile::tempdir().unwrap();
        let link = link_name("bnx2i", "10.0.0.1:3260", &disk());
        assert_eq!(link.find(home.path()), None);
        let name = "pci-0000:04:00.3-ip-10.0.0.1:3260-iscsi-iqn.2014-12.com.example:d-lun-3";
        std::fs::write(home.path().join(format!("{name}-part1")), "").unwrap();
        assert_eq!(link.find(home.path()), None);
        std::fs::write(home.path().join(name), "").unwrap();
        assert_eq!(link.find(home.path()), Some(home.path().join(name)));
        let tcp = link_name("tcp", "10.0.0.1:3260", &disk());
        assert_eq!(tcp.find(home.path()), None);
    }
}
