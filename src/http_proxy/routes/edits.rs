//! Changes of requests and responses: headers, redirects, rewritten hosts and paths.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::path::normalized;
use super::pattern::{Pattern, Template};

/// Changes of headers, in the order set, add, remove (`HTTPHeaderFilter` of Gateway API).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Replaces all values.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Appends a value.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Removes all values.
    pub remove: Vec<HeaderName>,
}

impl HeaderEdits {
    /// Applies the changes.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name.clone(), value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

/// A changed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathEdit {
    /// Another path.
    Full(String),
    /// Replaces the prefix that matched.
    Prefix {
        /// The prefix of the rule.
        matched: String,
        /// What it becomes.
        replacement: String,
    },
    /// Another path, made of groups of a regular expression that matches the decoded path. It may
    /// have a query.
    Groups {
        /// The expression.
        pattern: Pattern,
        /// The new path.
        template: Template,
    },
}

impl PathEdit {
    /// The new path. The rest of a path after its prefix is kept; exactly one slash joins both
    /// (the table of `HTTPPathModifier.replacePrefixMatch`).
    fn apply(&self, path: &str) -> String {
        match self {
            Self::Full(full) => full.clone(),
            Self::Groups { pattern, template } => {
                let decoded = normalized(path).unwrap_or(path.into());
                template.expand(pattern.regex().captures(&decoded).as_ref())
            }
            Self::Prefix { matched, replacement } => {
                let matched = matched.strip_suffix('/').unwrap_or(matched);
                let rest = path.strip_prefix(matched).unwrap_or(path);
                let start = replacement.strip_suffix('/').unwrap_or(replacement);
                let joined = format!("{start}{rest}");
                match joined.is_empty() {
                    true => "/".into(),
                    false if rest.is_empty() => replacement.clone(),
                    false => joined,
                }
            }
        }
    }
}

/// Changes of a request before it is forwarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The new `Host`.
    pub host: Option<HeaderValue>,
    /// The new path; the query stays.
    pub path: Option<PathEdit>,
}

impl Rewrite {
    /// The path and query to forward.
    ///
    /// # Errors
    /// The new path is no valid URI.
    pub fn target(&self, uri: &Uri) -> Result<Uri, http::Error> {
        let Some(edit) = &self.path else { return Ok(uri.clone()) };
        Uri::builder().path_and_query(with_query(&edit.apply(uri.path()), uri.query())?).build()
    }
}

fn with_query(path: &str, query: Option<&str>) -> Result<PathAndQuery, http::Error> {
    let target = match query {
        Some(query) if path.contains('?') => format!("{path}&{query}").try_into(),
        Some(query) => format!("{path}?{query}").try_into(),
        None => path.try_into(),
    };
    target.map_err(http::Error::from)
}

/// A redirect; parts without a value are those of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// The new scheme.
    pub scheme: Option<Scheme>,
    /// The new host.
    pub host: Option<String>,
    /// The new port; without one, that of a new scheme, else that of the listener.
    pub port: Option<u16>,
    /// The new path; the query stays.
    pub path: Option<PathEdit>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

impl Redirect {
    /// The header `Location`. `host` is that of the request without a port; `secure` and `port`
    /// describe the listener. The default port of the scheme is left out.
    ///
    /// # Errors
    /// Host or path are not valid in a URI.
    pub fn location(
        &self,
        uri: &Uri,
        host: &str,
        (secure, port): (bool, u16),
    ) -> Result<Uri, http::Error> {
        let scheme = self.scheme.clone().unwrap_or(match secure {
            true => Scheme::HTTPS,
            false => Scheme::HTTP,
        });
        let well_known = if scheme == Scheme::HTTPS { 443 } else { 80 };
        let port = self.port.unwrap_or(match self.scheme {
            Some(_) => well_known,
            None => port,
        });
        let host = self.host.as_deref().unwrap_or(host);
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authority: Authority = match port == well_known {
            true => host.as_str().try_into()?,
            false => format!("{host}:{port}").as_str().try_into()?,
        };
        let path = match &self.path {
            Some(edit) => edit.apply(uri.path()),
            None => uri.path().to_owned(),
        };
        let target = with_query(&path, uri.query())?;
        Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The table of `HTTPPathModifier.replacePrefixMatch` in Gateway API.
    #[test]
    fn prefixes_are_replaced_as_gateway_api_says() {
        for (path, matched, replacement, expected) in [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
        ] {
            let edit =
                PathEdit::Prefix { matched: matched.into(), replacement: replacement.into() };
            assert_eq!(edit.apply(path), expected, "{path} {matched} {replacement}");
        }
    }

    #[test]
    fn rewrites_keep_the_query() {
        let path = Some(PathEdit::Full("/new".into()));
        let rewrite = Rewrite { host: None, path };
        let uri = Uri::from_static("/old?a=b");
        assert_eq!(rewrite.target(&uri).unwrap().to_string(), "/new?a=b");
        let pattern = Pattern::of_path("/app(/|$)(.*)").unwrap();
        let template = Template::new("/v1/$2?from=app");
        let rewrite = Rewrite { host: None, path: Some(PathEdit::Groups { pattern, template }) };
        for (from, to) in [
            ("/app/x%20y?a=b", "/v1/x%20y?from=app&a=b"),
            ("/app", "/v1/?from=app"),
            ("/x/../app//z", "/v1/z?from=app"),
            ("/app/%3fq%0d%0aX:1", "/v1/%3Fq%0D%0AX:1?from=app"),
        ] {
            let uri = from.parse().unwrap();
            assert_eq!(rewrite.target(&uri).unwrap().to_string(), to, "{from}");
        }
    }

    // `HTTPRequestRedirectFilter.port`: the port of the scheme, else that of the listener;
    // well-known ports are left out.
    #[test]
    fn redirects_keep_what_they_do_not_change() {
        let plain = Redirect {
            scheme: None,
            host: None,
            port: None,
            path: None,
            status: StatusCode::FOUND,
        };
        let https = Redirect { scheme: Some(Scheme::HTTPS), ..plain.clone() };
        let other = Redirect { host: Some("b.example".into()), port: Some(8443), ..plain.clone() };
        let uri = Uri::from_static("/p?q");
        for (redirect, listener, expected) in [
            (&plain, (false, 80), "http://a.example/p?q"),
            (&plain, (false, 8080), "http://a.example:8080/p?q"),
            (&plain, (true, 443), "https://a.example/p?q"),
            (&https, (false, 8080), "https://a.example/p?q"),
            (&other, (false, 80), "http://b.example:8443/p?q"),
        ] {
            let location = redirect.location(&uri, "a.example", listener).unwrap();
            assert_eq!(location.to_string(), expected);
        }
        let location = plain.location(&uri, "2001:db8::1", (false, 80)).unwrap();
        assert_eq!(location.to_string(), "http://[2001:db8::1]/p?q");
    }

    #[test]
    fn headers_are_set_added_and_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let pair = |name, value| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let edits = HeaderEdits {
            set: vec![pair("a", "3")],
            add: vec![pair("b", "2")],
            remove: vec![HeaderName::from_static("c")],
        };
        edits.apply(&mut headers);
        let values = |name: &str| -> Vec<&str> {
            headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect()
        };
        assert_eq!((values("a"), values("b"), values("c")), (vec!["3"], vec!["1", "2"], vec![]));
    }
}
