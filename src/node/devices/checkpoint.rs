//! The file `kubelet_internal_checkpoint`: which containers have which devices, in the kubelet's
//! format (`pkg/kubelet/cm/devicemanager/checkpoint`).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use proto::deviceplugin::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};

use super::records::{Allocation, PodDevices};
use crate::digest::fnv1a_32 as checksum;

/// Why a checkpoint cannot be read. The agent then starts without allocations.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The checksum in the file is not that of its content.
    #[error("checkpoint is corrupted")]
    Corrupt,
}

/// The content of the file; the fields are in the order of the kubelet's.
#[derive(Debug, Serialize, Deserialize)]
struct CheckpointFile {
    #[serde(rename = "Data")]
    data: CheckpointData,
    #[serde(rename = "Checksum")]
    checksum: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct CheckpointData {
    /// `None` is Go's nil slice, which differs in the checksum from an empty one.
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<ContainerEntry>>,
    #[serde(rename = "RegisteredDevices")]
    registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ContainerEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node, -1 without topology.
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<i64, Option<Vec<String>>>>,
    /// The message `ContainerAllocateResponse` in base64.
    #[serde(rename = "AllocResp")]
    response: Option<String>,
}

/// What a checkpoint contains.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Checkpoint {
    pub(crate) devices: PodDevices,
    /// Ids of the healthy devices of each registered resource. Only the names of the resources
    /// have a meaning when the file is read.
    pub(crate) registered: BTreeMap<String, Vec<String>>,
}

impl Checkpoint {
    /// Serializes the checkpoint with its checksum.
    ///
    /// # Errors
    ///
    /// Never for a checkpoint of this type; the serializer's error is passed on.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let entries: Vec<ContainerEntry> = self.devices.all().map(entry).collect();
        let registered = self.registered.iter();
        let registered = registered.map(|(name, ids)| (name.clone(), Some(ids.clone()))).collect();
        let data = CheckpointData {
            entries: (!entries.is_empty()).then_some(entries),
            registered: Some(registered),
        };
        let checksum = u64::from(checksum(&dump(&data)));
        serde_json::to_vec(&CheckpointFile { data, checksum })
    }

    /// Parses a checkpoint. An entry whose response cannot be decoded is left out.
    ///
    /// # Errors
    ///
    /// The text is not such JSON, or its checksum differs.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, CheckpointError> {
        let CheckpointFile { data, checksum: expected } = serde_json::from_slice(text)?;
        if u64::from(checksum(&dump(&data))) != expected {
            return Err(CheckpointError::Corrupt);
        }
        let mut devices = PodDevices::default();
        for entry in data.entries.into_iter().flatten() {
            let bytes = entry.response.as_ref().and_then(|text| STANDARD.decode(text).ok());
            let response =
                bytes.and_then(|bytes| ContainerAllocateResponse::decode(bytes.as_slice()).ok());
            let Some(response) = response else {
                let ContainerEntry { pod, container, resource, .. } = &entry;
                tracing::warn!(
                    pod,
                    container,
                    resource,
                    "devices: an allocation of the checkpoint cannot be decoded"
                );
                continue;
            };
            let ids = entry.ids.into_iter().flatten();
            let ids_by_node = ids.map(|(node, ids)| (node, ids.unwrap_or_default())).collect();
            let allocation = Allocation { ids_by_node, response };
            devices.insert(&entry.pod, &entry.container, &entry.resource, allocation);
        }
        let registered = data.registered.into_iter().flatten();
        let registered = registered.map(|(name, ids)| (name, ids.unwrap_or_default())).collect();
        Ok(Self { devices, registered })
    }
}

fn entry(
    (pod, container, resource, allocation): (&str, &str, &str, &Allocation),
) -> ContainerEntry {
    let ids = allocation.ids_by_node.iter();
    ContainerEntry {
        pod: pod.to_owned(),
        container: container.to_owned(),
        resource: resource.to_owned(),
        ids: Some(ids.map(|(node, ids)| (*node, Some(ids.clone()))).collect()),
        response: Some(STANDARD.encode(allocation.response.encode_to_vec())),
    }
}

/// The text whose hash is the checksum: the data as Go's spew prints it with `%#v` and sorted keys
/// (`pkg/util/hash.DeepHashObject`).
fn dump(data: &CheckpointData) -> Vec<u8> {
    let mut out =
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)".to_owned();
    list(&mut out, data.entries.as_deref(), |out, entry| {
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} \
             DeviceIDs:(checkpoint.DevicesPerNUMA)",
            entry.pod, entry.container, entry.resource
        );
        map(out, entry.ids.as_ref());
        out.push_str(" AllocResp:([]uint8)");
        let bytes = entry.response.as_ref().map(|text| STANDARD.decode(text).unwrap_or_default());
        list(out, bytes.as_deref(), |out, byte| {
            let _ = write!(out, "{byte}");
        });
        out.push('}');
    });
    out.push_str(" RegisteredDevices:(map[string][]string)");
    map(&mut out, data.registered.as_ref());
    out.push('}');
    out.into_bytes()
}

/// Appends a slice: its items in brackets, separated by spaces.
fn list<T>(out: &mut String, items: Option<&[T]>, item: impl Fn(&mut String, &T)) {
    let Some(items) = items else { return out.push_str("<nil>") };
    out.push('[');
    for (index, each) in items.iter().enumerate() {
        if index > 0 {
            out.push(' ');
        }
        item(out, each);
    }
    out.push(']');
}

/// Appends a map of lists, sorted by key.
fn map<K: std::fmt::Display>(out: &mut String, items: Option<&BTreeMap<K, Option<Vec<String>>>>) {
    let Some(items) = items else { return out.push_str("<nil>") };
    out.push_str("map[");
    for (index, (key, ids)) in items.iter().enumerate() {
        let _ = write!(out, "{}{key}:", if index > 0 { " " } else { "" });
        list(out, ids.as_deref(), |out, id| out.push_str(id));
    }
    out.push(']');
}

#[cfg(test)]
mod tests;
