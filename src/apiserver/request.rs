//! Parses a URL into verb, group, version, resource, namespace, name and subresource. Authorization
//! and routing share the result.

pub(crate) mod audit_id;
pub mod body;
pub(crate) mod context;
pub(crate) mod input;
pub mod negotiate;
pub(crate) mod operation;
pub(crate) mod options;
pub(crate) mod remote;
pub(crate) mod scope;
pub(crate) mod size;
pub mod user;

use std::borrow::Cow;

use http::Method;

/// Attributes of a request (upstream's `RequestInfo` in `k8s.io/apiserver/pkg/endpoints/request`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Whether the request is for an API resource instead of a path such as `/healthz`.
    pub is_resource: bool,
    /// Decoded path.
    pub path: String,
    /// `get`, `list`, `create`, …; for plain paths the lower-case method.
    pub verb: &'static str,
    /// `api` or `apis`.
    pub prefix: String,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Name, or empty; also set for lists whose field selector selects one name.
    pub name: String,
    /// Name in the path; not set from a field selector.
    pub path_name: String,
    /// Path segments after the subresource (proxies).
    pub rest: Vec<String>,
    /// Whether the path has the deprecated `/watch/` prefix.
    pub watch_path: bool,
}

impl RequestInfo {
    /// Whether the verb is read-only.
    pub fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    /// The scope of a request in metrics and traces (upstream's `CleanScope`).
    pub(crate) fn scope(&self) -> &'static str {
        match (self.is_resource, self.name.is_empty(), self.namespace.is_empty()) {
            (false, ..) => "",
            (true, false, _) => "resource",
            (true, true, _) if self.verb == "create" => "resource",
            (true, true, false) => "namespace",
            (true, true, true) => "cluster",
        }
    }

    /// Whether the request is long-running and exempt from the in-flight limit
    /// (`k8s.io/apiserver/pkg/server/filters`: watches, proxies, log, exec, attach, portforward).
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || self.verb == "proxy"
            || (self.is_resource
                && matches!(
                    self.subresource.as_str(),
                    "attach" | "exec" | "proxy" | "log" | "portforward"
                ))
    }
}

/// The query, decoded, in order.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c`; drops pairs with an invalid encoding, as Go's `URL.Query` does.
    pub fn parse(text: &str) -> Self {
        let pairs =
            text.split('&').filter(|p| !p.is_empty() && !p.contains(';')).filter_map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((decode(key, true)?.into_owned(), decode(value, true)?.into_owned()))
            });
        Self(pairs.collect())
    }

    /// The first value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// A Go-style boolean: present and neither `false` nor `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// All pairs in order.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Percent-decodes a text; `None` when an escape is malformed or the result is not UTF-8.
