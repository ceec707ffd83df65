//! Templates as they were: comparison of pod templates, and the ControllerRevisions of DaemonSets
//! and StatefulSets.

use api::Typed;
use api::k8s::api::apps::v1::ControllerRevision;
use api::k8s::api::core::v1::PodTemplateSpec;
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use api::k8s::apimachinery::pkg::runtime::RawExtension;
use client::{Client, DeleteOptions, Error, Informer, Kind, Patch, owner_reference};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::framework::adoption;
use crate::workloads::template_hash;

/// Longest part of an owner's name in the name of a revision.
const PREFIX_MAX: usize = 223;
/// Hash collisions survived in one sync: two are rarer than one in 10^18.
const COLLISIONS_MAX: i32 = 8;

/// What of an owner makes a revision.
pub(crate) struct Snapshot<'a> {
    pub(crate) selector: &'a LabelSelector,
    pub(crate) template: &'a PodTemplateSpec,
    pub(crate) collisions: Option<i32>,
    /// Label of the revision that carries its hash.
    pub(crate) hash_label: &'static str,
}

/// The revisions of an owner.
#[derive(Debug)]
pub(crate) struct History {
    /// That of the current template.
    pub(crate) current: ControllerRevision,
    /// All others, by revision.
    pub(crate) old: Vec<ControllerRevision>,
    /// For `status.collisionCount`.
    pub(crate) collisions: Option<i32>,
}

/// Name of a revision.
pub(crate) fn name_of(revision: &ControllerRevision) -> &str {
    revision.metadata.name.as_deref().unwrap_or_default()
}

/// The hash that the label carries, or the name of a revision without it.
pub(crate) fn hash_of<'a>(revision: &'a ControllerRevision, label: &str) -> &'a str {
    let labels = revision.metadata.labels.as_ref();
    labels.and_then(|l| l.get(label)).map_or(name_of(revision), String::as_str)
}

/// The template that a revision keeps.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    PodTemplateSpec::from_value(&template).ok()
}

/// Finds the owner's revisions, makes the one of the current template if there is none, and gives
/// it the highest number.
///
/// # Errors
/// The server's refusal of a read or write.
pub(crate) async fn construct<O: Kind>(
    client: &Client,
    informer: &Informer<ControllerRevision>,
    owner: &O,
    snapshot: &Snapshot<'_>,
) -> Result<History, Error> {
    let selects = |m: &ObjectMeta| client::labels::selects(snapshot.selector, m.labels.as_ref());
    let mut all = adoption::claim_all(client, owner, informer, selects, |_| true).await?;
    all.compact_sort_by_key(number);
    let wanted = comparable(snapshot.template, "");
    let is_current =
        |r: &ControllerRevision| template_of(r).is_some_and(|t| comparable(&t, "") == wanted);
    let next = all.iter().filter(|r| !is_current(r)).map(number).max().unwrap_or(0).max(0) + 1;
    let Some(index) = all.iter().rposition(is_current) else {
        let (current, collisions) = create(client, owner, snapshot, &wanted, next).await?;
        return Ok(History { current, old: all, collisions });
    };
    let mut current = all.remove(index);
    if number(&current) < next {
        let namespace = owner.metadata().namespace.as_deref().unwrap_or_default();
        let patch = json!({"revision": next});
        current = client.patch(namespace, name_of(&current), "", &Patch::Merge(&patch)).await?;
    }
    Ok(History { current, old: all, collisions: snapshot.collisions })
}

fn number(revision: &ControllerRevision) -> i64 {
    revision.revision.unwrap_or(0)
}

