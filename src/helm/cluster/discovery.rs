//! What templates and checks of a chart know about the API server (`pkg/action` of Helm).

use std::collections::BTreeSet;

use client::{Discovery, Error};

/// The version of the API server.
#[derive(Debug, Clone, Default)]
pub(crate) struct KubeVersion {
    pub(crate) version: String,
    pub(crate) major: String,
    pub(crate) minor: String,
}

/// All group versions, and these with their kinds (`GetVersionSet`).
pub(crate) async fn api_versions(discovery: &mut Discovery<'_>) -> Result<Vec<String>, Error> {
    let mut versions = vec!["v1".to_owned()];
    let groups = discovery.read("/apis").await?;
    for group in api::value::items(&groups, "groups") {
        let served = api::value::items(group, "versions").iter();
        versions.extend(served.map(|v| api::value::str_at(v, "groupVersion").to_owned()));
    }
    let mut all = BTreeSet::new();
    for version in versions {
        // A group whose server is away is left out, as in Helm.
        let Ok(kinds) = discovery.kinds(&version).await else { continue };
        all.extend(kinds.keys().map(|kind| format!("{version}/{kind}")));
        all.insert(version);
    }
    Ok(all.into_iter().collect())
}

pub(crate) async fn kube_version(discovery: &Discovery<'_>) -> Result<KubeVersion, Error> {
    let version = discovery.read("/version").await?;
    let text = |field: &str| api::value::str_at(&version, field).to_owned();
    Ok(KubeVersion { version: text("gitVersion"), major: text("major"), minor: text("minor") })
}
