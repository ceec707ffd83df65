//! The operation that allocates resource claims without pods.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::WORKERS;
use crate::executor::Executor;
use crate::operation::AllocResourceClaims;
use crate::template;

/// Where the objects of the API of devices are.
const API: &str = "/apis/resource.k8s.io/v1";

/// A device of a node that no claim has.
#[derive(Clone, Debug, PartialEq)]
struct Device {
    driver: String,
    pool: String,
    name: String,
}

/// Free devices by node.
type Free = BTreeMap<String, VecDeque<Device>>;

/// Allocates a device to each claim of a namespace that has none. Upstream runs the scheduler's
/// allocator for nodes in a random order; this takes the next free device of the nodes in turn, for
/// claims with one request of one device whose class selects a driver, and refuses others.
pub(crate) async fn allocate(
    executor: &Executor<'_>,
    op: &AllocResourceClaims,
) -> anyhow::Result<()> {
    let cluster = &executor.cluster;
    let path = format!("{API}/namespaces/{}/resourceclaims", op.namespace);
    let claims = match cluster.list(&path, "").await {
        Ok(claims) => claims,
        Err(error) => return Err(error.context("listing the claims")),
    };
    let open: Vec<Value> =
        claims.into_iter().filter(|claim| claim.pointer("/status/allocation").is_none()).collect();
    if open.is_empty() {
        return Ok(());
    }
    let classes = drivers(&cluster.list(&format!("{API}/deviceclasses"), "").await?);
    let all = cluster.list(&format!("{API}/resourceclaims"), "").await?;
    let mut free = free_devices(&cluster.list(&format!("{API}/resourceslices"), "").await?);
    for claim in &all {
        take_allocated(&mut free, claim);
    }
    let mut turn: VecDeque<String> = free.keys().cloned().collect();
    let mut allocated = Vec::with_capacity(open.len());
    for (number, mut claim) in open.into_iter().enumerate() {
        let (request, driver) = request(&claim, &classes)?;
        let (node, device) = next(&mut free, &mut turn, driver)
            .with_context(|| format!("no device is free for claim {number}"))?;
        template::set(&mut claim, &["status", "allocation"], allocation(&request, &node, &device))?;
        allocated.push(claim);
    }
    let path = path.as_str();
    futures::stream::iter(allocated)
        .map(Ok)
        .try_for_each_concurrent(WORKERS, |claim| async move {
            let path = format!("{path}/{}/status", template::name(&claim));
            let body = Bytes::from(serde_json::to_vec(&claim)?);
            cluster.must(Method::PUT, &path, body).await.map(drop)
        })
        .await
}

/// The driver that each class selects, by its only selector `device.driver == "NAME"`.
fn drivers(classes: &[Value]) -> BTreeMap<String, Option<String>> {
    let driver = |class: &Value| {
        let selectors = class.pointer("/spec/selectors")?.as_array()?;
        let [selector] = selectors.as_slice() else { return None };
        let expression = selector.pointer("/cel/expression")?.as_str()?;
        let name = expression.strip_prefix("device.driver == \"")?.strip_suffix('"')?;
        (!name.contains('"')).then(|| name.to_owned())
    };
    classes.iter().map(|class| (template::name(class).to_owned(), driver(class))).collect()
}

/// The name of a claim's only request, and the driver of its class.
fn request<'c>(
    claim: &Value,
    classes: &'c BTreeMap<String, Option<String>>,
) -> anyhow::Result<(String, &'c str)> {
    let name = template::name(claim);
    let requests = claim.pointer("/spec/devices/requests").and_then(Value::as_array);
    let Some([request]) = requests.map(Vec::as_slice) else {
        bail!("the claim {name} cannot be allocated: it does not have one request");
    };
    let exactly = request.get("exactly");
    let field = |field: &str| exactly.and_then(|exactly| exactly.get(field));
    let is_simple = claim.pointer("/spec/devices/constraints").is_none()
        && ["selectors", "adminAccess", "capacity", "tolerations"]
            .iter()
            .all(|f| field(f).is_none())
        && field("count").is_none_or(|count| *count == 1)
        && field("allocationMode").is_none_or(|mode| mode == "ExactCount");
    let class = field("deviceClassName").and_then(Value::as_str);
    let driver = class.and_then(|class| classes.get(class)?.as_deref());
    let (true, Some(driver)) = (is_simple, driver) else {
        bail!("the claim {name} cannot be allocated: not one device of a class with one driver");
    };
    let request = request.get("name").and_then(Value::as_str).unwrap_or_default();
    Ok((request.to_owned(), driver))
}

