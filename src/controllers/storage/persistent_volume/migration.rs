//! The annotation of claims and volumes whose provisioner is an in-tree plugin that a CSI driver
//! replaces: sidecars act on objects that name their driver.

use std::collections::BTreeMap;

use api::csi_translation::{MIGRATED_TO, Plugin};
use client::{Error, Kind};
use serde_json::Value;

use super::matching::annotation;
use super::{Binder, Stored};

/// Finalizer of volumes that an in-tree plugin deletes; a CSI driver has its own.
const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";

/// What the annotation has to become.
#[derive(Debug, PartialEq, Eq)]
enum Annotate {
    /// It names this driver.
    Set(&'static str),
    Remove,
}

/// The change of the annotation (`updateMigrationAnnotations`); `provisioners` are the annotations
/// that may name the provisioner, the first one that exists decides.
fn change(
    annotations: &Option<BTreeMap<String, String>>,
    provisioners: &[&str],
) -> Option<Annotate> {
    let mut named = provisioners.iter().filter_map(|name| annotation(annotations, name));
    let provisioner = named.next()?;
    let current = annotation(annotations, MIGRATED_TO);
    match Plugin::of_name(provisioner) {
        Some(plugin) => (current != Some(plugin.driver())).then(|| Annotate::Set(plugin.driver())),
        None => current.is_some_and(|driver| !driver.is_empty()).then_some(Annotate::Remove),
    }
}

impl Binder {
    /// Writes the annotation if it differs.
    ///
    /// # Errors
    /// The server refuses the write, or does not answer.
    pub(super) async fn annotate_migration<K: Kind>(
        &self,
        object: Stored<K>,
        provisioners: &[&str],
    ) -> Result<Stored<K>, Error> {
        let Some(change) = change(&object.typed.metadata().annotations, provisioners) else {
            return Ok(object);
        };
        object.write(&self.client, "", |json| apply(json, &change)).await
    }
}

fn apply(json: &mut Value, change: &Annotate) {
    match change {
        Annotate::Set(driver) => {
            json["metadata"]["annotations"][MIGRATED_TO] = (*driver).into();
            crate::framework::edit::remove_finalizer(json, IN_TREE_FINALIZER);
        }
        Annotate::Remove => {
            let annotations = json.pointer_mut("/metadata/annotations");
            if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                annotations.remove(MIGRATED_TO);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The cases of upstream's `TestAnnealMigrationAnnotations`.
    #[test]
    fn the_annotation_follows_the_provisioner() {
        const BY: &str = "pv.kubernetes.io/provisioned-by";
        let of = |annotations: &[(&str, &str)]| {
            let pairs = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            change(&Some(pairs.collect()), &[BY])
        };
        let (plugin, driver) = ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io");
        assert_eq!(of(&[(BY, plugin)]), Some(Annotate::Set(driver)));
        assert_eq!(of(&[(BY, plugin), (MIGRATED_TO, driver)]), None);
        assert_eq!(of(&[(BY, plugin), (MIGRATED_TO, "other")]), Some(Annotate::Set(driver)));
        assert_eq!(of(&[(BY, "d.example.com")]), None);
        assert_eq!(of(&[(BY, "d.example.com"), (MIGRATED_TO, driver)]), Some(Annotate::Remove));
        assert_eq!(of(&[(MIGRATED_TO, driver)]), None);
        assert_eq!(change(&None, &[BY]), None);
    }

    #[test]
    fn the_finalizer_of_the_plugin_goes() {
        let mut volume = json!({"metadata": {"annotations": {}, "finalizers": [
            IN_TREE_FINALIZER, "kubernetes.io/pv-protection"]}});
        apply(&mut volume, &Annotate::Set("d"));
        assert_eq!(
            volume["metadata"],
            json!({"annotations": {MIGRATED_TO: "d"},
                "finalizers": ["kubernetes.io/pv-protection"]})
        );
        apply(&mut volume, &Annotate::Remove);
        assert_eq!(volume["metadata"]["annotations"], json!({}));
    }
}
