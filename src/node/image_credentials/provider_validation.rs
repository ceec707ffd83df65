//! The rules for the configuration of credential providers, with the errors of upstream.

use std::collections::BTreeSet;

use api::codec::time::duration_text;
use api::field::{Error, ErrorList, Path, aggregate};
use api::validation::each;
use api::validation::names::qualified_name;

use super::keyring::RegistryAddress;
use super::provider_config::{PROTOCOL_V1, PROTOCOLS, ProviderConfig, TokenAttributes};

/// How long answers that were made from a token are used.
pub(super) const CACHE_PER_ACCOUNT: &str = "ServiceAccount";
/// See [`CACHE_PER_ACCOUNT`].
pub(super) const CACHE_PER_TOKEN: &str = "Token";

/// The errors of a configuration, each once.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate(.0))]
pub struct InvalidProviders(Vec<String>);

/// Checks all providers.
///
/// # Errors
/// What is invalid.
pub(super) fn validate(providers: &[ProviderConfig]) -> Result<(), InvalidProviders> {
    let path = Path::new("providers");
    let mut errors = ErrorList::new();
    if providers.is_empty() {
        errors.push(Error::required(&path, "at least 1 item in plugins is required"));
    }
    for provider in providers {
        name(provider, &path.child("name"), &mut errors);
        values(provider, &path, &mut errors);
        if let Some(attributes) = &provider.token_attributes {
            let path = path.child("tokenAttributes");
            tokens(attributes, provider, &path, &mut errors);
        }
    }
    let mut seen = BTreeSet::new();
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.retain(|text| seen.insert(text.clone()));
    if texts.is_empty() { Ok(()) } else { Err(InvalidProviders(texts)) }
}

fn name(provider: &ProviderConfig, path: &Path, errors: &mut ErrorList) {
    let name = provider.name.as_str();
    let mut invalid = |is_invalid: bool, why: &str| {
        if is_invalid {
            errors.push(Error::invalid(path, name, why));
        }
    };
    invalid(name.contains('/'), "provider name cannot contain '/'");
    invalid(name.contains(' '), "provider name cannot contain spaces");
    invalid(name == ".", "provider name cannot be '.'");
    invalid(name == "..", "provider name cannot be '..'");
    // Upstream accepts it, and then starts the directory of the plugins.
    if name.is_empty() {
        errors.push(Error::required(path, ""));
    }
}

fn values(provider: &ProviderConfig, path: &Path, errors: &mut ErrorList) {
    let version = path.child("apiVersion");
    if provider.api_version.is_empty() {
        errors.push(Error::required(&version, ""));
    } else if !PROTOCOLS.contains(&provider.api_version.as_str()) {
        errors.push(Error::not_supported(&version, provider.api_version.as_str(), &PROTOCOLS));
    }
    let images = path.child("matchImages");
    if provider.match_images.is_empty() {
        errors.push(Error::required(&images, "at least 1 item in matchImages is required"));
    }
    for image in &provider.match_images {
        if let Err(error) = RegistryAddress::parse(image) {
            let why = format!("match image is invalid: {error}");
            errors.push(Error::invalid(&images, image.as_str(), why));
        }
    }
    let duration = path.child("defaultCacheDuration");
    match provider.default_cache_duration {
        None => errors.push(Error::required(&duration, "")),
        Some(nanos) if nanos < 0 => errors.push(Error::invalid(
            &duration,
            duration_text(nanos),
            "must be greater than or equal to 0",
        )),
        Some(_) => {}
    }
}

fn tokens(
    attributes: &TokenAttributes,
    provider: &ProviderConfig,
    path: &Path,
    errors: &mut ErrorList,
) {
    if attributes.service_account_token_audience.is_empty() {
        errors.push(Error::required(&path.child("serviceAccountTokenAudience"), ""));
    }
    if attributes.require_service_account.is_none() {
        errors.push(Error::required(&path.child("requireServiceAccount"), ""));
    }
    if provider.api_version != PROTOCOL_V1 {
        let why = format!("tokenAttributes is only supported for {PROTOCOL_V1} API version");
        errors.push(Error::forbidden(path, why));
    }
    let required = &attributes.required_service_account_annotation_keys;
    let optional = &attributes.optional_service_account_annotation_keys;
    let required_path = path.child("requiredServiceAccountAnnotationKeys");
    if attributes.require_service_account == Some(false) && !required.is_empty() {
        let why = "requireServiceAccount cannot be false when \
                   requiredServiceAccountAnnotationKeys is set";
        errors.push(Error::forbidden(&required_path, why));
    }
    annotation_keys(required, &required_path, errors);
    annotation_keys(optional, &path.child("optionalServiceAccountAnnotationKeys"), errors);
    let both: BTreeSet<&str> =
        required.iter().filter(|key| optional.contains(key)).map(String::as_str).collect();
    if !both.is_empty() {
        let both: Vec<&str> = both.into_iter().collect();
        let why = "annotation keys cannot be both required and optional";
        errors.push(Error::invalid(path, both, why));
    }
    let cache = path.child("cacheType");
    let supported = [CACHE_PER_ACCOUNT, CACHE_PER_TOKEN];
    match attributes.cache_type.as_str() {
        "" => errors.push(Error::required(
            &cache,
            format!(
                "cacheType is required to be set when tokenAttributes is specified. Supported \
                 values are: {}",
                supported.join(", ")
            ),
        )),
        CACHE_PER_ACCOUNT | CACHE_PER_TOKEN => {}
        other => errors.push(Error::not_supported(&cache, other, &supported)),
    }
}

