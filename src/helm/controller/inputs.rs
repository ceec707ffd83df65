//! What determines a release: source, values and settings, and their hash.

use std::time::Duration;

use api::Gvr;
use client::Client;
use serde_json::Value;

use super::spec::{ChartSpec, ConfigSpec, Reference, SecretValues};
use crate::action::Settings;
use crate::chart::values_of;
use crate::fetch::{Credentials, Source};
use crate::values::set::{self, SetError};
use crate::values::{Values, merge};
use crate::yaml::YamlError;

/// k3s's default of `timeout`.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What the hash of inputs begins with, as in k3s.
pub(super) const HASH_PREFIX: &str = "SHA256=";

/// Inputs of a chart cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    #[error("{place} is not valid YAML of values: {cause}")]
    Values { place: String, cause: YamlError },
    #[error("spec.set {name:?} cannot be applied: {cause}")]
    Set { name: String, cause: SetError },
    #[error("{kind} {name:?} of {field} cannot be read: {cause}")]
    Reference { kind: &'static str, name: String, field: &'static str, cause: client::Error },
    #[error("{kind} {name:?} of {field} has no key {key:?}")]
    Key { kind: &'static str, name: String, field: &'static str, key: String },
    #[error("spec.{field} {value:?} is not supported: {reason}")]
    Unsupported { field: &'static str, value: String, reason: &'static str },
}

/// Everything that determines a release.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) source: Source,
    pub(super) values: Values,
    pub(super) settings: Settings,
    pub(super) failure_policy: String,
    /// `SHA256=` and the digest, as k3s writes it.
    pub(super) hash: String,
}

/// Reads the references of a chart.
pub(super) struct Reader<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
}

