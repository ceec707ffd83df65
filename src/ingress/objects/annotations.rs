//! Annotations of an Ingress: those of the prefix `ingress.kube-lite.io/`, and the same names with
//! the prefix of ingress-nginx. Annotations of these prefixes and of Traefik's that are not in the
//! table are reported, so that none is ignored silently.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use settings::{Cidr, Family};

use crate::backend::Protocol;
use crate::routes::Timeouts;

/// The prefix of kube-lite's own annotations.
const OWN: &str = "ingress.kube-lite.io/";
/// The prefix of ingress-nginx.
const NGINX: &str = "nginx.ingress.kubernetes.io/";
/// The prefix of Traefik, of which one annotation has a counterpart.
const TRAEFIK: &str = "traefik.ingress.kubernetes.io/";
/// `websecure` as the only entry point serves nothing over plain HTTP.
const ENTRY_POINTS: &str = "router.entrypoints";

/// Why an annotation has no effect.
#[derive(Debug, thiserror::Error)]
enum AnnotationError {
    #[error("is not supported")]
    Unknown,
    #[error("has the unsupported value {0:?}")]
    Value(String),
    #[error("must be \"true\" or \"false\", not {0:?}")]
    Boolean(String),
    #[error("is not valid: {0}")]
    Range(#[from] settings::BadCidr),
    #[error("must be a number of seconds above 0, not {0:?}")]
    Seconds(String),
    #[error("must be a size such as 8m, not {0:?}")]
    Size(String),
}

/// What the annotations of an Ingress change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// `ssl-redirect`, `force-ssl-redirect`: requests over plain HTTP are redirected.
    pub https_only: Option<bool>,
    /// `proxy-body-size`: largest body of a request in bytes; 0 is unlimited.
    pub body_bytes_max: u64,
    /// `whitelist-source-range`, `allowlist-source-range`: clients that are served; empty is all.
    pub sources: Vec<Cidr>,
    /// `proxy-connect-timeout`, `proxy-read-timeout`.
    pub timeouts: Timeouts,
    /// `backend-protocol`.
    pub protocol: Option<Protocol>,
    /// `upstream-vhost`: the host that endpoints see.
    pub host: Option<String>,
}

/// Reads the annotations; what cannot be honoured is returned as sentences.
pub fn read(annotations: Option<&BTreeMap<String, String>>) -> (Settings, Vec<String>) {
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    for (key, value) in annotations.into_iter().flatten() {
        let own = key.strip_prefix(OWN).or_else(|| key.strip_prefix(NGINX));
        let outcome = match (own, key.strip_prefix(TRAEFIK)) {
            (Some(name), _) => settings.set(name, value.trim()),
            (None, Some(ENTRY_POINTS)) => settings.entry_points(value),
            (None, Some(_)) => Err(AnnotationError::Unknown),
            (None, None) => Ok(()),
        };
        if let Err(why) = outcome {
            problems.push(format!("the annotation {key} {why}"));
        }
    }
    (settings, problems)
}

impl Settings {
    /// Sets one annotation by its name without the prefix.
    fn set(&mut self, name: &str, value: &str) -> Result<(), AnnotationError> {
        match name {
            "ssl-redirect" | "force-ssl-redirect" => self.https_only = Some(boolean(value)?),
            "proxy-body-size" => self.body_bytes_max = size(value)?,
            "whitelist-source-range" | "allowlist-source-range" => {
                let list = value.split(',').map(str::trim).filter(|text| !text.is_empty());
                self.sources = list.map(range).collect::<Result<_, AnnotationError>>()?;
            }
            "proxy-connect-timeout" => self.timeouts.connect = seconds(value)?,
            "proxy-read-timeout" => self.timeouts.backend = Some(seconds(value)?),
            "backend-protocol" => {
                self.protocol = Some(match value {
                    "HTTP" => Protocol::Http1,
                    "GRPC" => Protocol::Http2,
                    other => return Err(AnnotationError::Value(other.to_owned())),
                });
            }
            "upstream-vhost" => self.host = Some(value.to_owned()),
            _ => return Err(AnnotationError::Unknown),
        }
        Ok(())
    }

    fn entry_points(&mut self, value: &str) -> Result<(), AnnotationError> {
        let names: Vec<&str> = value.split(',').map(str::trim).collect();
        match names.as_slice() {
            ["websecure"] => self.https_only = Some(true),
            list if list.iter().all(|name| matches!(*name, "web" | "websecure")) => {}
            _ => return Err(AnnotationError::Value(value.to_owned())),
        }
        Ok(())
    }
}

