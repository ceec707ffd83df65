//! What the objects mean together: listeners of Gateways, and the routes that attach to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use sorting::CollectOrdered as _;

use super::listeners::{self, Listener, allows_set};
use super::objects::{Objects, Problem, References, RouteKind, intersect, is_chosen};
use super::policies::Policies;
use super::rules::{Compiled, Compiler};
use super::types::{GROUP, GatewaySpec, ParentRef, Resource, RouteSpec};
use crate::objects::services::BackendRegistry;

/// A Gateway of our classes.
#[derive(Debug)]
pub struct Gateway {
    /// Its position in the objects.
    pub at: usize,
    /// Its listeners and those of its ListenerSets.
    pub listeners: Vec<Listener>,
    /// Condition `Accepted`, apart from its listeners.
    pub accepted: Result<(), Problem>,
    /// The certificate that backends see; the problem of its reference.
    pub certificate: Result<Option<Arc<CertifiedKey>>, Problem>,
}

/// A ListenerSet of such a Gateway.
#[derive(Debug)]
pub struct Set {
    /// Its position in the objects.
    pub at: usize,
    /// The position of its Gateway in the model.
    pub gateway: usize,
    /// Whether the Gateway lets it attach.
    pub is_allowed: bool,
}

/// A parent of a route.
#[derive(Debug)]
pub struct Parent {
    /// The reference.
    pub reference: ParentRef,
    /// The position of the Gateway in the model.
    pub gateway: usize,
    /// Condition `Accepted`.
    pub accepted: Result<(), Problem>,
    /// The listeners that it attaches to, by their position.
    pub listeners: Vec<usize>,
}

/// A route with a parent of ours.
#[derive(Debug)]
pub struct Route {
    /// Its position in the objects.
    pub at: usize,
    /// Its parents.
    pub parents: Vec<Parent>,
    /// Its rules for each Gateway.
    pub compiled: BTreeMap<usize, Compiled>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Model {
    /// Gateways, the oldest first.
    pub gateways: Vec<Gateway>,
    /// ListenerSets.
    pub sets: Vec<Set>,
    /// Routes, the oldest first.
    pub routes: Vec<Route>,
    /// BackendTLSPolicies.
    pub policies: Policies,
}

/// Builds the model. `objects` are sorted by [`Objects::sort`].
pub fn build(
    objects: &Objects,
    references: &impl References,
    registry: &mut BackendRegistry,
) -> Model {
    let mut model = Model::default();
    for (at, gateway) in objects.gateways.iter().enumerate() {
        if objects.is_served(gateway) {
            model.add_gateway(objects, at, gateway, references);
        }
    }
    model.policies = Policies::new(objects, references);
    registry.begin();
    for (at, (kind, route)) in objects.routes.iter().enumerate() {
        let parents = model.parents(objects, *kind, route, references);
        if parents.is_empty() {
            continue;
        }
        let used: BTreeSet<usize> = parents.iter().map(|parent| parent.gateway).collect_set();
        let mut compiled = BTreeMap::new();
        for gateway in used {
            let certificate = model
                .gateways
                .get(gateway)
                .and_then(|gateway| gateway.certificate.as_ref().ok().cloned().flatten());
            let policies = &mut model.policies;
            let mut compiler =
                Compiler { objects, references, policies, registry, gateway, certificate };
            compiled.insert(gateway, compiler.route(*kind, route));
        }
        let mut route = Route { at, parents, compiled };
        model.attach(&mut route);
        model.routes.push(route);
    }
    registry.end();
    model.policies.mark_conflicting(objects);
    model
}

/// Whether a Gateway can be served as a whole.
fn acceptance(gateway: &Resource<GatewaySpec>) -> Result<(), Problem> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    if infrastructure.is_some_and(|i| i.parameters_ref.is_some()) {
        let message = "infrastructure.parametersRef is not supported; remove it";
        return Err(Problem::new("InvalidParameters", message));
    }
    for address in &gateway.spec.addresses {
        let kind = address.kind.as_deref().unwrap_or("IPAddress");
        if kind != "IPAddress" {
            let message = format!("addresses of type {kind} are not supported, use IPAddress");
            return Err(Problem::new("UnsupportedAddress", message));
        }
    }
    Ok(())
}

impl Model {
    fn add_gateway(
        &mut self,
        objects: &Objects,
        at: usize,
        gateway: &Resource<GatewaySpec>,
        references: &impl References,
    ) {
        let metadata = &gateway.metadata;
        let position = self.gateways.len();
        let mut attached = Vec::new();
        for (at, set) in objects.sets.iter().enumerate() {
            let parent = &set.spec.parent_ref;
            let namespace = parent.namespace.as_deref().unwrap_or(&set.metadata.namespace);
            let is_gateway = parent.group.as_deref().unwrap_or(GROUP) == GROUP
                && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway";
            if !is_gateway || parent.name != metadata.name || namespace != metadata.namespace {
                continue;
            }
            let is_allowed = allows_set(gateway, &set.metadata.namespace, references);
            if is_allowed {
                attached.push(at);
            }
            self.sets.push(Set { at, gateway: position, is_allowed });
        }
        let tls = gateway.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
        let reference = tls.and_then(|backend| backend.client_certificate_ref.as_ref());
        let certificate = reference.map(|reference| {
            let from = ("Gateway", metadata.namespace.as_str());
            objects.certificate(references, from, reference, "InvalidClientCertificateRef")
        });
        self.gateways.push(Gateway {
            at,
            listeners: listeners::build(objects, gateway, &attached, references),
            accepted: acceptance(gateway),
            certificate: certificate.transpose(),
        });
    }

