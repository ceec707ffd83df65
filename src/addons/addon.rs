//! Reads and writes Addon objects, and records events about them.

use std::collections::BTreeSet;

use api::Gvr;
use api::k8s::api::core::v1::ObjectReference;
use client::events::EventType;
use client::{Client, DeleteOptions, Error, EventRecorder, Patch};
use serde_json::{Value, json};
use sorting::CollectOrdered as _;

/// The namespace of all Addons.
pub(crate) const NAMESPACE: &str = "kube-system";
/// The kind as Go formats it, in the annotation of owned objects.
pub(crate) const KIND: &str = "k3s.cattle.io/v1, Kind=Addon";
/// `apiVersion` of Addons.
pub(crate) const API_VERSION: &str = "k3s.cattle.io/v1";
/// Annotation with the kinds of the objects that were applied.
const KINDS: &str = "addon.k3s.cattle.io/gvks";
const KINDS_SEPARATOR: char = ';';
/// Annotation with the server that applied the file last.
const SERVER: &str = "addon.kube-lite.io/server";

/// A kind with its version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionedKind {
    /// `apiVersion`.
    pub(crate) api_version: String,
    /// `kind`.
    pub(crate) kind: String,
}

impl VersionedKind {
    /// Go's format: `apps/v1, Kind=Deployment`, and `/v1, Kind=Pod` for the core group.
    fn format(&self) -> String {
        let core = if self.api_version.contains('/') { "" } else { "/" };
        format!("{core}{}, Kind={}", self.api_version, self.kind)
    }

    fn parse(text: &str) -> Option<Self> {
        let (version, kind) = text.split_once(", Kind=")?;
        let api_version = version.strip_prefix('/').unwrap_or(version).to_owned();
        Some(Self { api_version, kind: kind.to_owned() })
    }
}

/// An Addon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Addon {
    /// Its name.
    pub(crate) name: String,
    uid: String,
    resource_version: String,
    /// `spec.source`: the path of its file.
    pub(crate) source: String,
    /// `spec.checksum`: the content that was applied last without an error.
    pub(crate) checksum: String,
    /// The kinds of its objects.
    pub(crate) kinds: BTreeSet<VersionedKind>,
    /// The server that applied the file last; empty for Addons of k3s.
    pub(crate) server: String,
}

impl Addon {
    fn read(value: &Value) -> Self {
        let text = |pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let annotation = |name: &str| {
            let annotations = value.pointer("/metadata/annotations");
            annotations.and_then(|a| a.get(name)).and_then(Value::as_str).unwrap_or_default()
        };
        Self {
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            resource_version: text("/metadata/resourceVersion"),
            source: text("/spec/source"),
            checksum: text("/spec/checksum"),
            kinds: annotation(KINDS)
                .split(KINDS_SEPARATOR)
                .filter_map(VersionedKind::parse)
                .collect(),
            server: annotation(SERVER).to_owned(),
        }
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some("Addon".to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.resource_version.clone()),
            field_path: None,
        }
    }
}

/// The Addons of the cluster.
#[derive(Debug)]
pub(crate) struct Addons {
    client: Client,
    recorder: EventRecorder,
    server: String,
    gvr: Gvr,
}

impl Addons {
    /// Creates the access of this server.
    pub(crate) fn new(client: Client, recorder: EventRecorder, server: String) -> Self {
        Self { client, recorder, server, gvr: Gvr::new("k3s.cattle.io", "v1", "addons") }
    }