fn boolean(value: &str) -> Result<bool, AnnotationError> {
    value.parse().map_err(|_| AnnotationError::Boolean(value.to_owned()))
}

/// An address or a range in CIDR notation.
fn range(text: &str) -> Result<Cidr, AnnotationError> {
    let block = match text.parse::<IpAddr>() {
        Ok(address) => Cidr::new(address, Family::of(address).bits()),
        Err(_) => text.parse(),
    };
    Ok(block?)
}

/// A number of seconds.
fn seconds(value: &str) -> Result<Duration, AnnotationError> {
    let digits = value.strip_suffix('s').unwrap_or(value);
    match digits.parse::<u32>() {
        Ok(number) if number > 0 => Ok(Duration::from_secs(u64::from(number))),
        _ => Err(AnnotationError::Seconds(value.to_owned())),
    }
}

/// A size as nginx writes it: bytes, or with `k`, `m`, `g`.
fn size(value: &str) -> Result<u64, AnnotationError> {
    let lower = value.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, lower.get(digits.len()..).unwrap_or_default()),
        None => (lower.as_str(), ""),
    };
    let factor: u64 = match unit {
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 1,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| AnnotationError::Size(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(list: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let map = list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        read(Some(&map))
    }

    #[test]
    fn annotations_of_nginx_and_own_ones_have_the_same_meaning() {
        for prefix in [OWN, NGINX] {
            let key = |name: &str| format!("{prefix}{name}");
            let (settings, problems) = read_all(&[
                (&key("force-ssl-redirect"), "true"),
                (&key("proxy-body-size"), "8m"),
                (&key("whitelist-source-range"), "10.0.0.0/8, 192.0.2.1"),
                (&key("proxy-read-timeout"), "120"),
                (&key("proxy-connect-timeout"), "2s"),
                (&key("backend-protocol"), "GRPC"),
            ]);
            assert_eq!(problems, Vec::<String>::new());
            assert_eq!(settings.https_only, Some(true));
            assert_eq!(settings.body_bytes_max, 8 << 20);
            assert_eq!(settings.sources.len(), 2);
            assert_eq!(settings.timeouts.backend, Some(Duration::from_secs(120)));
            assert_eq!(settings.timeouts.connect, Duration::from_secs(2));
            assert_eq!(settings.protocol, Some(Protocol::Http2));
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let (settings, problems) = read_all(&[
            ("nginx.ingress.kubernetes.io/lua-resty-waf", "active"),
            ("nginx.ingress.kubernetes.io/proxy-body-size", "8x"),
            ("nginx.ingress.kubernetes.io/proxy-read-timeout", "0"),
            ("nginx.ingress.kubernetes.io/ssl-redirect", "yes"),
            ("nginx.ingress.kubernetes.io/whitelist-source-range", "10.0.0.0/40"),
            ("traefik.ingress.kubernetes.io/router.entrypoints", "metrics"),
            ("traefik.ingress.kubernetes.io/router.middlewares", "a@kubernetescrd"),
            ("cert-manager.io/cluster-issuer", "other"),
        ]);
        assert_eq!(settings, Settings::default());
        assert_eq!(
            problems,
            [
                "the annotation nginx.ingress.kubernetes.io/lua-resty-waf is not supported",
                "the annotation nginx.ingress.kubernetes.io/proxy-body-size must be a size such as \
             8m, not \"8x\"",
                "the annotation nginx.ingress.kubernetes.io/proxy-read-timeout must be a number of \
             seconds above 0, not \"0\"",
                "the annotation nginx.ingress.kubernetes.io/ssl-redirect must be \"true\" or \
             \"false\", not \"yes\"",
                "the annotation nginx.ingress.kubernetes.io/whitelist-source-range is not valid: \
             \"10.0.0.0/40\" is not an address block such as 10.42.0.0/16",
                "the annotation traefik.ingress.kubernetes.io/router.entrypoints has the unsupported \
             value \"metrics\"",
                "the annotation traefik.ingress.kubernetes.io/router.middlewares is not supported",
            ]
        );
    }

    #[test]
    fn the_entry_point_websecure_alone_redirects() {
        let key = "traefik.ingress.kubernetes.io/router.entrypoints";
        for (value, https_only) in
            [("websecure", Some(true)), ("web", None), ("web, websecure", None)]
        {
            assert_eq!(read_all(&[(key, value)]).0.https_only, https_only, "{value}");
        }
    }
}
