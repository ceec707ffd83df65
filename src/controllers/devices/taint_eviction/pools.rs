//! The devices that drivers publish, by pool.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::Object;
use api::k8s::api::resource::v1::DeviceTaint;
use serde::Deserialize;

use super::eviction::NO_EXECUTE;

/// A ResourceSlice: the names of its devices and their taints.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SliceView {
    name: Arc<str>,
    pub(super) pool: PoolId,
    generation: i64,
    devices: Vec<SliceDevice>,
}

#[derive(Debug, Clone, PartialEq)]
struct SliceDevice {
    name: Arc<str>,
    /// All taints: a reason contains the position.
    taints: Vec<DeviceTaint>,
}

/// The pool of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PoolId {
    pub(super) driver: Arc<str>,
    pub(super) pool: Arc<str>,
}

#[derive(Deserialize)]
struct Shape {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    driver: String,
    pool: Pool,
    devices: Option<Vec<Device>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pool {
    name: String,
    generation: i64,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    taints: Option<Vec<DeviceTaint>>,
}

impl SliceView {
    /// The slice of an object; `None` if it cannot be decoded.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let spec = match serde_json::from_slice::<Shape>(object.raw()) {
            Ok(shape) => shape.spec,
            Err(error) => {
                tracing::warn!(slice = %object.key, %error, "cannot decode the taints of a slice");
                return None;
            }
        };
        let device = |device: Device| SliceDevice {
            name: device.name.into(),
            taints: device.taints.unwrap_or_default(),
        };
        Some(Self {
            name: Arc::clone(&object.key.name),
            pool: PoolId { driver: spec.driver.into(), pool: spec.pool.name.into() },
            generation: spec.pool.generation,
            devices: spec.devices.unwrap_or_default().into_iter().map(device).collect(),
        })
    }
}

/// The slices of all pools; those of an older generation of their pool are ignored.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Pools {
    /// By pool and name of the slice.
    slices: HashMap<PoolId, BTreeMap<Arc<str>, SliceView>>,
}

/// The taints of a device that evict.
type Evicting<'a> = BTreeMap<&'a str, Vec<&'a DeviceTaint>>;

impl Pools {
    /// Adds a slice or replaces the one of this name.
    pub(super) fn add(&mut self, slice: SliceView) {
        let pool = self.slices.entry(slice.pool.clone()).or_default();
        pool.insert(Arc::clone(&slice.name), slice);
    }

    /// Removes a slice.
    pub(super) fn remove(&mut self, slice: &SliceView) {
        if let Some(pool) = self.slices.get_mut(&slice.pool) {
            pool.remove(&slice.name);
            if pool.is_empty() {
                self.slices.remove(&slice.pool);
            }
        }
    }

    /// The devices of the newest generation of a pool.
    fn devices(&self, id: &PoolId) -> impl Iterator<Item = &SliceDevice> {
        let pool = self.slices.get(id);
        let newest = pool.and_then(|pool| pool.values().map(|slice| slice.generation).max());
        let current = pool.into_iter().flat_map(|pool| pool.values());
        let current = current.filter(move |slice| Some(slice.generation) == newest);
        current.flat_map(|slice| &slice.devices)
    }

    /// The evicting taints of a device with their positions.
    pub(super) fn taints(
        &self,
        id: &PoolId,
        device: &str,
    ) -> impl Iterator<Item = (usize, &DeviceTaint)> {
        let found = self.devices(id).find(|found| *found.name == *device);
        let all = found.into_iter().flat_map(|found| found.taints.iter().enumerate());
        all.filter(|(_, taint)| taint.effect == NO_EXECUTE)
    }

    /// The evicting taints of all devices of a pool.
    pub(super) fn evicting(&self, id: &PoolId) -> Evicting<'_> {
        let mut found = Evicting::new();
        for device in self.devices(id) {
            let taints = device.taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
            for taint in taints {
                found.entry(&device.name).or_default().push(taint);
            }
        }
        found
    }

    /// All devices of the newest generations: pool and name.
    pub(super) fn published(&self) -> impl Iterator<Item = (&PoolId, &str)> {
        self.slices.keys().flat_map(|id| self.devices(id).map(move |device| (id, &*device.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(name: &str, generation: i64, devices: Value) -> SliceView {
        let object = json!({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": {
            "driver": "d", "pool": {"name": "p", "generation": generation,
            "resourceSliceCount": 1}, "nodeName": "n", "devices": devices}});
        SliceView::of(&Object::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn only_the_newest_generation_of_a_pool_counts() {
        let (no_execute, other) =
            (json!({"key": "k", "effect": "NoExecute"}), json!({"key": "k", "effect": "None"}));
        let old = slice("old", 1, json!([{"name": "a", "taints": [other, no_execute]}]));
        let new = slice("new", 2, json!([{"name": "a"}, {"name": "b"}]));
        let mut pools = Pools::default();
        let id = old.pool.clone();
        pools.add(old.clone());
        let positions: Vec<usize> = pools.taints(&id, "a").map(|(index, _)| index).collect();
        assert_eq!(positions, [1]);
        assert_eq!(pools.evicting(&id).keys().collect::<Vec<_>>(), [&"a"]);
        pools.add(new.clone());
        assert_eq!(pools.taints(&id, "a").count(), 0);
        assert_eq!(pools.published().count(), 2);
        pools.remove(&new);
        assert_eq!(pools.published().collect::<Vec<_>>(), [(&id, "a")]);
        pools.remove(&old);
        assert_eq!(pools, Pools::default());
    }
}