    /// Reads an Addon.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Addon>, Error> {
        match self.client.get_value(&self.gvr, NAMESPACE, name).await {
            Ok(value) => Ok(Some(Addon::read(&value))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all Addons.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn list(&self) -> Result<Vec<Addon>, Error> {
        let options = client::ListOptions::default();
        let all = self.client.list_values(&self.gvr, NAMESPACE, &options).await?;
        Ok(all.iter().map(Addon::read).collect())
    }

    /// Reads an Addon, or creates it for the file `source`.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn ensure(&self, name: &str, source: &str) -> Result<Addon, Error> {
        if let Some(addon) = self.get(name).await? {
            return Ok(addon);
        }
        let addon = json!({
            "apiVersion": API_VERSION,
            "kind": "Addon",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"source": source},
        });
        match self.client.post_value(&self.gvr, NAMESPACE, "", "", &addon).await {
            Ok(value) => Ok(Addon::read(&value)),
            // Another server has the same file.
            Err(error) if error.is_already_exists() => {
                Ok(Addon::read(&self.client.get_value(&self.gvr, NAMESPACE, name).await?))
            }
            Err(error) => Err(error),
        }
    }

    /// Records kinds before their objects are applied, so that an interruption leaves no object
    /// that is not found when the file drops it.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn add_kinds(
        &self,
        addon: &mut Addon,
        kinds: &BTreeSet<VersionedKind>,
    ) -> Result<(), Error> {
        if kinds.is_subset(&addon.kinds) {
            return Ok(());
        }
        let all: BTreeSet<_> = addon.kinds.union(kinds).cloned().collect_set();
        self.patch(addon, &json!({"metadata": {"annotations": {KINDS: format_kinds(&all)}}})).await
    }

    /// Records a file that was applied without an error.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn set_applied(
        &self,
        addon: &mut Addon,
        source: &str,
        checksum: &str,
        kinds: &BTreeSet<VersionedKind>,
    ) -> Result<(), Error> {
        if addon.source == source && addon.checksum == checksum && addon.kinds == *kinds {
            return Ok(());
        }
        let patch = json!({
            "metadata": {"annotations": {KINDS: format_kinds(kinds), SERVER: self.server}},
            "spec": {"source": source, "checksum": checksum},
        });
        self.patch(addon, &patch).await
    }

    async fn patch(&self, addon: &mut Addon, patch: &Value) -> Result<(), Error> {
        let patch = Patch::Merge(patch);
        let value = self.client.patch_value(&self.gvr, NAMESPACE, &addon.name, "", &patch).await?;
        *addon = Addon::read(&value);
        Ok(())
    }

    /// Deletes an Addon, if it exists.
    ///
    /// # Errors
    /// The server's refusal.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Error> {
        let options = DeleteOptions::default();
        match self.client.delete_gvr(&self.gvr, NAMESPACE, name, &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Records an expected event.
    pub(crate) fn normal(&self, addon: &Addon, reason: &str, message: String) {
        self.recorder.event_for(addon.reference(), EventType::Normal, reason, message);
    }

    /// Records an event that a person may have to act on.
    pub(crate) fn warn(&self, addon: &Addon, reason: &str, message: String) {
        self.recorder.event_for(addon.reference(), EventType::Warning, reason, message);
    }
}

fn format_kinds(kinds: &BTreeSet<VersionedKind>) -> String {
    let texts: Vec<String> = kinds.iter().map(VersionedKind::format).collect();
    texts.join(&KINDS_SEPARATOR.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addon_of_k3s_is_read() {
        let addon = Addon::read(&json!({
            "metadata": {"name": "coredns", "uid": "u", "annotations": {
                KINDS: "/v1, Kind=ServiceAccount;apps/v1, Kind=Deployment"}},
            "spec": {"source": "/m/coredns.yaml", "checksum": "c"},
        }));
        let kind = |version: &str, kind: &str| VersionedKind {
            api_version: version.into(),
            kind: kind.into(),
        };
        let kinds = BTreeSet::from([kind("v1", "ServiceAccount"), kind("apps/v1", "Deployment")]);
        assert_eq!(addon.kinds, kinds);
        assert_eq!(format_kinds(&kinds), "apps/v1, Kind=Deployment;/v1, Kind=ServiceAccount");
        assert_eq!((addon.source.as_str(), addon.checksum.as_str()), ("/m/coredns.yaml", "c"));
        assert_eq!(Addon::read(&json!({})).kinds, BTreeSet::new());
    }
}
