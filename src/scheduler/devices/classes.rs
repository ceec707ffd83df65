//! DeviceClasses, and the extended resources that they serve (upstream's `ExtendedResourceCache`).

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::resource::v1::DeviceClass;

use crate::pod_claims::IMPLICIT_PREFIX;

/// The classes by name and by the extended resources that they serve.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    by_name: HashMap<String, Arc<DeviceClass>>,
    /// Names of classes by extended resource.
    by_resource: HashMap<String, String>,
}

fn explicit(class: &DeviceClass) -> Option<&String> {
    class.spec.as_ref()?.extended_resource_name.as_ref().filter(|name| !name.is_empty())
}

impl Classes {
    /// The class with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.by_name.get(name)
    }

    /// Name of the class that serves an extended resource.
    pub(crate) fn serving(&self, resource: &str) -> Option<&str> {
        self.by_resource.get(resource).map(String::as_str)
    }

    /// A class was added or changed.
    pub(crate) fn set(&mut self, class: DeviceClass) {
        let name = class.metadata.name.clone().unwrap_or_default();
        let class = Arc::new(class);
        let old = self.by_name.insert(name.clone(), Arc::clone(&class));
        if let Some(resource) = old.as_deref().and_then(explicit) {
            if explicit(&class) != Some(resource) {
                self.drop_resource(&name, resource);
            }
        }
        if let Some(resource) = explicit(&class) {
            if self.loses(&class, &name, resource) {
                return;
            }
            self.by_resource.insert(resource.clone(), name.clone());
        }
        self.by_resource.insert(format!("{IMPLICIT_PREFIX}{name}"), name);
    }

    /// A class was deleted.
    pub(crate) fn remove(&mut self, name: &str) {
        let Some(old) = self.by_name.remove(name) else { return };
        if let Some(resource) = explicit(&old) {
            self.drop_resource(name, resource);
        }
        self.by_resource.remove(&format!("{IMPLICIT_PREFIX}{name}"));
    }

    fn drop_resource(&mut self, class: &str, resource: &str) {
        if self.serving(resource) == Some(class) {
            self.by_resource.remove(resource);
        }
    }

    /// Whether another class serves the resource: the newer one wins, then the smaller name.
    fn loses(&self, class: &DeviceClass, name: &str, resource: &str) -> bool {
        let other = self.serving(resource).filter(|other| *other != name);
        let Some((other, object)) = other.and_then(|n| Some((n, self.by_name.get(n)?))) else {
            return false;
        };
        let created = |class: &DeviceClass| class.metadata.creation_timestamp.clone();
        (created(object), name) > (created(class), other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(name: &str, resource: &str, second: u8) -> DeviceClass {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let mut spec = json!({});
        if !resource.is_empty() {
            spec["extendedResourceName"] = resource.into();
        }
        let metadata = json!({"name": name, "creationTimestamp": created});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    /// Rows of upstream's `extendedresourcecache_test.go`.
    #[test]
    fn the_newest_class_serves_a_resource_and_every_class_its_own() {
        let mut classes = Classes::default();
        let serving = |classes: &Classes, r: &str| classes.serving(r).map(str::to_owned);
        classes.set(class("b", "example.com/gpu", 5));
        assert_eq!(serving(&classes, "example.com/gpu").as_deref(), Some("b"));
        assert_eq!(serving(&classes, &format!("{IMPLICIT_PREFIX}b")).as_deref(), Some("b"));
        classes.set(class("old", "example.com/gpu", 1));
        assert_eq!(serving(&classes, "example.com/gpu").as_deref(), Some("b"), "older");
        classes.set(class("c", "example.com/gpu", 5));
        assert_eq!(serving(&classes, "example.com/gpu").as_deref(), Some("b"), "greater name");
        classes.set(class("a", "example.com/gpu", 5));
        assert_eq!(serving(&classes, "example.com/gpu").as_deref(), Some("a"), "smaller name");
        classes.set(class("new", "example.com/gpu", 9));
        assert_eq!(serving(&classes, "example.com/gpu").as_deref(), Some("new"), "newer");
        classes.set(class("new", "example.com/tpu", 9));
        assert_eq!(serving(&classes, "example.com/gpu"), None, "renamed");
        assert_eq!(serving(&classes, "example.com/tpu").as_deref(), Some("new"));
        classes.remove("new");
        assert_eq!(serving(&classes, "example.com/tpu"), None);
        assert_eq!(serving(&classes, &format!("{IMPLICIT_PREFIX}new")), None);
    }
}
