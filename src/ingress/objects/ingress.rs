//! `networking.k8s.io/v1` Ingress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::k8s::api::core::v1::{Secret, Service};
use api::k8s::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend, IngressClass};
use http::{HeaderValue, StatusCode};
use rustls::sign::CertifiedKey;

use super::annotations::{self, Settings};
use super::services::{BackendRegistry, NoBackend, PortRef, resolve};
use crate::backend::{Split, WeightedBackend};
use crate::proxy::{Certificates, NoCertificate};
use crate::routes::edits::Rewrite;
use crate::routes::hosts::WildcardLabels;
use crate::routes::path::PathMatch;
use crate::routes::{Action, Conditions, Forward, Routes, Rule};

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

/// Why a backend or a certificate of an Ingress cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReferenceError {
    #[error("a backend refers to a resource ({0}), which is not supported; use a Service")]
    Resource(String),
    #[error(transparent)]
    Backend(#[from] NoBackend),
    #[error("the annotation upstream-vhost is not a host")]
    Host,
    #[error("Secret {0} of type kubernetes.io/tls does not exist")]
    NoSecret(String),
    #[error("Secret {secret} has no {key}")]
    NoKey { secret: String, key: &'static str },
    #[error("Secret {secret}: {source}")]
    Certificate { secret: String, source: NoCertificate },
}

/// Reads the objects that Ingresses refer to.
pub trait References {
    /// A Service.
    fn service(&self, namespace: &str, name: &str) -> Option<Service>;
    /// A Secret.
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
    ingresses.sort_by_cached_key(age);
    registry.begin();
    let mut compiler = Compiler {
        references,
        registry,
        seen: BTreeSet::new(),
        certificates: BTreeMap::new(),
        out: Compiled {
            routes: Routes::new(WildcardLabels::One),
            certificates: Vec::new(),
            problems: Vec::new(),
        },
    };
    for ingress in &ingresses {
        compiler.add(ingress);
    }
    let mut out = compiler.out;
    out.routes.sort();
    registry.end();
    out
}

struct Compiler<'a, R> {
    references: &'a R,
    registry: &'a mut BackendRegistry,
    /// Hosts and paths that an older Ingress has.
    seen: BTreeSet<(String, String)>,
    /// Certificates by namespace and name of their Secret, which many Ingresses may share.
    certificates: BTreeMap<(String, String), Arc<CertifiedKey>>,
    out: Compiled,
}

/// The object that is being compiled.
struct Source<'a> {
    namespace: &'a str,
    name: &'a str,
    full: Arc<str>,
    created: i64,
    settings: Settings,
}

