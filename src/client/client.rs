//! Typed reads and writes under one identity.

use std::fmt::Write as _;
use std::sync::Arc;

use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use api::{Gvr, Status, Typed};
use bytes::Bytes;
use http::{Method, Request};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::transport::Transport;
use crate::unexpected;
use crate::{Error, Scope};

/// A built-in kind with object metadata, such as `api::k8s::api::core::v1::Pod`.
pub trait Kind:
    api::k8s::Resource + api::k8s::Metadata<Ty = ObjectMeta> + Typed + Clone + Send + Sync + 'static
{
}

impl<T> Kind for T where
    T: api::k8s::Resource
        + api::k8s::Metadata<Ty = ObjectMeta>
        + Typed
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The resource of a built-in kind.
pub fn gvr_of<K: api::k8s::Resource>() -> Gvr {
    Gvr::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)
}

/// A change to one object.
#[derive(Debug, Clone)]
pub enum Patch<'a> {
    /// RFC 6902; a list of operations.
    Json(&'a Value),
    /// RFC 7386.
    Merge(&'a Value),
    /// Strategic merge.
    Strategic(&'a Value),
    /// Server-side apply.
    Apply {
        /// The fields that the manager applies.
        object: &'a Value,
        /// Name of the manager.
        manager: &'a str,
        /// Whether to take over fields of other managers.
        force: bool,
    },
}

/// What happens to dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents are deleted later.
    Background,
    /// Dependents are deleted first.
    Foreground,
    /// Dependents are kept.
    Orphan,
}

/// Options of a deletion.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Grace period in seconds; `None` is the object's own.
    pub grace_period_seconds: Option<i64>,
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only this resource version.
    pub resource_version: Option<String>,
    /// Propagation to dependents.
    pub propagation: Option<Propagation>,
}

impl DeleteOptions {
    /// Only the object with this uid.
    pub fn with_uid(uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), ..Self::default() }
    }

    fn body(&self) -> Value {
        let mut body = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_period_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(uid) = &self.uid {
            body["preconditions"]["uid"] = uid.as_str().into();
        }
        if let Some(version) = &self.resource_version {
            body["preconditions"]["resourceVersion"] = version.as_str().into();
        }
        if let Some(propagation) = self.propagation {
            body["propagationPolicy"] = format!("{propagation:?}").into();
        }
        body
    }
}

/// Options of a list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions<'a> {
    /// Label selector.
    pub labels: &'a str,
    /// Field selector.
    pub fields: &'a str,
}

impl ListOptions<'_> {
    fn query(&self) -> String {
        query(&[("labelSelector", self.labels), ("fieldSelector", self.fields)])
    }
}

/// A list whose items are decoded by the code of their kind.
#[derive(Deserialize)]
struct Items<'a> {
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// A client: cheap to clone, bound to the identity of its transport.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: Arc<str>,
}

impl Client {
    /// Creates a client with this `user_agent`, which is also the default field manager.
    pub fn new(transport: Arc<dyn Transport>, user_agent: &str) -> Self {
        Self { transport, user_agent: user_agent.into() }
    }

    /// The transport, for watches.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Path of a resource or object: `/apis/apps/v1/namespaces/a/deployments/b/status`. Empty parts
    /// are left out.
    pub fn path(gvr: &Gvr, namespace: &str, name: &str, subresource: &str) -> String {
        let mut path = if gvr.group.is_empty() {
            format!("/api/{}", gvr.version)
        } else {
            format!("/apis/{}/{}", gvr.group, gvr.version)
        };
        if !namespace.is_empty() {
            let _ = write!(path, "/namespaces/{namespace}");
        }
        let _ = write!(path, "/{}", gvr.resource);
        for part in [name, subresource] {
            if !part.is_empty() {
                let _ = write!(path, "/{part}");
            }
        }
        path
    }

