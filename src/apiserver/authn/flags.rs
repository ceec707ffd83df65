//! The authentication flags of the API server, with upstream's names and defaults
//! (`pkg/kubeapiserver/options/authentication.go`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use api::field::go_quote;

use super::configuration::{ClaimRule, Configuration, Issuer, Jwt, Mapping, Mappings};
use super::jwt::{Algorithm, AlgorithmError};

/// The algorithm that every OpenID provider supports (OpenID Connect Core 1.0, 3.1.3.7).
const DEFAULT_ALGORITHM: &str = "RS256";

const FLAGS: [&str; 15] = [
    "authentication-config",
    "anonymous-auth",
    "oidc-issuer-url",
    "oidc-client-id",
    "oidc-ca-file",
    "oidc-username-claim",
    "oidc-username-prefix",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-signing-algs",
    "oidc-required-claim",
    "api-audiences",
    "authentication-token-webhook-config-file",
    "authentication-token-webhook-version",
    "authentication-token-webhook-cache-ttl",
];

/// The default version of TokenReview for webhooks.
const WEBHOOK_VERSION: &str = "v1beta1";
/// The default TTL of cached webhook responses.
const WEBHOOK_CACHE_TTL: Duration = Duration::from_secs(120);

/// The parsed flags.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// The file with an AuthenticationConfiguration.
    pub config_file: Option<PathBuf>,
    /// Whether requests without credentials are anonymous; `None` without the flag.
    pub anonymous: Option<bool>,
    /// The issuer of the flags `oidc-…`.
    pub oidc: Option<Oidc>,
    /// The token webhook.
    pub webhook: Option<Webhook>,
}

/// The flags `authentication-token-webhook-…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The kubeconfig with the address of the webhook.
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    /// The TTL of cached responses; zero disables the cache.
    pub cache_ttl: Duration,
}

/// The flags `oidc-…`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Oidc {
    /// Issuer, client and mappings in the form of the configuration file, without certificates.
    pub jwt: Jwt,
    /// The file with the CA certificates of the issuer.
    pub ca_file: Option<PathBuf>,
    /// The signature algorithms that are accepted.
    pub algorithms: Vec<Algorithm>,
}

/// A flag has an invalid value or conflicts with another one.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// `api-audiences` is not supported.
    #[error("api-audiences is not supported: tokens of this cluster are for its own issuer alone")]
    ApiAudiences,
    /// Issuers are configured both in the file and by flags.
    #[error("authentication-config file and oidc-* flags are mutually exclusive")]
    FileWithOidc,
    /// The version of TokenReview is not supported.
    #[error(
        "unsupported authentication webhook version {}, supported versions are \"v1\", \"v1beta1\"",
        go_quote(.version)
    )]
    WebhookVersion {
        /// The version.
        version: String,
    },
    /// The TTL is not a duration.
    #[error("authentication-token-webhook-cache-ttl={value}: {reason}")]
    CacheTtl {
        /// The value of the flag.
        value: String,
        /// Go's message.
        reason: String,
    },
    /// The TTL is negative.
    #[error("authentication-token-webhook-cache-ttl={value}: must not be negative")]
    NegativeCacheTtl {
        /// The value of the flag.
        value: String,
    },
    /// The value of `anonymous-auth` is not a boolean.
    #[error("anonymous-auth={value}: is neither true nor false")]
    AnonymousAuth {
        /// The value of the flag.
        value: String,
    },
    /// The issuer or the client is missing.
    #[error(
        "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"
    )]
    IncompleteOidc,
    /// A required claim has no value.
    #[error("oidc-required-claim={value}: malformed pair, expect string=string")]
    RequiredClaim {
        /// The value of the flag.
        value: String,
    },
    /// A signature algorithm is not supported.
    #[error("oidc-signing-algs={value}: {source}")]
    SigningAlgorithm {
        /// The algorithm.
        value: String,
        /// The cause.
        source: AlgorithmError,
    },
}

/// Whether this is an authentication flag.
pub fn is_flag(name: &str) -> bool {
    FLAGS.contains(&name)
}