impl<R: References> Compiler<'_, R> {
    fn add(&mut self, ingress: &Ingress) {
        let metadata = &ingress.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let (settings, problems) = annotations::read(metadata.annotations.as_ref());
        let source = Source {
            namespace,
            name,
            full: format!("{namespace}/{name}").into(),
            created: metadata.creation_timestamp.as_ref().map_or(0, |t| t.0.as_second()),
            settings,
        };
        for message in problems {
            self.problem(&source, message);
        }
        let Some(spec) = &ingress.spec else { return };
        let mut position = 0;
        for rule in spec.rules.iter().flatten() {
            let host = rule.host.as_deref().unwrap_or_default();
            let paths = rule.http.as_ref().map(|http| http.paths.as_slice()).unwrap_or_default();
            for path in paths {
                position += 1;
                self.add_path(&source, host, path, position);
            }
            // A rule without paths sends everything to the default backend of the Ingress.
            if let (None, Some(backend)) = (&rule.http, &spec.default_backend) {
                position += 1;
                let rule = self.rule(&source, backend, position);
                self.out.routes.insert(host, &PathMatch::Prefix("/".into()), Arc::new(rule));
            }
        }
        if let Some(backend) = &spec.default_backend {
            let rule = Arc::new(self.rule(&source, backend, position + 1));
            self.out.routes.set_default(rule);
        }
        let hosts = spec.rules.iter().flatten().filter_map(|rule| rule.host.as_deref());
        let all: Vec<&str> = hosts.collect();
        for tls in spec.tls.iter().flatten() {
            let own = tls.hosts.as_deref().unwrap_or_default();
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            let hosts = match (own.is_empty(), all.is_empty()) {
                (false, _) => own,
                (true, false) => all.clone(),
                (true, true) => vec![""],
            };
            if let Some(secret) = tls.secret_name.as_deref().filter(|name| !name.is_empty()) {
                self.add_certificate(&source, secret, &hosts);
            }
        }
    }

    fn add_path(
        &mut self,
        source: &Source<'_>,
        host: &str,
        path: &HTTPIngressPath,
        position: usize,
    ) {
        let text = path.path.clone().unwrap_or_else(|| "/".into());
        let matcher = match path.path_type.as_str() {
            "Exact" => PathMatch::Exact(text.clone()),
            _ => PathMatch::Prefix(text.clone()),
        };
        let kind = if path.path_type == "Exact" { "Exact" } else { "Prefix" };
        let trimmed = if kind == "Exact" { &text } else { text.trim_end_matches('/') };
        if !self.seen.insert((host.to_ascii_lowercase(), format!("{kind} {trimmed}"))) {
            let host = if host.is_empty() { "every host" } else { host };
            self.problem(
                source,
                format!(
                    "path {text} of {host} is served by an older Ingress; this rule has no effect"
                ),
            );
            return;
        }
        let rule = Arc::new(self.rule(source, &path.backend, position));
        self.out.routes.insert(host, &matcher, rule);
    }

    /// The rule for a backend; one that does not exist answers with 503, as nginx and Traefik do.
    fn rule(&mut self, source: &Source<'_>, backend: &IngressBackend, position: usize) -> Rule {
        let action = match self.backend(source, backend) {
            Ok(action) => action,
            Err(error) => {
                self.problem(source, error.to_string());
                Action::Status(StatusCode::SERVICE_UNAVAILABLE)
            }
        };
        Rule {
            source: Arc::clone(&source.full),
            order: (source.created, Arc::clone(&source.full), position),
            conditions: Conditions::default(),
            action,
        }
    }

    fn backend(
        &mut self,
        source: &Source<'_>,
        backend: &IngressBackend,
    ) -> Result<Action, ReferenceError> {
        let Some(service) = &backend.service else {
            let kind = backend.resource.as_ref().map_or("nothing", |r| r.kind.as_str());
            return Err(ReferenceError::Resource(kind.to_owned()));
        };
        let port = service.port.as_ref();
        let name = port.and_then(|p| p.name.as_deref()).filter(|name| !name.is_empty());
        let port = match name {
            Some(name) => PortRef::Name(name),
            None => PortRef::Number(port.and_then(|p| p.number).unwrap_or(0)),
        };
        let object = self.references.service(source.namespace, &service.name);
        let mut key = resolve(source.namespace, &service.name, object.as_ref(), port)?;
        let settings = &source.settings;
        key.protocol = settings.protocol.unwrap_or(key.protocol);
        let host = settings.host.as_deref().map(HeaderValue::from_str).transpose();
        let host = host.map_err(|_| ReferenceError::Host)?;
        let weighted = WeightedBackend {
            weight: 1,
            backend: Some(self.registry.get(&key)),
            ..WeightedBackend::default()
        };
        let split = Split::new(vec![weighted]);
        Ok(Action::Forward(Box::new(Forward {
            split,
            rewrite: host.map(|host| Rewrite { host: Some(host), path: None }),
            timeouts: settings.timeouts,
            body_bytes_max: settings.body_bytes_max,
            sources: settings.sources.clone(),
            https_only: settings.https_only.unwrap_or(false),
            ..Forward::default()
        })))
    }

    fn add_certificate(&mut self, source: &Source<'_>, name: &str, hosts: &[&str]) {
        match self.certificate(source.namespace, name) {
            Ok(certificate) => {
                let each = hosts.iter().map(|host| ((*host).to_owned(), Arc::clone(&certificate)));
                self.out.certificates.extend(each);
            }
            Err(error) => {
                let message = format!("the default certificate is used: {error}");
                self.problem(source, message);
            }
        }
    }

    fn certificate(
        &mut self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<CertifiedKey>, ReferenceError> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(known) = self.certificates.get(&key) {
            return Ok(Arc::clone(known));
        }
        let full = || format!("{namespace}/{name}");
        let secret = self.references.secret(namespace, name);
        let secret = secret.ok_or_else(|| ReferenceError::NoSecret(full()))?;
        let data = secret.data.unwrap_or_default();
        let field = |key: &'static str| {
            let value = data.get(key).map(|bytes| bytes.0.as_slice());
            value.ok_or_else(|| ReferenceError::NoKey { secret: full(), key })
        };
        let pair = Certificates::pair(field("tls.crt")?, field("tls.key")?)
            .map_err(|source| ReferenceError::Certificate { secret: full(), source })?;
        self.certificates.insert(key, Arc::clone(&pair));
        Ok(pair)
    }

    fn problem(&mut self, source: &Source<'_>, message: String) {
        let (namespace, name) = (source.namespace.to_owned(), source.name.to_owned());
        self.out.problems.push(Problem { namespace, name, message });
    }
}

#[cfg(test)]
#[path = "ingress_tests.rs"]
mod tests;
