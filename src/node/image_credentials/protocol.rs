//! The request to a credential provider plugin and its response
//! (`credentialprovider.kubelet.k8s.io`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::docker_config::DockerConfig;
use super::keyring::RegistryLogin;

/// The request to a plugin.
#[derive(Debug, Clone, Default)]
pub(super) struct PluginRequest {
    /// The image without tag and digest.
    pub(super) image: String,
    /// Empty for none.
    pub(super) token: String,
    /// The annotations of the service account that the configuration names.
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestBody<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

/// The request in the form of a version: one line.
pub(super) fn encode(version: &str, request: &PluginRequest) -> Vec<u8> {
    let body = RequestBody {
        kind: "CredentialProviderRequest",
        api_version: version,
        image: &request.image,
        service_account_token: &request.token,
        service_account_annotations: &request.annotations,
    };
    let json = serde_json::to_string(&body).unwrap_or_default();
    let mut line = api::field::escape_html(&json).into_bytes();
    line.push(b'\n');
    line
}

/// For what else a response is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
    /// Any other value.
    Invalid(String),
}

/// A response.
#[derive(Debug, Clone)]
pub(super) struct PluginResponse {
    pub(super) key_type: CacheKeyType,
    /// How long it is used; `None` for the default of the configuration.
    pub(super) lifetime: Option<Duration>,
    pub(super) logins: DockerConfig,
}

/// Why the output of a plugin is no response. The texts contain nothing of the output, which may
/// contain credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("error reading GVK from response: couldn't get version/kind; json parse error")]
    Json,
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, \
         actual apiVersion:{actual}"
    )]
    Version { expected: String, actual: String },
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
}

#[derive(Deserialize)]
struct TypeFields {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResponseBody {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: Option<String>,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, LoginBody>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginBody {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

/// Decodes the output of a plugin, which must have the version of the request.
pub(super) fn decode(version: &str, output: &[u8]) -> Result<PluginResponse, ResponseError> {
    let fields: TypeFields = serde_json::from_slice(output).map_err(|_| ResponseError::Json)?;
    if fields.api_version != version {
        let (expected, actual) = (version.to_owned(), fields.api_version);
        return Err(ResponseError::Version { expected, actual });
    }
    let body: ResponseBody = serde_json::from_slice(output).map_err(|_| ResponseError::Decode)?;
    if body.kind != "CredentialProviderResponse" {
        return Err(ResponseError::Decode);
    }
    let key_type = match body.cache_key_type.unwrap_or_default() {
        text if text == "Image" => CacheKeyType::Image,
        text if text == "Registry" => CacheKeyType::Registry,
        text if text == "Global" => CacheKeyType::Global,
        text => CacheKeyType::Invalid(text),
    };
    let lifetime = body.cache_duration.map(|text| {
        let nanos = api::codec::time::parse_duration(&text).map_err(|_| ResponseError::Decode)?;
        // A response with a negative duration has expired at once, as one with zero.
        Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))
    });
    let login = |(address, body): (String, LoginBody)| {
        let login = RegistryLogin {
            username: body.username.unwrap_or_default(),
            password: body.password.unwrap_or_default(),
            ..RegistryLogin::default()
        };
        (address, login)
    };
    let logins = body.auth.unwrap_or_default().into_iter().map(login).collect();
    Ok(PluginResponse { key_type, lifetime: lifetime.transpose()?, logins })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_one_line_of_json() {
        let mut request = PluginRequest { image: "r.io/a".to_owned(), ..PluginRequest::default() };
        let line = |request: &PluginRequest| {
            String::from_utf8(encode("credentialprovider.kubelet.k8s.io/v1", request)).unwrap()
        };
        let start = concat!(
            r#"{"kind":"CredentialProviderRequest","#,
            r#""apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"r.io/a""#
        );
        assert_eq!(line(&request), format!("{start}}}\n"));
        request.token = "t".to_owned();
        request.annotations.insert("k".to_owned(), "v".to_owned());
        let rest = r#","serviceAccountToken":"t","serviceAccountAnnotations":{"k":"v"}}"#;
        assert_eq!(line(&request), format!("{start}{rest}\n"));
    }

    #[test]
    fn responses_are_decoded_strictly() {
        let decode =
            |text: &str| super::decode("credentialprovider.kubelet.k8s.io/v1", text.as_bytes());
        let kind = r#""kind":"CredentialProviderResponse""#;
        let version = r#""apiVersion":"credentialprovider.kubelet.k8s.io/v1""#;
        let response = decode(&format!(
            r#"{{{kind},{version},"cacheKeyType":"Registry","cacheDuration":"1m0s",
            "auth":{{"r.io":{{"username":"u","password":"p"}}}}}}"#
        ))
        .unwrap();
        assert_eq!(response.key_type, CacheKeyType::Registry);
        assert_eq!(response.lifetime, Some(Duration::from_secs(60)));
        assert_eq!(response.logins["r.io"].password, "p");
        let response = decode(&format!("{{{kind},{version},\"auth\":null}}")).unwrap();
        assert_eq!(response.key_type, CacheKeyType::Invalid(String::new()));
        assert!(response.logins.is_empty() && response.lifetime.is_none());
        let error = decode(&format!("{{{kind},{version},\"secret\":1}}")).unwrap_err();
        assert_eq!(error, ResponseError::Decode);
        let error = decode(&format!("{{\"kind\":\"Other\",{version}}}")).unwrap_err();
        assert_eq!(error, ResponseError::Decode);
        let error = decode(&format!("{{{kind},\"apiVersion\":\"a/v1\"}}")).unwrap_err().to_string();
        assert!(error.ends_with("v1, actual apiVersion:a/v1"), "{error}");
        assert_eq!(decode("{").unwrap_err(), ResponseError::Json);
    }
}