impl Settings {
    /// Parses `NAME=VALUE` arguments like the flags `--NAME` of upstream's API server; [`is_flag`]
    /// must be true for all of them.
    ///
    /// # Errors
    /// If a flag has an invalid value or conflicts with another flag.
    pub fn of(arguments: &[String]) -> Result<Self, FlagError> {
        let mut given: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for argument in arguments {
            let (name, value) = component_config::flags::parts(argument);
            let value = value.unwrap_or("true");
            given.entry(name).or_default().push(value);
        }
        if given.contains_key("api-audiences") {
            return Err(FlagError::ApiAudiences);
        }
        let last = |name: &str| {
            let value = given.get(name).and_then(|values| values.last()).copied();
            value.filter(|value| !value.is_empty())
        };
        let config_file = last("authentication-config").map(PathBuf::from);
        let anonymous = last("anonymous-auth").map(boolean).transpose()?;
        let is_oidc = given.keys().any(|name| name.starts_with("oidc-"));
        if is_oidc && config_file.is_some() {
            return Err(FlagError::FileWithOidc);
        }
        let oidc = if is_oidc { Some(oidc(&given, last)?) } else { None };
        let webhook = webhook(last)?;
        Ok(Self { config_file, anonymous, oidc, webhook })
    }
}

fn webhook<'a>(last: impl Fn(&str) -> Option<&'a str>) -> Result<Option<Webhook>, FlagError> {
    let name = |rest: &str| format!("authentication-token-webhook-{rest}");
    let version = last(&name("version")).unwrap_or(WEBHOOK_VERSION);
    if !["v1", "v1beta1"].contains(&version) {
        return Err(FlagError::WebhookVersion { version: version.to_owned() });
    }
    let cache_ttl = match last(&name("cache-ttl")) {
        None => WEBHOOK_CACHE_TTL,
        Some(text) => {
            let value = || text.to_owned();
            let nanos = api::codec::time::parse_duration(text)
                .map_err(|e| FlagError::CacheTtl { value: value(), reason: e.to_string() })?;
            let nanos =
                u64::try_from(nanos).map_err(|_| FlagError::NegativeCacheTtl { value: value() })?;
            Duration::from_nanos(nanos)
        }
    };
    Ok(last(&name("config-file")).map(|file| Webhook {
        config_file: PathBuf::from(file),
        version: version.to_owned(),
        cache_ttl,
    }))
}

fn boolean(text: &str) -> Result<bool, FlagError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(FlagError::AnonymousAuth { value: text.to_owned() }),
    }
}

fn oidc<'a>(
    given: &BTreeMap<&str, Vec<&'a str>>,
    last: impl Fn(&str) -> Option<&'a str>,
) -> Result<Oidc, FlagError> {
    let (Some(url), Some(client)) = (last("oidc-issuer-url"), last("oidc-client-id")) else {
        return Err(FlagError::IncompleteOidc);
    };
    let claim = last("oidc-username-claim").unwrap_or("sub");
    let prefix = match last("oidc-username-prefix") {
        Some("-") => String::new(),
        Some(prefix) => prefix.to_owned(),
        None if claim == "email" => String::new(),
        // A prefix keeps the user names of two issuers distinct (upstream's issue 31380).
        None => format!("{url}#"),
    };
    let mapping = |claim: &str, prefix: String| Mapping {
        claim: claim.to_owned(),
        prefix: Some(prefix),
        ..Mapping::default()
    };
    let groups = last("oidc-groups-claim")
        .map(|claim| mapping(claim, last("oidc-groups-prefix").unwrap_or_default().to_owned()));
    let mut required = BTreeMap::new();
    for pair in given.get("oidc-required-claim").into_iter().flatten() {
        let malformed = || FlagError::RequiredClaim { value: (*pair).to_owned() };
        let (name, value) = pair.split_once('=').ok_or_else(malformed)?;
        required.insert(name.trim(), value.trim());
    }
    let rules = required.into_iter().map(|(claim, value)| ClaimRule {
        claim: claim.to_owned(),
        required_value: value.to_owned(),
        ..ClaimRule::default()
    });
    let mut algorithms = Vec::new();
    let names = given.get("oidc-signing-algs").into_iter().flatten();
    for name in names.flat_map(|value| value.split(',')) {
        let value = || name.to_owned();
        let algorithm = Algorithm::of(name)
            .map_err(|source| FlagError::SigningAlgorithm { value: value(), source })?;
        algorithms.push(algorithm);
    }
    if algorithms.is_empty() {
        algorithms.extend(Algorithm::of(DEFAULT_ALGORITHM));
    }
    let jwt = Jwt {
        issuer: Issuer {
            url: url.to_owned(),
            audiences: vec![client.to_owned()],
            ..Issuer::default()
        },
        claim_rules: rules.collect(),
        mappings: Mappings {
            username: mapping(claim, prefix),
            groups: groups.unwrap_or_default(),
            ..Mappings::default()
        },
        user_rules: Vec::new(),
    };
    Ok(Oidc { jwt, ca_file: last("oidc-ca-file").map(PathBuf::from), algorithms })
}

