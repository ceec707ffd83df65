//! Compiles Ingresses one after another.

mod auth;
mod canaries;
mod certificates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::k8s::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend, IngressSpec};
use http::{HeaderValue, StatusCode};
use rustls::sign::CertifiedKey;
use sorting::CompactSort as _;

use super::annotations::{self, Settings};
use super::ingress::{Compiled, Problem, References};
use super::services::{BackendKey, BackendRegistry, NoBackend, PortRef, resolve};
use canaries::PendingCanary;
use http_proxy::backend::{Backend, Split, WeightedBackend};
use http_proxy::proxy::upstream::UpstreamTls;
use http_proxy::routes::canary::Canary;
use http_proxy::routes::edits::{PathEdit, Redirect, Rewrite};
use http_proxy::routes::hosts::WildcardLabels;
use http_proxy::routes::path::PathMatch;
use http_proxy::routes::pattern::{Pattern, PatternError, Template, has_operators};
use http_proxy::routes::{Action, Conditions, Forward, Routes, Rule};

/// Regular expressions of all Ingresses; each request to their hosts is compared with those of its
/// host.
const PATTERNS_MAX: usize = 500;
/// [`BackendKey::tls`] of backends whose certificates are not verified.
const UNVERIFIED: u64 = u64::MAX;

/// Why a backend or a path of an Ingress cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReferenceError {
    #[error("a backend refers to a resource ({0}), which is not supported; use a Service")]
    Resource(String),
    #[error(transparent)]
    Backend(#[from] NoBackend),
    #[error("the annotation upstream-vhost is not a host")]
    Host,
    #[error("the annotation auth-secret: {0}")]
    Auth(#[from] auth::UsersError),
    #[error("{0}; this rule has no effect")]
    Pattern(#[from] PatternError),
    #[error(
        "path {0} is a regular expression, and the Ingresses of the cluster have {PATTERNS_MAX} \
         already; this rule has no effect"
    )]
    Patterns(String),
    #[error("TLS towards endpoints: {0}")]
    Tls(#[from] rustls::Error),
}

/// Compiles the Ingresses of a cluster.
pub(super) struct Compiler<'a, R> {
    references: &'a R,
    registry: &'a mut BackendRegistry,
    /// Hosts and paths that an older Ingress has.
    seen: BTreeSet<(String, String)>,
    /// Certificates by namespace and name of their Secret, which many Ingresses may share.
    certificates: BTreeMap<(String, String), Arc<CertifiedKey>>,
    /// Canaries by namespace, host and path.
    canaries: BTreeMap<(String, String, String), PendingCanary>,
    /// Rules with regular expressions, by length of the path.
    patterns: Vec<(usize, String, PathMatch, Arc<Rule>)>,
    out: Compiled,
}

/// An Ingress with its settings.
pub(super) struct Source<'a> {
    namespace: &'a str,
    name: &'a str,
    spec: Option<&'a IngressSpec>,
    full: Arc<str>,
    created: i64,
    /// What its annotations say.
    pub(super) settings: Settings,
}

impl Source<'_> {
    fn has_tls(&self) -> bool {
        self.spec.and_then(|spec| spec.tls.as_ref()).is_some_and(|tls| !tls.is_empty())
    }

    /// The rules with a path: host, path and position.
    fn paths(&self) -> impl Iterator<Item = (&str, &HTTPIngressPath)> {
        let rules = self.spec.into_iter().flat_map(|spec| spec.rules.iter().flatten());
        rules.flat_map(|rule| {
            let host = rule.host.as_deref().unwrap_or_default();
            rule.http.iter().flat_map(move |http| http.paths.iter().map(move |path| (host, path)))
        })
    }
}

/// The path of a rule.
struct Shape {
    /// As the object writes it.
    text: String,
    /// Equal for paths that match the same requests.
    key: String,
    matcher: PathMatch,
    /// The expression, if it is one.
    pattern: Option<Pattern>,
}

impl Shape {
    fn root() -> Self {
        let matcher = PathMatch::Prefix("/".into());
        Self { text: "/".into(), key: "Prefix ".into(), matcher, pattern: None }
    }

    /// A path is a regular expression if an annotation says so; a `rewrite-target` does for paths
    /// with operators.
    fn new(settings: &Settings, path: &HTTPIngressPath) -> Result<Self, PatternError> {
        let text = path.path.clone().unwrap_or_else(|| "/".into());
        if path.path_type == "Exact" {
            let (key, matcher) = (format!("Exact {text}"), PathMatch::Exact(text.clone()));
            return Ok(Self { text, key, matcher, pattern: None });
        }
        let is_pattern = settings.use_regex || settings.rewrite.is_some();
        if is_pattern && has_operators(&text) {
            let pattern = Pattern::of_path(&text)?;
            let matcher = PathMatch::Regex(pattern.regex().clone());
            return Ok(Self {
                key: format!("Regex {text}"),
                text,
                matcher,
                pattern: Some(pattern),
            });
        }
        let key = format!("Prefix {}", text.trim_end_matches('/'));
        Ok(Self { matcher: PathMatch::Prefix(text.clone()), text, key, pattern: None })
    }

