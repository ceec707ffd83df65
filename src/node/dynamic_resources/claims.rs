//! The claims that pods of this node use.

use std::collections::{BTreeMap, BTreeSet};

use sorting::CollectOrdered as _;

use super::claim::{Claim, ClaimDevice, ClaimState, Member};
use super::error::{PrepareError, UnknownClaim};
use super::metrics::ANY_DRIVER;

/// Namespace and name of a claim.
pub(super) type ClaimKey = (String, String);

/// A claim that drivers have to be called for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingClaim {
    pub(super) key: ClaimKey,
    pub(super) uid: String,
}

/// The claims by namespace and name.
#[derive(Debug, Default)]
pub(super) struct ClaimCache(BTreeMap<ClaimKey, Claim>);

impl ClaimCache {
    /// Restores the claims of an earlier process.
    pub(super) fn of_states(states: Vec<ClaimState>) -> Self {
        let keyed = states.into_iter().map(|state| {
            ((state.namespace.clone(), state.claim_name.clone()), Claim::of_state(state))
        });
        Self(keyed.collect())
    }

    /// What the checkpoint keeps.
    pub(super) fn states(&self) -> Vec<ClaimState> {
        self.0.values().map(|claim| claim.state.clone()).collect()
    }

    /// Returns a claim.
    ///
    /// # Errors
    ///
    /// No pod of this node uses it.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Result<&Claim, UnknownClaim> {
        let key = (namespace.to_owned(), name.to_owned());
        self.0.get(&key).ok_or(UnknownClaim { namespace: key.0, name: key.1 })
    }

    fn get_mut(&mut self, key: &ClaimKey) -> Result<&mut Claim, UnknownClaim> {
        let (namespace, name) = key.clone();
        self.0.get_mut(key).ok_or(UnknownClaim { namespace, name })
    }

    /// The claims that a pod uses.
    #[cfg(test)]
    pub(super) fn of_pod(&self, pod: &str) -> Vec<ClaimKey> {
        let used = self.0.iter().filter(|(_, claim)| claim.is_used_by(pod));
        used.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a pod uses a claim.
    pub(super) fn has_pod(&self, pod: &str) -> bool {
        self.0.values().any(|claim| claim.is_used_by(pod))
    }

    /// All pods that use claims.
    pub(super) fn pods(&self) -> BTreeSet<String> {
        self.0.values().flat_map(|claim| claim.state.pod_uids.keys().cloned()).collect_set()
    }

    /// Adds a pod to a claim. Returns the claim if its drivers have to prepare it.
    ///
    /// # Errors
    ///
    /// An older claim has the same name, or the claim is being released.
    pub(super) fn attach(
        &mut self,
        claim: Claim,
        pod: &str,
    ) -> Result<Option<ClaimState>, PrepareError> {
        let (name, uid) = (claim.state.claim_name.clone(), claim.state.claim_uid.clone());
        let key = (claim.state.namespace.clone(), name.clone());
        let known = self.0.entry(key).or_insert(claim);
        if known.state.claim_uid != uid {
            return Err(PrepareError::OtherUid { name, uid: known.state.claim_uid.clone() });
        }
        if known.is_unpreparing {
            return Err(PrepareError::BeingUnprepared(name));
        }
        known.state.pod_uids.insert(pod.to_owned(), Member {});
        Ok((!known.is_prepared).then(|| known.state.clone()))
    }

    /// Replaces the devices of a driver for a claim.
    ///
    /// # Errors
    ///
    /// The claim was released meanwhile.
    pub(super) fn set_devices(
        &mut self,
        key: &ClaimKey,
        driver: &str,
        devices: Vec<ClaimDevice>,
    ) -> Result<(), UnknownClaim> {
        let known = self.get_mut(key)?;
        let of_driver = known.state.driver_state.entry(driver.to_owned()).or_default();
        of_driver.devices = (!devices.is_empty()).then_some(devices);
        Ok(())
    }

    /// Marks claims as prepared by all of their drivers.
    ///
    /// # Errors
    ///
    /// A claim was released meanwhile.
    pub(super) fn set_prepared(&mut self, claims: &[PendingClaim]) -> Result<(), UnknownClaim> {
        for claim in claims {
            self.get_mut(&claim.key)?.is_prepared = true;
        }
        Ok(())
    }

    /// Removes a pod from its claims, except for those that it alone uses: they are marked, so that
    /// no other pod is added, and returned to be released by their drivers.
    pub(super) fn begin_release(&mut self, pod: &str) -> Vec<PendingClaim> {
        let mut pending = Vec::new();
        for (key, claim) in self.0.iter_mut().filter(|(_, claim)| claim.is_used_by(pod)) {
            if claim.state.pod_uids.len() > 1 {
                claim.state.pod_uids.remove(pod);
                continue;
            }
            claim.is_unpreparing = true;
            pending.push(PendingClaim { key: key.clone(), uid: claim.state.claim_uid.clone() });
        }
        pending
    }

    /// Removes claims that their drivers released.
    pub(super) fn remove(&mut self, claims: &[PendingClaim]) {
        for claim in claims {
            self.0.remove(&claim.key);
        }
    }

    /// The pods that use one of the devices, given by pool and name, of a driver.
    pub(super) fn pods_with_devices(
        &self,
        driver: &str,
        devices: &BTreeSet<(String, String)>,
    ) -> BTreeSet<String> {
        let uses = |claim: &&Claim| {
            let of_driver = claim.state.driver_state.get(driver);
            let mut used = of_driver.into_iter().flat_map(|d| d.devices());
            used.any(|d| devices.contains(&(d.pool_name.clone(), d.device_name.clone())))
        };
        let claims = self.0.values().filter(uses);
        claims.flat_map(|claim| claim.state.pod_uids.keys().cloned()).collect_set()
    }

    /// The number of prepared claims of each driver and, under [`ANY_DRIVER`], of all drivers.
    pub(super) fn in_use(&self) -> BTreeMap<&str, u32> {
        let mut counts = BTreeMap::from([(ANY_DRIVER, 0)]);
        for claim in self.0.values().filter(|claim| claim.is_prepared) {
            let drivers = claim.state.driver_state.keys().map(String::as_str);
            for driver in drivers.chain([ANY_DRIVER]) {
                *counts.entry(driver).or_default() += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic_resources::claim::DriverDevices;

    fn claim(name: &str, uid: &str, drivers: &[&str]) -> Claim {
        let drivers = drivers.iter().map(|d| ((*d).to_owned(), DriverDevices::default()));
        Claim::of_state(ClaimState {
            claim_uid: uid.to_owned(),
            claim_name: name.to_owned(),
            namespace: "d".to_owned(),
            driver_state: drivers.collect(),
            ..ClaimState::default()
        })
    }

    fn key(name: &str) -> ClaimKey {
        ("d".to_owned(), name.to_owned())
    }

    #[test]
    fn a_claim_is_released_with_its_last_pod() {
        let mut cache = ClaimCache::default();
        assert!(cache.attach(claim("c", "1", &["a"]), "p1").unwrap().is_some());
        let pending = [PendingClaim { key: key("c"), uid: "1".to_owned() }];
        cache.set_prepared(&pending).unwrap();
        let prepared = cache.attach(claim("c", "1", &["a"]), "p2").unwrap();
        assert_eq!(prepared, None);
        assert_eq!(cache.of_pod("p2"), [key("c")]);
        assert!(cache.begin_release("p1").is_empty());
        assert!(!cache.has_pod("p1") && cache.has_pod("p2"));
        assert!(cache.begin_release("p1").is_empty(), "it does not use the claim any longer");
        assert_eq!(cache.begin_release("p2"), pending);
        // Until its drivers released it, no pod can use it.
        let error = cache.attach(claim("c", "1", &["a"]), "p3").unwrap_err();
        assert_eq!(error.to_string(), "ResourceClaim c is being unprepared");
        assert!(!cache.has_pod("p3") && cache.has_pod("p2"));
        cache.remove(&pending);
        assert_eq!(
            cache.get("d", "c").unwrap_err().to_string(),
            "internal error: unable to get claim info for ResourceClaim c in namespace d"
        );
    }

    #[test]
    fn an_older_claim_of_the_same_name_blocks_a_newer_one() {
        let mut cache = ClaimCache::default();
        cache.attach(claim("c", "1", &[]), "p1").unwrap();
        assert_eq!(
            cache.attach(claim("c", "2", &[]), "p2").unwrap_err().to_string(),
            "old ResourceClaim with same name c and different UID 1 still exists (previous pod \
             force-deleted?!)"
        );
        assert_eq!(cache.pods().into_iter().collect::<Vec<_>>(), ["p1"]);
    }

    #[test]
    fn prepared_claims_are_in_use() {
        let mut cache = ClaimCache::default();
        cache.attach(claim("new", "1", &["a"]), "p").unwrap();
        assert_eq!(cache.in_use(), BTreeMap::from([("<any>", 0)]));
        for (name, drivers) in [("one", &["a", "b"][..]), ("two", &["a"])] {
            cache.attach(claim(name, name, drivers), "p").unwrap();
            cache.set_prepared(&[PendingClaim { key: key(name), uid: name.to_owned() }]).unwrap();
        }
        assert_eq!(cache.in_use(), BTreeMap::from([("<any>", 2), ("a", 2), ("b", 1)]));
    }

    #[test]
    fn claims_of_an_earlier_process_are_not_prepared() {
        let mut cache = ClaimCache::default();
        cache.attach(claim("c", "1", &["a"]), "p").unwrap();
        let device = ClaimDevice { device_name: "x".to_owned(), ..ClaimDevice::default() };
        cache.set_devices(&key("c"), "a", vec![device.clone(), device]).unwrap();
        let restored = ClaimCache::of_states(cache.states());
        let claim = restored.get("d", "c").unwrap();
        assert!(!claim.is_prepared && claim.is_used_by("p"));
        assert_eq!(claim.state.driver_state["a"].devices().len(), 2);
    }
}
