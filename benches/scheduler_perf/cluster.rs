//! Requests to the API server of the measured cluster.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::Value;

use crate::connection::{Sender, Target};

/// Requests at a time while objects are created; upstream's workers.
pub(crate) const WORKERS: usize = 30;
/// Objects of one page of a list.
const PAGE: usize = 500;
/// How long a creation is tried again: a kind may not be served yet. As upstream's `createAny`.
const CREATE_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two tries of it.
const CREATE_PAUSE: Duration = Duration::from_secs(1);

/// The API server, with connections that are kept alive.
pub(crate) struct Cluster {
    target: Target,
    idle: RefCell<Vec<Sender>>,
    resources: RefCell<BTreeMap<(String, String), Resource>>,
    /// Creations that were sent again.
    pub(crate) retries: Cell<u64>,
    /// What was sent in another version than the template's, and why.
    pub(crate) converted: RefCell<BTreeSet<String>>,
}

/// A kind as the API server serves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resource {
    /// The `apiVersion` in which it is served, which may be another than was asked for.
    version: String,
    prefix: String,
    plural: String,
    pub(crate) is_namespaced: bool,
}

/// The part of an object that this program reads of an answer.
#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    metadata: NamedMeta<'a>,
}

#[derive(Deserialize)]
struct NamedMeta<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ListPage {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Value>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Resource {
    /// The path of a collection; `namespace` for namespaced kinds.
    pub(crate) fn path(&self, namespace: Option<&str>) -> String {
        let (prefix, plural) = (&self.prefix, &self.plural);
        match namespace {
            Some(namespace) => format!("{prefix}/namespaces/{namespace}/{plural}"),
            None => format!("{prefix}/{plural}"),
        }
    }
}

/// The path of the pods of a namespace.
pub(crate) fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// The name of the object in an answer.
///
/// # Errors
///
/// The answer is no object.
pub(crate) fn name_of(body: &[u8]) -> anyhow::Result<String> {
    let named: Named<'_> = serde_json::from_slice(body).context("the answer is no object")?;
    Ok(named.metadata.name.into_owned())
}

/// The error of an answer, with what the server says.
pub(crate) fn refused(method: &Method, path: &str, status: u16, body: &[u8]) -> anyhow::Error {
    let text: String = String::from_utf8_lossy(body).chars().take(600).collect();
    anyhow::anyhow!("{method} {path}: status {status}: {text}")
}

impl Cluster {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            idle: RefCell::default(),
            resources: RefCell::default(),
            retries: Cell::new(0),
            converted: RefCell::default(),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request over an idle connection, or a new one.
    ///
    /// # Errors
    ///
    /// The connection breaks, or no answer comes in time.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(u16, Bytes)> {
        let mut sender = loop {
            let idle = self.idle.borrow_mut().pop();
            match idle {
                Some(sender) if sender.is_closed() => {}
                Some(sender) => break sender,
                None => break self.target.connect().await?,
            }
        };
        let answer = self.target.send(&mut sender, method, path, body).await;
        let answer = answer.with_context(|| path.to_owned())?;
        if self.idle.borrow().len() < 2 * WORKERS {
            self.idle.borrow_mut().push(sender);
        }
        Ok(answer)
    }

    /// Sends a request that must succeed.
    ///
    /// # Errors
    ///
    /// The server refuses it; the error has its answer.
    pub(crate) async fn must(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Bytes> {
        let (status, answer) = self.call(method.clone(), path, body).await?;
        if !(200..300).contains(&status) {
            return Err(refused(&method, path, status, &answer));
        }
        Ok(answer)
    }

    /// Creates an object, and tries again while the server is busy. Returns the answer.
    ///
    /// # Errors
    ///
    /// The server refuses it.
    pub(crate) async fn create(&self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let begin = Instant::now();
        loop {
            let (status, answer) = self.call(Method::POST, path, body.clone()).await?;
            let error = match status {
                200..300 => return Ok(answer),
                // Also a generated name that another object has.
                409 | 429 | 500.. => refused(&Method::POST, path, status, &answer),
                _ => return Err(refused(&Method::POST, path, status, &answer)),
            };
            if begin.elapsed() > CREATE_TIMEOUT {
                return Err(error);
            }
            self.retries.set(self.retries.get() + 1);
            tokio::time::sleep(CREATE_PAUSE / 10).await;
        }
    }

    /// Creates an object whose kind may not be served yet, or which waits for another, for up to
    /// 20 s. The server checks all fields.
    ///
    /// # Errors
    ///
    /// The server still refuses it then.
    pub(crate) async fn create_any(
        &self,
        object: &Value,
        namespace: Option<&str>,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let created = async {
                let path = self.path(object, namespace).await?;
                let path = format!("{path}?fieldValidation=Strict");
                let body = self.in_served_version(object).await?;
                self.must(Method::POST, &path, body).await
            };
            let Err(error) = created.await else { return Ok(()) };
            if begin.elapsed() + CREATE_PAUSE > CREATE_TIMEOUT {
                return Err(error);
            }
            self.retries.set(self.retries.get() + 1);
            tokio::time::sleep(CREATE_PAUSE).await;
        }
    }

