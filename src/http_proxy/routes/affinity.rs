//! Sessions: a cookie leads a client to the endpoint that served it first.

use std::net::SocketAddr;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// The endpoint of a cookie. Each node computes the same value for an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointId(u64);

impl EndpointId {
    /// The identifier of an endpoint of a backend: FNV-1a with 64 bits, so that clients do not read
    /// addresses of pods in their cookies.
    pub fn new(backend: &str, address: SocketAddr) -> Self {
        let text = format!("{backend}|{address}");
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// The attribute `SameSite` of a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameSite {
    /// Sent with any request.
    None,
    /// Sent with navigation to the site.
    Lax,
    /// Sent with requests of the site itself.
    Strict,
}

/// The cookie of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// Its name.
    pub name: String,
    /// The attribute `Path`.
    pub path: String,
    /// The attribute `Domain`.
    pub domain: Option<String>,
    /// The attribute `Max-Age` in seconds; without it the cookie ends with the browser.
    pub max_age: Option<u32>,
    /// The attribute `SameSite`.
    pub same_site: Option<SameSite>,
    /// The attribute `Secure`; by default that of the client's connection.
    pub secure: Option<bool>,
    /// A client whose endpoint accepts no connection gets a cookie for the next one.
    pub change_on_failure: bool,
}

impl Affinity {
    /// The endpoint that a request names.
    pub fn endpoint(&self, headers: &HeaderMap) -> Option<EndpointId> {
        let value = cookie(headers, &self.name)?;
        u64::from_str_radix(value, 16).ok().map(EndpointId)
    }

    /// The header `Set-Cookie` for an endpoint; `None` if an attribute is invalid.
    pub fn set_cookie(&self, id: EndpointId, is_secure: bool) -> Option<HeaderValue> {
        let mut text = format!("{}={:016x}", self.name, id.0);
        if let Some(seconds) = self.max_age {
            text.push_str(&format!("; Max-Age={seconds}"));
        }
        if let Some(domain) = &self.domain {
            text.push_str(&format!("; Domain={domain}"));
        }
        text.push_str(&format!("; Path={}", self.path));
        if self.secure.unwrap_or(is_secure) {
            text.push_str("; Secure");
        }
        text.push_str("; HttpOnly");
        if let Some(same_site) = self.same_site {
            text.push_str(&format!("; SameSite={same_site:?}"));
        }
        HeaderValue::from_str(&text).ok()
    }
}

/// The first cookie of a name.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let fields = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = fields.flat_map(|text| text.split(';')).filter_map(|p| p.split_once('='));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affinity() -> Affinity {
        Affinity {
            name: "INGRESSCOOKIE".into(),
            path: "/".into(),
            domain: None,
            max_age: None,
            same_site: None,
            secure: None,
            change_on_failure: false,
        }
    }

    #[test]
    fn a_cookie_names_its_endpoint_again() {
        let id = EndpointId::new("n/s:80", "10.0.0.1:80".parse().unwrap());
        assert_ne!(id, EndpointId::new("n/s:80", "10.0.0.2:80".parse().unwrap()));
        let own = affinity();
        let header = own.set_cookie(id, false).unwrap();
        let pair = header.to_str().unwrap().split_once(';').unwrap().0.to_owned();
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_str(&format!("a=b; {pair};c=d")).unwrap());
        assert_eq!(own.endpoint(&headers), Some(id));
        headers.insert(COOKIE, HeaderValue::from_static("INGRESSCOOKIE=10.0.0.1"));
        assert_eq!(own.endpoint(&headers), None);
    }

    #[test]
    fn attributes_are_written() {
        let id = EndpointId(1);
        let text = |affinity: &Affinity, secure| {
            affinity.set_cookie(id, secure).map(|value| value.to_str().unwrap().to_owned())
        };
        let plain = "INGRESSCOOKIE=0000000000000001; Path=/";
        assert_eq!(text(&affinity(), false), Some(format!("{plain}; HttpOnly")));
        assert_eq!(text(&affinity(), true), Some(format!("{plain}; Secure; HttpOnly")));
        let full = Affinity {
            max_age: Some(60),
            same_site: Some(SameSite::Strict),
            secure: Some(false),
            domain: Some("a.example".into()),
            ..affinity()
        };
        let expected = "INGRESSCOOKIE=0000000000000001; Max-Age=60; Domain=a.example; Path=/; \
            HttpOnly; SameSite=Strict";
        assert_eq!(text(&full, true).as_deref(), Some(expected));
        assert_eq!(text(&Affinity { path: "/\n".into(), ..affinity() }, true), None);
    }
}
