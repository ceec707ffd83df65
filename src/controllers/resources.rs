//! What the server serves, from discovery: for controllers that work on every kind.

use std::collections::HashMap;

use api::{Gvk, Gvr};
use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde::Deserialize;

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

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: GroupVersion,
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

async fn get<T: for<'de> Deserialize<'de>>(client: &Client, path: &str) -> Result<T, Error> {
    let body = client.request(Method::GET, path, "application/json", Bytes::new()).await?;
    Ok(serde_json::from_slice(&body)?)
}

async fn version(client: &Client, group_version: &str) -> Result<Vec<Served>, Error> {
    let path = if group_version.contains('/') {
        format!("/apis/{group_version}")
    } else {
        format!("/api/{group_version}")
    };
    let list: Resources = get(client, &path).await?;
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let main = list.resources.into_iter().filter(|r| !r.name.contains('/'));
    Ok(main
        .map(|r| Served {
            gvr: Gvr::new(group, version, &r.name),
            kind: Gvk::new(group, version, &r.kind),
            namespaced: r.namespaced,
            verbs: r.verbs,
        })
        .collect())
}

/// Every resource once, in its group's preferred version.
pub(crate) async fn preferred(client: &Client) -> Result<Vec<Served>, Error> {
    let groups: Groups = get(client, "/apis").await?;
    let mut all = version(client, "v1").await?;
    for group in groups.groups {
        all.extend(version(client, &group.preferred_version.group_version).await?);
        // A resource that only an older version has.
        for other in group
            .versions
            .iter()
            .filter(|v| v.group_version != group.preferred_version.group_version)
        {
            for served in version(client, &other.group_version).await? {
                if !all.iter().any(|a| {
                    a.gvr.group == served.gvr.group && a.gvr.resource == served.gvr.resource
                }) {
                    all.push(served);
                }
            }
        }
    }
    Ok(all)
}

/// Resource and scope by group and kind.
pub(crate) fn by_kind(all: &[Served]) -> HashMap<(String, String), (Gvr, bool)> {
    all.iter()
        .map(|s| {
            ((s.kind.group.to_string(), s.kind.kind.to_string()), (s.gvr.clone(), s.namespaced))
        })
        .collect()
}