    /// Sends a request with a JSON body; a status code of 400 or more becomes [`Error::Api`].
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        self.send(method, path, "application/json", content_type, body).await
    }

    /// Reads a path in the representation of the media type `accept`, such as aggregated discovery.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn get_as(&self, path: &str, accept: &str) -> Result<Bytes, Error> {
        self.send(Method::GET, path, accept, "application/json", Bytes::new()).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let request = Request::builder()
            .method(&method)
            .uri(path)
            .header("accept", accept)
            .header("content-type", content_type)
            .header("user-agent", &*self.user_agent)
            .body(body)
            .map_err(|e| Error::Decode(e.to_string()))?;
        let response = self.transport.call(request).await?;
        let code = response.status().as_u16();
        let body = response.into_body();
        if code < 400 {
            return Ok(body);
        }
        let status = serde_json::from_slice::<Status>(&body).ok().filter(|s| s.kind == "Status");
        Err(status.unwrap_or_else(|| unexpected::status(code, &method, path, &body)).into())
    }

    async fn json(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, Error> {
        self.request(method, path, "application/json", body.into()).await
    }

    /// Reads an object.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn get<K: Kind>(&self, namespace: &str, name: &str) -> Result<K, Error> {
        let path = Self::path(&gvr_of::<K>(), namespace, name, "");
        Ok(K::from_json(
            &self.request(Method::GET, &path, "application/json", Bytes::new()).await?,
        )?)
    }

    /// Reads an object of any kind.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn get_value(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Value, Error> {
        let path = Self::path(gvr, namespace, name, "");
        Ok(serde_json::from_slice(
            &self.request(Method::GET, &path, "application/json", Bytes::new()).await?,
        )?)
    }

    /// Lists objects from the server; an empty namespace means all. For repeated reads use
    /// informers.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn list<K: Kind>(
        &self,
        namespace: &str,
        options: &ListOptions<'_>,
    ) -> Result<Vec<K>, Error> {
        let body = self.listed(&gvr_of::<K>(), namespace, options).await?;
        let list: Items<'_> = serde_json::from_slice(&body)?;
        let items = list.items.unwrap_or_default().into_iter();
        items.map(|item| K::from_json(item.get().as_bytes()).map_err(Error::from)).collect()
    }

    /// Lists objects of any kind.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn list_values(
        &self,
        gvr: &Gvr,
        namespace: &str,
        options: &ListOptions<'_>,
    ) -> Result<Vec<Value>, Error> {
        let body = self.listed(gvr, namespace, options).await?;
        let mut list: Value = serde_json::from_slice(&body)?;
        match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    async fn listed(
        &self,
        gvr: &Gvr,
        namespace: &str,
        options: &ListOptions<'_>,
    ) -> Result<Bytes, Error> {
        let mut path = Self::path(gvr, namespace, "", "");
        path.push_str(&options.query());
        self.request(Method::GET, &path, "application/json", Bytes::new()).await
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn create<K: Kind>(&self, namespace: &str, object: &K) -> Result<K, Error> {
        let path = Self::path(&gvr_of::<K>(), namespace, "", "");
        Ok(K::from_json(&self.json(Method::POST, &path, object.to_json()?).await?)?)
    }

    /// Posts a body of any type to any resource or subresource (`binding`, `eviction`, `token`,
    /// reviews).
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn post_value(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &Value,
    ) -> Result<Value, Error> {
        let path = Self::path(gvr, namespace, name, subresource);
        Ok(serde_json::from_slice(
            &self.json(Method::POST, &path, serde_json::to_vec(body)?).await?,
        )?)
    }

    /// Replaces an object. Typed structs drop unknown fields: patch objects of other owners
    /// instead.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn update<K: Kind>(&self, object: &K) -> Result<K, Error> {
        self.put(object, "").await
    }

    /// Replaces an object's status.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn update_status<K: Kind>(&self, object: &K) -> Result<K, Error> {
        self.put(object, "status").await
    }

    async fn put<K: Kind>(&self, object: &K, subresource: &str) -> Result<K, Error> {
        let meta = object.metadata();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let path = Self::path(
            &gvr_of::<K>(),
            namespace,
            meta.name.as_deref().unwrap_or_default(),
            subresource,
        );
        Ok(K::from_json(&self.json(Method::PUT, &path, object.to_json()?).await?)?)
    }

    /// Patches an object or one of its subresources.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn patch<K: Kind>(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: &Patch<'_>,
    ) -> Result<K, Error> {
        let answer = self.patched(&gvr_of::<K>(), namespace, name, subresource, patch).await?;
        Ok(K::from_json(&answer)?)
    }

    /// Patches an object of any kind.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn patch_value(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: &Patch<'_>,
    ) -> Result<Value, Error> {
        let answer = self.patched(gvr, namespace, name, subresource, patch).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn patched(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: &Patch<'_>,
    ) -> Result<Bytes, Error> {
        let mut path = Self::path(gvr, namespace, name, subresource);
        let (content_type, body) = match patch {
            Patch::Json(value) => ("application/json-patch+json", value),
            Patch::Merge(value) => ("application/merge-patch+json", value),
            Patch::Strategic(value) => ("application/strategic-merge-patch+json", value),
            Patch::Apply { object, manager, force } => {
                path.push_str(&query(&[
                    ("fieldManager", manager),
                    ("force", if *force { "true" } else { "" }),
                ]));
                ("application/apply-patch+yaml", object)
            }
        };
        self.request(Method::PATCH, &path, content_type, serde_json::to_vec(body)?.into()).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// The server's refusal (`NotFound` included) or the transport's failure.
    pub async fn delete<K: Kind>(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        self.delete_gvr(&gvr_of::<K>(), namespace, name, options).await
    }

    /// Deletes an object of any kind.
    ///
    /// # Errors
    /// The server's refusal (`NotFound` included) or the transport's failure.
    pub async fn delete_gvr(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        let path = Self::path(gvr, namespace, name, "");
        self.json(Method::DELETE, &path, serde_json::to_vec(&options.body())?).await.map(drop)
    }

    /// Deletes all objects of a resource in a namespace.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn delete_collection(
        &self,
        gvr: &Gvr,
        namespace: &str,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        self.delete_selected(gvr, namespace, &ListOptions::default(), options).await
    }

    /// Deletes the objects of a resource that the selectors match; an empty namespace means all.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn delete_selected(
        &self,
        gvr: &Gvr,
        namespace: &str,
        selected: &ListOptions<'_>,
        options: &DeleteOptions,
    ) -> Result<(), Error> {
        let mut path = Self::path(gvr, namespace, "", "");
        path.push_str(&selected.query());
        self.json(Method::DELETE, &path, serde_json::to_vec(&options.body())?).await.map(drop)
    }

    /// The scope of all objects of a kind.
    pub fn scope<K: Kind>() -> Scope {
        Scope::all(gvr_of::<K>())
    }
}

/// Renders `?a=b&c=d` of the non-empty pairs, percent-encoded; empty if there are none.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        out.push(if out.is_empty() { '?' } else { '&' });
        let _ = write!(out, "{key}={}", api::uri::escaped(value));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::api::apps::v1::Deployment;
    use api::k8s::api::core::v1::Node;

    #[test]
    fn paths_match_those_of_the_api() {
        assert_eq!(
            Client::path(&gvr_of::<Deployment>(), "a", "b", "status"),
            "/apis/apps/v1/namespaces/a/deployments/b/status"
        );
        assert_eq!(Client::path(&gvr_of::<Node>(), "", "n", ""), "/api/v1/nodes/n");
        assert_eq!(
            query(&[("labelSelector", "a in (b,c)"), ("x", "")]),
            "?labelSelector=a%20in%20%28b%2Cc%29"
        );
    }

    #[test]
    fn deletion_options_contain_preconditions() {
        let options = DeleteOptions {
            propagation: Some(Propagation::Foreground),
            ..DeleteOptions::with_uid("u")
        };
        assert_eq!(
            options.body(),
            serde_json::json!({"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"u"},"propagationPolicy":"Foreground"})
        );
    }
}