fn annotation_keys(keys: &[String], path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for key in keys {
        errors.extend(each(path, key.as_str(), qualified_name(&key.to_lowercase())));
        if !seen.insert(key) {
            errors.push(Error::duplicate(path, key.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(change: serde_json::Value) -> String {
        let mut provider = json!({
            "name": "a", "matchImages": ["r.io"], "defaultCacheDuration": "1m",
            "apiVersion": PROTOCOL_V1,
        });
        let fields = provider.as_object_mut().unwrap();
        fields.extend(change.as_object().unwrap().clone());
        let provider: ProviderConfig = serde_json::from_value(provider).unwrap();
        validate(&[provider]).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn values_of_providers_are_checked() {
        assert_eq!(check(json!({})), "");
        for (change, want) in [
            (
                json!({"name": "a/b"}),
                "providers.name: Invalid value: \"a/b\": provider name cannot contain '/'",
            ),
            (json!({"name": "a b"}), "provider name cannot contain spaces"),
            (json!({"name": "."}), "provider name cannot be '.'"),
            (json!({"name": ".."}), "provider name cannot be '..'"),
            (json!({"name": ""}), "providers.name: Required value"),
            (json!({"apiVersion": ""}), "providers.apiVersion: Required value"),
            (
                json!({"apiVersion": "v1"}),
                "providers.apiVersion: Unsupported value: \"v1\": supported values: \
                 \"credentialprovider.kubelet.k8s.io/v1\", \
                 \"credentialprovider.kubelet.k8s.io/v1alpha1\", \
                 \"credentialprovider.kubelet.k8s.io/v1beta1\"",
            ),
            (
                json!({"matchImages": []}),
                "providers.matchImages: Required value: at least 1 item in matchImages is required",
            ),
            (json!({"matchImages": ["%invalid%"]}), "match image is invalid: parse"),
            (
                json!({"defaultCacheDuration": null}),
                "providers.defaultCacheDuration: Required value",
            ),
            (
                json!({"defaultCacheDuration": "-1s"}),
                "providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or \
                 equal to 0",
            ),
        ] {
            assert!(
                check(change.clone()).starts_with(want) || check(change).contains(want),
                "{want}"
            );
        }
        let two = check(json!({"name": "a b", "matchImages": []}));
        assert!(two.starts_with("[providers.name: ") && two.ends_with(']'), "{two}");
    }

    #[test]
    fn token_attributes_are_checked() {
        let with = |change: serde_json::Value, version: &str| {
            let mut attributes = json!({
                "serviceAccountTokenAudience": "a", "requireServiceAccount": true,
                "cacheType": "Token", "requiredServiceAccountAnnotationKeys": ["a.io/Role"],
            });
            attributes.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            check(json!({"tokenAttributes": attributes, "apiVersion": version}))
        };
        assert_eq!(with(json!({}), PROTOCOL_V1), "");
        let path = "providers.tokenAttributes";
        for (change, want) in [
            (
                json!({"serviceAccountTokenAudience": ""}),
                ".serviceAccountTokenAudience: Required value",
            ),
            (json!({"requireServiceAccount": null}), ".requireServiceAccount: Required value"),
            (
                json!({"requireServiceAccount": false}),
                ".requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be \
                 false when requiredServiceAccountAnnotationKeys is set",
            ),
            (
                json!({"optionalServiceAccountAnnotationKeys": ["a.io/Role"]}),
                ": Invalid value: [\"a.io/Role\"]: annotation keys cannot be both required and \
                 optional",
            ),
            (
                json!({"optionalServiceAccountAnnotationKeys": ["x", "x"]}),
                ".optionalServiceAccountAnnotationKeys: Duplicate value: \"x\"",
            ),
            (
                json!({"optionalServiceAccountAnnotationKeys": ["-x"]}),
                ".optionalServiceAccountAnnotationKeys: Invalid value: \"-x\": name part must",
            ),
            (
                json!({"cacheType": ""}),
                ".cacheType: Required value: cacheType is required to be set when tokenAttributes \
                 is specified. Supported values are: ServiceAccount, Token",
            ),
            (
                json!({"cacheType": "x"}),
                ".cacheType: Unsupported value: \"x\": supported values: \"ServiceAccount\", \
                 \"Token\"",
            ),
        ] {
            let found = with(change, PROTOCOL_V1);
            assert!(found.starts_with(&format!("{path}{want}")), "{found}");
        }
        let beta = with(json!({}), "credentialprovider.kubelet.k8s.io/v1beta1");
        let want = "providers.tokenAttributes: Forbidden: tokenAttributes is only supported for \
                    credentialprovider.kubelet.k8s.io/v1 API version";
        assert_eq!(beta, want);
    }
}
