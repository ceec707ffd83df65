//! The URL of a document with static pods, and how it is requested (`staticPodURL`,
//! `staticPodURLHeader` and `httpCheckFrequency`).

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

/// Maximum number of headers, as servers accept about as many.
const HEADERS_MAX: usize = 100;

/// Where the document with static pods is, and how it is requested.
#[derive(Clone)]
pub struct StaticPodUrl {
    pub(super) url: Url,
    /// Headers of requests, marked as secrets.
    pub(super) headers: HeaderMap,
    pub(super) interval: Duration,
}

/// Why a URL or its headers cannot be used. The texts contain no value of a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStaticPodUrl {
    /// No URL.
    #[error("must be a URL: {0}")]
    Url(#[from] url::ParseError),
    /// Neither HTTP nor HTTPS.
    #[error("must be a URL with http:// or https://")]
    Scheme,
    /// Too many headers.
    #[error("has {0} headers; at most {HEADERS_MAX} are sent")]
    TooManyHeaders(usize),
    /// The name of a header, by the number of the header.
    #[error("header {0} has an invalid name")]
    HeaderName(usize),
    /// The value of a header, by the name of the header.
    #[error("the value of header {0} has invalid characters")]
    HeaderValue(HeaderName),
}

impl StaticPodUrl {
    /// Checks the URL and the headers. The document is requested every `interval`
    /// (`httpCheckFrequency`).
    ///
    /// # Errors
    /// The URL or the first header that is invalid.
    pub fn new(
        url: &str,
        headers: &[(String, String)],
        interval: Duration,
    ) -> Result<Self, InvalidStaticPodUrl> {
        let url = Url::parse(url)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidStaticPodUrl::Scheme);
        }
        if headers.len() > HEADERS_MAX {
            return Err(InvalidStaticPodUrl::TooManyHeaders(headers.len()));
        }
        let mut map = HeaderMap::with_capacity(headers.len());
        for (index, (name, value)) in headers.iter().enumerate() {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name = name.map_err(|_| InvalidStaticPodUrl::HeaderName(index + 1))?;
            let value = HeaderValue::from_str(value);
            let mut value = value.map_err(|_| InvalidStaticPodUrl::HeaderValue(name.clone()))?;
            value.set_sensitive(true);
            map.append(name, value);
        }
        Ok(Self { url, headers: map, interval })
    }

    /// The URL without user and password.
    pub(super) fn source(&self) -> String {
        let mut url = self.url.clone();
        // A URL with HTTP always has a host, so neither fails.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.into()
    }
}

impl std::fmt::Debug for StaticPodUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The query may contain a token.
        let source = self.source();
        write!(f, "StaticPodUrl({})", source.split('?').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://u:hush@m.example/pods?token=hush";

    #[test]
    fn a_url_has_http_and_texts_have_no_secret() {
        let new = |url: &str, headers: &[(&str, &str)]| {
            let headers: Vec<_> =
                headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            StaticPodUrl::new(url, &headers, Duration::from_secs(20))
        };
        let error =
            |url: &str, headers: &[(&str, &str)]| new(url, headers).unwrap_err().to_string();
        assert_eq!(error("file:///m", &[]), "must be a URL with http:// or https://");
        assert_eq!(error("m.example", &[]), "must be a URL: relative URL without a base");
        assert_eq!(error(URL, &[("a b", "hush")]), "header 1 has an invalid name");
        let invalid = error(URL, &[("X-A", "1"), ("X-B", "hu\nsh")]);
        assert_eq!(invalid, "the value of header x-b has invalid characters");
        let url = new(URL, &[("Authorization", "hush")]).unwrap();
        assert_eq!(format!("{url:?}"), "StaticPodUrl(https://m.example/pods)");
    }
}
