//! BackendTLSPolicy: which one holds for a port of a Service, and what it means for connections.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;

use super::listeners::bundle;
use super::objects::{Objects, Problem, References};
use super::types::{PolicySpec, Resource, SubjectAltName};
use http_proxy::backend::Protocol;
use http_proxy::proxy::upstream::{EndpointName, Roots, UpstreamTls};

/// A policy.
#[derive(Debug)]
pub struct Policy {
    /// Condition `Accepted`.
    pub accepted: Result<(), Problem>,
    /// Condition `ResolvedRefs`.
    pub resolved: Result<(), Problem>,
    /// Gateways that use one of its Services, by their position.
    pub gateways: BTreeSet<usize>,
    settings: Option<Settings>,
}

#[derive(Debug)]
struct Settings {
    name: ServerName<'static>,
    names: Vec<EndpointName>,
    roots: Roots,
    /// Distinguishes settings.
    digest: u64,
}

/// The policies of the cluster.
#[derive(Debug, Default)]
pub struct Policies {
    /// In the order of the objects.
    pub all: Vec<Policy>,
    /// By namespace, Service and port name; all ports of the Service for `None`.
    targets: BTreeMap<(String, String, Option<String>), usize>,
}

/// The TLS of a backend.
#[derive(Debug)]
pub enum BackendTls {
    /// No policy holds.
    Plain,
    /// The policy is invalid, so that nothing may be sent.
    Invalid,
    /// TLS; the number distinguishes settings, and is not 0.
    Encrypted(u64, Arc<UpstreamTls>),
}

impl Policies {
    /// Reads the policies; `objects` are sorted.
    pub fn new(objects: &Objects, references: &impl References) -> Self {
        let mut policies = Self::default();
        for (at, object) in objects.policies.iter().enumerate() {
            let mut policy = read(object, references);
            let namespace = &object.metadata.namespace;
            let services = object.spec.target_refs.iter();
            let mut conflict = None;
            for target in services.filter(|t| t.group.is_empty() && t.kind == "Service") {
                let key = (namespace.clone(), target.name.clone(), target.section_name.clone());
                match policies.targets.get(&key) {
                    Some(other) if *other != at => {
                        let older = objects.policies.get(*other).map(|p| p.metadata.full_name());
                        conflict = older;
                    }
                    _ => drop(policies.targets.insert(key, at)),
                }
            }
            if let Some(older) = conflict {
                let message = format!("BackendTLSPolicy {older} has the same target and is older");
                policy.accepted = Err(Problem::new("Conflicted", message));
            }
            policies.all.push(policy);
        }
        policies
    }

    /// The TLS of a port of a Service. `user` is the position of the Gateway that sends, and its
    /// client certificate.
    pub fn tls(
        &mut self,
        (namespace, service, port): (&str, &str, &str),
        protocol: Protocol,
        (gateway, certificate): (usize, Option<&Arc<CertifiedKey>>),
    ) -> BackendTls {
        let key = |section: Option<&str>| {
            (namespace.to_owned(), service.to_owned(), section.map(str::to_owned))
        };
        // Policies of other ports of the Service belong to the Gateway, too.
        let of_service = self.targets.range(key(None)..);
        let is_same = |((ns, name, _), _): &(&(String, String, Option<String>), &usize)| {
            ns == namespace && name == service
        };
        let positions: Vec<usize> = of_service.take_while(is_same).map(|(_, at)| *at).collect();
        for at in positions {
            if let Some(policy) = self.all.get_mut(at) {
                policy.gateways.insert(gateway);
            }
        }
        let found = self.targets.get(&key(Some(port))).or_else(|| self.targets.get(&key(None)));
        let Some(policy) = found.and_then(|at| self.all.get(*at)) else {
            return BackendTls::Plain;
        };
        let Some(settings) = &policy.settings else { return BackendTls::Invalid };
        let is_http2 = protocol == Protocol::Http2;
        let names = settings.names.clone();
        let made =
            UpstreamTls::new(settings.name.clone(), &settings.roots, names, certificate, is_http2);
        let Ok(tls) = made else { return BackendTls::Invalid };
        let mut hasher = DefaultHasher::new();
        settings.digest.hash(&mut hasher);
        certificate.map(|pair| pair.cert.first().map(|der| der.as_ref())).hash(&mut hasher);
        BackendTls::Encrypted(hasher.finish().max(1), Arc::new(tls))
    }

    /// Policies of targets whose Service is not used still belong to Gateways that conflict.
    pub fn mark_conflicting(&mut self, objects: &Objects) {
        let used: Vec<BTreeSet<usize>> = self.all.iter().map(|p| p.gateways.clone()).collect();
        for (at, object) in objects.policies.iter().enumerate() {
            for target in &object.spec.target_refs {
                let namespace = object.metadata.namespace.clone();
                let key = (namespace, target.name.clone(), target.section_name.clone());
                let winner = self.targets.get(&key).and_then(|at| used.get(*at));
                if let (Some(gateways), Some(policy)) = (winner, self.all.get_mut(at)) {
                    policy.gateways.extend(gateways);
                }
            }
        }
    }
}

fn read(object: &Resource<PolicySpec>, references: &impl References) -> Policy {
    let mut policy =
        Policy { accepted: Ok(()), resolved: Ok(()), gateways: BTreeSet::new(), settings: None };
    let validation = &object.spec.validation;
    if validation.well_known_ca_certificates.is_some() {
        let message = "validation.wellKnownCACertificates is not supported; use caCertificateRefs";
        policy.accepted = Err(Problem::new("Invalid", message));
        return policy;
    }
    let mut pem = String::new();
    for reference in &validation.ca_certificate_refs {
        let kind = reference.kind.as_deref().unwrap_or_default();
        let is_core = reference.group.as_deref().unwrap_or_default().is_empty();
        let found = if is_core && kind == "ConfigMap" {
            bundle(references, &object.metadata.namespace, &reference.name)
        } else {
            let message = format!("{kind} is not supported, use a ConfigMap");
            Err(Problem::new("InvalidKind", message))
        };
        match found {
            Ok(bundle) => pem.push_str(&bundle),
            Err(problem) => policy.resolved = policy.resolved.and(Err(problem)),
        }
    }
    let settings = settings(validation.hostname.as_str(), &pem, &validation.subject_alt_names);
    match settings {
        Ok(settings) => policy.settings = Some(settings),
        Err(problem) => {
            let message = policy.resolved.as_ref().err().map(|p| p.message.clone());
            policy.accepted =
                Err(Problem { message: message.unwrap_or(problem.message), ..problem });
        }
    }
    policy
}

fn settings(host: &str, pem: &str, names: &[SubjectAltName]) -> Result<Settings, Problem> {
    let roots =
        Roots::new(pem).map_err(|error| Problem::new("NoValidCACertificate", error.to_string()))?;
    let server_name = |host: &str| {
        ServerName::try_from(host.to_owned())
            .map_err(|_| Problem::new("Invalid", format!("{host:?} is no host name")))
    };
    let mut accepted = Vec::new();
    for name in names {
        accepted.push(match name.kind.as_str() {
            "URI" => EndpointName::Uri(name.uri.clone()),
            _ => EndpointName::Host(server_name(&name.hostname)?),
        });
    }
    let mut hasher = DefaultHasher::new();
    (host, pem, names).hash(&mut hasher);
    Ok(Settings { name: server_name(host)?, names: accepted, roots, digest: hasher.finish() })
}
