//! One ResourceClaim that pods of this node use, as the checkpoint keeps it.

use std::collections::{BTreeMap, BTreeSet};

use api::k8s::api::resource::v1 as resource;
use serde::{Deserialize, Deserializer, Serialize};
use sorting::CollectOrdered as _;

/// All operations, in `skipNodeOperations`.
const ALL_OPERATIONS: &str = "*";

/// A call that a driver may declare unnecessary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeOperation {
    Prepare,
    Unprepare,
}

impl NodeOperation {
    /// The name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prepare => "NodePrepareResources",
            Self::Unprepare => "NodeUnprepareResources",
        }
    }
}

/// Why a claim cannot be used on this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnusableClaim {
    #[error("not allocated")]
    NotAllocated,
    /// A feature of upstream that is off by default and not supported here.
    #[error("DRAOptionalNodeOperations feature gate is disabled on kubelet")]
    SkipsOperations,
}

/// A device as its driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ClaimDevice {
    pub(crate) pool_name: String,
    pub(crate) device_name: String,
    #[serde(rename = "ShareID")]
    pub(crate) share_id: Option<String>,
    /// The requests of the claim that it serves; all if there are none.
    pub(crate) request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    pub(crate) cdi_device_ids: Option<Vec<String>>,
}

impl ClaimDevice {
    /// Whether the device serves a request; an empty name stands for all requests.
    pub(crate) fn serves(&self, request: &str) -> bool {
        let names = self.request_names.as_deref().unwrap_or_default();
        request.is_empty() || names.is_empty() || names.iter().any(|name| name == request)
    }

    /// The names of the device for the container runtime.
    pub(crate) fn cdi_ids(&self) -> &[String] {
        self.cdi_device_ids.as_deref().unwrap_or_default()
    }
}

/// What is known of one driver of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DriverDevices {
    /// `None` before the driver reported devices.
    #[serde(rename = "Devices")]
    pub(crate) devices: Option<Vec<ClaimDevice>>,
    #[serde(
        rename = "skipNodeOperations",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_as_default"
    )]
    pub(crate) skip_node_operations: Vec<String>,
}

impl DriverDevices {
    /// Whether the driver needs no call of this kind.
    pub(crate) fn skips(&self, operation: NodeOperation) -> bool {
        let names = [ALL_OPERATIONS, operation.name()];
        self.skip_node_operations.iter().any(|skipped| names.contains(&skipped.as_str()))
    }

    /// The devices that the driver reported.
    pub(crate) fn devices(&self) -> &[ClaimDevice] {
        self.devices.as_deref().unwrap_or_default()
    }
}

/// The empty object of a set in Go's JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {}

/// The part of a claim that the checkpoint keeps (`ClaimInfoState`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ClaimState {
    #[serde(rename = "ClaimUID")]
    pub(crate) claim_uid: String,
    pub(crate) claim_name: String,
    pub(crate) namespace: String,
    #[serde(rename = "PodUIDs", deserialize_with = "null_as_default")]
    pub(crate) pod_uids: BTreeMap<String, Member>,
    /// By the names of the drivers.
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) driver_state: BTreeMap<String, DriverDevices>,
}

/// Go writes empty maps and lists as `null`.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A claim that pods of this node use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) state: ClaimState,
    /// All drivers prepared their devices in the life of this process.
    pub(crate) is_prepared: bool,
    /// Drivers are being told to release the devices: no other pod can use the claim.
    pub(crate) is_unpreparing: bool,
}

impl Claim {
    /// Restores a claim of an earlier process.
    pub(crate) fn of_state(state: ClaimState) -> Self {
        Self { state, is_prepared: false, is_unpreparing: false }
    }