    /// The path of the collection of an object's kind.
    ///
    /// # Errors
    ///
    /// The kind is not served; a namespace is missing, or given for a kind without.
    pub(crate) async fn path(
        &self,
        object: &Value,
        namespace: Option<&str>,
    ) -> anyhow::Result<String> {
        let resource = self.resource(object).await?;
        match (namespace, resource.is_namespaced) {
            (Some(name), false) => bail!("namespace {name} set for {}", resource.plural),
            (None, true) => bail!("namespace not set for {}", resource.plural),
            _ => Ok(resource.path(namespace)),
        }
    }

    /// How the kind of an object is served, by discovery.
    ///
    /// # Errors
    ///
    /// The object has no kind, or the server does not serve it.
    pub(crate) async fn resource(&self, object: &Value) -> anyhow::Result<Resource> {
        let field = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
        let (version, kind) = field("apiVersion").zip(field("kind")).context("no kind")?;
        let key = (version.clone(), kind.clone());
        if let Some(resource) = self.resources.borrow().get(&key) {
            return Ok(resource.clone());
        }
        let mut resource = self.discover(&version, &kind).await?;
        if resource.is_none() {
            if let Some(preferred) = self.preferred_version(&version).await? {
                resource = self.discover(&preferred, &kind).await?;
            }
        }
        let resource =
            resource.with_context(|| format!("the server does not serve {kind} in {version}"))?;
        self.resources.borrow_mut().insert(key, resource.clone());
        Ok(resource)
    }

    async fn discover(&self, version: &str, kind: &str) -> anyhow::Result<Option<Resource>> {
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let path = format!("{root}/{version}");
        let (status, list) = self.call(Method::GET, &path, Bytes::new()).await?;
        if status != 200 {
            return Ok(None);
        }
        Ok(find_resource(&serde_json::from_slice(&list)?, version, &path, kind))
    }

    /// The version of a group that the server prefers.
    async fn preferred_version(&self, version: &str) -> anyhow::Result<Option<String>> {
        let Some((group, _)) = version.split_once('/') else { return Ok(None) };
        let path = format!("/apis/{group}");
        let (status, group) = self.call(Method::GET, &path, Bytes::new()).await?;
        if status != 200 {
            return Ok(None);
        }
        let group: Value = serde_json::from_slice(&group)?;
        let preferred = group.pointer("/preferredVersion/groupVersion").and_then(Value::as_str);
        Ok(preferred.map(str::to_owned))
    }

    /// An object as JSON. Where the server serves only another version of the kind than the
    /// template has, it is sent in that one, which is noted: it must refuse unknown fields.
    async fn in_served_version(&self, object: &Value) -> anyhow::Result<Bytes> {
        let served = self.resource(object).await?.version;
        let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (field("apiVersion"), field("kind"));
        if version == served {
            return Ok(serde_json::to_vec(object)?.into());
        }
        let note = format!("{kind} was sent as {served}: the server does not serve {version}");
        self.converted.borrow_mut().insert(note);
        let mut object = object.clone();
        crate::template::set(&mut object, &["apiVersion"], served.into())?;
        Ok(serde_json::to_vec(&object)?.into())
    }

    /// All objects of a collection; `query` may select some.
    ///
    /// # Errors
    ///
    /// The server refuses the list.
    pub(crate) async fn list(&self, path: &str, query: &str) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{path}?limit={PAGE}{query}{next}");
            let page = self.must(Method::GET, &path, Bytes::new()).await?;
            let page: ListPage = serde_json::from_slice(&page)?;
            items.extend(page.items);
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(token) => next = format!("&continue={token}"),
                None => return Ok(items),
            }
        }
    }
}

fn find_resource(list: &Value, version: &str, prefix: &str, kind: &str) -> Option<Resource> {
    let resources = list.get("resources")?.as_array()?.iter();
    let mut found = resources.filter(|resource| {
        let name = resource.get("name").and_then(Value::as_str).unwrap_or("/");
        !name.contains('/') && resource.get("kind").is_some_and(|found| found == kind)
    });
    let found = found.next()?;
    Some(Resource {
        version: version.to_owned(),
        prefix: prefix.to_owned(),
        plural: found.get("name")?.as_str()?.to_owned(),
        is_namespaced: found.get("namespaced")?.as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_are_found_without_their_subresources() {
        let list = json!({"resources": [
            {"name": "pods/status", "kind": "Pod", "namespaced": true},
            {"name": "pods", "kind": "Pod", "namespaced": true},
            {"name": "nodes", "kind": "Node", "namespaced": false},
        ]});
        let pods = find_resource(&list, "v1", "/api/v1", "Pod").unwrap();
        assert_eq!(pods.path(Some("a")), "/api/v1/namespaces/a/pods");
        let nodes = find_resource(&list, "v1", "/api/v1", "Node").unwrap();
        assert_eq!((nodes.path(None).as_str(), nodes.is_namespaced), ("/api/v1/nodes", false));
        assert_eq!(find_resource(&list, "v1", "/api/v1", "Nope"), None);
    }

    #[test]
    fn name_is_that_of_the_metadata() {
        let body = br#"{"kind":"Pod","spec":{"name":"x"},"metadata":{"name":"a\u0062","uid":"1"}}"#;
        assert_eq!(name_of(body).unwrap(), "ab");
        assert!(name_of(b"[]").is_err());
    }
}
