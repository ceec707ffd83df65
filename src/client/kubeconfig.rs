//! Parses a kubeconfig file: address, CA and credentials of the current context.

use std::path::Path;

use base64::Engine;
use serde::Deserialize;
use serde_json::Value;

/// Replaces numbers by their text: names and tokens may be digits without quotes.
fn with_texts(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::String(number.to_string()),
        Value::Array(items) => items.into_iter().map(with_texts).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(key, value)| (key, with_texts(value))).collect())
        }
        other => other,
    }
}

/// Address and credentials of one user in one cluster.
#[derive(Debug, Clone, Default)]
pub struct Kubeconfig {
    /// `https://host:port`.
    pub server: String,
    /// PEM of the CAs that sign certificates of servers; if empty, no server is trusted unless
    /// `insecure` is set.
    pub ca: Vec<u8>,
    /// Whether to skip verification of the server's certificate (`insecure-skip-tls-verify`).
    pub insecure: bool,
    /// PEM of the client certificate; may be empty.
    pub certificate: Vec<u8>,
    /// PEM of the key of the client certificate; may be empty.
    pub key: Vec<u8>,
    /// Bearer token; may be empty.
    pub token: String,
}

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {path}: {why}")]
pub struct BadKubeconfig {
    path: String,
    why: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigFile {
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    current_context: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

impl Kubeconfig {
    /// Loads the current context of a file; relative paths in it are relative to the file.
    ///
    /// # Errors
    /// When the file is unreadable or not valid YAML, or context, cluster or user are missing.
    pub fn read(path: &Path) -> Result<Self, BadKubeconfig> {
        let bad = |why: String| BadKubeconfig { path: path.display().to_string(), why };
        let text = base::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        let document = api::codec::yaml::parse_names(&text).map_err(|e| bad(e.to_string()))?;
        let file: KubeconfigFile =
            serde_json::from_value(with_texts(document)).map_err(|e| bad(e.to_string()))?;
        let wanted = &file.current_context;
        let context = file
            .contexts
            .iter()
            .find(|c| c.name == *wanted)
            .ok_or_else(|| bad(format!("no context {wanted:?}")))?;
        let context = &context.context;
        let cluster = file
            .clusters
            .iter()
            .find(|c| c.name == context.cluster)
            .ok_or_else(|| bad(format!("no cluster {:?}", context.cluster)))?;
        let cluster = &cluster.cluster;
        let user = file
            .users
            .iter()
            .find(|u| u.name == context.user)
            .ok_or_else(|| bad(format!("no user {:?}", context.user)))?;
        let user = &user.user;
        let directory = path.parent().unwrap_or(Path::new("."));
        // The inline data takes precedence over the file, as in client-go.
        let data_or_file = |field: &str,
                            data: &Option<String>,
                            file: &Option<String>|
         -> Result<Vec<u8>, BadKubeconfig> {
            match (data, file) {
                (Some(data), _) => base64::engine::general_purpose::STANDARD
                    .decode(data.trim())
                    .map_err(|e| bad(format!("{field}-data: cannot decode base64: {e}"))),
                (None, Some(file)) => {
                    base::fs::read(&directory.join(file)).map_err(|e| bad(e.to_string()))
                }
                (None, None) => Ok(Vec::new()),
            }
        };
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => base::fs::read_to_string(&directory.join(file))
                .map_err(|e| bad(e.to_string()))?
                .trim()
                .to_owned(),
            (None, None) => String::new(),
        };
        Ok(Self {
            server: cluster.server.clone(),
            ca: data_or_file(
                "certificate-authority",
                &cluster.certificate_authority_data,
                &cluster.certificate_authority,
            )?,
            insecure: cluster.insecure_skip_tls_verify,
            certificate: data_or_file(
                "client-certificate",
                &user.client_certificate_data,
                &user.client_certificate,
            )?,
            key: data_or_file("client-key", &user.client_key_data, &user.client_key)?,
            token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_is_loaded_and_a_missing_one_is_an_error_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(directory.path().join("ca.crt"), "PEM").unwrap();
        let text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://h:1', certificate-authority: ca.crt}}]\n\
                    users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: ";
        std::fs::write(&path, format!("{text}x\n")).unwrap();
        let config = Kubeconfig::read(&path).unwrap();
        assert_eq!(
            (config.server.as_str(), config.ca.as_slice(), config.token.as_str()),
            ("https://h:1", &b"PEM"[..], "t")
        );
        std::fs::write(&path, format!("{text}y\n")).unwrap();
        assert!(Kubeconfig::read(&path).unwrap_err().to_string().ends_with("no context \"y\""));
    }
}
