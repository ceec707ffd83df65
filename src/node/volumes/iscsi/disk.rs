//! An iSCSI volume: what the API says about it, its global path, and `iscsi.json`, which has what
//! is needed to detach it.

use std::io;
use std::path::Path;

use api::k8s::api::core::v1 as core;
use serde::{Deserialize, Serialize};

use crate::csi::paths::is_path_safe;
use crate::csi::source::SecretName;
use crate::volumes::scsi::ScsiError;

/// Name of the volume plugin.
pub(crate) const PLUGIN: &str = "kubernetes.io/iscsi";
/// Name of the file.
const FILE: &str = "iscsi.json";
/// Maximum size of the file in bytes: names and some portals.
const FILE_MAX: u64 = 64 << 10;
/// Port of a portal that names none.
const DEFAULT_PORT: &str = "3260";
/// Interface of a volume that names none, which is the default of the API.
const DEFAULT_INTERFACE: &str = "default";

/// The volume on the machine. The form as JSON is upstream's `iscsi.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct IscsiDisk {
    pub(super) vol_name: String,
    /// The portals with ports; the first one names the global path.
    pub(crate) portals: Vec<String>,
    pub(crate) iqn: String,
    pub(super) lun: String,
    /// The interface of which `iface` is a copy with another initiator name.
    pub(super) init_iface: String,
    /// The interface of the sessions.
    pub(super) iface: String,
    pub(super) initiator_name: String,
    /// Always null: the kubelet writes the field of an embedded interface.
    #[serde(skip_deserializing)]
    pub(super) metrics_provider: (),
}

/// What the API says about an iSCSI volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IscsiSource {
    pub(crate) disk: IscsiDisk,
    /// The portal as it stands in the object, which is part of the volume's name.
    target_portal: String,
    /// Whether the discovery of the target needs CHAP.
    pub(super) chap_discovery: bool,
    /// Whether sessions need CHAP.
    pub(super) chap_session: bool,
    /// The Secret with the credentials.
    pub(crate) secret: Option<SecretName>,
}

/// A portal with its port (`portalMounter`).
fn with_port(portal: &str) -> String {
    if portal.contains(':') { portal.to_owned() } else { format!("{portal}:{DEFAULT_PORT}") }
}

impl IscsiSource {
    /// Returns an inline volume of a pod in `namespace`; `name` is that of the volume.
    pub(crate) fn inline(name: &str, source: &core::ISCSIVolumeSource, namespace: &str) -> Self {
        let persistent = core::ISCSIPersistentVolumeSource {
            chap_auth_discovery: source.chap_auth_discovery,
            chap_auth_session: source.chap_auth_session,
            fs_type: source.fs_type.clone(),
            initiator_name: source.initiator_name.clone(),
            iqn: source.iqn.clone(),
            iscsi_interface: source.iscsi_interface.clone(),
            lun: source.lun,
            portals: source.portals.clone(),
            read_only: source.read_only,
            secret_ref: source.secret_ref.as_ref().map(|reference| core::SecretReference {
                name: Some(reference.name.clone()),
                namespace: None,
            }),
            target_portal: source.target_portal.clone(),
        };
        Self::persistent(name, &persistent, namespace)
    }

    /// Returns the volume of a PersistentVolume; a Secret without a namespace is in that of the
    /// pod, `namespace`.
    pub(crate) fn persistent(
        name: &str,
        source: &core::ISCSIPersistentVolumeSource,
        namespace: &str,
    ) -> Self {
        let portals = source.portals.iter().flatten();
        let portals: Vec<String> = std::iter::once(&source.target_portal)
            .chain(portals)
            .map(|portal| with_port(portal))
            .collect();
        let init_iface = source.iscsi_interface.clone().filter(|name| !name.is_empty());
        let init_iface = init_iface.unwrap_or_else(|| DEFAULT_INTERFACE.to_owned());
        let initiator_name = source.initiator_name.clone().unwrap_or_default();
        let iface = match portals.first() {
            Some(portal) if !initiator_name.is_empty() => format!("{portal}:{name}"),
            _ => init_iface.clone(),
        };
        let of_secret = |reference: &core::SecretReference| SecretName {
            name: reference.name.clone().unwrap_or_default(),
            namespace: reference
                .namespace
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| namespace.to_owned()),
        };
        let secret = source.secret_ref.as_ref().map(of_secret);
        Self {
            disk: IscsiDisk {
                vol_name: name.to_owned(),
                portals,
                iqn: source.iqn.clone(),
                lun: source.lun.to_string(),
                init_iface,
                iface,
                initiator_name,
                metrics_provider: (),
            },
            target_portal: source.target_portal.clone(),
            chap_discovery: source.chap_auth_discovery == Some(true),
            chap_session: source.chap_auth_session == Some(true),
            secret: secret.filter(|secret| !secret.name.is_empty()),
        }
    }

    /// The name of the volume within its plugin (`GetVolumeName`).
    pub(crate) fn volume_name(&self) -> String {
        format!("{}:{}:{}", self.target_portal, self.disk.iqn, self.disk.lun)
    }

    /// Whether credentials are needed.
    pub(crate) fn needs_secret(&self) -> bool {
        self.chap_discovery || self.chap_session
    }
}