    /// The change of the path by `rewrite-target`.
    fn edit(&self, settings: &Settings) -> Option<PathEdit> {
        let template = Template::new(settings.rewrite.as_deref()?);
        Some(match &self.pattern {
            Some(pattern) => PathEdit::Groups { pattern: pattern.clone(), template },
            None => PathEdit::Full(template.expand(None)),
        })
    }
}

impl<'a, R: References> Compiler<'a, R> {
    pub(super) fn new(references: &'a R, registry: &'a mut BackendRegistry) -> Self {
        Self {
            references,
            registry,
            seen: BTreeSet::new(),
            certificates: BTreeMap::new(),
            canaries: BTreeMap::new(),
            patterns: Vec::new(),
            out: Compiled {
                routes: Routes::new(WildcardLabels::One),
                certificates: Vec::new(),
                problems: Vec::new(),
            },
        }
    }

    /// Reads the annotations of an Ingress.
    pub(super) fn source<'i>(&mut self, ingress: &'i Ingress) -> Source<'i> {
        let metadata = &ingress.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let (settings, problems) = annotations::read(metadata.annotations.as_ref());
        let source = Source {
            namespace,
            name,
            spec: ingress.spec.as_ref(),
            full: format!("{namespace}/{name}").into(),
            created: metadata.creation_timestamp.as_ref().map_or(0, |t| t.0.as_second()),
            settings,
        };
        for message in problems {
            self.problem(&source, message);
        }
        source
    }

    /// Adds the rules and certificates of an Ingress that is no canary.
    pub(super) fn add(&mut self, source: &Source<'_>) {
        let Some(spec) = source.spec else { return };
        let mut position = 0;
        for rule in spec.rules.iter().flatten() {
            let host = rule.host.as_deref().unwrap_or_default();
            let paths = rule.http.as_ref().map(|http| http.paths.as_slice()).unwrap_or_default();
            for path in paths {
                position += 1;
                self.add_path(source, host, path, position);
            }
            // A rule without paths sends everything to the default backend of the Ingress.
            if let (None, Some(backend)) = (&rule.http, &spec.default_backend) {
                position += 1;
                let rule = Arc::new(self.rule(source, backend, &Shape::root(), position, None));
                self.out.routes.insert(host, &PathMatch::Prefix("/".into()), rule);
            }
        }
        self.add_app_root(source, spec);
        if let Some(backend) = &spec.default_backend {
            let rule = self.rule(source, backend, &Shape::root(), position + 1, None);
            self.out.routes.set_default(Arc::new(rule));
        }
        self.add_certificates(source, spec);
    }

    /// The routes, once all Ingresses were added. The longest expression of a host comes first, as
    /// in ingress-nginx.
    pub(super) fn finish(mut self) -> Compiled {
        self.report_unused_canaries();
        self.patterns.compact_sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
        for (_, host, matcher, rule) in self.patterns {
            self.out.routes.insert(&host, &matcher, rule);
        }
        self.out
    }

    fn add_path(
        &mut self,
        source: &Source<'_>,
        host: &str,
        path: &HTTPIngressPath,
        position: usize,
    ) {
        let shape = match Shape::new(&source.settings, path) {
            Ok(shape) => shape,
            Err(error) => return self.problem(source, ReferenceError::Pattern(error).to_string()),
        };
        if shape.pattern.is_some() && self.patterns.len() >= PATTERNS_MAX {
            return self.problem(source, ReferenceError::Patterns(shape.text).to_string());
        }
        let aliases = source.settings.aliases.iter().filter(|_| !host.is_empty());
        let hosts: Vec<&str> = [host].into_iter().chain(aliases.map(String::as_str)).collect();
        let free: Vec<&str> =
            hosts.into_iter().filter(|host| self.is_free(source, host, &shape)).collect();
        if free.is_empty() {
            return;
        }
        let canary = self.take_canary(source, host, &shape);
        let rule = Arc::new(self.rule(source, &path.backend, &shape, position, canary));
        for host in free {
            let rule = Arc::clone(&rule);
            if shape.pattern.is_some() {
                let matcher = shape.matcher.clone();
                self.patterns.push((shape.text.len(), host.to_owned(), matcher, rule));
            } else {
                self.out.routes.insert(host, &shape.matcher, rule);
            }
        }
    }

    /// Takes a path of a host, unless an older Ingress has it.
    fn is_free(&mut self, source: &Source<'_>, host: &str, shape: &Shape) -> bool {
        if self.seen.insert((host.to_ascii_lowercase(), shape.key.clone())) {
            return true;
        }
        let host = if host.is_empty() { "every host" } else { host };
        let text = &shape.text;
        let message =
            format!("path {text} of {host} is served by an older Ingress; this rule has no effect");
        self.problem(source, message);
        false
    }

    /// Redirects requests for `/` of each host to `app-root`.
    fn add_app_root(&mut self, source: &Source<'_>, spec: &IngressSpec) {
        let Some(root) = &source.settings.app_root else { return };
        let redirect = Redirect {
            scheme: None,
            host: None,
            port: None,
            path: Some(PathEdit::Full(root.clone())),
            status: StatusCode::FOUND,
        };
        let rule = self.with_action(source, 0, Action::Redirect(redirect));
        let rule = Arc::new(rule);
        let matcher = PathMatch::Exact("/".into());
        for host in spec.rules.iter().flatten() {
            let host = host.host.as_deref().unwrap_or_default();
            if self.seen.insert((host.to_ascii_lowercase(), "Exact /".into())) {
                self.out.routes.insert(host, &matcher, Arc::clone(&rule));
            }
        }
    }

    fn with_action(&self, source: &Source<'_>, position: usize, action: Action) -> Rule {
        Rule {
            source: Arc::clone(&source.full),
            order: (source.created, Arc::clone(&source.full), position),
            conditions: Conditions::default(),
            action,
        }
    }

    /// The rule for a backend; one that does not exist answers with 503, as nginx and Traefik do.
    fn rule(
        &mut self,
        source: &Source<'_>,
        backend: &IngressBackend,
        shape: &Shape,
        position: usize,
        canary: Option<Canary>,
    ) -> Rule {
        let action = match source.settings.redirect() {
            Some((status, location)) => Ok(Action::Location(status, location)),
            None => self.forward(source, backend, shape, canary),
        };
        let action = action.unwrap_or_else(|error| {
            self.problem(source, error.to_string());
            Action::Status(StatusCode::SERVICE_UNAVAILABLE)
        });
        self.with_action(source, position, action)
    }

    /// The backend that an Ingress names.
    fn backend(
        &mut self,
        source: &Source<'_>,
        backend: &IngressBackend,
    ) -> Result<Arc<Backend>, ReferenceError> {
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
        let key = resolve(source.namespace, &service.name, object.as_ref(), port)?;
        self.registered(&source.settings, key)
    }

    /// The backend of a key with the protocol that annotations say.
    fn registered(
        &mut self,
        settings: &Settings,
        mut key: BackendKey,
    ) -> Result<Arc<Backend>, ReferenceError> {
        key.protocol = settings.protocol.unwrap_or(key.protocol);
        if !settings.backend_tls {
            return Ok(self.registry.get(&key));
        }
        key.tls = UNVERIFIED;
        let is_http2 = key.protocol == http_proxy::backend::Protocol::Http2;
        let tls = Arc::new(UpstreamTls::unverified(is_http2)?);
        Ok(self.registry.get_with(&key, || Some(tls)))
    }

    /// The Service of `default-backend`, by its first port.
    fn fallback(&mut self, source: &Source<'_>) -> Result<Option<Arc<Backend>>, ReferenceError> {
        let Some(name) = &source.settings.fallback else { return Ok(None) };
        let object = self.references.service(source.namespace, name);
        let ports = object.as_ref().and_then(|o| o.spec.as_ref()).and_then(|s| s.ports.as_ref());
        let first = ports.and_then(|ports| ports.first()).map_or(0, |port| port.port);
        let key = resolve(source.namespace, name, object.as_ref(), PortRef::Number(first))?;
        self.registered(&source.settings, key).map(Some)
    }

    fn forward(
        &mut self,
        source: &Source<'_>,
        backend: &IngressBackend,
        shape: &Shape,
        canary: Option<Canary>,
    ) -> Result<Action, ReferenceError> {
        let settings = &source.settings;
        let host = settings.host.as_deref().map(HeaderValue::from_str).transpose();
        let host = host.map_err(|_| ReferenceError::Host)?;
        let path = shape.edit(settings);
        let is_rewritten = host.is_some() || path.is_some();
        let auth = self.users(source)?;
        Ok(Action::Forward(Box::new(Forward {
            split: single(self.backend(source, backend)?),
            rewrite: is_rewritten.then_some(Rewrite { host, path }),
            timeouts: settings.timeouts,
            body_bytes_max: settings.body_bytes_max,
            sources: settings.sources.clone(),
            https_only: settings.https_only(source.has_tls()),
            cors: settings.cors(),
            canary,
            affinity: settings.sessions.affinity(&shape.text),
            auth,
            fallback: self.fallback(source)?,
            ..Forward::default()
        })))
    }

    fn problem(&mut self, source: &Source<'_>, message: String) {
        let (namespace, name) = (source.namespace.to_owned(), source.name.to_owned());
        self.out.problems.push(Problem { namespace, name, message });
    }
}

/// One backend for all requests.
fn single(backend: Arc<Backend>) -> Split {
    let backend = Some(backend);
    Split::new(vec![WeightedBackend { weight: 1, backend, ..WeightedBackend::default() }])
}
