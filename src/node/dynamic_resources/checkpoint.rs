//! The file `dra_manager_state`: the claims of this node with their devices, in upstream's form.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::claim::ClaimState;

/// Name of the file, in the root directory of the kubelet.
pub(crate) const CHECKPOINT: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";
/// Maximum size of the file in bytes: far more than the claims of the pods of one node need.
const SIZE_MAX: u64 = 64 << 20;

/// Why the claims of an earlier process cannot be read: without them, devices would stay prepared.
#[derive(Debug, thiserror::Error)]
#[error(
    "create ResourceClaim cache: GetOrCreate() on checkpoint state: {source}; drain the node and \
     remove {path}"
)]
pub(crate) struct LoadError {
    path: String,
    source: CheckpointError,
}

/// Why the file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("failed to get checkpoint {CHECKPOINT}: {0}")]
    Read(#[source] InvalidCheckpoint),
    #[error("could not save checkpoint {CHECKPOINT}: {0}")]
    Write(#[source] io::Error),
    #[error("could not save checkpoint {CHECKPOINT}: {0}")]
    Encode(#[source] serde_json::Error),
    /// The write was abandoned with the process.
    #[error("could not save checkpoint {CHECKPOINT}: {0}")]
    Abandoned(#[from] tokio::task::JoinError),
}

/// Why the content of the file is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidCheckpoint {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("larger than {SIZE_MAX} bytes")]
    TooLarge,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("checkpoint is corrupted")]
    Checksum,
}

/// The content of the file: the data as text, and its CRC-32.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Envelope {
    #[serde(alias = "data")]
    data: String,
    #[serde(alias = "checksum")]
    checksum: u32,
}

/// What is written; kind and version are not read, as in upstream.
#[derive(Debug, Serialize)]
struct WrittenData<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<&'a [ClaimState]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReadData {
    #[serde(rename = "ClaimInfoStateList", alias = "claimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

fn checksum(data: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    crc.sum()
}

/// Encodes claims; `None` is the content of the first file, which has no list.
///
/// # Errors
///
/// Never in practice: all keys are texts.
fn encode(claims: Option<&[ClaimState]>) -> Result<Vec<u8>, serde_json::Error> {
    let data = WrittenData { kind: KIND, api_version: API_VERSION, claims };
    let data = serde_json::to_string(&data)?;
    let checksum = checksum(data.as_bytes());
    serde_json::to_vec(&Envelope { data, checksum })
}

/// Decodes the content of the file.
///
/// # Errors
///
/// No JSON, or a checksum that does not match.
fn decode(content: &[u8]) -> Result<Vec<ClaimState>, InvalidCheckpoint> {
    let envelope: Envelope = serde_json::from_slice(content)?;
    if checksum(envelope.data.as_bytes()) != envelope.checksum {
        return Err(InvalidCheckpoint::Checksum);
    }
    let data: ReadData = serde_json::from_str(&envelope.data)?;
    Ok(data.claims.unwrap_or_default())
}

fn read(path: &Path) -> Result<Option<Vec<ClaimState>>, InvalidCheckpoint> {
    use std::io::Read as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut content = Vec::new();
    file.take(SIZE_MAX + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).is_ok_and(|size| size > SIZE_MAX) {
        return Err(InvalidCheckpoint::TooLarge);
    }
    decode(&content).map(Some)
}

/// Reads the claims of an earlier process from the directory `root`, and creates the file if there
/// is none. Blocks.
///
/// # Errors
///
/// The file cannot be read, is damaged, or cannot be created.
pub(super) fn load(root: &Path) -> Result<Vec<ClaimState>, LoadError> {
    let path = root.join(CHECKPOINT);
    let loaded = match read(&path) {
        Ok(Some(claims)) => Ok(claims),
        Ok(None) => write(&path, None).map(|()| Vec::new()),
        Err(error) => Err(CheckpointError::Read(error)),
    };
    loaded.map_err(|source| LoadError { path: path.display().to_string(), source })
}

