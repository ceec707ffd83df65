//! Charts in OCI registries (`pkg/registry` of Helm).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use url::Url;

use super::credentials::Credentials;
use super::http::{Answer, Client, Get};
use super::repository::choose;
use super::{ARCHIVE_MAX, HttpError, Source};

/// The largest manifest, token or list of tags in bytes.
const DOCUMENT_MAX: usize = 4 << 20;
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
const CHART_LAYERS: [&str; 2] =
    ["application/vnd.cncf.helm.chart.content.v1.tar+gzip", "application/tar+gzip"];

/// The registry does not have the chart.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// Not a reference.
    #[error("{0:?} is not a reference to a chart in a registry: oci://HOST/PATH")]
    Reference(String),
    /// A request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The answer is not what the specification of registries says.
    #[error("registry {registry}: {reason}")]
    Answer {
        /// Host of the registry.
        registry: String,
        /// What is wrong.
        reason: String,
    },
    /// No version in the range.
    #[error("no version of oci://{name} satisfies {version:?}")]
    NoVersion {
        /// Host and path of the chart.
        name: String,
        /// The range.
        version: String,
    },
}

#[derive(Deserialize)]
struct Tags {
    #[serde(default)]
    tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DockerAuth {
    auth: String,
    username: String,
    password: String,
}

/// Hex of the SHA-256 digest.
pub(super) fn sha256(data: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, data);
    base::hex(digest.as_ref())
}

/// Pulls the chart `oci://HOST/PATH[:TAG|@DIGEST]`.
pub(super) async fn pull(
    client: &Client,
    reference: &str,
    source: &Source,
) -> Result<Bytes, OciError> {
    let bad = || OciError::Reference(reference.to_owned());
    let name = reference.strip_prefix("oci://").ok_or_else(bad)?;
    let (host, path) = name.split_once('/').ok_or_else(bad)?;
    let (path, fixed) = match path.split_once('@') {
        Some((path, digest)) => (path, Some(digest.to_owned())),
        None => match path.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag.to_owned())),
            None => (path, None),
        },
    };
    let registry = Registry {
        client,
        host,
        path,
        scheme: if source.plain_http { "http" } else { "https" },
        credentials: credentials(source, host),
    };
    let mut token = None;
    let tag = match fixed {
        Some(fixed) => fixed,
        None => registry.tag(&source.version, &mut token).await?,
    };
    let manifest = registry.read(&format!("manifests/{tag}"), DOCUMENT_MAX, &mut token).await?;
    if let Some(digest) = tag.strip_prefix("sha256:") {
        registry.verify(&manifest, digest)?;
    }
    let manifest: Manifest = registry.decode(&manifest)?;
    let is_chart = |layer: &&Layer| CHART_LAYERS.contains(&layer.media_type.as_str());
    let layer = manifest.layers.iter().find(is_chart);
    let layer = layer.ok_or_else(|| registry.wrong(&format!("{path}:{tag} is not a chart")))?;
    let digest = layer.digest.strip_prefix("sha256:");
    let digest = digest.ok_or_else(|| registry.wrong("the digest of the chart is not sha256"))?;
    let blob = registry.read(&format!("blobs/{}", layer.digest), ARCHIVE_MAX, &mut token).await?;
    registry.verify(&blob, digest)?;
    Ok(blob)
}

/// The credentials for a host: of the docker configuration, else those of `authSecret`.
fn credentials(source: &Source, host: &str) -> Option<Credentials> {
    let config = source.docker_config.as_deref();
    let config = config.and_then(|text| serde_json::from_slice::<DockerConfig>(text).ok());
    let hosts = [host.to_owned(), format!("https://{host}"), format!("https://{host}/v1/")];
    let entry = config.and_then(|mut c| hosts.iter().find_map(|host| c.auths.remove(host)));
    entry.and_then(docker_credentials).or_else(|| source.credentials.clone())
}

fn docker_credentials(entry: DockerAuth) -> Option<Credentials> {
    if !entry.username.is_empty() {
        return Some(Credentials { username: entry.username, password: entry.password });
    }
    let decoded = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, entry.auth).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (username, password) = decoded.split_once(':')?;
    Some(Credentials { username: username.to_owned(), password: password.to_owned() })
}

struct Registry<'a> {
    client: &'a Client,
    host: &'a str,
    path: &'a str,
    scheme: &'static str,
    credentials: Option<Credentials>,
}

