//! Objects in memory that plugins read.

use std::collections::HashMap;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::policy::v1::PodDisruptionBudget;
use api::k8s::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use client::labels::Labels;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{OfflineError, decode};
use crate::devices::slice::Slice;
use crate::devices::store::Devices;
use crate::listers::Listers;
use crate::pod_info::PodOwner;

/// Objects of all kinds but nodes and pods.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// By kind, namespace and name.
    objects: HashMap<String, HashMap<(String, String), Value>>,
    /// Nodes and pods, by namespace and name.
    for_extenders: HashMap<(String, String), Arc<Object>>,
    devices: Arc<Devices>,
}

fn text(object: &Value, path: &str) -> String {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Objects {
    /// Adds an object.
    ///
    /// # Errors
    ///
    /// The object is malformed.
    pub(super) fn add(&mut self, object: Value) -> Result<(), OfflineError> {
        let kind = text(&object, "/kind");
        match kind.as_str() {
            "ResourceClaim" => drop(self.devices.observe_claim(decode(&kind, object.clone())?)),
            "DeviceTaintRule" => {
                let name = text(&object, "/metadata/name");
                self.devices.set_rule(&name, Some(decode(&kind, object.clone())?));
            }
            "DeviceClass" => self.devices.set_class(decode(&kind, object.clone())?),
            "ResourceSlice" => {
                if let Ok(slice) = Slice::new(&decode(&kind, object.clone())?) {
                    self.devices.set_slice(slice);
                }
            }
            _ => {}
        }
        let key = (text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        self.objects.entry(kind).or_default().insert(key, object);
        Ok(())
    }

    /// Adds a node or a pod that extenders get.
    ///
    /// # Errors
    ///
    /// The object is malformed.
    pub(super) fn add_for_extenders(&mut self, object: &Value) -> Result<(), OfflineError> {
        let key = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let object = Object::from_value(object.clone())?;
        self.for_extenders.insert(key, Arc::new(object));
        Ok(())
    }

    fn value(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(kind)?.get(&(namespace.to_owned(), name.to_owned()))
    }

    fn get<K: DeserializeOwned>(&self, kind: &str, namespace: &str, name: &str) -> Option<K> {
        serde_json::from_value(self.value(kind, namespace, name)?.clone()).ok()
    }

    fn list<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let objects = self.objects.get(kind).into_iter().flatten();
        objects.filter_map(|(_, object)| serde_json::from_value(object.clone()).ok()).collect()
    }
}

fn labels(object: &Value) -> Labels {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}

impl Listers for Objects {
    fn pod_object(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.for_extenders.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn node_object(&self, name: &str) -> Option<Arc<Object>> {
        self.for_extenders.get(&(String::new(), name.to_owned())).cloned()
    }

    fn namespace_labels(&self, name: &str) -> Option<Labels> {
        self.value("Namespace", "", name).map(labels)
    }

    fn namespaces(&self, selector: &LabelSelector) -> Vec<String> {
        let all = self.objects.get("Namespace").into_iter().flatten();
        let selected =
            all.filter(|(_, object)| client::labels::selects(selector, Some(&labels(object))));
        selected.map(|((_, name), _)| name.clone()).collect()
    }

    fn service_selectors(&self, namespace: &str) -> Vec<Labels> {
        let services = self.objects.get("Service").into_iter().flatten();
        let own = services.filter(|((of, _), _)| of == namespace);
        own.filter_map(|(_, s)| serde_json::from_value(s["spec"]["selector"].clone()).ok())
            .collect()
    }

    fn selector(&self, namespace: &str, owner: &PodOwner) -> Option<LabelSelector> {
        let spec = |kind: &str, name: &str| {
            self.value(kind, namespace, name).map(|object| object["spec"]["selector"].clone())
        };
        match owner {
            PodOwner::ReplicationController(name) => Some(LabelSelector {
                match_labels: serde_json::from_value(spec("ReplicationController", name)?).ok(),
                ..LabelSelector::default()
            }),
            PodOwner::ReplicaSet(name) => serde_json::from_value(spec("ReplicaSet", name)?).ok(),
            PodOwner::StatefulSet(name) => serde_json::from_value(spec("StatefulSet", name)?).ok(),
        }
    }

    fn pod_disruption_budgets(&self) -> Vec<PodDisruptionBudget> {
        self.list("PodDisruptionBudget")
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<PersistentVolumeClaim> {
        self.get("PersistentVolumeClaim", namespace, name)
    }

    fn volume(&self, name: &str) -> Option<PersistentVolume> {
        self.get("PersistentVolume", "", name)
    }

    fn volumes(&self) -> Vec<PersistentVolume> {
        self.list("PersistentVolume")
    }

    fn storage_class(&self, name: &str) -> Option<StorageClass> {
        self.get("StorageClass", "", name)
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.get("CSINode", "", name).map(Arc::new)
    }

    fn csi_driver(&self, name: &str) -> Option<CSIDriver> {
        self.get("CSIDriver", "", name)
    }

    fn csi_storage_capacities(&self) -> Vec<CSIStorageCapacity> {
        self.list("CSIStorageCapacity")
    }

    fn devices(&self) -> Option<&Arc<Devices>> {
        Some(&self.devices)
    }

    fn volume_attachments(&self, node: &str) -> Vec<VolumeAttachment> {
        let mut all: Vec<VolumeAttachment> = self.list("VolumeAttachment");
        all.retain(|attachment| attachment.spec.node_name == node);
        all
    }
}
