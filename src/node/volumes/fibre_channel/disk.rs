//! A Fibre Channel volume: what the API says about it, and its global path.

use std::path::Path;

use api::k8s::api::core::v1::FCVolumeSource;

use crate::csi::paths::is_path_safe;
use crate::volumes::scsi::ScsiError;

/// Name of the volume plugin.
pub(crate) const PLUGIN: &str = "kubernetes.io/fc";

/// How the disk is identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FcDisk {
    /// By the names of its targets, and its LUN.
    Target { wwns: Vec<String>, lun: String },
    /// By its own identifiers, in which the API has spaces for underscores.
    Identifier { wwids: Vec<String> },
}

impl FcDisk {
    /// Reads the volume of the API (`getWwnsLunWwids`).
    ///
    /// # Errors
    ///
    /// It identifies no disk.
    pub(crate) fn new(source: &FCVolumeSource) -> Result<Self, ScsiError> {
        let wwns = source.target_wwns.clone().unwrap_or_default();
        let wwids = source.wwids.as_deref().unwrap_or_default();
        match source.lun {
            Some(lun) if !wwns.is_empty() => Ok(Self::Target { wwns, lun: lun.to_string() }),
            _ if !wwids.is_empty() => {
                let wwids = wwids.iter().map(|wwid| wwid.replace(' ', "_")).collect();
                Ok(Self::Identifier { wwids })
            }
            _ => Err(ScsiError::NoFcDisk),
        }
    }

    /// The path of the volume below the directory of the plugin (`makePDNameInternal`).
    pub(crate) fn global_name(&self) -> String {
        match self {
            Self::Target { wwns, lun } => format!("{}-lun-{lun}", wwns.join("-")),
            Self::Identifier { wwids } => wwids.join("-"),
        }
    }

    /// Reads a global path (`parsePDName`).
    ///
    /// # Errors
    ///
    /// The path is not one of a Fibre Channel volume.
    pub(crate) fn load(global: &Path) -> Result<Self, ScsiError> {
        let invalid = || ScsiError::GlobalPath(global.to_owned());
        let name = global.file_name().and_then(|name| name.to_str()).ok_or_else(invalid)?;
        let parts: Vec<String> = name.split('-').map(str::to_owned).collect();
        match parts.as_slice() {
            [wwns @ .., word, lun] if word == "lun" => {
                if wwns.is_empty() || lun.parse::<u32>().is_err() {
                    return Err(invalid());
                }
                Ok(Self::Target { wwns: wwns.to_vec(), lun: lun.clone() })
            }
            _ => Ok(Self::Identifier { wwids: parts }),
        }
    }

    /// Checks that the identifiers are names of files.
    pub(crate) fn check_names(&self) -> Result<(), ScsiError> {
        let names = match self {
            Self::Target { wwns, .. } => ("targetWWNs", wwns),
            Self::Identifier { wwids } => ("wwids", wwids),
        };
        match names.1.iter().find(|name| !is_path_safe(name)) {
            Some(name) => Err(ScsiError::InvalidName { what: names.0, name: name.clone() }),
            None => Ok(()),
        }
    }

    /// The name of the volume within its plugin (`GetVolumeName`).
    pub(crate) fn volume_name(source: &FCVolumeSource) -> String {
        let wwns = source.target_wwns.as_deref().unwrap_or_default();
        match source.lun {
            Some(lun) if !wwns.is_empty() => format!("[{}]:{lun}", wwns.join(" ")),
            _ => format!("[{}]", source.wwids.as_deref().unwrap_or_default().join(" ")),
        }
    }

    /// The names of the volume that the API may have. Spaces of identifiers are not known any
    /// longer.
    pub(crate) fn volume_names(&self) -> Vec<String> {
        match self {
            Self::Target { wwns, lun } => vec![format!("[{}]:{lun}", wwns.join(" "))],
            Self::Identifier { wwids } => {
                let name = format!("[{}]", wwids.join(" "));
                let with_spaces = name.replace('_', " ");
                vec![name, with_spaces]
            }
        }
    }
}