/// Writes claims to the file at `path`; `None` writes the first file. Blocks.
///
/// # Errors
///
/// The file cannot be replaced; the old content is then unchanged.
pub(super) fn write(path: &Path, claims: Option<&[ClaimState]>) -> Result<(), CheckpointError> {
    let content = encode(claims).map_err(CheckpointError::Encode)?;
    base::fs::write_atomic(path, &content, 0o600).map_err(CheckpointError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic_resources::claim::ClaimDevice;

    /// The content of upstream's `TestCheckpointGetOrCreate`.
    const ONE: &str = concat!(
        r#"{"Data":"{\"kind\":\"DRACheckpoint\","#,
        r#"\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":["#,
        r#"{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example\","#,
        r#"\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},"#,
        r#"\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\","#,
        r#"\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],"#,
        r#"\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":2570581864}"#,
    );

    /// Puts `data` into a file with its checksum.
    fn file(data: &str) -> Vec<u8> {
        let (data, checksum) = (data.to_owned(), checksum(data.as_bytes()));
        serde_json::to_vec(&Envelope { data, checksum }).unwrap()
    }

    #[test]
    fn a_checkpoint_of_upstream_round_trips_byte_by_byte() {
        let claims = decode(ONE.as_bytes()).unwrap();
        let [claim] = claims.as_slice() else { panic!("{claims:?}") };
        assert_eq!((&*claim.claim_name, &*claim.namespace), ("example", "default"));
        assert_eq!(String::from_utf8(encode(Some(&claims)).unwrap()).unwrap(), ONE);
    }

    /// The checksums of the files in upstream's `TestCheckpointStateStore`.
    #[test]
    fn checksums_are_those_of_upstream() {
        let claims = decode(ONE.as_bytes()).unwrap();
        let checksum_of = |claims: &[ClaimState]| {
            let envelope: Envelope =
                serde_json::from_slice(&encode(Some(claims)).unwrap()).unwrap();
            envelope.checksum
        };
        let change = |change: &dyn Fn(&mut ClaimState)| {
            let mut claim = claims[0].clone();
            change(&mut claim);
            claim
        };
        let driver = "test-driver.cdi.k8s.io";
        let devices = |claim: &mut ClaimState, with: &dyn Fn(&mut Vec<ClaimDevice>)| {
            with(claim.driver_state.get_mut(driver).unwrap().devices.as_mut().unwrap());
        };
        let shared = change(&|claim| {
            let share_id = Some("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa".to_owned());
            devices(claim, &|list| list[0].share_id = share_id.clone());
        });
        assert_eq!(checksum_of(&[shared]), 736_302_156);
        let two_devices = change(&|claim| {
            devices(claim, &|list| {
                list.push(ClaimDevice { device_name: "dev-2".to_owned(), ..list[0].clone() });
            });
        });
        assert_eq!(checksum_of(&[two_devices]), 1_223_221_469);
        let first = change(&|claim| claim.claim_name = "example-1".to_owned());
        let second = change(&|claim| {
            claim.claim_name = "example-2".to_owned();
            claim.claim_uid = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c".to_owned();
            devices(claim, &|list| {
                list[0].device_name = "dev-2".to_owned();
                (list[0].request_names, list[0].cdi_device_ids) = (None, None);
            });
        });
        assert_eq!(checksum_of(&[first, second]), 2_820_117_767);
    }

    #[test]
    fn the_first_file_has_no_list_and_later_ones_an_empty_one() {
        let first = String::from_utf8(encode(None).unwrap()).unwrap();
        assert!(first.contains(r#"\"ClaimInfoStateList\":null}"#), "{first}");
        let later = String::from_utf8(encode(Some(&[])).unwrap()).unwrap();
        assert!(later.contains(r#"\"ClaimInfoStateList\":[]}"#), "{later}");
        assert!(decode(first.as_bytes()).unwrap().is_empty());
    }

    #[test]
    fn damaged_checkpoints_are_refused() {
        let wrong = ONE.replace("2570581864", "2570581865");
        assert_eq!(decode(wrong.as_bytes()).unwrap_err().to_string(), "checkpoint is corrupted");
        assert!(decode(b"{").is_err());
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(CHECKPOINT), &wrong).unwrap();
        let error = load(home.path()).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get \
                 checkpoint dra_manager_state: checkpoint is corrupted"
            ),
            "{error}"
        );
        assert!(load(&home.path().join("missing")).is_err(), "the file cannot be created");
    }

    #[test]
    fn older_and_newer_checkpoints_are_read() {
        let claims = |data: &str| decode(&file(data)).unwrap();
        let claim =
            r#"{"ClaimUID":"u","DriverState":{"d":{"Devices":[{"PoolName":"p"}],"new":1}}}"#;
        let other = format!(r#"{{"apiVersion":"x/v0","ClaimInfoStateList":[{claim}]}}"#);
        let [claim] = &claims(&other)[..] else { panic!("one claim") };
        let driver = &claim.driver_state["d"];
        assert_eq!(driver.devices()[0].request_names, None);
        assert!(driver.skip_node_operations.is_empty() && claim.pod_uids.is_empty());
        let driver = r#"{"d":{"Devices":null,"skipNodeOperations":["*"]}}"#;
        let claim = format!(r#"{{"PodUIDs":null,"DriverState":{driver}}}"#);
        let skipping = format!(r#"{{"ClaimInfoStateList":[{claim}]}}"#);
        let [claim] = &claims(&skipping)[..] else { panic!("one claim") };
        assert_eq!(claim.driver_state["d"].skip_node_operations, ["*"]);
        let written = String::from_utf8(encode(Some(std::slice::from_ref(claim))).unwrap());
        let expected =
            r#"\"DriverState\":{\"d\":{\"Devices\":null,\"skipNodeOperations\":[\"*\"]}}"#;
        assert!(written.unwrap().contains(expected));
    }

    #[test]
    fn a_missing_file_is_created() {
        let home = tempfile::tempdir().unwrap();
        assert!(load(home.path()).unwrap().is_empty());
        assert!(home.path().join(CHECKPOINT).exists());
        assert!(load(home.path()).unwrap().is_empty());
    }
}
