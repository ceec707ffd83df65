//! The endpoint of a webhook: `clientConfig` of its configuration.

use api::value::{get, int_at, str_at, str_in};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde_json::Value;

use super::errors::{ConfigError, UrlError};

/// The default port of a Service.
const PORT: u16 = 443;

/// The endpoint of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An HTTPS URL, `https://host[:port]/path`.
    Url(String),
    /// A Service of this cluster; its certificate must be valid for `name.namespace.svc`.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
        /// The path of the request, with a leading slash; empty means `/`.
        path: String,
        /// The port of the Service.
        port: u16,
    },
}

/// The endpoint and its CA (`WebhookClientConfig` of `admissionregistration.k8s.io/v1` and
/// `apiextensions.k8s.io/v1`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientConfig {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The CA certificates as PEM; empty: the system's.
    pub ca_bundle: Vec<u8>,
}

impl ClientConfig {
    /// Parses a `clientConfig` of the API.
    ///
    /// # Errors
    /// If it has neither Service nor URL, or its bundle is invalid base64.
    pub fn from_value(config: &Value) -> Result<Self, ConfigError> {
        let bundle = STANDARD.decode(str_at(config, "caBundle"));
        let ca_bundle = bundle.map_err(ConfigError::CaBundle)?;
        let service = get(config, "service");
        let endpoint = if service.is_object() {
            let port = match int_at(service, "port").unwrap_or(0) {
                0 => PORT,
                port => u16::try_from(port).map_err(|_| ConfigError::ServicePort)?,
            };
            Endpoint::Service {
                namespace: str_in(config, &["service", "namespace"]).to_owned(),
                name: str_in(config, &["service", "name"]).to_owned(),
                path: str_at(service, "path").to_owned(),
                port,
            }
        } else {
            match str_at(config, "url") {
                "" => return Err(ConfigError::NoEndpoint),
                url => Endpoint::Url(url.to_owned()),
            }
        };
        Ok(Self { endpoint, ca_bundle })
    }
}

/// The parts of an endpoint's URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// `host:port` or `host` as in the URL: the Host header, and part of error messages.
    pub(super) authority: String,
    /// The name that the certificate must be valid for, without brackets.
    pub(super) host: String,
    /// The port.
    pub(super) port: u16,
    /// The path, cleaned like Go's `path.Join`.
    pub(super) path: String,
    /// The namespace and name, for a Service.
    pub(super) service: Option<(String, String)>,
}

impl Address {
    /// Parses the endpoint.
    ///
    /// # Errors
    /// If the URL is invalid, has no host, or is not HTTPS.
    pub(super) fn of(endpoint: &Endpoint) -> Result<Self, ConfigError> {
        match endpoint {
            Endpoint::Service { namespace, name, path, port } => {
                let host = format!("{name}.{namespace}.svc");
                Ok(Self {
                    authority: format!("{host}:{port}"),
                    host,
                    port: *port,
                    path: clean(path),
                    service: Some((namespace.clone(), name.clone())),
                })
            }
            Endpoint::Url(url) => Self::of_url(url),
        }
    }

    fn of_url(url: &str) -> Result<Self, ConfigError> {
        let bad = |reason: UrlError| ConfigError::Url { url: url.to_owned(), reason };
        let uri: Uri = url.parse().map_err(|e| bad(UrlError::Syntax(e)))?;
        if uri.scheme_str() != Some("https") {
            return Err(bad(UrlError::Scheme));
        }
        let authority = uri.authority().ok_or_else(|| bad(UrlError::NoHost))?;
        if authority.as_str().contains('@') {
            return Err(bad(UrlError::UserInfo));
        }
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(bad(UrlError::NoHost));
        }
        Ok(Self {
            authority: authority.as_str().to_owned(),
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            path: clean(uri.path()),
            service: None,
        })
    }
}

/// A rooted path without empty segments, `.` and `..`.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn client_config_needs_a_service_or_an_https_url() {
        let of = |value: Value| {
            ClientConfig::from_value(&value)
                .and_then(|config| Address::of(&config.endpoint))
                .map(|a| (format!("https://{}{}", a.authority, a.path), a.host, a.port))
                .map_err(|e| e.to_string())
        };
        let service = |more: Value| {
            let mut service = json!({"namespace": "n", "name": "s"});
            service.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(json!({"service": service}))
        };
        assert_eq!(service(json!({})), Ok(("https://s.n.svc:443/".into(), "s.n.svc".into(), 443)));
        assert_eq!(
            service(json!({"path": "/a/b", "port": 8443})),
            Ok(("https://s.n.svc:8443/a/b".into(), "s.n.svc".into(), 8443))
        );
        assert_eq!(
            of(json!({"url": "https://[::1]:9443/x//y/"})),
            Ok(("https://[::1]:9443/x/y".into(), "::1".into(), 9443))
        );
        assert_eq!(
            of(json!({"url": "https://example.com"})),
            Ok(("https://example.com/".into(), "example.com".into(), 443))
        );
        assert_eq!(
            of(json!({})),
            Err("webhook configuration must have either service or URL".into())
        );
        for bad in ["http://x", "https://", "https://u:p@x/", "x y"] {
            assert!(of(json!({"url": bad})).is_err(), "{bad}");
        }
    }
}
