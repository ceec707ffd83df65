//! VolumeAttributesClasses stay while a claim or volume names them.

use std::collections::BTreeSet;

use api::Object;
use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::VolumeAttributesClass;
use client::{Action, Change, Client, Error, ListOptions, gvr_of};
use serde_json::Value;
use sorting::CollectOrdered as _;

use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::{Key, Keyed, settled};

const FINALIZER: &str = "kubernetes.io/vac-protection";
/// Where a claim names the class that it wants, has, or is on the way to; a volume has the first
/// alone.
const NAMES: [&str; 3] = [
    "/spec/volumeAttributesClassName",
    "/status/currentVolumeAttributesClassName",
    "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
];

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("volumeattributesclass-protection-controller");
    let classes = context.informers.of::<VolumeAttributesClass>();
    let mut keyed = Keyed::new();
    keyed.watches(&classes, |change| match change {
        Change::Deleted(_) => Vec::new(),
        Change::Added(o) | Change::Updated { new: o, .. } => {
            vec![(String::new(), o.key.name.to_string())]
        }
    });
    keyed.watches(&context.informers.of::<PersistentVolumeClaim>(), left);
    keyed.watches(&context.informers.of::<PersistentVolume>(), left);
    keyed.run(
        &context.tasks,
        "volumeattributesclass-protection-controller",
        1,
        move |(_, name)| {
            let (client, classes) = (client.clone(), classes.clone());
            async move {
                let Some(object) = classes.cache().get("", &name) else {
                    return Ok::<_, Error>(Action::Done);
                };
                let mut value = edit::value(&object)?;
                let deleting =
                    value.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
                let changed = if deleting {
                    edit::remove_finalizer(&mut value, FINALIZER) && !in_use(&client, &name).await?
                } else {
                    edit::add_finalizer(&mut value, FINALIZER)
                };
                if changed {
                    settled(
                        edit::put(&client, &gvr_of::<VolumeAttributesClass>(), "", &value).await,
                    )?;
                }
                Ok(Action::Done)
            }
        },
    );
}

fn named(value: &Value) -> BTreeSet<String> {
    let names = NAMES.iter().filter_map(|at| value.pointer(at)?.as_str());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect_set()
}

/// The classes that an object named and names no more.
fn left(change: &Change) -> Vec<Key> {
    let of = |object: &Object| object.value().map(|v| named(&v)).unwrap_or_default();
    let left = match change {
        Change::Added(_) => BTreeSet::new(),
        Change::Updated { old, new } => &of(old) - &of(new),
        Change::Deleted(object) => of(object),
    };
    left.into_iter().map(|name| (String::new(), name)).collect()
}

/// Reads from the server: a late cache must not release a class that is in use.
async fn in_use(client: &Client, name: &str) -> Result<bool, Error> {
    let all = ListOptions::default();
    let volumes = client.list_values(&gvr_of::<PersistentVolume>(), "", &all).await?;
    if volumes.iter().any(|v| named(v).contains(name)) {
        return Ok(true);
    }
    let claims = client.list_values(&gvr_of::<PersistentVolumeClaim>(), "", &all).await?;
    Ok(claims.iter().any(|c| named(c).contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn claim(spec: &str, current: &str) -> Arc<Object> {
        let value = json!({"metadata": {"name": "c", "namespace": "n"},
            "spec": {"volumeAttributesClassName": spec},
            "status": {"currentVolumeAttributesClassName": current}});
        Arc::new(Object::from_value(value).unwrap())
    }

    #[test]
    fn a_class_is_looked_at_when_the_last_name_of_it_goes() {
        let keys =
            |change: &Change| left(change).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert!(keys(&Change::Added(claim("a", "a"))).is_empty());
        let wanted = Change::Updated { old: claim("a", "a"), new: claim("b", "a") };
        assert!(keys(&wanted).is_empty());
        let changed = Change::Updated { old: claim("b", "a"), new: claim("b", "b") };
        assert_eq!(keys(&changed), ["a"]);
        assert_eq!(keys(&Change::Deleted(claim("b", "a"))), ["a", "b"]);
    }
}
