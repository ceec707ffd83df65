//! Checks the S3 settings, which are flags or the keys of a Secret.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use super::error::SettingError;
use super::{BucketConfig, SecretReference, Settings};
use crate::command_line::{Lookup, S3Args};
use crate::error_catalogue::{BAD_VALUE, CommandError};
use client::proxy::{EnvironmentProxies, ProxyRules};

/// Default endpoint: the host of Amazon's service in its first region; every other region has
/// another host.
pub(super) const AMAZON: &str = "s3.amazonaws.com";
/// Default region.
pub(super) const REGION: &str = "us-east-1";
/// Default timeout of a request.
pub(super) const TIMEOUT: &str = "5m0s";

impl From<SettingError> for CommandError {
    fn from(error: SettingError) -> Self {
        BAD_VALUE.usage_error(error)
    }
}

/// Where settings come from.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// The command line, variables and the configuration file.
    Flags,
    /// The Secret with this name.
    Secret(String),
}

impl Origin {
    fn invalid(&self, name: &'static str, value: &str, why: impl Display) -> SettingError {
        let (value, why) = (value.to_owned(), why.to_string());
        match self {
            Self::Flags => SettingError::Flag { name, value, why },
            Self::Secret(secret) => SettingError::Key { secret: secret.clone(), name, value, why },
        }
    }

    fn missing(&self, name: &'static str, hint: &'static str) -> SettingError {
        match self {
            Self::Flags => SettingError::MissingFlag(hint),
            Self::Secret(secret) => SettingError::MissingKey { secret: secret.clone(), name },
        }
    }
}

/// Settings that are not checked yet.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) origin: Origin,
    pub(super) endpoint: String,
    pub(super) insecure: bool,
    pub(super) bucket: String,
    pub(super) lookup: Lookup,
    pub(super) region: String,
    pub(super) folder: String,
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) session_token: String,
    /// CA certificates in PEM; empty for those of the system.
    pub(super) ca: String,
    pub(super) unverified: bool,
    pub(super) timeout: String,
    pub(super) retention: usize,
    pub(super) proxy: String,
    pub(super) proxies: EnvironmentProxies,
}

impl Values {
    /// The URL of the service.
    fn endpoint_url(&self) -> Result<String, SettingError> {
        let endpoint = self.endpoint.trim().trim_end_matches('/');
        let wrong = |why: &str| self.origin.invalid("endpoint", &self.endpoint, why);
        let (scheme, host) = match endpoint.split_once("://") {
            None => (if self.insecure { "http" } else { "https" }, endpoint),
            Some(("https", host)) if !self.insecure => ("https", host),
            Some(("http", host)) if self.insecure => ("http", host),
            Some(("http", _)) => {
                return Err(wrong(match self.origin {
                    Origin::Flags => "is HTTP without TLS: add --etcd-s3-insecure",
                    Origin::Secret(_) => "is HTTP without TLS: set etcd-s3-insecure to true",
                }));
            }
            Some(("https", _)) => {
                return Err(wrong(match self.origin {
                    Origin::Flags => "is HTTPS: remove --etcd-s3-insecure",
                    Origin::Secret(_) => "is HTTPS: remove etcd-s3-insecure",
                }));
            }
            Some(_) => return Err(wrong("must be HOST, HOST:PORT or a URL of http or https")),
        };
        if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
            return Err(wrong("must be HOST, HOST:PORT or a URL of http or https"));
        }
        let host = match (host, self.region.as_str()) {
            (AMAZON, REGION) => AMAZON.to_owned(),
            (AMAZON, region) => format!("s3.{region}.amazonaws.com"),
            (host, _) => host.to_owned(),
        };
        Ok(format!("{scheme}://{host}"))
    }

    /// Checks that a value is valid in paths and hosts.
    fn check_plain(&self, name: &'static str, value: &str) -> Result<(), SettingError> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let segment = |s: &str| !s.is_empty() && s != "." && s != ".." && s.chars().all(good);
        if value.len() <= 512 && value.split('/').all(segment) {
            return Ok(());
        }
        let why = "must be letters, digits, '-', '_' and '.'; the parts of a folder are \
                   separated by '/'";
        Err(self.origin.invalid(name, value, why))
    }

    fn check_bucket(&self) -> Result<(), SettingError> {
        if self.bucket.is_empty() {
            return Err(self.origin.missing("bucket", "bucket"));
        }
        if self.bucket.contains('/') {
            let why = match self.origin {
                Origin::Flags => {
                    "is not the name of a bucket; use --etcd-s3-folder for a folder in it"
                }
                Origin::Secret(_) => {
                    "is not the name of a bucket; use etcd-s3-folder for a folder in it"
                }
            };
            return Err(self.origin.invalid("bucket", &self.bucket, why));
        }
        self.check_plain("bucket", &self.bucket)
    }

    fn check_credentials(&self) -> Result<(), SettingError> {
        if self.access_key.is_empty() {
            let hint =
                "access-key (or AWS_ACCESS_KEY_ID); roles of cloud machines are not supported";
            return Err(self.origin.missing("access-key", hint));
        }
        if self.secret_key.is_empty() {
            let hint = "secret-key (or AWS_SECRET_ACCESS_KEY)";
            return Err(self.origin.missing("secret-key", hint));
        }
        Ok(())
    }

    fn request_timeout(&self) -> Result<Duration, SettingError> {
        let wrong = |why: &dyn Display| self.origin.invalid("timeout", &self.timeout, why);
        let timeout = crate::command_line::duration(&self.timeout).map_err(|why| wrong(&why))?;
        if timeout < Duration::from_secs(1) {
            return Err(wrong(&"must be a second or more"));
        }
        Ok(timeout)
    }

    /// Checks the proxy, whose URL may contain a password.
    fn check_proxy(&self) -> Result<(), SettingError> {
        let rules = ProxyRules::new(&self.proxy, &self.proxies);
        rules.map(|_| ()).map_err(|why| self.origin.invalid("proxy", "***", why))
    }

    /// The settings of the bucket.
    ///
    /// # Errors
    /// The missing or invalid setting.
    pub(super) fn check(self) -> Result<Settings, SettingError> {
        let endpoint = self.endpoint_url()?;
        self.check_bucket()?;
        self.check_plain("region", &self.region)?;
        let folder = self.folder.trim_matches('/').to_owned();
        if !folder.is_empty() {
            self.check_plain("folder", &folder)?;
        }
        self.check_credentials()?;
        let timeout = self.request_timeout()?;
        self.check_proxy()?;
        // A wildcard certificate for buckets does not cover names with dots.
        let by_host = match self.lookup {
            Lookup::Dns => true,
            Lookup::Path => false,
            Lookup::Auto => {
                endpoint.ends_with(".amazonaws.com")
                    && (self.insecure || !self.bucket.contains('.'))
            }
        };
        Ok(Settings {
            endpoint,
            by_host,
            bucket: self.bucket,
            region: self.region,
            folder,
            access_key: self.access_key,
            secret_key: self.secret_key,
            session_token: self.session_token,
            ca: self.ca,
            unverified: self.unverified,
            timeout,
            retention: self.retention,
            proxy: self.proxy,
            proxies: self.proxies,
        })
    }
}