fn free_devices(slices: &[Value]) -> Free {
    let mut free = Free::new();
    for slice in slices {
        let text = |path: &str| slice.pointer(path).and_then(Value::as_str);
        let Some(node) = text("/spec/nodeName") else { continue };
        let Some((driver, pool)) = text("/spec/driver").zip(text("/spec/pool/name")) else {
            continue;
        };
        let devices = slice.pointer("/spec/devices").and_then(Value::as_array);
        let names = devices.into_iter().flatten().filter_map(|device| device.get("name")?.as_str());
        free.entry(node.to_owned()).or_default().extend(names.map(|name| Device {
            driver: driver.to_owned(),
            pool: pool.to_owned(),
            name: name.to_owned(),
        }));
    }
    free
}

fn take_allocated(free: &mut Free, claim: &Value) {
    let results = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    for result in results.into_iter().flatten() {
        let field = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
        let (driver, pool, name) = (field("driver"), field("pool"), field("device"));
        for devices in free.values_mut() {
            devices.retain(|d| d.driver != driver || d.pool != pool || d.name != name);
        }
    }
}

/// Takes the next free device of a driver from the node whose turn it is.
fn next(free: &mut Free, turn: &mut VecDeque<String>, driver: &str) -> Option<(String, Device)> {
    for _ in 0..turn.len() {
        let node = turn.pop_front()?;
        turn.push_back(node.clone());
        let devices = free.get_mut(&node)?;
        if let Some(at) = devices.iter().position(|device| device.driver == driver) {
            return Some((node, devices.remove(at)?));
        }
    }
    None
}

fn allocation(request: &str, node: &str, device: &Device) -> Value {
    json!({
        "devices": {"results": [{
            "request": request, "driver": device.driver, "pool": device.pool,
            "device": device.name,
        }]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]},
        ]}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(node: &str) -> Value {
        json!({"spec": {"nodeName": node, "driver": "d", "pool": {"name": node},
            "devices": [{"name": "0"}, {"name": "1"}]}})
    }

    fn claim(exactly: &Value) -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": exactly}]}}})
    }

    #[test]
    fn devices_are_taken_from_the_nodes_in_turn_until_none_is_free() {
        let mut free = free_devices(&[slice("a"), slice("b")]);
        let device = Device { driver: "d".into(), pool: "a".into(), name: "0".into() };
        take_allocated(
            &mut free,
            &json!({"status": {"allocation": allocation("r", "a", &device)}}),
        );
        let mut turn: VecDeque<String> = free.keys().cloned().collect();
        let mut taken = Vec::new();
        while let Some((node, device)) = next(&mut free, &mut turn, "d") {
            taken.push(format!("{node}{}", device.name));
        }
        assert_eq!(taken, ["a1", "b0", "b1"]);
        assert_eq!(next(&mut free_devices(&[slice("a")]), &mut turn, "other"), None);
    }

    #[test]
    fn only_claims_for_one_device_of_a_driver_are_allocated() {
        let class = |name: &str, expression: &str| {
            json!({"metadata": {"name": name}, "spec": {"selectors": [
                {"cel": {"expression": expression}}]}})
        };
        let classes = drivers(&[
            class("k", "device.driver == \"d\""),
            class("x", "device.driver == \"d\" || device.driver == \"e\""),
        ]);
        let ok = request(&claim(&json!({"deviceClassName": "k", "count": 1})), &classes).unwrap();
        assert_eq!(ok, ("r".to_owned(), "d"));
        for exactly in [
            json!({"deviceClassName": "k", "count": 2}),
            json!({"deviceClassName": "k", "selectors": []}),
            json!({"deviceClassName": "x"}),
            json!({"deviceClassName": "missing"}),
        ] {
            assert!(request(&claim(&exactly), &classes).is_err(), "{exactly}");
        }
    }
}
