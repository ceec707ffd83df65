//! The Secret of `--etcd-s3-config-secret`: its keys are the flags of S3. As in k3s it is read for
//! each operation, so that it may be created and changed while the server runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{ConfigMap, Secret};
use client::Client;

use super::error::{SecretError, SettingError};
use super::settings::{AMAZON, Origin, REGION, TIMEOUT, Values};
use super::{BucketConfig, SecretReference, Settings};
use crate::command_line::Lookup;

/// The namespace of the Secret and of the ConfigMap that it names.
const NAMESPACE: &str = "kube-system";

/// The values of a Secret or ConfigMap.
type Data = BTreeMap<String, Vec<u8>>;

/// Reads Secrets through the API server of this process.
#[derive(Clone)]
pub(crate) struct SecretReader(Arc<Client>);

impl SecretReader {
    /// Reads with this client.
    pub(crate) fn new(client: Client) -> Self {
        Self(Arc::new(client))
    }

    /// The settings in the Secret.
    ///
    /// # Errors
    /// The Secret does not exist, or a key is missing or invalid.
    pub(crate) async fn read(&self, secret: &SecretReference) -> Result<Settings, SecretError> {
        let found: Secret = self
            .0
            .get(NAMESPACE, &secret.name)
            .await
            .map_err(|source| SecretError::Unreadable { name: secret.name.clone(), source })?;
        let data: Data =
            found.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
        let authorities = match text(&data, "endpoint-ca-name") {
            name if name.is_empty() => Vec::new(),
            name => self.authorities(name).await?,
        };
        let mut warnings = Vec::new();
        let settings = settings(secret, &data, &authorities, &mut warnings)?;
        for warning in warnings {
            tracing::warn!(secret = secret.name, warning, "snapshots: ignored a key of the Secret");
        }
        Ok(settings)
    }

    /// All values of the ConfigMap.
    async fn authorities(&self, name: String) -> Result<Vec<String>, SecretError> {
        let read = self.0.get::<ConfigMap>(NAMESPACE, &name).await;
        let found = read.map_err(|source| SecretError::Authorities { name, source })?;
        let binary = found.binary_data.into_iter().flatten();
        let binary = binary.map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned());
        Ok(found.data.into_iter().flatten().map(|(_, value)| value).chain(binary).collect())
    }
}

/// The settings of a bucket; those in a Secret need a reader.
///
/// # Errors
/// The Secret cannot be used, or there is no reader.
pub(crate) async fn resolve(
    config: &BucketConfig,
    reader: Option<&SecretReader>,
) -> Result<Settings, SecretError> {
    match (config, reader) {
        (BucketConfig::Settings(settings), _) => Ok((**settings).clone()),
        (BucketConfig::Secret(secret), Some(reader)) => reader.read(secret).await,
        (BucketConfig::Secret(secret), None) => Err(SecretError::NeedsServer(secret.name.clone())),
    }
}

/// The text of `etcd-s3-<key>`; empty if it is missing.
fn text(data: &Data, key: &str) -> String {
    let value = data.get(&format!("etcd-s3-{key}"));
    value.map(|value| String::from_utf8_lossy(value).trim().to_owned()).unwrap_or_default()
}