/// The CA certificates in PEM; empty for those of the system.
fn ca_certificates(path: Option<&Path>) -> Result<String, SettingError> {
    let Some(path) = path else { return Ok(String::new()) };
    let wrong =
        |why: &dyn Display| Origin::Flags.invalid("endpoint-ca", &path.display().to_string(), why);
    let text = base::fs::read_to_string(path).map_err(|e| wrong(&e))?;
    match base::pki::certificates(&text) {
        Ok(found) if !found.is_empty() => Ok(text),
        Ok(_) => Err(wrong(&"holds no certificate")),
        Err(why) => Err(wrong(&why)),
    }
}

fn text(secret: Option<&cluster::token::Secret>) -> String {
    secret.map(|secret| secret.reveal().to_owned()).unwrap_or_default()
}

/// Whether no flag describes the bucket, so that a Secret can. The retention does not count, as in
/// k3s.
fn is_undescribed(args: &S3Args) -> bool {
    let texts = [
        text(args.etcd_s3_access_key.as_ref()),
        text(args.etcd_s3_secret_key.as_ref()),
        text(args.etcd_s3_session_token.as_ref()),
        text(args.etcd_s3_proxy.as_ref()),
        args.etcd_s3_bucket.clone().unwrap_or_default(),
        args.etcd_s3_folder.clone().unwrap_or_default(),
    ];
    texts.iter().all(String::is_empty)
        && args.etcd_s3_endpoint == AMAZON
        && args.etcd_s3_endpoint_ca.is_none()
        && !args.etcd_s3_skip_ssl_verify
        && !args.etcd_s3_insecure
        && args.etcd_s3_bucket_lookup_type == Lookup::Auto
        && args.etcd_s3_region == REGION
        && crate::command_line::duration(&args.etcd_s3_timeout).ok()
            == crate::command_line::duration(TIMEOUT).ok()
}

/// The bucket of the flags; `None` without `--etcd-s3`.
///
/// # Errors
/// The missing or invalid flag.
pub(crate) fn from_args(args: &S3Args) -> Result<Option<BucketConfig>, CommandError> {
    if !args.etcd_s3 {
        return Ok(None);
    }
    if let Some(name) = args.etcd_s3_config_secret.as_ref().filter(|name| !name.is_empty()) {
        if is_undescribed(args) {
            return secret_reference(name, args).map(|of| Some(BucketConfig::Secret(of)));
        }
        tracing::warn!(
            secret = name,
            "snapshots: --etcd-s3-config-secret has no effect, because other flags or AWS_* \
             variables describe the bucket; remove them to use the Secret"
        );
    }
    let values = Values {
        origin: Origin::Flags,
        endpoint: args.etcd_s3_endpoint.clone(),
        insecure: args.etcd_s3_insecure,
        bucket: args.etcd_s3_bucket.clone().unwrap_or_default(),
        lookup: args.etcd_s3_bucket_lookup_type,
        region: args.etcd_s3_region.clone(),
        folder: args.etcd_s3_folder.clone().unwrap_or_default(),
        access_key: text(args.etcd_s3_access_key.as_ref()),
        secret_key: text(args.etcd_s3_secret_key.as_ref()),
        session_token: text(args.etcd_s3_session_token.as_ref()),
        ca: ca_certificates(args.etcd_s3_endpoint_ca.as_deref())?,
        unverified: args.etcd_s3_skip_ssl_verify,
        timeout: args.etcd_s3_timeout.clone(),
        retention: args.etcd_s3_retention,
        proxy: text(args.etcd_s3_proxy.as_ref()),
        proxies: args.proxies.clone(),
    };
    Ok(Some(BucketConfig::Settings(Box::new(values.check()?))))
}

fn secret_reference(name: &str, args: &S3Args) -> Result<SecretReference, CommandError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if name.len() > 253 || !name.chars().all(is_plain) {
        return Err(Origin::Flags
            .invalid("config-secret", name, "is not the name of a Secret")
            .into());
    }
    Ok(SecretReference {
        name: name.to_owned(),
        retention: args.etcd_s3_retention,
        proxies: args.proxies.clone(),
    })
}
