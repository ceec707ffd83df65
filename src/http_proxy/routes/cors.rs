//! Cross-origin requests (`HTTPCORSFilter` of Gateway API, the CORS protocol of Fetch).

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, request};

/// Methods that are allowed in any case (Fetch, CORS-safelisted method).
const SAFE_METHODS: [Method; 3] = [Method::GET, Method::HEAD, Method::POST];

/// Which cross-origin requests are allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins: `scheme://host[:port]` with `*` for any labels, or `*`.
    pub origins: Vec<String>,
    /// Whether requests may have credentials.
    pub credentials: bool,
    /// Methods, or `*`.
    pub methods: Vec<String>,
    /// Request headers, or `*`.
    pub headers: Vec<String>,
    /// Response headers that scripts see.
    pub expose: Vec<String>,
    /// Seconds for which a preflight response is valid.
    pub max_age: u32,
}

/// Whether an origin matches one with at most one `*`.
fn matches(pattern: &str, origin: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(origin),
        Some((start, end)) => {
            let (start, end) = (start.to_ascii_lowercase(), end.to_ascii_lowercase());
            let origin = origin.to_ascii_lowercase();
            let rest = origin.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
            // A wildcard matches a part of the host, so it contains no port.
            rest.is_some_and(|rest| !rest.is_empty() && (pattern == "*" || !rest.contains(':')))
        }
    }
}

impl Cors {
    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|pattern| matches(pattern, origin))
    }

    /// The origin of a request, if it is allowed.
    fn allowed<'a>(&self, origin: Option<&'a HeaderValue>) -> Option<&'a HeaderValue> {
        origin.filter(|origin| origin.to_str().is_ok_and(|text| self.allows(text)))
    }

    /// The headers of the response to a preflight request; `None` if it is none.
    pub fn preflight(&self, parts: &request::Parts) -> Option<HeaderMap> {
        let wanted = parts.headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
        if parts.method != Method::OPTIONS || !parts.headers.contains_key(ORIGIN) {
            return None;
        }
        let mut response = HeaderMap::new();
        let Some(origin) = self.allowed(parts.headers.get(ORIGIN)) else { return Some(response) };
        self.set_origin(origin, &mut response);
        let mut set = |name: HeaderName, value: Option<HeaderValue>| {
            if let Some(value) = value {
                response.insert(name, value);
            }
        };
        let is_safe = SAFE_METHODS.iter().any(|method| method.as_str() == wanted);
        let methods = match self.methods.iter().any(|method| method == "*") {
            true => Some(wanted.clone()),
            false if self.methods.is_empty() && is_safe => Some(wanted.clone()),
            false => list(&self.methods),
        };
        set(ACCESS_CONTROL_ALLOW_METHODS, methods);
        let headers = match self.headers.iter().any(|header| header == "*") {
            true => parts.headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
            false => list(&self.headers),
        };
        set(ACCESS_CONTROL_ALLOW_HEADERS, headers);
        set(ACCESS_CONTROL_MAX_AGE, Some(HeaderValue::from(self.max_age)));
        Some(response)
    }

    /// Sets the headers of a response to a request of an origin; those of the endpoint go.
    pub fn apply(&self, origin: Option<&HeaderValue>, response: &mut HeaderMap) {
        for name in [
            ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_ALLOW_CREDENTIALS,
            ACCESS_CONTROL_EXPOSE_HEADERS,
        ] {
            response.remove(name);
        }
        if let Some(origin) = self.allowed(origin) {
            self.set_origin(origin, response);
        }
    }

    fn set_origin(&self, origin: &HeaderValue, response: &mut HeaderMap) {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        response.append(VARY, HeaderValue::from_static("Origin"));
        if self.credentials {
            response.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        // With credentials, `*` would be the name of a header.
        let is_useless = self.credentials && self.expose.iter().any(|header| header == "*");
        if let Some(expose) = list(&self.expose).filter(|_| !is_useless) {
            response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose);
        }
    }
}

fn list(values: &[String]) -> Option<HeaderValue> {
    if values.is_empty() { None } else { HeaderValue::from_str(&values.join(", ")).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    // `HTTPCORSFilter.allowOrigins`.
    #[test]
    fn origins_match_with_wildcards_to_the_left() {
        for (pattern, origin, expected) in [
            ("https://www.foo.com", "https://www.foo.com", true),
            ("https://www.foo.com", "https://www.foo.com:8443", false),
            ("https://*.bar.com", "https://www.bar.com", true),
            ("https://*.bar.com", "https://xpto.www.bar.com", true),
            ("https://*.bar.com", "https://bar.com", false),
            ("https://*.bar.com", "http://www.bar.com", false),
            ("https://*.bar.com", "https://a:1@x.bar.com", false),
            ("*", "https://a.example:8443", true),
            ("http://*", "http://a.example", true),
        ] {
            assert_eq!(matches(pattern, origin), expected, "{pattern} {origin}");
        }
    }

    fn preflight(cors: &Cors, origin: &str, method: &str) -> Option<HeaderMap> {
        let request = http::Request::builder()
            .method(Method::OPTIONS)
            .header(ORIGIN, origin)
            .header(ACCESS_CONTROL_REQUEST_METHOD, method)
            .header(ACCESS_CONTROL_REQUEST_HEADERS, "x-a");
        cors.preflight(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn preflight_requests_are_answered() {
        let cors = Cors {
            origins: vec!["https://a.example".into()],
            methods: vec!["GET".into(), "OPTIONS".into()],
            headers: vec!["*".into()],
            max_age: 5,
            ..Cors::default()
        };
        let headers = preflight(&cors, "https://a.example", "GET").unwrap();
        let get = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(get(ACCESS_CONTROL_ALLOW_ORIGIN), Some("https://a.example"));
        assert_eq!(get(ACCESS_CONTROL_ALLOW_METHODS), Some("GET, OPTIONS"));
        assert_eq!(get(ACCESS_CONTROL_ALLOW_HEADERS), Some("x-a"));
        assert_eq!(get(ACCESS_CONTROL_MAX_AGE), Some("5"));
        assert_eq!(get(ACCESS_CONTROL_ALLOW_CREDENTIALS), None);
        assert!(preflight(&cors, "https://b.example", "GET").unwrap().is_empty());
        let plain = http::Request::get("/").header(ORIGIN, "https://a.example").body(()).unwrap();
        assert!(cors.preflight(&plain.into_parts().0).is_none());
    }

    #[test]
    fn credentials_exclude_wildcards() {
        let cors = Cors {
            origins: vec!["*".into()],
            methods: vec!["*".into()],
            expose: vec!["*".into()],
            credentials: true,
            ..Cors::default()
        };
        let headers = preflight(&cors, "https://a.example", "PUT").unwrap();
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_METHODS], "PUT");
        assert!(!headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS));
    }
}
