//! What the state files of the CPU and the memory manager have in common: the text of the state
//! with a checksum, and the form of earlier kubelets beside it.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::digest::fnv1a_32;

/// Largest state file: some thousand containers.
const SIZE_MAX: u64 = 16 << 20;

/// Why a state file cannot be used; texts as upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("the file is larger than 16 MiB")]
    TooLarge,
    /// The checksum in the file is not that of its content.
    #[error("checkpoint is corrupted")]
    Corrupt,
    /// The newest form is there and invalid; earlier ones are not used then.
    #[error("could not load {version} checkpoint: {source}")]
    Newest { version: &'static str, source: Box<Self> },
    #[error("failed to deserialize {manager} manager checkpoint data: {source}")]
    Data { manager: &'static str, source: serde_json::Error },
    #[error(
        "{prefix}configured policy {configured:?} differs from state checkpoint policy {found:?}"
    )]
    Policy { prefix: &'static str, configured: &'static str, found: String },
    #[error("could not parse default CPU set {text:?}: {source}")]
    DefaultSet { text: String, source: super::cpu_set::InvalidCpuSet },
    #[error("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}: {source}")]
    Set { text: String, container: String, pod: String, source: super::cpu_set::InvalidCpuSet },
}

/// A state file that ends the start of the node.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {source}, please drain this node and delete the \
     {manager} manager checkpoint file {path:?} before restarting Kubelet"
)]
pub(crate) struct RestoreError {
    pub(crate) manager: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: CheckpointError,
}

/// Reads a state file; `None` if there is none.
///
/// # Errors
///
/// The file cannot be read or is too large.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(file) if file.len() > SIZE_MAX => return Err(CheckpointError::TooLarge),
        Ok(_) => {}
    }
    Ok(Some(std::fs::read(path)?))
}

/// The two forms of a state file.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    /// The fields of the earlier form, with keys in lower case: Go ignores the case of keys.
    pub(crate) fields: serde_json::Map<String, Value>,
    data: String,
    data_checksum: u64,
}

impl StateFile {
    /// Parses the fields of a file.
    ///
    /// # Errors
    ///
    /// The text is no JSON object.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, CheckpointError> {
        let fields = lower_keys(serde_json::from_slice(text)?);
        let data = fields.get("data").and_then(Value::as_str).unwrap_or_default().to_owned();
        let data_checksum = fields.get("datachecksum").and_then(Value::as_u64).unwrap_or_default();
        Ok(Self { fields, data, data_checksum })
    }

    /// The state of the newest form; `None` if the file has only an earlier one.
    ///
    /// # Errors
    ///
    /// The checksum differs, or the text is no such state.
    pub(crate) fn newest<T: DeserializeOwned>(
        &self,
        manager: &'static str,
        version: &'static str,
    ) -> Result<Option<T>, CheckpointError> {
        if self.data.is_empty() && self.data_checksum == 0 {
            return Ok(None);
        }
        let wrap = |source| CheckpointError::Newest { version, source: Box::new(source) };
        let not_json = |source| wrap(CheckpointError::Data { manager, source });
        let fields: serde_json::Map<String, Value> =
            serde_json::from_str(&self.data).map_err(not_json)?;
        let state = Value::Object(lower_keys(fields));
        let state = serde_json::from_value(state).map_err(not_json)?;
        if u64::from(data_checksum(&self.data)) != self.data_checksum {
            return Err(wrap(CheckpointError::Corrupt));
        }
        Ok(Some(state))
    }

    /// The state of an earlier form, whose checksum is that of one of the texts that `dumps` makes
    /// of it: kubelets differ in the type whose text it is. A checksum of zero is not compared.
    ///
    /// # Errors
    ///
    /// The fields are no such state, or the checksum differs.
    pub(crate) fn earlier<T: DeserializeOwned>(
        self,
        dumps: impl Fn(&T) -> Vec<String>,
    ) -> Result<T, CheckpointError> {
        let expected = self.fields.get("checksum").and_then(Value::as_u64).unwrap_or_default();
        let state: T = serde_json::from_value(Value::Object(self.fields))?;
        let is_equal = |dump: &String| u64::from(fnv1a_32(dump.as_bytes())) == expected;
        if expected != 0 && !dumps(&state).iter().any(is_equal) {
            return Err(CheckpointError::Corrupt);
        }
        Ok(state)
    }
}

fn lower_keys(fields: serde_json::Map<String, Value>) -> serde_json::Map<String, Value> {
    fields.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()
}

/// The checksum of the newest form: that of a Go string as spew prints it.
fn data_checksum(data: &str) -> u32 {
    fnv1a_32(format!("(string){data}").as_bytes())
}

/// The newest form with the fields of the earlier one in front, for a downgrade.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenFile<'a, T> {
    #[serde(flatten)]
    fields: &'a T,
    checksum: u32,
    data: &'a str,
    data_checksum: u32,
}

/// Serializes a state in both forms. `dump` is the text of the earlier form's checksum.
///
/// # Errors
///
/// The serializer's.
pub(crate) fn to_json<T: Serialize>(state: &T, dump: &str) -> Result<Vec<u8>, serde_json::Error> {
    let data = serde_json::to_string(state)?;
    serde_json::to_vec(&WrittenFile {
        fields: state,
        checksum: fnv1a_32(dump.as_bytes()),
        data: &data,
        data_checksum: data_checksum(&data),
    })
}