impl IscsiDisk {
    /// The first portal.
    pub(super) fn portal(&self) -> &str {
        self.portals.first().map(String::as_str).unwrap_or_default()
    }

    /// The number of the LUN.
    pub(super) fn lun(&self) -> Result<u32, ScsiError> {
        let invalid = |source| ScsiError::Lun { lun: self.lun.clone(), source };
        self.lun.parse().map_err(invalid)
    }

    /// The path of the volume below the directory of the plugin (`makePDNameInternal`).
    pub(crate) fn global_name(&self) -> String {
        format!("iface-{}/{}-{}-lun-{}", self.iface, self.portal(), self.iqn, self.lun)
    }

    /// Checks that names of the API are names of files. The API does not restrict portals and
    /// interfaces.
    pub(crate) fn check_names(&self) -> Result<(), ScsiError> {
        let names = [("iscsiInterface", &self.iface), ("iscsiInterface", &self.init_iface)];
        let portals = self.portals.iter().map(|portal| ("portal", portal));
        for (what, name) in names.into_iter().chain([("iqn", &self.iqn)]).chain(portals) {
            if !is_path_safe(name) {
                return Err(ScsiError::InvalidName { what, name: name.clone() });
            }
        }
        Ok(())
    }

    /// Writes `iscsi.json` in a directory.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec(self).map_err(io::Error::from)?;
        text.push(b'\n');
        base::fs::write_atomic(&directory.join(FILE), &text, 0o644)
    }

    /// Reads `iscsi.json` in a directory; `None` if there is none that can be read.
    fn read(directory: &Path) -> Option<Self> {
        let path = directory.join(FILE);
        let length = std::fs::metadata(&path).ok()?.len();
        let text = (length <= FILE_MAX).then(|| std::fs::read(&path).ok()).flatten()?;
        serde_json::from_slice(&text).ok()
    }

    /// Reads `iscsi.json` in a global path; without one, returns what the path itself says
    /// (`DetachDisk`). Blocks.
    ///
    /// # Errors
    ///
    /// The path is not one of an iSCSI volume.
    pub(crate) fn load(global: &Path) -> Result<Self, ScsiError> {
        if let Some(disk) = Self::read(global).filter(|disk| !disk.portals.is_empty()) {
            return Ok(disk);
        }
        let name = |path: &Path| path.file_name().and_then(|n| n.to_str()).map(str::to_owned);
        let parsed = || {
            let iface = name(global.parent()?)?.strip_prefix("iface-")?.to_owned();
            let device = name(global)?;
            let (target, lun) = device.rsplit_once("-lun-")?;
            let (portal, iqn) = parse_target(target)?;
            Some(Self {
                portals: vec![portal.to_owned()],
                iqn: iqn.to_owned(),
                lun: lun.to_owned(),
                init_iface: iface.clone(),
                iface,
                ..Self::default()
            })
        };
        parsed().ok_or_else(|| ScsiError::GlobalPath(global.to_owned()))
    }

    /// The names of the volume that the API may have: with and without the default port.
    pub(crate) fn volume_names(&self) -> Vec<String> {
        let portal = self.portal();
        let plain = portal.strip_suffix(DEFAULT_PORT).and_then(|name| name.strip_suffix(':'));
        let portals = std::iter::once(portal).chain(plain);
        portals.map(|portal| format!("{portal}:{}:{}", self.iqn, self.lun)).collect()
    }
}