impl Registry<'_> {
    fn wrong(&self, reason: &str) -> OciError {
        OciError::Answer { registry: self.host.to_owned(), reason: reason.to_owned() }
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, body: &[u8]) -> Result<T, OciError> {
        serde_json::from_slice(body).map_err(|e| self.wrong(&format!("unreadable answer: {e}")))
    }

    fn verify(&self, data: &[u8], digest: &str) -> Result<(), OciError> {
        if sha256(data).eq_ignore_ascii_case(digest) {
            return Ok(());
        }
        Err(self.wrong(&format!("content of {} differs from its digest", self.path)))
    }

    /// The tag of a version: a version itself, or the highest one in a range. Tags cannot have `+`,
    /// which charts write as `_`.
    async fn tag(&self, version: &str, token: &mut Option<String>) -> Result<String, OciError> {
        if crate::version::Version::parse(version).is_ok_and(|v| v.to_string() == version)
            && version.split('.').count() >= 3
        {
            return Ok(version.replace('+', "_"));
        }
        let tags: Tags = self.decode(&self.read("tags/list", DOCUMENT_MAX, token).await?)?;
        let versions: Vec<String> =
            tags.tags.unwrap_or_default().iter().map(|tag| tag.replace('_', "+")).collect();
        let missing = || OciError::NoVersion {
            name: format!("{}/{}", self.host, self.path),
            version: if version.is_empty() { "*".to_owned() } else { version.to_owned() },
        };
        let at = choose(versions.iter().map(String::as_str), version).ok_or_else(missing)?;
        versions.get(at).map(|version| version.replace('+', "_")).ok_or_else(missing)
    }

    /// Reads a document of the repository, with authentication if the registry asks for it.
    async fn read(
        &self,
        document: &str,
        limit: usize,
        token: &mut Option<String>,
    ) -> Result<Bytes, OciError> {
        let url = format!("{}://{}/v2/{}/{document}", self.scheme, self.host, self.path);
        let answer = self.ask(&url, limit, token.as_deref()).await?;
        if answer.status != http::StatusCode::UNAUTHORIZED {
            return Ok(answer.success()?);
        }
        *token = Some(self.authorize(&answer).await?);
        Ok(self.ask(&url, limit, token.as_deref()).await?.success()?)
    }

    async fn ask(
        &self,
        url: &str,
        limit: usize,
        authorization: Option<&str>,
    ) -> Result<Answer, HttpError> {
        let get = Get { authorization, accept: Some(MANIFESTS), ..Get::new(limit) };
        self.client.answer(url, &get).await
    }

    /// The value of `Authorization` that a challenge asks for.
    async fn authorize(&self, answer: &Answer) -> Result<String, OciError> {
        let challenge = answer.challenge().unwrap_or_default();
        let (kind, parameters) = challenge.split_once(' ').unwrap_or((challenge, ""));
        let hint = "set spec.dockerRegistrySecret or spec.authSecret";
        if kind.eq_ignore_ascii_case("basic") {
            let basic = self.credentials.as_ref().map(Credentials::basic);
            return basic.ok_or_else(|| self.wrong(&format!("credentials required; {hint}")));
        }
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(self.wrong(&format!("unsupported authentication {kind:?}")));
        }
        let parameters = parse_parameters(parameters);
        let realm = parameters.get("realm").map_or("", String::as_str);
        let mut url =
            Url::parse(realm).map_err(|_| self.wrong("the realm of its tokens is not a URL"))?;
        let scope = format!("repository:{}:pull", self.path);
        if let Some(service) = parameters.get("service") {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", parameters.get("scope").unwrap_or(&scope));
        let get = Get { auth: self.credentials.as_ref(), ..Get::new(DOCUMENT_MAX) };
        let token: Token = self.decode(&self.client.get(url.as_str(), &get).await?)?;
        let token = token.token.or(token.access_token);
        token.map(|t| format!("Bearer {t}")).ok_or_else(|| self.wrong("it issues no token"))
    }
}

/// `a="b",c="d"`.
fn parse_parameters(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let (value, tail) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        out.insert(name.trim_matches([' ', ',']).to_ascii_lowercase(), value.to_owned());
        rest = tail.trim_start_matches([' ', ',']);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let text = r#"realm="https://auth/token",service="r.io",scope="repository:a/b:pull,push""#;
        let parameters = parse_parameters(text);
        assert_eq!(parameters["realm"], "https://auth/token");
        assert_eq!(parameters["scope"], "repository:a/b:pull,push");
        assert_eq!(parameters.len(), 3);
    }

    #[test]
    fn docker_configurations_have_the_credentials_of_hosts() {
        let config = br#"{"auths": {"https://r.io/v1/": {"auth": "dTpw"},
            "q:1": {"username": "a", "password": "b"}}}"#;
        let source = Source { docker_config: Some(config.to_vec()), ..Source::default() };
        assert_eq!(credentials(&source, "r.io").unwrap().basic(), "Basic dTpw");
        assert_eq!(credentials(&source, "q:1").unwrap().username, "a");
        assert!(credentials(&source, "other").is_none());
    }
}
