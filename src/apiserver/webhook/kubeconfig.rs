//! Parses the kubeconfig of a webhook of the server itself (audit, authentication, authorization):
//! endpoint and credentials.

use std::path::Path;
use std::sync::Arc;

use api::field::go_quote;
use api::value::{bool_at, get, items, str_at};
use base::pki::Leaf;
use base::pki::reloadable_cert::LiveCert;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use serde_json::Value;

/// The endpoint of a webhook.
#[derive(Clone)]
pub(crate) struct Place {
    /// The TLS configuration; `None` for plain HTTP.
    pub(crate) tls: Option<Trust>,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The `Host` header.
    pub(crate) authority: String,
    pub(crate) path: String,
    /// The `Authorization` header.
    pub(crate) credentials: Option<HeaderValue>,
}

/// The CA certificates of the endpoint, and the client certificate.
#[derive(Clone)]
pub(crate) struct Trust {
    pub(crate) bundle: Vec<u8>,
    pub(crate) unverified: bool,
    pub(crate) name: String,
    pub(crate) certificate: Option<Arc<LiveCert>>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.url())
    }
}

impl Place {
    /// The URL, without possible secrets.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Parses the current context of a kubeconfig. Relative paths are relative to `folder`; error
    /// messages name the component `whom`.
    ///
    /// # Errors
    /// The field that is missing, invalid or unsupported.
    pub(crate) fn of(text: &[u8], folder: &Path, whom: &str) -> Result<Self, String> {
        let config = crate::serialization::any_yaml(text)?;
        let current = str_at(&config, "current-context");
        if current.is_empty() {
            return Err("current-context: Required value: must name one of the contexts".to_owned());
        }
        let context = entry(&config, "contexts", "context", current)?;
        let cluster = str_at(context, "cluster");
        let place = format!("clusters[{cluster}].cluster");
        let cluster = entry(&config, "clusters", "cluster", cluster)?;
        supported(
            cluster,
            &place,
            whom,
            &[
                "server",
                "certificate-authority",
                "certificate-authority-data",
                "insecure-skip-tls-verify",
                "tls-server-name",
                "extensions",
            ],
        )?;
        let user = str_at(context, "user");
        let who = format!("users[{user}].user");
        let user =
            if user.is_empty() { &Value::Null } else { entry(&config, "users", "user", user)? };
        supported(
            user,
            &who,
            whom,
            &[
                "client-certificate",
                "client-certificate-data",
                "client-key",
                "client-key-data",
                "token",
                "tokenFile",
                "username",
                "password",
                "extensions",
            ],
        )?;
        let credentials = credentials(user, &who, folder)?;
        Self::made(cluster, &place, folder, (user, &who), credentials)
    }

    fn made(
        cluster: &Value,
        place: &str,
        folder: &Path,
        (user, who): (&Value, &str),
        credentials: Option<HeaderValue>,
    ) -> Result<Self, String> {
        let server = str_at(cluster, "server");
        let bad = |why: &str| format!("{place}.server: Invalid value: {}: {why}", go_quote(server));
        let uri: Uri =
            server.parse().map_err(|_| bad("must be a URL such as https://HOST:PORT/PATH"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(bad("must be a URL such as https://HOST:PORT/PATH"));
        };
        let is_tls = *scheme == Scheme::HTTPS;
        if !is_tls && *scheme != Scheme::HTTP {
            return Err(bad("must begin with http:// or https://"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls =
            if is_tls { Some(trust(cluster, place, folder, (user, who), &host)?) } else { None };
        let path = match uri.path() {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { tls, host, port, authority: authority.to_string(), path, credentials })
    }
}

fn entry<'a>(config: &'a Value, list: &str, member: &str, name: &str) -> Result<&'a Value, String> {
    let found = items(config, list).iter().find(|entry| str_at(entry, "name") == name);
    found.map(|entry| get(entry, member)).filter(|value| value.is_object()).ok_or_else(|| {
        format!("{list}: Not found: {}: the current context leads there", go_quote(name))
    })
}

/// Rejects fields that would be ignored.
fn supported(value: &Value, place: &str, whom: &str, known: &[&str]) -> Result<(), String> {
    let unknown = value.as_object().into_iter().flat_map(|map| map.keys());
    match unknown.into_iter().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("{place}.{key}: Forbidden: is not supported for {whom}")),
        None => Ok(()),
    }
}

