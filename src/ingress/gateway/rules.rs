//! From the rules of a route to rules of the proxy.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use regex::Regex;
use serde_json::Value;

use super::objects::{Objects, Problem, References, RouteKind};
use super::policies::{BackendTls, Policies};
use super::types::{
    BackendRef, CorsSpec, Filter, HeaderModifier, PathModifier, RedirectSpec, Resource,
    RewriteSpec, RouteMatch, RouteRule, RouteSpec, TypedValue,
};
use crate::objects::services::{BackendRegistry, PortRef, resolve};
use http_proxy::backend::{Backend, Protocol, Split, WeightedBackend};
use http_proxy::routes::cors::Cors;
use http_proxy::routes::edits::{HeaderEdits, PathEdit, Redirect, Rewrite};
use http_proxy::routes::path::PathMatch;
use http_proxy::routes::{Action, Conditions, Forward, Mirror, Retry, Rule, Timeouts, ValueMatch};
use rustls::sign::CertifiedKey;

/// Bytes of a regular expression after it was compiled; larger ones are refused.
const REGEX_BYTES_MAX: usize = 256 * 1024;
/// Time before another attempt if a route has none.
const RETRY_BACKOFF: Duration = Duration::from_millis(25);
/// The reason of what is not supported.
const UNSUPPORTED: &str = "UnsupportedValue";

/// What the rules of a route become for one Gateway.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The rules of HTTPRoutes and GRPCRoutes, by path.
    pub rules: Vec<(PathMatch, Arc<Rule>)>,
    /// The backends of TLSRoutes, TCPRoutes and UDPRoutes.
    pub split: Option<Arc<Split>>,
    /// Condition `ResolvedRefs`: the first reference that leads nowhere.
    pub unresolved: Option<Problem>,
    /// The first rule that is not supported.
    pub unsupported: Option<Problem>,
    /// Whether some rule is supported.
    pub has_supported: bool,
}

/// What rules are compiled with.
pub struct Compiler<'a, R> {
    /// The objects.
    pub objects: &'a Objects,
    /// Other objects.
    pub references: &'a R,
    /// The policies.
    pub policies: &'a mut Policies,
    /// The backends.
    pub registry: &'a mut BackendRegistry,
    /// The position of the Gateway.
    pub gateway: usize,
    /// Its certificate for backends.
    pub certificate: Option<Arc<CertifiedKey>>,
}

