//! Upstream's tables of tests with the answers of upstream's allocator.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::Node;
use api::k8s::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use api::quantity::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::devices::allocated::Allocated;
use crate::devices::slice::Slice;
use crate::devices::slices::SliceTracker;

/// The cases of `structured/internal/allocatortesting` that need no feature which is off by
/// default, with what upstream's "incubating" allocator answers: one JSON object per line. Slices
/// of one name have other names, because the API has one object per name.
const CASES: &str = include_str!("../../testdata/allocator.jsonl");

/// A device: driver, pool and name.
type Name = (String, String, String);

#[derive(Deserialize)]
struct InUse {
    device: Name,
    capacity: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    claims: Vec<ResourceClaim>,
    classes: Vec<DeviceClass>,
    slices: Vec<ResourceSlice>,
    node: Node,
    /// Dedicated devices.
    #[serde(default)]
    allocated: Vec<Name>,
    #[serde(default)]
    capacity: Vec<InUse>,
    results: Vec<Value>,
    error: Option<String>,
    steps: u64,
}

fn allocator(case: &Case) -> Allocator {
    let mut tracker = SliceTracker::default();
    for slice in &case.slices {
        tracker.set_slice(Slice::new(slice).unwrap());
    }
    let mut classes = Classes::default();
    for class in &case.classes {
        classes.set(class.clone());
    }
    let mut allocated = Allocated::default();
    let dedicated = case.allocated.iter().map(|(driver, pool, device)| {
        json!({"driver": driver, "pool": pool, "device": device, "request": "r"})
    });
    let results: Vec<Value> = dedicated.collect();
    allocated.add(&serde_json::from_value(json!({"devices": {"results": results}})).unwrap());
    for in_use in &case.capacity {
        let (driver, pool, device) = &in_use.device;
        let amounts = in_use.capacity.iter();
        let amounts = amounts.map(|(name, text)| (name.clone(), Quantity::parse(text).unwrap()));
        allocated.add_consumed(DeviceId::new(driver, pool, device), amounts.collect());
    }
    let state = AllocatedState { written: Arc::new(allocated), in_flight: Arc::default() };
    Allocator::new(tracker.index(), state, Arc::new(classes), Arc::default())
}

/// The allocations as JSON; each share has the same identifier, because they are random.
fn run(case: &Case) -> (Result<Vec<Value>, String>, u64) {
    let allocator = allocator(case);
    let mut node = NodeInfo::default();
    node.set_node(&case.node);
    let claims: Vec<_> = case.claims.iter().map(|c| Arc::new(ClaimRequests::new(c))).collect();
    let found = allocator.allocate(&node, &claims, &|| false);
    let found = found.map_err(|error| error.to_string()).map(|results| {
        let results = results.into_iter().map(|mut result| {
            for device in result.devices.iter_mut().flat_map(|d| &mut d.results).flatten() {
                if let Some(share) = &mut device.share_id {
                    *share = "share".into();
                }
            }
            serde_json::to_value(result).unwrap()
        });
        results.collect()
    });
    (found, allocator.steps())
}

#[test]
fn allocations_errors_and_numbers_of_steps_are_those_of_upstream() {
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for line in CASES.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let (found, steps) = run(&case);
        let expected = match &case.error {
            Some(error) => Err(error.clone()),
            None => Ok(case.results.clone()),
        };
        if found != expected {
            let shown = |r: &Result<Vec<Value>, String>| match r {
                Ok(values) => json!(values).to_string(),
                Err(error) => error.clone(),
            };
            wrong.push(format!("{}\n  {}\n  {}", case.name, shown(&found), shown(&expected)));
        } else if steps != case.steps {
            wrong.push(format!("{}: {steps} steps, not {}", case.name, case.steps));
        }
        assert!(names.insert(case.name.clone()), "{} twice", case.name);
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(names.len() > 200, "{}", names.len());
}
