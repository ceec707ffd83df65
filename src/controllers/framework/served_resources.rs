//! The resources that the API server and its aggregated API servers serve, from aggregated
//! discovery.

use std::collections::{BTreeSet, HashMap, HashSet};

use api::{Gvk, Gvr};
use client::{Client, Error};
use serde::Deserialize;

/// Selects the aggregated documents of `/api` and `/apis`, which name the versions that could not
/// be discovered.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// One served resource.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) gvr: Gvr,
    pub(crate) kind: Gvk,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

impl Served {
    pub(crate) fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|v| self.verbs.iter().any(|have| have == v))
    }
}

/// The result of a discovery: complete, or partial while an aggregated API server does not answer.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    /// Every resource once, in the first discovered version of its group.
    pub(crate) resources: Vec<Served>,
    /// Group and version of each API whose resources are not known now.
    failed: BTreeSet<(String, String)>,
}

impl Discovery {
    /// Resources of this group may exist that the result does not list.
    pub(crate) fn group_failed(&self, group: &str) -> bool {
        self.failed.iter().any(|(failed, _)| failed == group)
    }

    /// Number of failed group versions and client-go's error text; `None` after a complete
    /// discovery.
    pub(crate) fn failure(&self) -> Option<(usize, String)> {
        if self.failed.is_empty() {
            return None;
        }
        let each = self.failed.iter().map(|(group, version)| {
            let name =
                if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
            format!("{name}: stale GroupVersion discovery: {name}")
        });
        let each = each.collect::<Vec<_>>().join(", ");
        let text = format!("unable to retrieve the complete list of server APIs: {each}");
        Some((self.failed.len(), text))
    }

    fn add(&mut self, groups: Groups) {
        for group in groups.items {
            let mut listed: HashSet<String> = HashSet::new();
            for version in group.versions {
                if version.freshness == "Stale" {
                    self.failed.insert((group.metadata.name.clone(), version.version));
                    continue;
                }
                for resource in version.resources {
                    let Some(kind) = resource.response_kind else { continue };
                    if !listed.insert(resource.resource.clone()) {
                        continue;
                    }
                    let name = &group.metadata.name;
                    self.resources.push(Served {
                        gvr: Gvr::new(name, &version.version, &resource.resource),
                        kind: Gvk::new(name, &version.version, &kind.kind),
                        namespaced: resource.scope == "Namespaced",
                        verbs: resource.verbs,
                    });
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: GroupMetadata,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

/// The core group has no name.
#[derive(Deserialize, Default)]
struct GroupMetadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
    #[serde(default)]
    freshness: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    /// Absent where a resource has subresources alone.
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    kind: String,
}

/// Discovers every resource. An aggregated API server that does not answer makes the result
/// partial, not an error.
///
/// # Errors
/// The API server itself does not answer.
pub(crate) async fn discover(client: &Client) -> Result<Discovery, Error> {
    let mut discovery = Discovery::default();
    for path in ["/api", "/apis"] {
        let document = client.get_as(path, AGGREGATED).await?;
        discovery.add(serde_json::from_slice(&document)?);
    }
    Ok(discovery)
}

/// Resource and scope by group and kind.
pub(crate) type ResourcesByKind = HashMap<(String, String), (Gvr, bool)>;

/// Resource and scope by group and kind.
pub(crate) fn by_kind(all: &[Served]) -> ResourcesByKind {
    all.iter()
        .map(|s| {
            ((s.kind.group.to_string(), s.kind.kind.to_string()), (s.gvr.clone(), s.namespaced))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn version(name: &str, freshness: &str, resources: &[&str]) -> Value {
        let resource = |name: &&str| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": name},
                "scope": "Namespaced", "verbs": ["list", "delete"]})
        };
        let resources: Vec<Value> = resources.iter().map(resource).collect();
        json!({"version": name, "freshness": freshness, "resources": resources})
    }

    fn discovery(items: &Value) -> Discovery {
        let mut discovery = Discovery::default();
        discovery.add(serde_json::from_value(json!({"items": items})).unwrap());
        discovery
    }

    #[test]
    fn a_stale_group_version_leaves_the_other_groups_discovered() {
        let discovery = discovery(&json!([
            {"metadata": {"name": "metrics.k8s.io"},
                "versions": [version("v1beta1", "Stale", &["pods"])]},
            {"metadata": {}, "versions": [version("v1", "Current", &["pods", "services"])]},
        ]));
        assert_eq!(discovery.resources.len(), 2);
        assert!(discovery.group_failed("metrics.k8s.io") && !discovery.group_failed(""));
        // client-go's ErrGroupDiscoveryFailed and StaleGroupVersionError.
        let text = "unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: \
                    stale GroupVersion discovery: metrics.k8s.io/v1beta1";
        assert_eq!(discovery.failure(), Some((1, text.to_owned())));
    }

    #[test]
    fn a_resource_is_listed_once_in_the_first_version_that_has_it() {
        let discovery = discovery(&json!([{"metadata": {"name": "g"}, "versions": [
            version("v2", "Current", &["a"]), version("v1", "Current", &["a", "b"])]}]));
        let all: Vec<String> = discovery
            .resources
            .iter()
            .map(|s| format!("{}/{}", s.gvr.version, s.gvr.resource))
            .collect();
        assert_eq!(all, ["v2/a", "v1/b"]);
        assert_eq!(discovery.failure(), None);
    }
}