impl<R: References> Compiler<'_, R> {
    /// Compiles a route.
    pub fn route(&mut self, kind: RouteKind, route: &Resource<RouteSpec>) -> Compiled {
        let mut compiled = Compiled::default();
        let source: Arc<str> = route.metadata.full_name().into();
        let created = route.metadata.created();
        for (at, rule) in route.spec.rules.iter().enumerate() {
            if !matches!(kind, RouteKind::Http | RouteKind::Grpc) {
                let split = self.split(kind, route, &rule.backend_refs, &mut compiled.unresolved);
                compiled.has_supported = true;
                compiled.split.get_or_insert_with(|| Arc::new(split.unwrap_or_default()));
                continue;
            }
            let any = [RouteMatch::default()];
            let matches =
                if rule.matches.is_empty() { any.as_slice() } else { rule.matches.as_slice() };
            for one in matches {
                let order = (created, Arc::clone(&source), at);
                match self.rule(kind, route, rule, one, &mut compiled.unresolved) {
                    Ok((path, conditions, action)) => {
                        compiled.has_supported = true;
                        let source = Arc::clone(&source);
                        let rule = Rule { source, order, conditions, action };
                        compiled.rules.push((path, Arc::new(rule)));
                    }
                    Err(problem) => {
                        compiled.unsupported = compiled.unsupported.or(Some(problem));
                    }
                }
            }
        }
        compiled
    }

    fn rule(
        &mut self,
        kind: RouteKind,
        route: &Resource<RouteSpec>,
        rule: &RouteRule,
        one: &RouteMatch,
        unresolved: &mut Option<Problem>,
    ) -> Result<(PathMatch, Conditions, Action), Problem> {
        if rule.session_persistence.is_some() {
            return Err(Problem::new(UNSUPPORTED, "sessionPersistence is not supported"));
        }
        let (path, conditions) = match kind {
            RouteKind::Grpc => (grpc_path(&one.method)?, conditions(one, None)?),
            _ => (http_path(one.path.as_ref())?, conditions(one, one.method.as_str())?),
        };
        let mut forward =
            Forward { timeouts: timeouts(kind, rule)?, retry: retry(rule)?, ..Forward::default() };
        let mut redirect = None;
        for filter in &rule.filters {
            match (&filter.request_redirect, &filter.request_mirror) {
                (Some(spec), _) => redirect = Some(self::redirect(spec, &path)?),
                (_, Some(spec)) => {
                    let backend = self.backend(kind, route, &spec.backend_ref, unresolved);
                    let share = match (&spec.fraction, spec.percent) {
                        (Some(f), _) => (f.numerator, f.denominator.unwrap_or(100)),
                        (None, percent) => (percent.unwrap_or(100), 100),
                    };
                    forward.mirrors.push(Mirror { backend, share });
                }
                _ => {
                    let (request, response) =
                        (&mut forward.request_headers, &mut forward.response_headers);
                    apply(filter, &path, (request, response, &mut forward.rewrite))?;
                    if let Some(spec) = &filter.cors {
                        forward.cors = Some(cors(spec));
                    }
                }
            }
        }
        if let Some(redirect) = redirect {
            return Ok((path, conditions, Action::Redirect(redirect)));
        }
        let split = self.split(kind, route, &rule.backend_refs, unresolved);
        // Without a backend that exists, each request is answered with 500.
        forward.split = split.unwrap_or_default();
        for (weighted, reference) in forward.split.backends_mut().zip(&rule.backend_refs) {
            for filter in &reference.filters {
                let edits = (
                    &mut weighted.request_headers,
                    &mut weighted.response_headers,
                    &mut weighted.rewrite,
                );
                apply(filter, &path, edits)?;
            }
        }
        if forward.split.is_empty() {
            return Ok((path, conditions, Action::Status(StatusCode::INTERNAL_SERVER_ERROR)));
        }
        Ok((path, conditions, Action::Forward(Box::new(forward))))
    }

    /// The backends of a rule; `None` without any.
    fn split(
        &mut self,
        kind: RouteKind,
        route: &Resource<RouteSpec>,
        references: &[BackendRef],
        unresolved: &mut Option<Problem>,
    ) -> Option<Split> {
        let backends: Vec<WeightedBackend> = references
            .iter()
            .map(|reference| WeightedBackend {
                weight: reference.weight.unwrap_or(1),
                backend: self.backend(kind, route, reference, unresolved),
                ..WeightedBackend::default()
            })
            .collect();
        (!backends.is_empty()).then(|| Split::new(backends))
    }

    fn backend(
        &mut self,
        kind: RouteKind,
        route: &Resource<RouteSpec>,
        reference: &BackendRef,
        unresolved: &mut Option<Problem>,
    ) -> Option<Arc<Backend>> {
        match self.resolve(kind, route, reference) {
            Ok(backend) => backend,
            Err(problem) => {
                unresolved.get_or_insert(problem);
                None
            }
        }
    }

    /// The backend of a reference; `None` if its TLS policy is invalid.
    fn resolve(
        &mut self,
        kind: RouteKind,
        route: &Resource<RouteSpec>,
        reference: &BackendRef,
    ) -> Result<Option<Arc<Backend>>, Problem> {
        let own = route.metadata.namespace.as_str();
        let group = reference.group.as_deref().unwrap_or_default();
        let target = reference.kind.as_deref().unwrap_or("Service");
        if !group.is_empty() || target != "Service" {
            let message = format!("backends of kind {target} are not supported, use a Service");
            return Err(Problem::new("InvalidKind", message));
        }
        let (namespace, name) = (reference.namespace.as_deref().unwrap_or(own), &reference.name);
        if !self.objects.permits((kind.name(), own), ("", "Service", namespace, name)) {
            let message =
                format!("no ReferenceGrant permits the reference to Service {namespace}/{name}");
            return Err(Problem::new("RefNotPermitted", message));
        }
        let number = i32::from(reference.port.unwrap_or(0));
        let port = match kind {
            RouteKind::Udp => PortRef::Udp(number),
            _ => PortRef::Number(number),
        };
        let service = self.references.service(namespace, name);
        let mut key = resolve(namespace, name, service.as_ref(), port)
            .map_err(|error| Problem::new("BackendNotFound", error.to_string()))?;
        key.protocol = match kind {
            RouteKind::Grpc => Protocol::Http2,
            RouteKind::Tls | RouteKind::Tcp => Protocol::Http1,
            RouteKind::Http | RouteKind::Udp => key.protocol,
        };
        if matches!(kind, RouteKind::Tcp | RouteKind::Udp) {
            return Ok(Some(self.registry.get(&key)));
        }
        let target = (namespace, name.as_str(), key.port.as_str());
        let user = (self.gateway, self.certificate.as_ref());
        match self.policies.tls(target, key.protocol, user) {
            BackendTls::Plain => Ok(Some(self.registry.get(&key))),
            BackendTls::Invalid => Ok(None),
            BackendTls::Encrypted(number, tls) => {
                key.tls = number;
                Ok(Some(self.registry.get_with(&key, || Some(tls))))
            }
        }
    }
}

