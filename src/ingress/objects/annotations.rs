//! Annotations of an Ingress: those of the prefix `ingress.kube-lite.io/`, and the same names with
//! the prefix of ingress-nginx. Annotations of these prefixes and of Traefik's that are not in the
//! table are reported, so that none is ignored silently.

pub mod auth;
pub mod canary;
mod cors;
pub mod sessions;
mod values;

use std::collections::BTreeMap;

use http::{HeaderValue, StatusCode};
use settings::Cidr;

use auth::AuthSettings;
use canary::CanarySettings;
use cors::CorsSettings;
use http_proxy::backend::Protocol;
use http_proxy::routes::Timeouts;
use http_proxy::routes::cors::Cors;
use http_proxy::routes::pattern::PatternError;
use sessions::Sessions;
use values::{boolean, list, location, ranges, redirect_status, seconds, size};

/// The prefix of kube-lite's own annotations.
const OWN: &str = "ingress.kube-lite.io/";
/// The prefix of ingress-nginx.
const NGINX: &str = "nginx.ingress.kubernetes.io/";
/// The prefix of Traefik, of which two annotations have a counterpart.
const TRAEFIK: &str = "traefik.ingress.kubernetes.io/";
/// `websecure` as the only entry point serves nothing over plain HTTP.
const ENTRY_POINTS: &str = "router.entrypoints";
/// `true` serves nothing over plain HTTP.
const ROUTER_TLS: &str = "router.tls";

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
    #[error("must be a number, not {0:?}")]
    Number(String),
    #[error("must be a size such as 8m, not {0:?}")]
    Size(String),
    #[error("must be a URL or a path without variables, not {0:?}")]
    Location(String),
    #[error("must be a path that starts with a slash, not {0:?}")]
    Path(String),
    #[error("is not valid: {0}")]
    Pattern(#[from] PatternError),
}

/// What the annotations of an Ingress change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// `force-ssl-redirect`, or of Traefik `websecure` as the only entry point or `router.tls`:
    /// requests over plain HTTP are redirected.
    https_only: Option<bool>,
    /// `ssl-redirect`: the same for an Ingress with TLS.
    tls_redirect: Option<bool>,
    /// `proxy-body-size`: largest body of a request in bytes; 0 is unlimited.
    pub body_bytes_max: u64,
    /// `whitelist-source-range`, `allowlist-source-range`: clients that are served; empty is all.
    pub sources: Vec<Cidr>,
    /// `proxy-connect-timeout`, `proxy-read-timeout`.
    pub timeouts: Timeouts,
    /// `backend-protocol`.
    pub protocol: Option<Protocol>,
    /// `backend-protocol: HTTPS` or `GRPCS`: connections to endpoints are encrypted; certificates
    /// are not verified, as without `proxy-ssl-verify` of nginx.
    pub backend_tls: bool,
    /// `upstream-vhost`: the host that endpoints see.
    pub host: Option<String>,
    /// `rewrite-target`: the path that endpoints see, with `$1` for groups of the rule's path.
    pub rewrite: Option<String>,
    /// `use-regex`: paths are regular expressions.
    pub use_regex: bool,
    /// `canary*`.
    pub canary: CanarySettings,
    /// `affinity`, `session-cookie-*`.
    pub sessions: Sessions,
    /// `auth-*`.
    pub auth: AuthSettings,
    /// `app-root`: where requests for `/` are redirected to.
    pub app_root: Option<String>,
    /// `server-alias`: further hosts of each rule with a host.
    pub aliases: Vec<String>,
    /// `default-backend`: a Service of the namespace for backends without endpoints.
    pub fallback: Option<String>,
    permanent: Option<HeaderValue>,
    permanent_status: Option<StatusCode>,
    temporal: Option<HeaderValue>,
    temporal_status: Option<StatusCode>,
    cors: CorsSettings,
}