    /// Describes an allocated claim (`newClaimInfoFromClaim`).
    pub(crate) fn of_object(object: &resource::ResourceClaim) -> Result<Self, UnusableClaim> {
        let allocation = object.status.as_ref().and_then(|s| s.allocation.as_ref());
        let allocation = allocation.ok_or(UnusableClaim::NotAllocated)?;
        let results = allocation.devices.iter().flat_map(|d| d.results.iter().flatten());
        let mut by_driver: BTreeMap<&str, Vec<&[String]>> = BTreeMap::new();
        for result in results {
            let skipped = result.skip_node_operations.as_deref().unwrap_or_default();
            by_driver.entry(&result.driver).or_default().push(skipped);
        }
        let mut driver_state = BTreeMap::new();
        for (driver, results) in by_driver {
            if !skipped_operations(&results).is_empty() {
                return Err(UnusableClaim::SkipsOperations);
            }
            driver_state.insert(driver.to_owned(), DriverDevices::default());
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let meta = &object.metadata;
        let (claim_uid, claim_name) = (text(&meta.uid), text(&meta.name));
        let (namespace, pod_uids) = (text(&meta.namespace), BTreeMap::new());
        let state = ClaimState { claim_uid, claim_name, namespace, pod_uids, driver_state };
        Ok(Self::of_state(state))
    }

    /// Whether a pod uses the claim.
    pub(crate) fn is_used_by(&self, pod: &str) -> bool {
        self.state.pod_uids.contains_key(pod)
    }

    /// The names of all devices for the container runtime that serve a request.
    pub(crate) fn cdi_ids(&self, request: &str) -> impl Iterator<Item = &String> {
        let drivers = self.state.driver_state.values();
        let devices = drivers.flat_map(DriverDevices::devices);
        devices.filter(move |device| device.serves(request)).flat_map(ClaimDevice::cdi_ids)
    }
}

/// Returns the operations that a driver skips for a claim: those that each of its results lists
/// (`computeDriverStates`).
fn skipped_operations(results: &[&[String]]) -> BTreeSet<String> {
    let skips = |result: &[String], operation: &str| result.iter().any(|o| o == operation);
    if !results.is_empty() && results.iter().all(|result| skips(result, ALL_OPERATIONS)) {
        return BTreeSet::from([ALL_OPERATIONS.to_owned()]);
    }
    let named = results.iter().flat_map(|result| result.iter());
    let named = named.filter(|operation| *operation != ALL_OPERATIONS);
    let by_all = |operation: &&String| {
        results.iter().all(|r| skips(r, operation) || skips(r, ALL_OPERATIONS))
    };
    named.filter(by_all).cloned().collect_set()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(status: Value) -> Result<Claim, UnusableClaim> {
        let object = json!({"metadata": {"name": "c", "namespace": "d", "uid": "u"},
            "spec": {}, "status": status});
        Claim::of_object(&serde_json::from_value(object).unwrap())
    }

    fn result(driver: &str, skips: Value) -> Value {
        json!({"driver": driver, "pool": "p", "device": "x", "request": "r",
            "skipNodeOperations": skips})
    }

    #[test]
    fn an_allocated_claim_has_the_drivers_of_its_results() {
        assert_eq!(claim(json!({})).unwrap_err(), UnusableClaim::NotAllocated);
        let empty = claim(json!({"allocation": {"devices": {}}})).unwrap();
        assert!(empty.state.driver_state.is_empty());
        let results = [result("a", json!(null)), result("a", json!(null)), result("b", json!([]))];
        let claim = claim(json!({"allocation": {"devices": {"results": results}}})).unwrap();
        let drivers: Vec<&String> = claim.state.driver_state.keys().collect();
        assert_eq!(drivers, ["a", "b"]);
        assert!(claim.state.driver_state.values().all(|d| d.devices.is_none()));
        assert!(!claim.is_prepared && !claim.is_unpreparing);
    }

    #[test]
    fn a_claim_whose_driver_skips_calls_is_refused() {
        let of =
            |results: &[Value]| claim(json!({"allocation": {"devices": {"results": results}}}));
        let all = of(&[result("a", json!(["*"]))]);
        assert_eq!(
            all.unwrap_err().to_string(),
            "DRAOptionalNodeOperations feature gate is disabled on kubelet"
        );
        // Another device of the driver needs the calls.
        assert!(of(&[result("a", json!(["*"])), result("a", json!(null))]).is_ok());
    }

    /// The drivers of upstream's `TestNewClaimInfoFromClaim`.
    #[test]
    fn an_operation_is_skipped_if_each_result_lists_it() {
        const P: &str = "NodePrepareResources";
        const U: &str = "NodeUnprepareResources";
        let of = |results: &[&[&str]]| -> Vec<String> {
            let owned: Vec<Vec<String>> =
                results.iter().map(|r| r.iter().map(|o| (*o).to_owned()).collect()).collect();
            let results: Vec<&[String]> = owned.iter().map(Vec::as_slice).collect();
            skipped_operations(&results).into_iter().collect()
        };
        assert_eq!(of(&[&["*"], &["*"]]), ["*"]);
        assert!(of(&[&["*"], &[]]).is_empty());
        assert_eq!(of(&[&[U]]), [U]);
        assert_eq!(of(&[&["*"], &[U]]), [U]);
        assert!(of(&[&[U], &[]]).is_empty());
        assert_eq!(of(&[&["unknown"]]), ["unknown"]);
        assert_eq!(of(&[&["*", P], &[P]]), [P]);
        assert_eq!(of(&[&[U], &["*", P]]), [U]);
        let skipping = |operation: &str| DriverDevices {
            skip_node_operations: vec![operation.to_owned()],
            ..DriverDevices::default()
        };
        assert!(skipping("*").skips(NodeOperation::Prepare));
        assert!(skipping(U).skips(NodeOperation::Unprepare));
        assert!(!skipping(U).skips(NodeOperation::Prepare));
        assert!(!skipping("unknown").skips(NodeOperation::Unprepare));
    }

    #[test]
    fn devices_without_request_names_serve_all_requests() {
        let device = |requests: &[&str]| ClaimDevice {
            request_names: Some(requests.iter().map(|r| (*r).to_owned()).collect()),
            ..ClaimDevice::default()
        };
        assert!(device(&[]).serves("r") && device(&["r"]).serves("r") && device(&["r"]).serves(""));
        assert!(!device(&["r"]).serves("r/sub") && !device(&["a", "b"]).serves("r"));
    }
}
