//! Parses the kubeconfig of a webhook of the server itself (audit, authentication, authorization):
//! endpoint and credentials.

use std::path::Path;
use std::sync::Arc;

use api::codec::DecodeError;
use api::field::go_quote;
use api::value::{bool_at, get, items, str_at};
use base::pki::Leaf;
use base::pki::reloadable_cert::{LiveCert, ReloadError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use serde_json::Value;

const CLUSTER_FIELDS: [&str; 6] = [
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
    "tls-server-name",
    "extensions",
];

const USER_FIELDS: [&str; 9] = [
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "token",
    "tokenFile",
    "username",
    "password",
    "extensions",
];

/// A kubeconfig is unusable. `field` is the path of the field, such as `users[NAME].user`.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The text is neither YAML nor JSON.
    #[error(transparent)]
    Syntax(#[from] DecodeError),
    #[error("current-context: Required value: must name one of the contexts")]
    NoCurrentContext,
    /// The current context, or the cluster or user that it names, does not exist.
    #[error("{list}: Not found: {}: the current context leads there", go_quote(.name))]
    NotFound { list: &'static str, name: String },
    /// The field would be ignored. `component` is the webhook that reads the kubeconfig.
    #[error("{field}: Forbidden: is not supported for {component}")]
    Unsupported { field: String, component: &'static str },
    #[error("{field}: Invalid value: {}: {reason}", go_quote(.server))]
    Server { field: String, server: String, reason: ServerError },
    #[error("{field}: {source}")]
    Base64 { field: String, source: base64::DecodeError },
    #[error("{field}: {source}")]
    File { field: String, source: std::io::Error },
    #[error("{field}: specifying a root certificates file with the insecure flag is not allowed")]
    InsecureWithCertificates { field: String },
    #[error("{field}: {source}")]
    ClientCertificate { field: String, source: ReloadError },
    #[error("{field}: client-certificate and client-key belong together")]
    HalfKeyPair { field: String },
    /// The credentials contain characters that are not allowed in a header.
    #[error("{field}: the token is nothing that a header can carry")]
    Credentials { field: String },
}

/// The URL of a cluster is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("must be a URL such as https://HOST:PORT/PATH")]
    Url,
    #[error("must begin with http:// or https://")]
    Scheme,
}

/// The endpoint of a webhook.
#[derive(Clone)]
pub struct WebhookEndpoint {
    /// The TLS configuration; `None` for plain HTTP.
    pub tls: Option<Trust>,
    pub host: String,
    pub port: u16,
    /// The `Host` header.
    pub authority: String,
    pub path: String,
    /// The `Authorization` header.
    pub credentials: Option<HeaderValue>,
}

/// The CA certificates of the endpoint, and the client certificate.
#[derive(Clone)]
pub struct Trust {
    pub bundle: Vec<u8>,
    pub unverified: bool,
    pub name: String,
    pub certificate: Option<Arc<LiveCert>>,
}

impl std::fmt::Debug for WebhookEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.url())
    }
}

impl WebhookEndpoint {
    /// The URL, without possible secrets.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Parses the current context of a kubeconfig. Relative paths are relative to `folder`; error
    /// messages name the `component` that reads it.
    ///
    /// # Errors
    /// The field that is missing, invalid or unsupported.
    pub fn of(
        text: &[u8],
        folder: &Path,
        component: &'static str,
    ) -> Result<Self, KubeconfigError> {
        let config = api::codec::yaml::parse(text)?;
        let current = str_at(&config, "current-context");
        if current.is_empty() {
            return Err(KubeconfigError::NoCurrentContext);
        }
        let context = entry(&config, "contexts", "context", current)?;
        let cluster = str_at(context, "cluster");
        let cluster_path = format!("clusters[{cluster}].cluster");
        let cluster = entry(&config, "clusters", "cluster", cluster)?;
        check_supported(cluster, &cluster_path, component, &CLUSTER_FIELDS)?;
        let user = str_at(context, "user");
        let user_path = format!("users[{user}].user");
        let user =
            if user.is_empty() { &Value::Null } else { entry(&config, "users", "user", user)? };
        check_supported(user, &user_path, component, &USER_FIELDS)?;
        let credentials = credentials(user, &user_path, folder)?;
        Self::with_cluster((cluster, &cluster_path), (user, &user_path), folder, credentials)
    }