fn regex(text: &str) -> Result<Regex, Problem> {
    regex::RegexBuilder::new(&format!("^(?:{text})$"))
        .size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|error| Problem::new(UNSUPPORTED, format!("regular expression {text:?}: {error}")))
}

fn http_path(path: Option<&TypedValue>) -> Result<PathMatch, Problem> {
    let Some(path) = path else { return Ok(PathMatch::Prefix("/".into())) };
    let value = if path.value.is_empty() { "/" } else { path.value.as_str() };
    match path.kind.as_deref().unwrap_or("PathPrefix") {
        "Exact" => Ok(PathMatch::Exact(value.to_owned())),
        "PathPrefix" => Ok(PathMatch::Prefix(value.to_owned())),
        "RegularExpression" => regex(value).map(PathMatch::Regex),
        other => Err(Problem::new(UNSUPPORTED, format!("path type {other} is not supported"))),
    }
}

/// A method of gRPC is the path `/service/method`.
fn grpc_path(method: &Value) -> Result<PathMatch, Problem> {
    let field = |name| method.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (service, name) = (field("service"), field("method"));
    let is_regex = field("type") == Some("RegularExpression");
    match (service, name) {
        (None, None) => Ok(PathMatch::Prefix("/".into())),
        (Some(service), Some(name)) if !is_regex => {
            Ok(PathMatch::Exact(format!("/{service}/{name}")))
        }
        (Some(service), None) if !is_regex => Ok(PathMatch::Prefix(format!("/{service}"))),
        (service, name) => {
            let quoted = |text: &str| if is_regex { text.to_owned() } else { regex::escape(text) };
            let part = |text: Option<&str>| text.map_or_else(|| "[^/]+".to_owned(), quoted);
            regex(&format!("/(?:{})/(?:{})", part(service), part(name))).map(PathMatch::Regex)
        }
    }
}

fn value_match(spec: &TypedValue) -> Result<ValueMatch, Problem> {
    match spec.kind.as_deref().unwrap_or("Exact") {
        "RegularExpression" => regex(&spec.value).map(ValueMatch::Regex),
        _ => Ok(ValueMatch::Exact(spec.value.clone())),
    }
}

fn header_name(name: &str) -> Result<HeaderName, Problem> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Problem::new(UNSUPPORTED, format!("{name:?} is no header name")))
}

fn header_value(value: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(value)
        .map_err(|_| Problem::new(UNSUPPORTED, format!("{value:?} is no header value")))
}

fn conditions(one: &RouteMatch, method: Option<&str>) -> Result<Conditions, Problem> {
    let mut conditions = Conditions::default();
    if let Some(method) = method {
        let parsed = Method::from_bytes(method.as_bytes());
        conditions.method = Some(
            parsed.map_err(|_| Problem::new(UNSUPPORTED, format!("{method:?} is no method")))?,
        );
    }
    for header in &one.headers {
        let name = header_name(&header.name)?;
        // Of equivalent names only the first counts.
        if conditions.headers.iter().all(|(known, _)| *known != name) {
            conditions.headers.push((name, value_match(header)?));
        }
    }
    for query in &one.query_params {
        if conditions.queries.iter().all(|(known, _)| *known != query.name) {
            conditions.queries.push((query.name.clone(), value_match(query)?));
        }
    }
    Ok(conditions)
}

fn edits(spec: &HeaderModifier) -> Result<HeaderEdits, Problem> {
    let pair = |v: &TypedValue| Ok((header_name(&v.name)?, header_value(&v.value)?));
    Ok(HeaderEdits {
        set: spec.set.iter().map(pair).collect::<Result<_, _>>()?,
        add: spec.add.iter().map(pair).collect::<Result<_, _>>()?,
        remove: spec.remove.iter().map(|name| header_name(name)).collect::<Result<_, _>>()?,
    })
}

