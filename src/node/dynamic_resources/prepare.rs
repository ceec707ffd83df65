//! Prepares the claims of a pod before its sandbox is created, and releases them after its last
//! container ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::resource::v1::ResourceClaim;
use proto::dra::v1 as dra;

use super::DynamicResources;
use super::claim::{Claim, ClaimDevice, NodeOperation};
use super::claims::PendingClaim;
use super::error::{DriverFailure, PrepareError, PrepareFailed, UnprepareError, UnprepareFailed};
use super::metrics;
use super::plugin::DraPlugin;
use crate::pods::pod::Pod;
use crate::pods::resource_claims::{ClaimObject, claim_object, extended_claim, has_claims};

/// The plugins to call, by driver.
type Plugins = BTreeMap<String, Arc<DraPlugin>>;
/// The claims that drivers have to be called for, by driver.
type Batches = BTreeMap<String, Vec<PendingClaim>>;

fn record(operation: &str, is_error: bool, took: Duration) {
    let is_error = if is_error { "true" } else { "false" };
    metrics::OPERATIONS.took(&[is_error, operation], took);
}

/// The objects of all claims of a pod, that of its extended resources last.
fn claim_objects(pod: &Pod) -> Result<Vec<ClaimObject>, PrepareError> {
    let mut objects = Vec::new();
    for claim in pod.spec().resource_claims.iter().flatten() {
        objects.extend(claim_object(pod, claim)?);
    }
    objects.extend(
        extended_claim(pod).map(|claim| ClaimObject {
            name: claim.resource_claim_name.clone(),
            is_generated: false,
        }),
    );
    Ok(objects)
}

/// Checks that a pod may use a claim, and describes the claim.
fn usable_claim(
    pod: &Pod,
    object: &ResourceClaim,
    is_generated: bool,
) -> Result<Claim, PrepareError> {
    let uid = &*pod.uid;
    let claim = object.metadata.name.clone().unwrap_or_default();
    let owners = object.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    if is_generated && !controllers.any(|owner| owner.uid == uid) {
        let claim = format!("{}/{claim}", pod.namespace());
        return Err(PrepareError::NotOwner { claim, pod: pod.key.to_string() });
    }
    let reserved = object.status.as_ref().and_then(|s| s.reserved_for.as_ref());
    if !reserved.into_iter().flatten().any(|consumer| consumer.uid == uid) {
        return Err(PrepareError::NotReserved {
            pod: pod.name().to_owned(),
            uid: uid.to_owned(),
            claim,
            claim_uid: object.metadata.uid.clone().unwrap_or_default(),
        });
    }
    Claim::of_object(object).map_err(|source| PrepareError::Unusable { claim, source })
}

/// The claims of a call.
fn messages(claims: &[PendingClaim]) -> Vec<dra::Claim> {
    let message = |claim: &PendingClaim| {
        let (namespace, name) = claim.key.clone();
        dra::Claim { namespace, name, uid: claim.uid.clone() }
    };
    claims.iter().map(message).collect()
}

/// Checks that a driver answered for each claim of a call, and for no other, without an error.
fn check_answer<T>(
    operation: NodeOperation,
    claims: &[PendingClaim],
    answer: &HashMap<String, T>,
    error: impl Fn(&T) -> &str,
) -> Result<(), DriverFailure> {
    for (uid, result) in answer {
        let Some(claim) = claims.iter().find(|claim| claim.uid == *uid) else {
            return Err(DriverFailure::UnknownClaim { operation, uid: uid.clone() });
        };
        let error = error(result);
        if !error.is_empty() {
            let (claim, error) = (claim.key.1.clone(), error.to_owned());
            return Err(DriverFailure::Claim { operation, claim, error });
        }
    }
    match claims.len().saturating_sub(answer.len()) {
        0 => Ok(()),
        count => Err(DriverFailure::Skipped { operation, count }),
    }
}

fn device(device: dra::Device) -> ClaimDevice {
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    ClaimDevice {
        pool_name: device.pool_name,
        device_name: device.device_name,
        share_id: device.share_id,
        request_names: some(device.request_names),
        cdi_device_ids: some(device.cdi_device_ids),
    }
}

impl DynamicResources {
    /// Has the drivers prepare the claims of a pod. Claims that are prepared already need no call.
    ///
    /// # Errors
    ///
    /// A claim cannot be used by the pod, or a driver does not prepare it; what other drivers
    /// prepared stays, and is prepared again by a retry.
    pub(crate) async fn prepare(&self, pod: &Pod) -> Result<(), PrepareFailed> {
        let begun = base::clock::now();
        let mut outcome = Ok(());
        if has_claims(pod) {
            // A driver that registers from here on is noticed.
            self.wait(&pod.uid, None);
            outcome = self.prepare_claims(pod).await;
            if outcome.is_ok() {
                self.stop_waiting(&pod.uid);
            }
        }
        record("PrepareResources", outcome.is_err(), begun.elapsed());
        Ok(outcome?)
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), PrepareError> {
        // All checks come before the first change: a pod that fails them uses no claim yet, so that
        // nothing has to be released.
        let (claims, plugins) = self.validate(pod).await?;
        let (pending, batches) = self.attach(pod, claims).await?;
        for (driver, claims) in &batches {
            let plugin = match plugins.get(driver) {
                Some(plugin) => Arc::clone(plugin),
                // The claim was allocated again while it is in use.
                None => self.drivers.plugin(driver)?,
            };
            self.prepare_with(&plugin, claims).await?;
        }
        self.claims.lock().set_prepared(&pending)?;
        if !pending.is_empty() {
            self.save().await.map_err(PrepareError::SaveDevices)?;
        }
        Ok(())
    }

