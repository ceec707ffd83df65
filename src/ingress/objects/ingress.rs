//! `networking.k8s.io/v1` Ingress.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1::{Secret, Service};
use api::k8s::api::networking::v1::{Ingress, IngressClass};
use rustls::sign::CertifiedKey;
use sorting::CompactSort as _;

use super::compiler::Compiler;
use super::services::BackendRegistry;
use http_proxy::routes::Routes;

/// `IngressClass.spec.controller` of the classes that are served.
pub const CONTROLLER: &str = "kube-lite.io/ingress";
/// The class of an Ingress before `spec.ingressClassName` existed.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Marks the class of Ingresses without one.
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

/// A part of an Ingress that is not served as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Namespace of the Ingress.
    pub namespace: String,
    /// Name of the Ingress.
    pub name: String,
    /// One sentence.
    pub message: String,
}

/// Reads the objects that Ingresses refer to.
pub trait References {
    /// A Service.
    fn service(&self, namespace: &str, name: &str) -> Option<Service>;
    /// A Secret of type `kubernetes.io/tls`, or one that an Ingress names in `auth-secret`.
    fn secret(&self, namespace: &str, name: &str) -> Option<Secret>;
}

/// The classes that are served.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Classes {
    names: BTreeSet<String>,
    /// One of them is the default class.
    default: bool,
}

impl Classes {
    /// The classes of [`CONTROLLER`].
    pub fn new(classes: &[IngressClass]) -> Self {
        let mut found = Self::default();
        for class in classes {
            let controller = class.spec.as_ref().and_then(|s| s.controller.as_deref());
            if controller != Some(CONTROLLER) {
                continue;
            }
            let annotations = class.metadata.annotations.as_ref();
            let value = annotations.and_then(|a| a.get(DEFAULT_ANNOTATION));
            found.default |= value.is_some_and(|value| value == "true");
            found.names.extend(class.metadata.name.clone());
        }
        found
    }

    /// Whether an Ingress has one of these classes. One without a class is served if the default
    /// class is.
    pub fn contain(&self, ingress: &Ingress) -> bool {
        let named = ingress.spec.as_ref().and_then(|s| s.ingress_class_name.as_ref());
        let annotations = ingress.metadata.annotations.as_ref();
        match named.or_else(|| annotations?.get(CLASS_ANNOTATION)) {
            Some(name) => self.names.contains(name),
            None => self.default,
        }
    }
}

/// What the Ingresses of a cluster become.
#[derive(Debug)]
pub struct Compiled {
    /// The routes of the HTTP and the HTTPS port.
    pub routes: Routes,
    /// Certificates by host.
    pub certificates: Vec<(String, Arc<CertifiedKey>)>,
    /// What is not served, in the order of the Ingresses.
    pub problems: Vec<Problem>,
}

/// Compiles Ingresses. Of two with the same host and path, the older one wins.
pub fn compile(
    mut ingresses: Vec<Ingress>,
    classes: &Classes,
    references: &impl References,
    registry: &mut BackendRegistry,
) -> Compiled {
    ingresses.retain(|ingress| classes.contain(ingress));
    let age = |ingress: &Ingress| {
        let metadata = &ingress.metadata;
        let created = metadata.creation_timestamp.as_ref().map_or(0, |t| t.0.as_second());
        (created, metadata.namespace.clone(), metadata.name.clone())
    };
    ingresses.compact_sort_by_cached_key(age);
    registry.begin();
    let mut compiler = Compiler::new(references, registry);
    let sources: Vec<_> = ingresses.iter().map(|ingress| compiler.source(ingress)).collect();
    let (canaries, own): (Vec<_>, Vec<_>) =
        sources.iter().partition(|source| source.settings.canary.rules().is_some());
    for source in canaries {
        compiler.add_canary(source);
    }
    for source in own {
        compiler.add(source);
    }
    let mut out = compiler.finish();
    out.routes.sort();
    registry.end();
    out
}

#[cfg(test)]
#[path = "ingress_tests.rs"]
mod tests;