/// Applies a filter that changes headers, host or path; others are refused by name.
fn apply(
    filter: &Filter,
    path: &PathMatch,
    (request, response, rewrite): (&mut HeaderEdits, &mut HeaderEdits, &mut Option<Rewrite>),
) -> Result<(), Problem> {
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            *request = edits(&filter.request_header_modifier.clone().unwrap_or_default())?;
        }
        "ResponseHeaderModifier" => {
            *response = edits(&filter.response_header_modifier.clone().unwrap_or_default())?;
        }
        "URLRewrite" => {
            *rewrite = Some(self::rewrite(&filter.url_rewrite.clone().unwrap_or_default(), path)?);
        }
        "CORS" if filter.cors.is_some() => {}
        other => {
            let message = format!("filter {other} is not supported here");
            return Err(Problem::new(UNSUPPORTED, message));
        }
    }
    Ok(())
}

fn path_edit(spec: Option<&PathModifier>, path: &PathMatch) -> Result<Option<PathEdit>, Problem> {
    let Some(spec) = spec else { return Ok(None) };
    if let Some(full) = &spec.replace_full_path {
        return Ok(Some(PathEdit::Full(full.clone())));
    }
    let Some(replacement) = spec.replace_prefix_match.clone() else { return Ok(None) };
    match path {
        PathMatch::Prefix(matched) => {
            Ok(Some(PathEdit::Prefix { matched: matched.clone(), replacement }))
        }
        _ => Err(Problem::new(UNSUPPORTED, "ReplacePrefixMatch needs a match of type PathPrefix")),
    }
}

fn rewrite(spec: &RewriteSpec, path: &PathMatch) -> Result<Rewrite, Problem> {
    Ok(Rewrite {
        host: spec.hostname.as_deref().map(header_value).transpose()?,
        path: path_edit(spec.path.as_ref(), path)?,
    })
}

fn redirect(spec: &RedirectSpec, path: &PathMatch) -> Result<Redirect, Problem> {
    let code = spec.status_code.unwrap_or(302);
    let status = StatusCode::from_u16(code).ok().filter(StatusCode::is_redirection);
    let scheme = spec.scheme.as_deref().map(|scheme| {
        let parsed = scheme.parse();
        parsed.map_err(|_| Problem::new(UNSUPPORTED, format!("scheme {scheme:?} is unknown")))
    });
    Ok(Redirect {
        scheme: scheme.transpose()?,
        host: spec.hostname.clone(),
        port: spec.port,
        path: path_edit(spec.path.as_ref(), path)?,
        status: status
            .ok_or_else(|| Problem::new(UNSUPPORTED, format!("status {code} is no redirect")))?,
    })
}

fn cors(spec: &CorsSpec) -> Cors {
    Cors {
        origins: spec.allow_origins.clone(),
        credentials: spec.allow_credentials,
        methods: spec.allow_methods.clone(),
        headers: spec.allow_headers.clone(),
        expose: spec.expose_headers.clone(),
        max_age: spec.max_age.unwrap_or(5),
    }
}

/// A duration of GEP-2257, such as `1h30m` or `500ms`.
fn duration(text: &str) -> Result<Duration, Problem> {
    let problem = || Problem::new(UNSUPPORTED, format!("{text:?} is no duration"));
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at_checked(digits).ok_or_else(problem)?;
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at_checked(letters).ok_or_else(problem)?;
        let milliseconds: u64 = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return Err(problem()),
        };
        let number: u64 = number.parse().map_err(|_| problem())?;
        total = number
            .checked_mul(milliseconds)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(problem)?;
        rest = tail;
    }
    Ok(Duration::from_millis(total))
}

/// The limits of a rule; 0 is unlimited. The default for one attempt is that of Ingresses; gRPC has
/// none, as a stream may answer late.
fn timeouts(kind: RouteKind, rule: &RouteRule) -> Result<Timeouts, Problem> {
    let mut timeouts = Timeouts::default();
    if kind == RouteKind::Grpc {
        timeouts.read = None;
    }
    let Some(spec) = &rule.timeouts else { return Ok(timeouts) };
    let read = |text: &Option<String>| text.as_deref().map(duration).transpose();
    let (request, backend) = (read(&spec.request)?, read(&spec.backend_request)?);
    let limited = |limit: Duration| Some(limit).filter(|limit| !limit.is_zero());
    if request.is_some() || backend.is_some() {
        timeouts.read = None;
    }
    timeouts.request = request.and_then(limited);
    timeouts.backend = backend.and_then(limited);
    Ok(timeouts)
}

fn retry(rule: &RouteRule) -> Result<Option<Retry>, Problem> {
    let Some(spec) = &rule.retry else { return Ok(None) };
    let backoff = spec.backoff.as_deref().map(duration).transpose()?.unwrap_or(RETRY_BACKOFF);
    let attempts = spec.attempts.unwrap_or(1);
    Ok(Some(Retry { codes: spec.codes.clone(), attempts, backoff }))
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
