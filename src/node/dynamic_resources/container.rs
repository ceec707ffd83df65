//! The devices of claims that a container gets.

use std::collections::BTreeMap;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use proto::podresources;
use proto::runtime::v1 as cri;

use super::DynamicResources;
use super::claim::Claim;
use super::error::UnknownClaim;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::resource_claims::{
    ClaimNameError, claim_object, extended_claim, is_served_by_claims,
};

/// Why a container gets no devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContainerDevicesError {
    #[error(transparent)]
    Name(#[from] ClaimNameError),
    #[error(transparent)]
    NotPrepared(#[from] UnknownClaim),
}

/// The references of a container to an entry of `spec.resourceClaims`.
fn references<'a>(container: &'a core::Container, claim: &str) -> Vec<&'a core::ResourceClaim> {
    let all = container.resources.iter().flat_map(|r| r.claims.iter().flatten());
    all.filter(|reference| reference.name == claim).collect()
}

/// Whether a container requests a resource that claims serve.
fn requests(container: &core::Container, resource: &str) -> bool {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let amount = requests.and_then(|requests| requests.get(resource));
    let is_set = amount.is_some_and(|q| Quantity::parse(&q.0).is_ok_and(|q| !q.is_zero()));
    is_set && is_served_by_claims(resource)
}

/// The requests of a container by the names of the claims' objects; an empty request stands for all
/// of a claim.
fn claim_requests(
    pod: &Pod,
    container: &core::Container,
) -> Result<BTreeMap<String, Vec<String>>, ClaimNameError> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for claim in pod.spec().resource_claims.iter().flatten() {
        let references = references(container, &claim.name);
        if references.is_empty() {
            continue;
        }
        let Some(object) = claim_object(pod, claim)? else { continue };
        let requests = references.iter().map(|r| r.request.clone().unwrap_or_default());
        out.entry(object.name).or_default().extend(requests);
    }
    if let Some(claim) = extended_claim(pod) {
        let own = claim.request_mappings.iter().filter(|mapping| {
            mapping.container_name == container.name && requests(container, &mapping.resource_name)
        });
        let own: Vec<String> = own.map(|mapping| mapping.request_name.clone()).collect();
        if !own.is_empty() {
            out.entry(claim.resource_claim_name.clone()).or_default().extend(own);
        }
    }
    Ok(out)
}

/// The claims of which the pod resources API lists all devices for a container.
fn listed_claims(pod: &Pod, container: &core::Container) -> Result<Vec<String>, ClaimNameError> {
    let mut names = Vec::new();
    for claim in pod.spec().resource_claims.iter().flatten() {
        if !references(container, &claim.name).is_empty() {
            names.extend(claim_object(pod, claim)?.map(|object| object.name));
        }
    }
    let extended = extended_claim(pod).filter(|claim| {
        claim.request_mappings.iter().any(|mapping| mapping.container_name == container.name)
    });
    names.extend(extended.map(|claim| claim.resource_claim_name.clone()));
    Ok(names)
}

/// Describes a claim and its devices for the pod resources API.
fn described(claim: &Claim) -> podresources::DynamicResource {
    let cdi = |name: &String| podresources::CdiDevice { name: name.clone() };
    let drivers = claim.state.driver_state.iter();
    let devices = drivers.flat_map(|(driver, d)| d.devices().iter().map(move |d| (driver, d)));
    let resources = devices.map(|(driver, device)| podresources::ClaimResource {
        cdi_devices: device.cdi_ids().iter().map(cdi).collect(),
        driver_name: driver.clone(),
        pool_name: device.pool_name.clone(),
        device_name: device.device_name.clone(),
        share_id: device.share_id.clone(),
    });
    podresources::DynamicResource {
        claim_name: claim.state.claim_name.clone(),
        claim_namespace: claim.state.namespace.clone(),
        claim_resources: resources.collect(),
    }
}

impl DynamicResources {
    /// Returns the devices of a container for the runtime. A device that serves two requests is
    /// listed twice, as with upstream; the runtime adds it once.
    ///
    /// # Errors
    ///
    /// A claim is not prepared.
    pub(crate) fn cdi_devices(
        &self,
        pod: &Pod,
        member: &PodContainer,
    ) -> Result<Vec<cri::CdiDevice>, ContainerDevicesError> {
        let wanted = claim_requests(pod, &member.container)?;
        let mut devices = Vec::new();
        let claims = self.claims.lock();
        for (name, requests) in wanted {
            let claim = claims.get(pod.namespace(), &name)?;
            let ids = requests.iter().flat_map(|request| claim.cdi_ids(request));
            devices.extend(ids.map(|id| cri::CdiDevice { name: id.clone() }));
        }
        Ok(devices)
    }

    /// Returns the claims of a container with all of their devices, for the pod resources API; none
    /// while one of them is not prepared.
    pub(crate) fn claims_of_container(
        &self,
        pod: &Pod,
        member: &PodContainer,
    ) -> Vec<podresources::DynamicResource> {
        let listed = || -> Result<Vec<_>, ContainerDevicesError> {
            let names = listed_claims(pod, &member.container)?;
            let claims = self.claims.lock();
            let described = names.iter().map(|name| {
                let claim = claims.get(pod.namespace(), name)?;
                Ok(described(claim))
            });
            described.collect()
        };
        listed().unwrap_or_else(|error| {
            tracing::debug!(pod = %pod.key, %error, "cannot list the claims of a container");
            Vec::new()
        })
    }
}
