//! Finds the resource of a kind by the API server's discovery.

use std::collections::HashMap;

use api::value::{bool_at, items, str_at};
use api::{Gvk, Gvr};
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use crate::{Client, Error};

/// A served kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// Its resource.
    pub gvr: Gvr,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

/// The served kinds, read once per group version. Definitions change: a lookup lives for one
/// operation.
#[derive(Debug)]
pub struct Discovery<'a> {
    client: &'a Client,
    versions: HashMap<String, HashMap<String, ServedKind>>,
}

impl<'a> Discovery<'a> {
    /// Creates an empty lookup.
    pub fn new(client: &'a Client) -> Self {
        Self { client, versions: HashMap::new() }
    }

    /// Forgets what was read: a definition was installed.
    pub fn reset(&mut self) {
        self.versions.clear();
    }

    /// The kind; `None` if it is not served.
    ///
    /// # Errors
    /// As [`Discovery::kinds`].
    pub async fn kind(
        &mut self,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<ServedKind>, Error> {
        Ok(self.kinds(api_version).await?.get(kind).cloned())
    }

    /// The kinds of an `apiVersion` by name; none if it is not served.
    ///
    /// # Errors
    /// The server's refusal other than that the group and version do not exist.
    pub async fn kinds(
        &mut self,
        api_version: &str,
    ) -> Result<&HashMap<String, ServedKind>, Error> {
        if !self.versions.contains_key(api_version) {
            let kinds = self.read_kinds(api_version).await?;
            self.versions.insert(api_version.to_owned(), kinds);
        }
        Ok(self.versions.entry(api_version.to_owned()).or_default())
    }

    async fn read_kinds(&self, api_version: &str) -> Result<HashMap<String, ServedKind>, Error> {
        let prefix = if api_version.contains('/') { "/apis" } else { "/api" };
        let segments = api_version.split('/').map(api::uri::escaped);
        let path = segments.fold(prefix.to_owned(), |path, segment| format!("{path}/{segment}"));
        match self.read(&path).await {
            Ok(list) => Ok(kinds(api_version, &list)),
            // A path that does not exist has no Status with a reason.
            Err(error) if error.status().is_some_and(|status| status.code == 404) => {
                Ok(HashMap::new())
            }
            Err(error) => Err(error),
        }
    }

    /// A document of the server, such as `/apis` or `/version`.
    ///
    /// # Errors
    /// The server's refusal, or an answer that is not JSON.
    pub async fn read(&self, path: &str) -> Result<Value, Error> {
        let body = self.client.request(Method::GET, path, "application/json", Bytes::new());
        Ok(serde_json::from_slice(&body.await?)?)
    }
}

/// The kinds of an `APIResourceList`, without subresources.
fn kinds(api_version: &str, list: &Value) -> HashMap<String, ServedKind> {
    let served = items(list, "resources").iter().filter(|r| !str_at(r, "name").contains('/'));
    let kinds = served.map(|resource| {
        let kind = str_at(resource, "kind");
        let Gvk { group, version, .. } = Gvk::from_api_version(api_version, kind);
        let gvr = Gvr::new(&group, &version, str_at(resource, "name"));
        (kind.to_owned(), ServedKind { gvr, is_namespaced: bool_at(resource, "namespaced") })
    });
    kinds.collect()
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
