//! Finds the resource of a kind by the API server's discovery.

use std::collections::HashMap;

use api::Gvr;
use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde_json::Value;

use crate::document::group;

/// A served kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServedKind {
    /// Its resource.
    pub(crate) gvr: Gvr,
    /// Whether its objects are in namespaces.
    pub(crate) is_namespaced: bool,
}

/// The kinds that were looked up, for the time of one file: definitions change.
#[derive(Debug)]
pub(crate) struct Discovery<'a> {
    client: &'a Client,
    versions: HashMap<String, HashMap<String, ServedKind>>,
}

impl<'a> Discovery<'a> {
    /// Creates an empty lookup.
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, versions: HashMap::new() }
    }

    /// The kind; `None` if it is not served.
    ///
    /// # Errors
    /// The server's refusal other than that the group and version do not exist.
    pub(crate) async fn kind(
        &mut self,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<ServedKind>, Error> {
        if !self.versions.contains_key(api_version) {
            let kinds = self.read(api_version).await?;
            self.versions.insert(api_version.to_owned(), kinds);
        }
        Ok(self.versions.get(api_version).and_then(|kinds| kinds.get(kind)).cloned())
    }

    async fn read(&self, api_version: &str) -> Result<HashMap<String, ServedKind>, Error> {
        let group = group(api_version);
        let prefix = if group.is_empty() { "/api" } else { "/apis" };
        let segments = api_version.split('/').map(api::uri::escaped);
        let path = segments.fold(prefix.to_owned(), |path, segment| format!("{path}/{segment}"));
        let answer = self.client.request(Method::GET, &path, "application/json", Bytes::new());
        match answer.await {
            Ok(body) => Ok(kinds(api_version, &serde_json::from_slice(&body)?)),
            // A path that does not exist has no Status with a reason.
            Err(error) if error.status().is_some_and(|status| status.code == 404) => {
                Ok(HashMap::new())
            }
            Err(error) => Err(error),
        }
    }
}

/// The kinds of an `APIResourceList`, without subresources.
fn kinds(api_version: &str, list: &Value) -> HashMap<String, ServedKind> {
    let version = api_version.split_once('/').map_or(api_version, |(_, version)| version);
    let resources = list.get("resources").and_then(Value::as_array).into_iter().flatten();
    let served = resources.filter_map(|resource| {
        let name = resource.get("name")?.as_str().filter(|name| !name.contains('/'))?;
        let served = ServedKind {
            gvr: Gvr::new(group(api_version), version, name),
            is_namespaced: resource.get("namespaced")?.as_bool()?,
        };
        Some((resource.get("kind")?.as_str()?.to_owned(), served))
    });
    served.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resources_without_subresources_are_kinds() {
        let list = json!({"groupVersion": "apps/v1", "resources": [
            {"name": "deployments", "kind": "Deployment", "namespaced": true},
            {"name": "deployments/scale", "kind": "Scale", "namespaced": true, "group": "autoscaling"},
        ]});
        let kinds = kinds("apps/v1", &list);
        assert_eq!(kinds.len(), 1);
        let want = ServedKind { gvr: Gvr::new("apps", "v1", "deployments"), is_namespaced: true };
        assert_eq!(kinds["Deployment"], want);
    }
}