    /// The parents of a route that are ours, with the listeners that it attaches to.
    fn parents(
        &self,
        objects: &Objects,
        kind: RouteKind,
        route: &Resource<RouteSpec>,
        references: &impl References,
    ) -> Vec<Parent> {
        let mut parents = Vec::new();
        for reference in &route.spec.parent_refs {
            let Some((gateway, set)) = self.find(objects, route, reference) else { continue };
            let candidates = self.gateways.get(gateway).map(|g| g.listeners.as_slice());
            let (accepted, listeners) = match &set {
                // A set that is not allowed has no listeners.
                Some(set) if !set.is_allowed => {
                    let message = "the ListenerSet may not attach to its Gateway";
                    (Err(Problem::new("NoMatchingParent", message)), Vec::new())
                }
                set => {
                    let of_set = set.map(|set| set.at);
                    let matched = match_listeners(
                        candidates.unwrap_or_default(),
                        (of_set, reference),
                        (kind, route),
                        references,
                    );
                    match matched {
                        Ok(listeners) => (Ok(()), listeners),
                        Err(problem) => (Err(problem), Vec::new()),
                    }
                }
            };
            let reference = reference.clone();
            parents.push(Parent { reference, gateway, accepted, listeners });
        }
        parents
    }

    /// The Gateway of a reference, and the ListenerSet if it names one.
    fn find(
        &self,
        objects: &Objects,
        route: &Resource<RouteSpec>,
        reference: &ParentRef,
    ) -> Option<(usize, Option<&Set>)> {
        if reference.group.as_deref().unwrap_or(GROUP) != GROUP {
            return None;
        }
        let namespace = reference.namespace.as_deref().unwrap_or(&route.metadata.namespace);
        match reference.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => {
                let position = self.gateways.iter().position(|gateway| {
                    objects.gateways.get(gateway.at).is_some_and(|object| {
                        object.metadata.name == reference.name
                            && object.metadata.namespace == namespace
                    })
                });
                Some((position?, None))
            }
            "ListenerSet" => {
                let set = self.sets.iter().find(|set| {
                    objects.sets.get(set.at).is_some_and(|object| {
                        object.metadata.name == reference.name
                            && object.metadata.namespace == namespace
                    })
                })?;
                Some((set.gateway, Some(set)))
            }
            _ => None,
        }
    }

    /// Completes the acceptance of a route by that of its rules, and counts it at its listeners.
    fn attach(&mut self, route: &mut Route) {
        let mut counted = BTreeSet::new();
        for parent in &mut route.parents {
            let compiled = route.compiled.get(&parent.gateway);
            let refused = compiled.filter(|compiled| !compiled.has_supported);
            if let (Ok(()), Some(problem)) =
                (&parent.accepted, refused.and_then(|compiled| compiled.unsupported.clone()))
            {
                parent.accepted = Err(problem);
                parent.listeners.clear();
            }
            let Some(gateway) = self.gateways.get_mut(parent.gateway) else { continue };
            for at in &parent.listeners {
                if let Some(listener) = gateway.listeners.get_mut(*at)
                    && counted.insert((parent.gateway, *at))
                {
                    listener.attached += 1;
                }
            }
        }
    }
}

/// The listeners that a route attaches to.
///
/// # Errors
/// The reason why there is none, as `RouteConditionReason` distinguishes them.
fn match_listeners(
    listeners: &[Listener],
    (set, reference): (Option<usize>, &ParentRef),
    (kind, route): (RouteKind, &Resource<RouteSpec>),
    references: &impl References,
) -> Result<Vec<usize>, Problem> {
    let is_named = |listener: &Listener| {
        listener.set == set
            && reference.section_name.as_ref().is_none_or(|name| *name == listener.spec.name)
            && reference.port.is_none_or(|port| port == listener.spec.port)
    };
    let named: Vec<_> = listeners.iter().enumerate().filter(|(_, l)| is_named(l)).collect();
    if named.is_empty() {
        let message = "no listener of the parent has this section name and port";
        return Err(Problem::new("NoMatchingParent", message));
    }
    let namespace = route.metadata.namespace.as_str();
    let allows = |listener: &Listener| {
        let choice = listener.spec.allowed_routes.as_ref().and_then(|a| a.namespaces.as_ref());
        listener.kinds.contains(&kind)
            && is_chosen(choice, "Same", &listener.namespace, namespace, references)
    };
    let allowed: Vec<_> = named.into_iter().filter(|(_, listener)| allows(listener)).collect();
    if allowed.is_empty() {
        let message = format!("no listener allows a {} of namespace {namespace}", kind.name());
        return Err(Problem::new("NotAllowedByListeners", message));
    }
    let meets = |listener: &Listener| {
        let host = listener.spec.hostname.as_deref();
        let hosts = &route.spec.hostnames;
        let has_hosts = matches!(kind, RouteKind::Http | RouteKind::Grpc | RouteKind::Tls);
        !has_hosts || hosts.is_empty() || hosts.iter().any(|own| intersect(host, Some(own)))
    };
    let found: Vec<usize> =
        allowed.into_iter().filter(|(_, listener)| meets(listener)).map(|(at, _)| at).collect();
    if found.is_empty() {
        let message = "no listener has a host in common with the route";
        return Err(Problem::new("NoMatchingListenerHostname", message));
    }
    Ok(found)
}

#[cfg(test)]
#[path = "model_tests.rs"]
pub(crate) mod tests;