    /// `cluster` and `user` are the values with their paths.
    fn with_cluster(
        (cluster, cluster_path): (&Value, &str),
        user: (&Value, &str),
        folder: &Path,
        credentials: Option<HeaderValue>,
    ) -> Result<Self, KubeconfigError> {
        let server = str_at(cluster, "server");
        let bad = |reason| KubeconfigError::Server {
            field: format!("{cluster_path}.server"),
            server: server.to_owned(),
            reason,
        };
        let uri: Uri = server.parse().map_err(|_| bad(ServerError::Url))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(bad(ServerError::Url));
        };
        let is_tls = *scheme == Scheme::HTTPS;
        if !is_tls && *scheme != Scheme::HTTP {
            return Err(bad(ServerError::Scheme));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls =
            if is_tls { Some(trust((cluster, cluster_path), user, folder, &host)?) } else { None };
        let path = match uri.path() {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { tls, host, port, authority: authority.to_string(), path, credentials })
    }
}

/// The object `member` of the entry of `list` with this name.
fn entry<'a>(
    config: &'a Value,
    list: &'static str,
    member: &str,
    name: &str,
) -> Result<&'a Value, KubeconfigError> {
    let found = items(config, list).iter().find(|entry| str_at(entry, "name") == name);
    let missing = || KubeconfigError::NotFound { list, name: name.to_owned() };
    found.map(|entry| get(entry, member)).filter(|value| value.is_object()).ok_or_else(missing)
}

/// Rejects fields that would be ignored.
fn check_supported(
    value: &Value,
    path: &str,
    component: &'static str,
    supported: &[&str],
) -> Result<(), KubeconfigError> {
    let mut keys = value.as_object().into_iter().flat_map(|map| map.keys());
    match keys.find(|key| !supported.contains(&key.as_str())) {
        Some(key) => {
            Err(KubeconfigError::Unsupported { field: format!("{path}.{key}"), component })
        }
        None => Ok(()),
    }
}

/// The content of `KEY-data`, or of the file that `KEY` names.
fn data(value: &Value, path: &str, key: &str, folder: &Path) -> Result<Vec<u8>, KubeconfigError> {
    let inline = str_at(value, &format!("{key}-data"));
    if !inline.is_empty() {
        let bad = |source| KubeconfigError::Base64 { field: format!("{path}.{key}-data"), source };
        return STANDARD.decode(inline).map_err(bad);
    }
    match str_at(value, key) {
        "" => Ok(Vec::new()),
        file => base::fs::read(&folder.join(file))
            .map_err(|source| KubeconfigError::File { field: format!("{path}.{key}"), source }),
    }
}

fn trust(
    (cluster, cluster_path): (&Value, &str),
    (user, user_path): (&Value, &str),
    folder: &Path,
    host: &str,
) -> Result<Trust, KubeconfigError> {
    let bundle = data(cluster, cluster_path, "certificate-authority", folder)?;
    let unverified = bool_at(cluster, "insecure-skip-tls-verify");
    if unverified && !bundle.is_empty() {
        return Err(KubeconfigError::InsecureWithCertificates { field: cluster_path.to_owned() });
    }
    let cert = data(user, user_path, "client-certificate", folder)?;
    let key = data(user, user_path, "client-key", folder)?;
    let certificate = match (cert.is_empty(), key.is_empty()) {
        (true, true) => None,
        (false, false) => {
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let leaf = Leaf { cert_pem: text(cert), key_pem: text(key).into(), not_after: 0 };
            let made = LiveCert::new(&leaf);
            Some(made.map_err(|source| {
                let field = format!("{user_path}.client-certificate");
                KubeconfigError::ClientCertificate { field, source }
            })?)
        }
        _ => return Err(KubeconfigError::HalfKeyPair { field: user_path.to_owned() }),
    };
    let name = match str_at(cluster, "tls-server-name") {
        "" => host.to_owned(),
        name => name.to_owned(),
    };
    Ok(Trust { bundle, unverified, name, certificate })
}

