//! What the controller and the nodes exchange about volumes of the built-in CSI driver
//! `local.kube-lite.io`: requests of the kubelet API `localDriver/`, with JSON bodies.

use serde::{Deserialize, Serialize};

/// Name of the driver and of its provisioner.
pub const DRIVER: &str = "local.kube-lite.io";
/// Unit of the sizes of volumes in bytes: sizes are rounded up to it, as by most drivers.
pub const SIZE_UNIT: u64 = 1 << 20;
/// Reason of a Status: the node works on the request and has to be asked again.
pub const IN_PROGRESS: &str = "OperationInProgress";
/// Reason of a Status: the node has no room.
pub const NO_ROOM: &str = "InsufficientStorage";
/// Maximum length of a name, which is the name of a directory.
const NAME_MAX: usize = 128;

/// How a volume is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeMode {
    /// A sparse file behind a loop device.
    #[default]
    Loop,
    /// A directory with a project quota of the node's file system.
    Quota,
}

/// The file system of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FsType {
    /// ext4.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
}

impl FsType {
    /// The name of the file system in mounts and in the names of its programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// Finds a file system by its name; the default if the name is empty.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }
}

/// What a new volume contains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContentSource {
    /// The present content of a volume of this node.
    Volume(String),
    /// The content of a snapshot of this node.
    Snapshot(String),
}

/// Body of `POST localDriver/volumes/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRequest {
    /// Size in bytes.
    pub size: u64,
    /// How the volume is stored.
    #[serde(default)]
    pub mode: VolumeMode,
    /// The file system; `None` for a block volume and for a directory.
    pub fs_type: Option<FsType>,
    /// What the volume contains; empty without a source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ContentSource>,
}

/// Body of `PUT localDriver/volumes/{name}`, which enlarges a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowRequest {
    /// Size in bytes. A smaller one changes nothing.
    pub size: u64,
}

/// Body of `POST localDriver/snapshots/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRequest {
    /// Name of the volume.
    pub volume: String,
}

/// Answer about a volume or snapshot that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// Size in bytes.
    pub size: u64,
    /// When it was made, in nanoseconds since the epoch.
    pub created_at: i64,
}

/// Whether `name` can name a volume or snapshot: `pvc-` or `snapshot-`, then letters, digits and
/// hyphens, so that it is a plain name of a directory.
pub fn is_name(name: &str) -> bool {
    let has_prefix = ["pvc-", "snapshot-"].iter().any(|prefix| name.starts_with(prefix));
    has_prefix
        && name.len() <= NAME_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Rounds a size in bytes up to [`SIZE_UNIT`]; `None` if it is zero or too large for a file.
pub fn rounded(size: u64) -> Option<u64> {
    let rounded = size.checked_next_multiple_of(SIZE_UNIT)?;
    (rounded > 0 && i64::try_from(rounded).is_ok()).then_some(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_names_of_directories() {
        assert!(is_name("pvc-0d4c2f7e-1c1f-4ad0-9f7c-1b1a3f1f2f3a"));
        assert!(is_name("snapshot-a"));
        let long = format!("pvc-{}", "x".repeat(NAME_MAX));
        for name in ["", "x", "..", "pvc-..", "pvc-a/b", "../pvc-a", "pvc-a_b", "pvc-\0", &long] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn sizes_are_rounded_up_to_mebibytes() {
        assert_eq!(rounded(1), Some(SIZE_UNIT));
        assert_eq!(rounded(3 * SIZE_UNIT), Some(3 * SIZE_UNIT));
        for size in [0, u64::MAX, 1 << 63] {
            assert_eq!(rounded(size), None, "{size}");
        }
    }

    #[test]
    fn requests_are_json() {
        let source = Some(ContentSource::Snapshot("snapshot-a".into()));
        let request =
            VolumeRequest { size: 1, mode: VolumeMode::Loop, fs_type: Some(FsType::Xfs), source };
        let text = serde_json::to_string(&request).unwrap();
        let expected =
            r#"{"size":1,"mode":"loop","fsType":"xfs","source":{"snapshot":"snapshot-a"}}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<VolumeRequest>(&text).unwrap(), request);
        let quota: VolumeRequest = serde_json::from_str(r#"{"size":1,"mode":"quota"}"#).unwrap();
        assert_eq!((quota.mode, quota.fs_type), (VolumeMode::Quota, None));
    }
}