/// Splits the name of a directory into portal and target (`extractPortalAndIqn`).
fn parse_target(name: &str) -> Option<(&str, &str)> {
    let at = ["-iqn.", "-eui.", "-naa."].iter().filter_map(|prefix| name.find(prefix)).min()?;
    Some((name.get(..at)?, name.get(at + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn source(value: serde_json::Value) -> IscsiSource {
        let mut value = value;
        value["iqn"] = "iqn.2014-12.com.example:storage.disk1".into();
        value["lun"] = 0.into();
        let source = serde_json::from_value(value).unwrap();
        IscsiSource::persistent("pv0001", &source, "pods")
    }

    /// Cases of `TestPortalMounter`.
    #[test]
    fn a_portal_gets_the_default_port() {
        assert_eq!(with_port("127.0.0.1"), "127.0.0.1:3260");
        assert_eq!(with_port("127.0.0.1:3260"), "127.0.0.1:3260");
        assert_eq!(with_port("[fd00::1]:3261"), "[fd00::1]:3261");
    }

    #[test]
    fn the_global_path_names_interface_portal_target_and_lun() {
        let plain = source(json!({"targetPortal": "10.0.2.15", "portals": ["10.0.2.16:3261"]}));
        assert_eq!(plain.disk.portals, ["10.0.2.15:3260", "10.0.2.16:3261"]);
        assert_eq!(
            plain.disk.global_name(),
            "iface-default/10.0.2.15:3260-iqn.2014-12.com.example:storage.disk1-lun-0"
        );
        assert_eq!(plain.volume_name(), "10.0.2.15:iqn.2014-12.com.example:storage.disk1:0");
        let named = plain.disk.volume_names();
        assert!(named.contains(&plain.volume_name()) && named.len() == 2);
        let cloned = source(json!({"targetPortal": "10.0.2.15", "iscsiInterface": "bnx2i",
            "initiatorName": "iqn.2015-02.example.com:init"}));
        assert_eq!(cloned.disk.init_iface, "bnx2i");
        assert_eq!(cloned.disk.iface, "10.0.2.15:3260:pv0001");
    }

    /// Cases of `TestGetSecretNameAndNamespaceForPV` and its companion for pods.
    #[test]
    fn the_secret_of_a_volume_is_in_its_namespace_or_in_that_of_the_pod() {
        let named = |namespace: &str, name: &str| {
            Some(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
        };
        let own = json!({"targetPortal": "p", "secretRef": {"name": "s", "namespace": "n"}});
        assert_eq!(source(own).secret, named("n", "s"));
        let of_pod = json!({"targetPortal": "p", "secretRef": {"name": "s"}});
        assert_eq!(source(of_pod).secret, named("pods", "s"));
        let none = source(json!({"targetPortal": "p", "chapAuthSession": true}));
        assert_eq!((none.secret.clone(), none.needs_secret()), (None, true));
        let inline: core::ISCSIVolumeSource = serde_json::from_value(json!({"targetPortal": "p",
            "iqn": "iqn.2014-12.com.example:d", "lun": 1, "secretRef": {"name": "s"}}))
        .unwrap();
        assert_eq!(IscsiSource::inline("v", &inline, "ns1").secret, named("ns1", "s"));
    }

    #[test]
    fn the_file_has_the_form_of_the_kubelet() {
        let home = tempfile::tempdir().unwrap();
        let disk = source(json!({"targetPortal": "10.0.2.15"})).disk;
        disk.save(home.path()).unwrap();
        assert_eq!(
            std::fs::read_to_string(home.path().join("iscsi.json")).unwrap(),
            "{\"VolName\":\"pv0001\",\"Portals\":[\"10.0.2.15:3260\"],\"Iqn\":\
             \"iqn.2014-12.com.example:storage.disk1\",\"Lun\":\"0\",\"InitIface\":\"default\",\
             \"Iface\":\"default\",\"InitiatorName\":\"\",\"MetricsProvider\":null}\n"
        );
        assert_eq!(IscsiDisk::load(home.path()).unwrap(), disk);
    }

    /// Cases of `TestExtractPortalAndIqn` and `TestExtractIface`.
    #[test]
    fn a_global_path_without_a_file_names_the_volume() {
        let at = |name: &str| IscsiDisk::load(&Path::new("/none/iscsi").join(name));
        let disk = at("iface-default/127.0.0.1:3260-eui.02004567A425678D-lun-0").unwrap();
        assert_eq!((disk.portal(), disk.iqn.as_str()), ("127.0.0.1:3260", "eui.02004567A425678D"));
        let name =
            "iface-127.0.0.1:3260:pv0001/127.0.0.1:3260-iqn.2015-12.com.example:t-lun-a-lun-7";
        let disk = at(name).unwrap();
        assert_eq!(disk.global_name(), name);
        assert_eq!(
            (disk.iqn.as_str(), disk.lun().unwrap()),
            ("iqn.2015-12.com.example:t-lun-a", 7)
        );
        assert!(at("127.0.0.1:3260-iqn.2015-12.com.example:t-lun-0").is_err());
        assert!(at("iface-default/rubbish").is_err());
    }

    #[test]
    fn names_that_lead_out_of_a_directory_are_refused() {
        let portal = source(json!({"targetPortal": "../../x"}));
        assert!(matches!(portal.disk.check_names(), Err(ScsiError::InvalidName { .. })));
        let iface = source(json!({"targetPortal": "p", "iscsiInterface": "a/b"}));
        assert!(iface.disk.check_names().is_err());
        source(json!({"targetPortal": "[fd00::1]:3260"})).disk.check_names().unwrap();
    }
}