/// Reads the annotations; what cannot be honoured is returned as sentences.
pub fn read(annotations: Option<&BTreeMap<String, String>>) -> (Settings, Vec<String>) {
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    for (key, value) in annotations.into_iter().flatten() {
        let own = key.strip_prefix(OWN).or_else(|| key.strip_prefix(NGINX));
        let outcome = match (own, key.strip_prefix(TRAEFIK)) {
            (Some(name), _) => settings.set(name, value.trim()),
            (None, Some(ENTRY_POINTS)) => settings.entry_points(value),
            (None, Some(ROUTER_TLS)) => settings.router_tls(value.trim()),
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
            "force-ssl-redirect" => self.https_only = Some(boolean(value)?),
            "ssl-redirect" => self.tls_redirect = Some(boolean(value)?),
            "proxy-body-size" => self.body_bytes_max = size(value)?,
            "whitelist-source-range" | "allowlist-source-range" => self.sources = ranges(value)?,
            "proxy-connect-timeout" => self.timeouts.connect = seconds(value)?,
            "proxy-read-timeout" => {
                let limit = Some(seconds(value)?);
                (self.timeouts.read, self.timeouts.pause) = (limit, limit);
            }
            "backend-protocol" => {
                (self.protocol, self.backend_tls) = match value.to_ascii_uppercase().as_str() {
                    "HTTP" => (Some(Protocol::Http1), false),
                    "HTTPS" => (Some(Protocol::Http1), true),
                    "GRPC" => (Some(Protocol::Http2), false),
                    "GRPCS" => (Some(Protocol::Http2), true),
                    _ => return Err(AnnotationError::Value(value.to_owned())),
                };
            }
            // Certificates of endpoints are not verified, as is nginx's default.
            "proxy-ssl-verify" if value == "off" => {}
            "proxy-ssl-verify" => return Err(AnnotationError::Value(value.to_owned())),
            "upstream-vhost" => self.host = Some(value.to_owned()),
            _ => return self.set_other(name, value),
        }
        Ok(())
    }

    /// Paths and redirects, and the groups of annotations that have a file of their own.
    fn set_other(&mut self, name: &str, value: &str) -> Result<(), AnnotationError> {
        match name {
            "rewrite-target" | "app-root" => {
                let is_path = value.starts_with('/') || value.starts_with('$');
                if !is_path || value.starts_with("$scheme") {
                    return Err(AnnotationError::Path(value.to_owned()));
                }
                let field = if name == "app-root" { &mut self.app_root } else { &mut self.rewrite };
                *field = Some(value.to_owned());
            }
            "use-regex" => self.use_regex = boolean(value)?,
            "permanent-redirect" => self.permanent = Some(location(value)?),
            "permanent-redirect-code" => self.permanent_status = Some(redirect_status(value)?),
            "temporal-redirect" => self.temporal = Some(location(value)?),
            "temporal-redirect-code" => self.temporal_status = Some(redirect_status(value)?),
            "server-alias" => {
                self.aliases = list(value).into_iter().map(str::to_owned).collect();
            }
            "default-backend" => self.fallback = Some(value.to_owned()),
            _ => {
                let done = self.canary.set(name, value);
                let done = done.or_else(|| self.sessions.set(name, value));
                let done = done.or_else(|| self.auth.set(name, value));
                let done = done.or_else(|| self.cors.set(name, value));
                return done.unwrap_or(Err(AnnotationError::Unknown));
            }
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

    /// `false` does not withdraw what the entry point says.
    fn router_tls(&mut self, value: &str) -> Result<(), AnnotationError> {
        if boolean(value)? {
            self.https_only = Some(true);
        }
        Ok(())
    }

    /// Whether requests over plain HTTP are redirected; `has_tls` is whether the Ingress has TLS.
    pub fn https_only(&self, has_tls: bool) -> bool {
        let by_tls = has_tls && self.tls_redirect.unwrap_or(false);
        self.https_only.unwrap_or(false) || by_tls
    }

    /// Where all requests are redirected to. The temporal redirect wins, as in ingress-nginx.
    pub fn redirect(&self) -> Option<(StatusCode, HeaderValue)> {
        let permanent = self.permanent_status.unwrap_or(StatusCode::MOVED_PERMANENTLY);
        let temporal = self.temporal_status.unwrap_or(StatusCode::FOUND);
        let first = self.temporal.clone().map(|location| (temporal, location));
        first.or_else(|| self.permanent.clone().map(|location| (permanent, location)))
    }

    /// The cross-origin requests that are allowed.
    pub fn cors(&self) -> Option<Cors> {
        self.cors.cors()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
            assert_eq!(settings.timeouts.read, Some(Duration::from_secs(120)));
            assert_eq!(settings.timeouts.pause, Some(Duration::from_secs(120)));
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
    fn routers_of_traefik_for_tls_alone_redirect() {
        let key = "traefik.ingress.kubernetes.io/router.entrypoints";
        for (value, https_only) in
            [("websecure", Some(true)), ("web", None), ("web, websecure", None)]
        {
            assert_eq!(read_all(&[(key, value)]).0.https_only, https_only, "{value}");
        }
        let key = "traefik.ingress.kubernetes.io/router.tls";
        assert_eq!(read_all(&[(key, "true")]).0.https_only, Some(true));
        assert_eq!(read_all(&[(key, "false")]).0.https_only, None);
        assert_eq!(read_all(&[(key, "yes")]).1.len(), 1);
    }
}
