//! The settings in `--kube-apiserver-arg` that are single values.

use std::time::Duration;

use base::pki::tls::Offer;

use crate::command_line::components::Arguments;
use crate::command_line::components::apiserver::APISERVER;
use crate::error_catalogue::CommandError;

/// Issuer of service account tokens (`--service-account-issuer` of upstream's examples and k3s).
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The longest lifetime of a token that upstream accepts, in seconds.
const TOKEN_SECONDS_MAX: u64 = 1 << 32;

/// Settings of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiServerSettings {
    /// Issuers of service account tokens: the first one issues, all are accepted.
    pub(crate) issuers: Vec<String>,
    /// The longest lifetime of these tokens, in seconds.
    pub(crate) token_seconds_max: Option<i64>,
    /// How long events are stored; `None` for upstream's default.
    pub(crate) event_ttl: Option<Duration>,
    /// The time limit of a request that is not long-running.
    pub(crate) request_timeout: Duration,
    /// Default tolerations of not-ready and unreachable nodes, in seconds.
    pub(crate) tolerations: (Option<i64>, Option<i64>),
    /// What the listener offers in TLS handshakes.
    pub(crate) offer: Offer,
    /// Arguments without effect, each with the reason.
    pub(crate) without_effect: Vec<String>,
}

impl ApiServerSettings {
    /// Checks the arguments.
    ///
    /// # Errors
    /// The first argument that is invalid or not supported, by name.
    pub(crate) fn parse(given: &[String]) -> Result<Self, CommandError> {
        let mut arguments = APISERVER.parse(given)?;
        let second = Duration::from_secs(1);
        let tolerations = (
            arguments.number("default-not-ready-toleration-seconds", 0..=i64::MAX)?,
            arguments.number("default-unreachable-toleration-seconds", 0..=i64::MAX)?,
        );
        let request_timeout = arguments.duration("request-timeout", second)?;
        Ok(Self {
            issuers: issuers(&arguments)?,
            token_seconds_max: token_seconds_max(&arguments)?,
            event_ttl: arguments.duration("event-ttl", second)?,
            request_timeout: request_timeout.unwrap_or(Duration::from_secs(60)),
            tolerations,
            offer: offer(&arguments)?,
            without_effect: std::mem::take(&mut arguments.without_effect),
        })
    }
}

/// Upstream's rules: each issuer is an URL, or a text without a colon, and none occurs twice.
fn issuers(arguments: &Arguments) -> Result<Vec<String>, CommandError> {
    const NAME: &str = "service-account-issuer";
    let given = arguments.values(NAME);
    for (at, issuer) in given.iter().enumerate() {
        if issuer.contains(':') && !issuer.contains("://") {
            return Err(arguments.invalid(NAME, "must be an URL, such as https://issuer.example"));
        }
        if given.iter().skip(at + 1).any(|later| later == issuer) {
            return Err(arguments.invalid(NAME, "is given twice"));
        }
    }
    Ok(if given.is_empty() { vec![ISSUER.to_owned()] } else { given.to_vec() })
}

fn token_seconds_max(arguments: &Arguments) -> Result<Option<i64>, CommandError> {
    const NAME: &str = "service-account-max-token-expiration";
    let Some(longest) = arguments.duration(NAME, Duration::ZERO)? else { return Ok(None) };
    if longest < Duration::from_secs(3600) || longest.as_secs() > TOKEN_SECONDS_MAX {
        let why = "must be between 1 hour and 2^32 seconds";
        return Err(arguments.invalid(NAME, why));
    }
    Ok(i64::try_from(longest.as_secs()).ok())
}

fn offer(arguments: &Arguments) -> Result<Offer, CommandError> {
    let is_13_only = match arguments.value("tls-min-version") {
        // Older versions are never served.
        None | Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(_) => {
            let why = "must be VersionTLS12 or VersionTLS13";
            return Err(arguments.invalid("tls-min-version", why));
        }
    };
    let list = arguments.value("tls-cipher-suites").unwrap_or_default();
    let suites: Vec<String> =
        list.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
    if let Some(bad) = suites.iter().find(|suite| !suite.starts_with("TLS_")) {
        let why = format!("Cipher suite {bad} not supported or doesn't exist");
        return Err(arguments.invalid("tls-cipher-suites", why));
    }
    Ok(Offer { is_13_only, suites })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> Result<ApiServerSettings, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        ApiServerSettings::parse(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_have_upstreams_defaults_and_form() {
        let default = parse(&[]).unwrap();
        assert_eq!(default.issuers, [ISSUER]);
        assert_eq!((default.event_ttl, default.request_timeout.as_secs()), (None, 60));
        let settings = parse(&[
            "service-account-issuer=https://a.example",
            "service-account-issuer=https://b.example",
            "event-ttl=24h",
            "request-timeout=2m",
            "default-not-ready-toleration-seconds=30",
            "service-account-max-token-expiration=2h",
            "tls-min-version=VersionTLS13",
            "profiling=false",
            "feature-gates=NodeSwap=true",
        ])
        .unwrap();
        assert_eq!(settings.issuers, ["https://a.example", "https://b.example"]);
        assert_eq!(settings.event_ttl, Some(Duration::from_secs(86400)));
        assert_eq!(
            (settings.tolerations, settings.token_seconds_max),
            ((Some(30), None), Some(7200))
        );
        assert!(settings.offer.is_13_only);
        assert_eq!(settings.without_effect.len(), 2, "{:?}", settings.without_effect);
    }

    #[test]
    fn invalid_settings_are_rejected_by_name() {
        for (given, want) in [
            ("service-account-issuer=a:b", "must be an URL"),
            ("service-account-max-token-expiration=1m", "between 1 hour and 2^32 seconds"),
            ("tls-min-version=VersionTLS9", "must be VersionTLS12 or VersionTLS13"),
            ("tls-cipher-suites=AES", "Cipher suite AES not supported"),
            ("event-ttl=never", "must be a duration"),
            ("runtime-config=api/all=true", "runtime-config is not supported"),
            ("default-unreachable-toleration-seconds=-1", "must be a number from 0"),
        ] {
            let error = parse(&[given]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