impl Reader<'_> {
    async fn object(
        &self,
        resource: (&'static str, &'static str),
        name: &str,
        field: &'static str,
    ) -> Result<Value, InputError> {
        let (kind, resource) = resource;
        let gvr = Gvr::new("", "v1", resource);
        self.client
            .get_value(&gvr, self.namespace, name)
            .await
            .map_err(|cause| InputError::Reference { kind, name: name.to_owned(), field, cause })
    }

    async fn secret_key(
        &self,
        name: &str,
        field: &'static str,
        key: &str,
    ) -> Result<Vec<u8>, InputError> {
        let secret = self.object(("Secret", "secrets"), name, field).await?;
        let missing = || InputError::Key {
            kind: "Secret",
            name: name.to_owned(),
            field,
            key: key.to_owned(),
        };
        let text = secret.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
        let text = text.ok_or_else(missing)?;
        base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text).map_err(|_| missing())
    }

    async fn credentials(
        &self,
        reference: &Option<Reference>,
    ) -> Result<Option<Credentials>, InputError> {
        let Some(reference) = reference else { return Ok(None) };
        let field = "spec.authSecret";
        let username = self.secret_key(&reference.name, field, "username").await?;
        let password = self.secret_key(&reference.name, field, "password").await?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (username, password) = (text(username), text(password));
        Ok(Some(Credentials { username, password }))
    }

    async fn ca(&self, spec: &ChartSpec) -> Result<String, InputError> {
        let mut ca = spec.repo_ca.clone();
        if let Some(reference) = &spec.repo_ca_config_map {
            let field = "spec.repoCAConfigMap";
            let map = self.object(("ConfigMap", "configmaps"), &reference.name, field).await?;
            for (_, text) in api::value::entries(&map, "data") {
                ca.push('\n');
                ca.push_str(text.as_str().unwrap_or_default());
            }
        }
        Ok(ca)
    }

    /// Merges the values of Secrets over `values`. A Secret with `ignoreUpdates` may be absent.
    async fn merge_secrets(
        &self,
        secrets: &[SecretValues],
        field: &'static str,
        with_ignored: bool,
        values: &mut Values,
    ) -> Result<(), InputError> {
        for secret in secrets.iter().filter(|secret| with_ignored || !secret.ignore_updates) {
            for key in &secret.keys {
                let text = match self.secret_key(&secret.name, field, key).await {
                    Ok(text) => text,
                    Err(InputError::Reference { cause, .. })
                        if secret.ignore_updates && cause.is_not_found() =>
                    {
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                merge_text(values, &text, || format!("key {key:?} of Secret {:?}", secret.name))?;
            }
        }
        Ok(())
    }

    /// The values of later places take precedence: valuesContent, values, valuesSecrets of the
    /// chart; the same of its HelmChartConfig; set.
    async fn values(
        &self,
        spec: &ChartSpec,
        config: Option<&ConfigSpec>,
        with_ignored: bool,
    ) -> Result<Values, InputError> {
        let mut values = Values::new();
        merge_text(&mut values, spec.values_content.as_bytes(), || {
            "spec.valuesContent of the HelmChart".into()
        })?;
        merge_value(&mut values, spec.values.as_ref());
        let field = "spec.valuesSecrets";
        self.merge_secrets(&spec.values_secrets, field, with_ignored, &mut values).await?;
        if let Some(config) = config {
            merge_text(&mut values, config.values_content.as_bytes(), || {
                "spec.valuesContent of the HelmChartConfig".into()
            })?;
            merge_value(&mut values, config.values.as_ref());
            let field = "spec.valuesSecrets of the HelmChartConfig";
            self.merge_secrets(&config.values_secrets, field, with_ignored, &mut values).await?;
        }
        apply_set(spec, &mut values)?;
        Ok(values)
    }

    /// All inputs of a chart. Their hash has references to Secrets with `ignoreUpdates`, but not
    /// the values of these, so that their changes alone are no reason for an upgrade.
    pub(super) async fn read(
        &self,
        name: &str,
        spec: &ChartSpec,
        config: Option<&ConfigSpec>,
    ) -> Result<Inputs, InputError> {
        let values = self.values(spec, config, true).await?;
        let ignored = ignored_secrets(spec, config);
        let hashed = match ignored.is_empty() {
            true => values.clone(),
            false => self.values(spec, config, false).await?,
        };
        let docker = match &spec.docker_registry_secret {
            Some(secret) => {
                let field = "spec.dockerRegistrySecret";
                Some(self.secret_key(&secret.name, field, ".dockerconfigjson").await?)
            }
            None => None,
        };
        let source = Source {
            chart: spec.chart.clone(),
            version: spec.version.clone(),
            repository: spec.repo.clone(),
            content: spec.chart_content.clone(),
            ca: self.ca(spec).await?,
            credentials: self.credentials(&spec.auth_secret).await?,
            pass_credentials: spec.auth_pass_credentials,
            docker_config: docker,
            insecure: spec.insecure_skip_tls_verify,
            plain_http: spec.plain_http,
        };
        let settings = settings(name, self.namespace, spec, config)?;
        let own = spec.failure_policy.as_str();
        let of_config = config.map_or("", |config| config.failure_policy.as_str());
        let failure_policy = [of_config, own, "reinstall"].into_iter().find(|p| !p.is_empty());
        let failure_policy = failure_policy.unwrap_or_default().to_owned();
        let hash = hash(&source, &hashed, &ignored, &settings, &failure_policy);
        Ok(Inputs { source, values, settings, failure_policy, hash })
    }
}

fn merge_text(
    values: &mut Values,
    text: &[u8],
    place: impl Fn() -> String,
) -> Result<(), InputError> {
    let more = values_of(text).map_err(|cause| InputError::Values { place: place(), cause })?;
    merge(values, more);
    Ok(())
}

fn merge_value(values: &mut Values, more: Option<&Value>) {
    if let Some(Value::Object(more)) = more {
        merge(values, more.clone());
    }
}

/// Applies `set`: integers, booleans and null as `--set`, other texts as `--set-string` after them.
fn apply_set(spec: &ChartSpec, values: &mut Values) -> Result<(), InputError> {
    for strings in [false, true] {
        for (name, value) in &spec.set {
            let (text, is_typed) = match value {
                Value::String(text) => {
                    let lower = text.to_ascii_lowercase();
                    (text.clone(), matches!(lower.as_str(), "true" | "false" | "null"))
                }
                other => (other.to_string(), true),
            };
            if is_typed == strings {
                continue;
            }
            let text = if strings { escape_commas(&text) } else { text };
            set::apply(&format!("{name}={text}"), strings, values)
                .map_err(|cause| InputError::Set { name: name.clone(), cause })?;
        }
    }
    Ok(())
}

/// Commas that are not escaped get a backslash.
fn escape_commas(text: &str) -> String {
    let (mut out, mut backslashes) = (String::with_capacity(text.len()), 0_usize);
    for c in text.chars() {
        if c == ',' && backslashes.is_multiple_of(2) {
            out.push('\\');
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        out.push(c);
    }
    out
}

fn settings(
    name: &str,
    namespace: &str,
    spec: &ChartSpec,
    config: Option<&ConfigSpec>,
) -> Result<Settings, InputError> {
    let unsupported = |field, value: &str, reason| {
        Err(InputError::Unsupported { field, value: value.to_owned(), reason })
    };
    let of_config = config.map_or("", |config| config.server_side.as_str());
    let server_side = if of_config.is_empty() { spec.server_side.as_str() } else { of_config };
    if server_side == "false" {
        return unsupported("serverSide", "false", "objects are always applied on the server side");
    }
    if spec.driver == "configmap" {
        return unsupported("driver", "configmap", "releases are recorded in Secrets");
    }
    let timeout = match &spec.timeout {
        None => TIMEOUT,
        Some(text) => match duration(text) {
            Some(timeout) => timeout,
            None => return unsupported("timeout", text, "write a duration such as 5m30s"),
        },
    };
    let target = &spec.target_namespace;
    Ok(Settings {
        name: name.to_owned(),
        namespace: if target.is_empty() { namespace.to_owned() } else { target.clone() },
        create_namespace: spec.create_namespace,
        timeout,
        take_ownership: spec.take_ownership,
        force_conflicts: config
            .and_then(|config| config.force_conflicts)
            .unwrap_or(spec.force_conflicts),
    })
}

/// A duration as Go writes it: `1h2m3.5s`.
fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (0.0_f64, text);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(end);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = after;
    }
    let is_empty = text.is_empty();
    (!is_empty).then(|| Duration::try_from_secs_f64(total).ok()).flatten()
}

