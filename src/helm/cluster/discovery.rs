//! Kinds and versions that the API server serves.

use std::collections::{BTreeSet, HashMap};

use api::Gvr;
use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde_json::Value;

/// A served kind.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub(crate) gvr: Gvr,
    pub(crate) is_namespaced: bool,
}

/// The served kinds, read once per group version during one operation.
pub(crate) struct Discovery<'a> {
    client: &'a Client,
    versions: HashMap<String, HashMap<String, Kind>>,
}

/// The version of the API server.
#[derive(Debug, Clone, Default)]
pub(crate) struct KubeVersion {
    pub(crate) version: String,
    pub(crate) major: String,
    pub(crate) minor: String,
}

impl<'a> Discovery<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, versions: HashMap::new() }
    }

    /// Forgets what was read: a definition was installed.
    pub(crate) fn reset(&mut self) {
        self.versions.clear();
    }

    async fn read(&self, path: &str) -> Result<Value, Error> {
        let body = self.client.request(Method::GET, path, "application/json", Bytes::new());
        Ok(serde_json::from_slice(&body.await?)?)
    }

    /// The kind; `None` if it is not served.
    pub(crate) async fn kind(
        &mut self,
        api_version: &str,
        kind: &str,
    ) -> Result<Option<Kind>, Error> {
        if !self.versions.contains_key(api_version) {
            let parts: Vec<String> = api_version.split('/').map(api::uri::escaped).collect();
            let prefix = if parts.len() == 1 { "/api" } else { "/apis" };
            let list = match self.read(&format!("{prefix}/{}", parts.join("/"))).await {
                Ok(list) => list,
                Err(error) if error.is_not_found() => Value::Null,
                Err(error) => return Err(error),
            };
            self.versions.insert(api_version.to_owned(), kinds(api_version, &list));
        }
        Ok(self.versions.get(api_version).and_then(|kinds| kinds.get(kind)).cloned())
    }

    /// All group versions, and these with their kinds (`GetVersionSet`).
    pub(crate) async fn api_versions(&mut self) -> Result<Vec<String>, Error> {
        let mut versions = vec!["v1".to_owned()];
        let groups = self.read("/apis").await?;
        for group in api::value::items(&groups, "groups") {
            let served = api::value::items(group, "versions").iter();
            versions.extend(served.map(|v| api::value::str_at(v, "groupVersion").to_owned()));
        }
        let mut all = BTreeSet::new();
        for version in versions {
            // A group whose server is away is left out, as in Helm.
            if self.kind(&version, "").await.is_err() {
                continue;
            }
            let kinds = self.versions.get(&version).into_iter().flat_map(HashMap::keys);
            all.extend(kinds.map(|kind| format!("{version}/{kind}")));
            all.insert(version);
        }
        Ok(all.into_iter().collect())
    }

    pub(crate) async fn kube_version(&self) -> Result<KubeVersion, Error> {
        let version = self.read("/version").await?;
        let text = |field: &str| api::value::str_at(&version, field).to_owned();
        Ok(KubeVersion { version: text("gitVersion"), major: text("major"), minor: text("minor") })
    }
}

fn kinds(api_version: &str, list: &Value) -> HashMap<String, Kind> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resources = api::value::items(list, "resources").iter();
    let served = resources.filter(|r| !api::value::str_at(r, "name").contains('/'));
    let kinds = served.map(|resource| {
        let gvr = Gvr::new(group, version, api::value::str_at(resource, "name"));
        let is_namespaced = api::value::bool_at(resource, "namespaced");
        (api::value::str_at(resource, "kind").to_owned(), Kind { gvr, is_namespaced })
    });
    kinds.collect()
}