impl Oidc {
    /// The equivalent configuration, with the content of the CA file.
    pub fn configuration(&self, certificates: Option<String>) -> Configuration {
        let mut jwt = self.jwt.clone();
        jwt.issuer.certificate_authority = certificates.unwrap_or_default();
        Configuration { jwt: vec![jwt], anonymous: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<Settings, FlagError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        Settings::of(&arguments)
    }

    #[test]
    fn oidc_flags_configure_one_issuer() {
        let both = ["oidc-issuer-url=https://i", "--oidc-client-id=c"];
        let oidc = of(&both).unwrap().oidc.unwrap();
        let username = &oidc.jwt.mappings.username;
        assert_eq!(
            (username.claim.as_str(), username.prefix.as_deref()),
            ("sub", Some("https://i#"))
        );
        assert_eq!(oidc.algorithms, [Algorithm::of("RS256").unwrap()]);
        assert_eq!(oidc.jwt.issuer.audiences, ["c"]);
        let more = [
            &both[..],
            &[
                "oidc-username-claim=email",
                "oidc-groups-claim=roles",
                "oidc-groups-prefix=g:",
                "oidc-required-claim=hd=example.com",
                "oidc-required-claim=a=b=c",
                "oidc-signing-algs=ES256,PS512",
                "oidc-ca-file=/ca",
            ],
        ]
        .concat();
        let oidc = of(&more).unwrap().oidc.unwrap();
        assert_eq!(oidc.jwt.mappings.username.prefix.as_deref(), Some(""));
        assert_eq!(oidc.jwt.mappings.groups.prefix.as_deref(), Some("g:"));
        let rules: Vec<(&str, &str)> = oidc
            .jwt
            .claim_rules
            .iter()
            .map(|r| (r.claim.as_str(), r.required_value.as_str()))
            .collect();
        assert_eq!(rules, [("a", "b=c"), ("hd", "example.com")]);
        assert_eq!((oidc.algorithms.len(), oidc.ca_file), (2, Some(PathBuf::from("/ca"))));
        let dash = of(&[&both[..], &["oidc-username-prefix=-"]].concat()).unwrap().oidc.unwrap();
        assert_eq!(dash.jwt.mappings.username.prefix.as_deref(), Some(""));
    }

    #[test]
    fn invalid_and_conflicting_flags_are_rejected() {
        for (arguments, want) in [
            (
                &["oidc-client-id=c"][..],
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set",
            ),
            (
                &["authentication-config=/f", "oidc-client-id=c"],
                "authentication-config file and oidc-* flags are mutually exclusive",
            ),
            (
                &["authentication-token-webhook-version=v2"],
                "unsupported authentication webhook version \"v2\", supported versions are \"v1\", \"v1beta1\"",
            ),
            (
                &["authentication-token-webhook-cache-ttl=-1s"],
                "authentication-token-webhook-cache-ttl=-1s: must not be negative",
            ),
            (&["anonymous-auth=maybe"], "anonymous-auth=maybe: is neither true nor false"),
            (
                &["oidc-issuer-url=https://i", "oidc-client-id=c", "oidc-signing-algs=HS256"],
                "oidc-signing-algs=HS256: oidc: unsupported signing alg: \"HS256\"",
            ),
            (
                &["oidc-issuer-url=https://i", "oidc-client-id=c", "oidc-required-claim=x"],
                "oidc-required-claim=x: malformed pair, expect string=string",
            ),
        ] {
            assert_eq!(of(arguments).unwrap_err().to_string(), want);
        }
        assert_eq!(of(&["audit-log-path=-"]).unwrap(), Settings::default());
        let webhook =
            of(&["authentication-token-webhook-config-file=/w"]).unwrap().webhook.unwrap();
        assert_eq!(
            (webhook.version.as_str(), webhook.cache_ttl),
            ("v1beta1", Duration::from_secs(120))
        );
        assert_eq!(of(&["anonymous-auth"]).unwrap().anonymous, Some(true));
    }
}