/// The references to Secrets whose changes are not followed.
fn ignored_secrets<'a>(
    spec: &'a ChartSpec,
    config: Option<&'a ConfigSpec>,
) -> Vec<&'a SecretValues> {
    let of_config = config.into_iter().flat_map(|config| &config.values_secrets);
    let all = spec.values_secrets.iter().chain(of_config);
    all.filter(|secret| secret.ignore_updates).collect()
}

fn hash(
    source: &Source,
    values: &Values,
    ignored: &[&SecretValues],
    settings: &Settings,
    policy: &str,
) -> String {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    let credentials = source.credentials.as_ref();
    let flags = format!(
        "{} {} {} {} {} {} {:?}",
        source.pass_credentials,
        source.insecure,
        source.plain_http,
        settings.create_namespace,
        settings.take_ownership,
        settings.force_conflicts,
        settings.timeout,
    );
    let values = serde_json::to_string(values).unwrap_or_default();
    for part in [
        source.chart.as_str(),
        source.version.as_str(),
        source.repository.as_str(),
        source.content.as_str(),
        source.ca.as_str(),
        credentials.map_or("", |c| c.username.as_str()),
        credentials.map_or("", |c| c.password.as_str()),
        values.as_str(),
        settings.name.as_str(),
        settings.namespace.as_str(),
        policy,
        flags.as_str(),
    ] {
        digest.update(&part.len().to_le_bytes());
        digest.update(part.as_bytes());
    }
    for secret in ignored {
        digest.update(format!("{} {:?}", secret.name, secret.keys).as_bytes());
    }
    digest.update(source.docker_config.as_deref().unwrap_or_default());
    let hex = digest.finish().as_ref().iter().map(|b| format!("{b:02X}")).collect::<String>();
    format!("{HASH_PREFIX}{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn set_takes_precedence_and_has_types() {
        let spec: ChartSpec = serde_json::from_value(json!({
            "set": {"a": "x,y", "b": 2, "c": "true", "d.e": "3"},
        }))
        .unwrap();
        let mut values = json!({"a": 0, "b": 0}).as_object().unwrap().clone();
        apply_set(&spec, &mut values).unwrap();
        let want = json!({"a": "x,y", "b": 2, "c": true, "d": {"e": "3"}});
        assert_eq!(Value::from(values), want);
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, want) in [
            ("5m0s", Some(300.0)),
            ("1h2m3.5s", Some(3723.5)),
            ("250ms", Some(0.25)),
            ("5", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(duration(text).map(|d| d.as_secs_f64()), want, "{text}");
        }
    }

    #[test]
    fn settings_without_support_are_refused_by_name() {
        for (spec, want) in [
            (json!({"serverSide": "false"}), "spec.serverSide"),
            (json!({"driver": "configmap"}), "spec.driver"),
            (json!({"timeout": "soon"}), "spec.timeout"),
        ] {
            let spec: ChartSpec = serde_json::from_value(spec).unwrap();
            let error = settings("n", "ns", &spec, None).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