fn credentials(
    user: &Value,
    path: &str,
    folder: &Path,
) -> Result<Option<HeaderValue>, KubeconfigError> {
    let token = match (str_at(user, "tokenFile"), str_at(user, "token")) {
        ("", token) => token.to_owned(),
        (file, _) => {
            let read = base::fs::read_to_string(&folder.join(file));
            let field = || format!("{path}.tokenFile");
            read.map_err(|source| KubeconfigError::File { field: field(), source })?
                .trim()
                .to_owned()
        }
    };
    let (name, password) = (str_at(user, "username"), str_at(user, "password"));
    let text = if !token.is_empty() {
        format!("Bearer {token}")
    } else if !name.is_empty() {
        format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
    } else {
        return Ok(None);
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| KubeconfigError::Credentials { field: path.to_owned() })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\nclusters:\n- name: k\n  cluster: {cluster}\nusers:\n- name: u\n  user: {user}\n"
        )
    }

    fn of(cluster: &str, user: &str) -> Result<WebhookEndpoint, KubeconfigError> {
        WebhookEndpoint::of(
            config(cluster, user).as_bytes(),
            Path::new("/nowhere"),
            "the audit webhook",
        )
    }

    #[test]
    fn current_context_gives_endpoint_and_credentials() {
        let endpoint = of("{server: 'http://127.0.0.1:8080/audit'}", "{token: t}").unwrap();
        assert_eq!(endpoint.url(), "http://127.0.0.1:8080/audit");
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("127.0.0.1", 8080));
        assert_eq!(endpoint.credentials.as_ref().unwrap(), "Bearer t");
        assert!(!format!("{endpoint:?}").contains("Bearer"));
        let endpoint = of(
            "{server: 'https://[::1]', insecure-skip-tls-verify: true, tls-server-name: hook}",
            "{username: a, password: b}",
        )
        .unwrap();
        assert_eq!(
            (endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()),
            ("::1", 443, "/")
        );
        assert_eq!(endpoint.credentials.as_ref().unwrap(), "Basic YTpi");
        let trust = endpoint.tls.unwrap();
        assert_eq!((trust.name.as_str(), trust.unverified), ("hook", true));
    }

    #[test]
    fn errors_name_the_field() {
        let none = WebhookEndpoint::of(b"kind: Config", Path::new("/"), "x").unwrap_err();
        assert_eq!(
            none.to_string(),
            "current-context: Required value: must name one of the contexts"
        );
        for (cluster, user, want) in [
            (
                "{server: 'ftp://x'}",
                "{}",
                "clusters[k].cluster.server: Invalid value: \"ftp://x\": must begin with http:// or https://",
            ),
            (
                "{server: hook}",
                "{}",
                "clusters[k].cluster.server: Invalid value: \"hook\": must be a URL such as https://HOST:PORT/PATH",
            ),
            (
                "{server: 'https://x', proxy-url: 'http://p'}",
                "{}",
                "clusters[k].cluster.proxy-url: Forbidden: is not supported for the audit webhook",
            ),
            (
                "{server: 'https://x'}",
                "{exec: {}}",
                "users[u].user.exec: Forbidden: is not supported for the audit webhook",
            ),
            (
                "{server: 'https://x', certificate-authority-data: '!'}",
                "{}",
                "clusters[k].cluster.certificate-authority-data: Invalid symbol 33, offset 0.",
            ),
            (
                "{server: 'https://x', certificate-authority: ca.crt}",
                "{}",
                "clusters[k].cluster.certificate-authority: cannot read /nowhere/ca.crt: No such file or directory (os error 2)",
            ),
            (
                "{server: 'https://x'}",
                "{client-key-data: YQ==}",
                "users[u].user: client-certificate and client-key belong together",
            ),
        ] {
            assert_eq!(of(cluster, user).unwrap_err().to_string(), want, "{cluster} {user}");
        }
        let text = config("{server: 'https://x'}", "{}").replace("cluster: k,", "cluster: other,");
        assert_eq!(
            WebhookEndpoint::of(text.as_bytes(), Path::new("/"), "x").unwrap_err().to_string(),
            "clusters: Not found: \"other\": the current context leads there"
        );
    }
}