pub(crate) fn decode(text: &str, plus_is_space: bool) -> Option<Cow<'_, str>> {
    if !text.contains('%') && (!plus_is_space || !text.contains('+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// The error of a path that cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPath(pub String);

/// Parses method, raw path and query.
///
/// # Errors
/// When the path has a malformed escape, or nothing follows a `/watch/` or `/proxy/` prefix.
pub fn parse(method: &Method, raw_path: &str, query: &Query) -> Result<RequestInfo, BadPath> {
    let path = decode(raw_path, false)
        .ok_or_else(|| BadPath(format!("invalid URL escape in {raw_path:?}")))?
        .into_owned();
    let mut info = RequestInfo { verb: lower_method(method), path, ..RequestInfo::default() };
    let owned: Vec<String> = info.path.trim_matches('/').split('/').map(str::to_owned).collect();
    let parts: Vec<&str> = owned.iter().map(String::as_str).collect();
    let mut parts = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => {
            info.prefix = "api".into();
            info.version = (*version).to_owned();
            rest
        }
        ["apis", group, version, rest @ ..] if !rest.is_empty() => {
            info.prefix = "apis".into();
            info.group = (*group).to_owned();
            info.version = (*version).to_owned();
            rest
        }
        _ => return Ok(info),
    };
    info.is_resource = true;
    info.verb = verb_of(method);
    if let [special @ ("watch" | "proxy"), rest @ ..] = parts {
        if rest.is_empty() {
            return Err(BadPath(format!(
                "unable to determine kind and namespace from url, {raw_path}"
            )));
        }
        info.watch_path = *special == "watch";
        info.verb = if info.watch_path { "watch" } else { "proxy" };
        parts = rest;
    }
    if let ["namespaces", namespace, rest @ ..] = parts {
        info.namespace = (*namespace).to_owned();
        if let [next, ..] = rest
            && !matches!(*next, "status" | "finalize")
        {
            parts = rest;
        }
    }
    fill_parts(&mut info, parts);
    finish_verb(&mut info, query);
    Ok(info)
}

fn fill_parts(info: &mut RequestInfo, parts: &[&str]) {
    if let Some(resource) = parts.first() {
        info.resource = (*resource).to_owned();
    }
    if let Some(name) = parts.get(1) {
        info.name = (*name).to_owned();
        info.path_name = (*name).to_owned();
    }
    if let Some(subresource) = parts.get(2)
        && !matches!(info.verb, "proxy" | "watch")
    {
        info.subresource = (*subresource).to_owned();
        info.rest = parts.iter().skip(3).map(|p| (*p).to_owned()).collect();
    }
}

fn finish_verb(info: &mut RequestInfo, query: &Query) {
    if info.name.is_empty() && info.verb == "get" {
        info.verb = if query.flag("watch") { "watch" } else { "list" };
        if let Some(name) =
            query.get("fieldSelector").and_then(|s| s.split(',').find_map(exact_name))
            && !name.is_empty()
            && name != "."
            && name != ".."
            && !name.contains(['/', '%'])
        {
            info.name = name.to_owned();
        }
    }
    if info.name.is_empty() && info.verb == "delete" {
        info.verb = "deletecollection";
    }
}

fn exact_name(requirement: &str) -> Option<&str> {
    let rest = requirement.trim().strip_prefix("metadata.name=")?;
    Some(rest.strip_prefix('=').unwrap_or(rest))
}

fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

fn lower_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        Method::CONNECT => "connect",
        Method::TRACE => "trace",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, url: &str) -> String {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let info = parse(&method.parse().unwrap(), path, &Query::parse(query)).unwrap();
        format!(
            "{} {} {}/{} ns={} {} {} {}",
            info.is_resource,
            info.verb,
            info.group,
            info.version,
            info.namespace,
            info.resource,
            info.name,
            info.subresource
        )
    }

    #[test]
    fn paths_are_parsed_like_request_info_factory() {
        for (method, url, want) in [
            ("GET", "/healthz", "false get / ns=   "),
            ("GET", "/api/v1", "false get / ns=   "),
            ("GET", "/api/v1/nodes", "true list /v1 ns= nodes  "),
            ("GET", "/api/v1/namespaces", "true list /v1 ns= namespaces  "),
            ("GET", "/api/v1/namespaces/a", "true get /v1 ns=a namespaces a "),
            ("PUT", "/api/v1/namespaces/a/finalize", "true update /v1 ns=a namespaces a finalize"),
            ("GET", "/api/v1/namespaces/a/pods", "true list /v1 ns=a pods  "),
            ("GET", "/api/v1/namespaces/a/pods/p/log", "true get /v1 ns=a pods p log"),
            ("GET", "/api/v1/watch/namespaces/a/pods/p", "true watch /v1 ns=a pods p "),
            ("GET", "/apis/apps/v1/deployments?watch=1", "true watch apps/v1 ns= deployments  "),
            (
                "GET",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
                "true list /v1 ns=a pods x ",
            ),
            ("DELETE", "/api/v1/namespaces/a/pods", "true deletecollection /v1 ns=a pods  "),
            (
                "POST",
                "/apis/apps/v1/namespaces/n/deployments",
                "true create apps/v1 ns=n deployments  ",
            ),
        ] {
            assert_eq!(of(method, url), want, "{method} {url}");
        }
    }
}