/// A boolean as Go's `strconv.ParseBool` reads it.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The settings in the data of a Secret. As in k3s, a boolean, duration or number that cannot be
/// parsed has its default, with a warning.
fn settings(
    secret: &SecretReference,
    data: &Data,
    authorities: &[String],
    warnings: &mut Vec<String>,
) -> Result<Settings, SettingError> {
    let get = |key: &str| text(data, key);
    let or_default = |key: &str, default: &str| {
        Some(get(key)).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let mut warn = |key: &str, value: &str, wanted: &str, default: &str| {
        warnings.push(format!("etcd-s3-{key}={value}: is not {wanted}; {default} applies"));
    };
    let mut truth = |key: &str| {
        let value = get(key);
        boolean(&value).unwrap_or_else(|| {
            if !value.is_empty() {
                warn(key, &value, "true or false", "false");
            }
            false
        })
    };
    let (insecure, unverified) = (truth("insecure"), truth("skip-ssl-verify"));
    let mut timeout = or_default("timeout", TIMEOUT);
    if crate::command_line::duration(&timeout).is_err() {
        warn("timeout", &timeout, "a duration such as 5m", TIMEOUT);
        TIMEOUT.clone_into(&mut timeout);
    }
    let retention = match get("retention") {
        value if value.is_empty() => secret.retention,
        value => value.parse().unwrap_or_else(|_| {
            warn("retention", &value, "a number", "the flag etcd-s3-retention");
            secret.retention
        }),
    };
    let lookup = match get("bucket-lookup-type").to_lowercase().as_str() {
        "" | "auto" => Lookup::Auto,
        "dns" => Lookup::Dns,
        "path" => Lookup::Path,
        other => {
            warn("bucket-lookup-type", other, "auto, dns or path", "auto");
            Lookup::Auto
        }
    };
    let own = get("endpoint-ca");
    let bundles = authorities.iter().map(String::as_str).chain([own.as_str()]);
    let ca: Vec<&str> = bundles.filter(|bundle| !bundle.is_empty()).collect();
    let values = Values {
        origin: Origin::Secret(secret.name.clone()),
        endpoint: or_default("endpoint", AMAZON),
        insecure,
        bucket: get("bucket"),
        lookup,
        region: or_default("region", REGION),
        folder: get("folder"),
        access_key: get("access-key"),
        secret_key: get("secret-key"),
        session_token: get("session-token"),
        ca: ca.join("\n"),
        unverified,
        timeout,
        retention,
        proxy: get("proxy"),
        proxies: secret.proxies.clone(),
    };
    values.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::proxy::EnvironmentProxies;
    use std::time::Duration;

    fn reference() -> SecretReference {
        let proxies = EnvironmentProxies::default();
        SecretReference { name: "s3".to_owned(), retention: 7, proxies }
    }

    /// The settings in a Secret with these keys, and the warnings.
    fn read(keys: &[(&str, &str)]) -> (Result<Settings, SettingError>, Vec<String>) {
        let needed = [("bucket", "b"), ("access-key", "AKIDEXAMPLE"), ("secret-key", "wJalrXUtn")];
        let data = needed.iter().chain(keys);
        let data = data.map(|(key, value)| (format!("etcd-s3-{key}"), value.as_bytes().to_vec()));
        let mut warnings = Vec::new();
        let settings = settings(&reference(), &data.collect(), &[], &mut warnings);
        (settings, warnings)
    }

    #[test]
    fn the_keys_are_the_flags_of_s3() {
        let (settings, warnings) = read(&[]);
        let settings = settings.unwrap();
        assert_eq!(
            (settings.endpoint.as_str(), settings.by_host),
            ("https://s3.amazonaws.com", true)
        );
        assert_eq!((settings.timeout, settings.retention), (Duration::from_secs(300), 7));
        assert!(warnings.is_empty(), "{warnings:?}");
        // The example of k3s's documentation has empty values, and values end with a newline if a
        // file was their source.
        let (settings, warnings) = read(&[
            ("endpoint", ""),
            ("endpoint-ca", ""),
            ("endpoint-ca-name", ""),
            ("skip-ssl-verify", "false"),
            ("folder", "/folder/"),
            ("region", "eu-west-1\n"),
            ("insecure", "false"),
            ("timeout", "30s"),
            ("proxy", ""),
            ("retention", "2"),
            ("session-token", "token"),
            ("bucket-lookup-type", "path"),
        ]);
        let settings = settings.unwrap();
        assert_eq!(
            (settings.endpoint.as_str(), settings.by_host, settings.folder.as_str()),
            ("https://s3.eu-west-1.amazonaws.com", false, "folder")
        );
        assert_eq!((settings.timeout, settings.retention), (Duration::from_secs(30), 2));
        assert_eq!(settings.session_token, "token");
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn values_that_cannot_be_parsed_have_their_default() {
        let (settings, warnings) = read(&[
            ("skip-ssl-verify", "yes"),
            ("timeout", "soon"),
            ("retention", "few"),
            ("bucket-lookup-type", "host"),
        ]);
        let settings = settings.unwrap();
        assert!(!settings.unverified);
        assert_eq!((settings.timeout, settings.retention), (Duration::from_secs(300), 7));
        assert_eq!(
            warnings,
            [
                "etcd-s3-skip-ssl-verify=yes: is not true or false; false applies",
                "etcd-s3-timeout=soon: is not a duration such as 5m; 5m0s applies",
                "etcd-s3-retention=few: is not a number; the flag etcd-s3-retention applies",
                "etcd-s3-bucket-lookup-type=host: is not auto, dns or path; auto applies",
            ]
        );
    }

    #[test]
    fn missing_and_invalid_keys_are_named_without_secrets() {
        for (keys, want) in [
            (vec![("bucket", "")], "Secret kube-system/s3 has no key etcd-s3-bucket"),
            (vec![("secret-key", "")], "Secret kube-system/s3 has no key etcd-s3-secret-key"),
            (vec![("endpoint", "http://x")], "set etcd-s3-insecure to true"),
            (vec![("region", "a b")], "Secret kube-system/s3: etcd-s3-region=a b: must be letters"),
            (
                vec![("proxy", "socks5://me:wJalrXUtn@p")],
                "etcd-s3-proxy=***: socks5 proxies are not supported",
            ),
        ] {
            let error = read(&keys).0.unwrap_err().to_string();
            assert!(error.contains(want) && !error.contains("wJalrXUtn"), "{keys:?}: {error}");
        }
    }

    #[test]
    fn bundles_of_the_secret_and_the_config_map_are_trusted() {
        let data =
            [("endpoint-ca", "own"), ("bucket", "b"), ("access-key", "k"), ("secret-key", "s")]
                .map(|(key, value)| (format!("etcd-s3-{key}"), value.as_bytes().to_vec()));
        let authorities = ["first".to_owned(), "second".to_owned()];
        let settings = settings(&reference(), &data.into(), &authorities, &mut Vec::new()).unwrap();
        assert_eq!(settings.ca, "first\nsecond\nown");
    }

    #[tokio::test]
    async fn a_secret_needs_a_running_server() {
        let config = BucketConfig::Secret(reference());
        let error = resolve(&config, None).await.unwrap_err().to_string();
        assert!(error.contains("by a running server only; give the flags of S3"), "{error}");
    }
}