async fn create<O: Kind>(
    client: &Client,
    owner: &O,
    snapshot: &Snapshot<'_>,
    wanted: &Value,
    number: i64,
) -> Result<(ControllerRevision, Option<i32>), Error> {
    let meta = owner.metadata();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let mut data = snapshot.template.to_value()?;
    data["$patch"] = json!("replace");
    let mut collisions = snapshot.collisions;
    loop {
        let hash = template_hash::hash(wanted, collisions);
        let mut prefix = meta.name.clone().unwrap_or_default();
        prefix.truncate(PREFIX_MAX);
        let mut labels =
            snapshot.template.metadata.clone().unwrap_or_default().labels.unwrap_or_default();
        labels.insert(snapshot.hash_label.to_owned(), hash.clone());
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}-{hash}")),
                namespace: meta.namespace.clone(),
                labels: Some(labels),
                annotations: meta.annotations.clone(),
                owner_references: Some(vec![owner_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: RawExtension(json!({"spec": {"template": data}})),
            revision: Some(number),
        };
        match client.create(namespace, &revision).await {
            Err(error) if error.is_already_exists() => {
                let found: ControllerRevision = client.get(namespace, name_of(&revision)).await?;
                if template_of(&found).is_some_and(|t| comparable(&t, "") == *wanted) {
                    return Ok((found, collisions));
                }
                let count = collisions.unwrap_or(0).saturating_add(1);
                if count > snapshot.collisions.unwrap_or(0).saturating_add(COLLISIONS_MAX) {
                    return Err(error);
                }
                collisions = Some(count);
            }
            other => return other.map(|created| (created, collisions)),
        }
    }
}

/// Deletes the oldest revisions above the limit that `live` does not name.
///
/// # Errors
/// The server's refusal of a deletion.
pub(crate) async fn truncate(
    client: &Client,
    old: &[ControllerRevision],
    limit: i32,
    live: impl Fn(&ControllerRevision) -> bool,
) -> Result<(), Error> {
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    for revision in old.iter().filter(|r| !live(r)).take(surplus) {
        let meta = &revision.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let options = DeleteOptions::with_uid(meta.uid.as_deref().unwrap_or_default());
        let gone = client.delete::<ControllerRevision>(namespace, name_of(revision), &options);
        crate::framework::keyed::settled(gone.await)?;
    }
    Ok(())
}

/// A template for comparison: without the label that the controller added, nulls, and empty lists
/// and label maps.
pub(crate) fn comparable(template: &PodTemplateSpec, own_label: &str) -> Value {
    let mut value = template.to_value().unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["labels", "annotations"] {
            let entries = metadata.get_mut(field).and_then(Value::as_object_mut);
            if entries.is_some_and(|map| {
                map.remove(own_label);
                map.is_empty()
            }) {
                metadata.remove(field);
            }
        }
        metadata.remove("creationTimestamp");
        if metadata.is_empty() {
            value.as_object_mut().map(|v| v.remove("metadata"));
        }
    }
    drop_empty(&mut value);
    value
}

fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
            map.values_mut().for_each(drop_empty);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_gives_its_template_back() {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}});
        let mut data = template.clone();
        data["$patch"] = json!("replace");
        let revision: ControllerRevision =
            serde_json::from_value(json!({"metadata": {"name": "d-1"}, "revision": 1,
                "data": {"spec": {"template": data}}}))
            .unwrap();
        assert_eq!(comparable(&template_of(&revision).unwrap(), ""), template);
        assert_eq!(hash_of(&revision, "controller-revision-hash"), "d-1");
    }

    #[test]
    fn comparison_ignores_what_says_nothing_but_keeps_empty_objects() {
        let of = |v: Value| comparable(&serde_json::from_value(v).unwrap(), "hash");
        let plain = json!({"spec": {"containers": [{"name": "c"}],
            "volumes": [{"name": "v", "emptyDir": {}}]}});
        let noisy = json!({"metadata": {"labels": {"hash": "x"}, "annotations": {}},
            "spec": {"containers": [{"name": "c", "env": []}],
                "volumes": [{"name": "v", "emptyDir": {}}]}});
        assert_eq!(of(plain.clone()), of(noisy));
        assert_eq!(of(plain.clone()), plain);
    }
}