    /// Reads the claims of a pod, and finds a plugin for each of their drivers.
    async fn validate(&self, pod: &Pod) -> Result<(Vec<Claim>, Plugins), PrepareError> {
        let (mut claims, mut plugins) = (Vec::new(), Plugins::new());
        for ClaimObject { name, is_generated } in claim_objects(pod)? {
            let object = self.client.get::<ResourceClaim>(pod.namespace(), &name).await;
            let object = object.map_err(|source| PrepareError::Fetch { name, source })?;
            let claim = usable_claim(pod, &object, is_generated)?;
            for (driver, devices) in &claim.state.driver_state {
                if !devices.skips(NodeOperation::Prepare) && !plugins.contains_key(driver) {
                    plugins.insert(driver.clone(), self.drivers.plugin(driver)?);
                }
            }
            claims.push(claim);
        }
        Ok((claims, plugins))
    }

    /// Records durably that the pod uses the claims, and returns those that are not prepared.
    async fn attach(
        &self,
        pod: &Pod,
        claims: Vec<Claim>,
    ) -> Result<(Vec<PendingClaim>, Batches), PrepareError> {
        let (mut pending, mut batches) = (Vec::new(), Batches::new());
        let attached = {
            let mut cache = self.claims.lock();
            claims.into_iter().try_for_each(|claim| {
                let Some(state) = cache.attach(claim, &pod.uid)? else { return Ok(()) };
                let key = (state.namespace, state.claim_name);
                let claim = PendingClaim { key, uid: state.claim_uid };
                pending.push(claim.clone());
                for (driver, devices) in state.driver_state {
                    if devices.skips(NodeOperation::Prepare) {
                        metrics::PREPARE_SKIPS.inc(&[&driver]);
                    } else {
                        batches.entry(driver).or_default().push(claim.clone());
                    }
                }
                Ok(())
            })
        };
        // The claims before one that fails have the pod, too.
        self.save().await.map_err(PrepareError::SaveReferences)?;
        attached.map(|()| (pending, batches))
    }

    /// Has one driver prepare its devices of claims.
    async fn prepare_with(
        &self,
        plugin: &DraPlugin,
        claims: &[PendingClaim],
    ) -> Result<(), PrepareError> {
        let operation = NodeOperation::Prepare;
        let answer = plugin.prepare(messages(claims)).await;
        let mut answer = answer.map_err(|source| DriverFailure::Rpc { operation, source })?.claims;
        check_answer(operation, claims, &answer, |result| &result.error)?;
        let mut cache = self.claims.lock();
        for claim in claims {
            let result = answer.remove(&claim.uid).unwrap_or_default();
            let devices = result.devices.into_iter().map(device).collect();
            cache.set_devices(&claim.key, &plugin.driver, devices)?;
        }
        Ok(())
    }

    /// Has the drivers release the claims that the pod alone uses, and removes it from the others.
    /// The claims are those that are recorded: without a record nothing was prepared.
    ///
    /// # Errors
    ///
    /// A driver does not release a claim, which stays recorded and cannot be used by another pod.
    pub(crate) async fn unprepare(&self, pod: &str) -> Result<(), UnprepareFailed> {
        let begun = base::clock::now();
        let is_known = self.claims.lock().has_pod(pod);
        let outcome = if is_known { self.release(pod).await } else { Ok(()) };
        record("UnprepareResources", outcome.is_err(), begun.elapsed());
        Ok(outcome?)
    }

    async fn release(&self, pod: &str) -> Result<(), UnprepareError> {
        let mut batches = Batches::new();
        let pending = {
            let mut cache = self.claims.lock();
            let pending = cache.begin_release(pod);
            for claim in &pending {
                let Ok(known) = cache.get(&claim.key.0, &claim.key.1) else { continue };
                for (driver, devices) in &known.state.driver_state {
                    if devices.skips(NodeOperation::Unprepare) {
                        metrics::UNPREPARE_SKIPS.inc(&[driver]);
                    } else {
                        batches.entry(driver.clone()).or_default().push(claim.clone());
                    }
                }
            }
            pending
        };
        let operation = NodeOperation::Unprepare;
        for (driver, claims) in &batches {
            let plugin = self.drivers.plugin(driver)?;
            let answer = plugin.unprepare(messages(claims)).await;
            let answer = answer.map_err(|source| DriverFailure::Rpc { operation, source })?;
            check_answer(operation, claims, &answer.claims, |result| &result.error)?;
        }
        self.claims.lock().remove(&pending);
        self.save().await.map_err(UnprepareError::Save)
    }
}