/// The content of `KEY-data`, or of the file that `KEY` names.
fn data(value: &Value, place: &str, key: &str, folder: &Path) -> Result<Vec<u8>, String> {
    let inline = str_at(value, &format!("{key}-data"));
    if !inline.is_empty() {
        return STANDARD.decode(inline).map_err(|e| format!("{place}.{key}-data: {e}"));
    }
    match str_at(value, key) {
        "" => Ok(Vec::new()),
        file => base::fs::read(&folder.join(file)).map_err(|e| format!("{place}.{key}: {e}")),
    }
}

fn trust(
    cluster: &Value,
    place: &str,
    folder: &Path,
    (user, who): (&Value, &str),
    host: &str,
) -> Result<Trust, String> {
    let bundle = data(cluster, place, "certificate-authority", folder)?;
    let unverified = bool_at(cluster, "insecure-skip-tls-verify");
    if unverified && !bundle.is_empty() {
        return Err(format!(
            "{place}: specifying a root certificates file with the insecure flag is not allowed"
        ));
    }
    let cert = data(user, who, "client-certificate", folder)?;
    let key = data(user, who, "client-key", folder)?;
    let certificate = match (cert.is_empty(), key.is_empty()) {
        (true, true) => None,
        (false, false) => {
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let leaf = Leaf { cert_pem: text(cert), key_pem: text(key).into(), not_after: 0 };
            let made = LiveCert::new(&leaf);
            Some(made.map_err(|e| format!("{who}.client-certificate: {e}"))?)
        }
        _ => return Err(format!("{who}: client-certificate and client-key belong together")),
    };
    let name = match str_at(cluster, "tls-server-name") {
        "" => host.to_owned(),
        name => name.to_owned(),
    };
    Ok(Trust { bundle, unverified, name, certificate })
}

fn credentials(user: &Value, who: &str, folder: &Path) -> Result<Option<HeaderValue>, String> {
    let token = match (str_at(user, "tokenFile"), str_at(user, "token")) {
        ("", token) => token.to_owned(),
        (file, _) => {
            let read = base::fs::read_to_string(&folder.join(file));
            read.map_err(|e| format!("{who}.tokenFile: {e}"))?.trim().to_owned()
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
        .map_err(|_| format!("{who}: the token is nothing that a header can carry"))?;
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

    fn of(cluster: &str, user: &str) -> Result<Place, String> {
        Place::of(config(cluster, user).as_bytes(), Path::new("/nowhere"), "the audit webhook")
    }

    #[test]
    fn a_place_is_read() {
        let place = of("{server: 'http://127.0.0.1:8080/audit'}", "{token: t}").unwrap();
        assert_eq!(place.url(), "http://127.0.0.1:8080/audit");
        assert_eq!((place.host.as_str(), place.port), ("127.0.0.1", 8080));
        assert_eq!(place.credentials.as_ref().unwrap(), "Bearer t");
        assert!(!format!("{place:?}").contains("Bearer"));
        let place = of(
            "{server: 'https://[::1]', insecure-skip-tls-verify: true, tls-server-name: hook}",
            "{username: a, password: b}",
        )
        .unwrap();
        assert_eq!((place.host.as_str(), place.port, place.path.as_str()), ("::1", 443, "/"));
        assert_eq!(place.credentials.as_ref().unwrap(), "Basic YTpi");
        let trust = place.tls.unwrap();
        assert_eq!((trust.name.as_str(), trust.unverified), ("hook", true));
    }

    #[test]
    fn faults_name_the_field() {
        let none = Place::of(b"kind: Config", Path::new("/"), "x").unwrap_err();
        assert_eq!(none, "current-context: Required value: must name one of the contexts");
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
            assert_eq!(of(cluster, user).unwrap_err(), want, "{cluster} {user}");
        }
        let text = config("{server: 'https://x'}", "{}").replace("cluster: k,", "cluster: other,");
        assert_eq!(
            Place::of(text.as_bytes(), Path::new("/"), "x").unwrap_err(),
            "clusters: Not found: \"other\": the current context leads there"
        );
    }
}
