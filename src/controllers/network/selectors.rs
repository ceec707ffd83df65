//! Finds the Services of a pod, and the pods of a Service.

use std::collections::BTreeSet;

use api::Object;
use api::k8s::api::core::v1::{Pod, Service};
use client::labels::Labels;
use client::{Change, Informer};
use serde::Deserialize;

use crate::framework::keyed::Key;

/// The index of Services by the first pair of their selectors.
const BY_SELECTOR: &str = "selector";

/// Services whose selector chooses the pod as it is, or as it was; [`index_by_selector`] must have
/// been called.
pub(crate) fn services_of_pod(services: &Informer<Service>, change: &Change) -> Vec<Key> {
    let mut labels = vec![&change.object().labels];
    if let Change::Updated { old, .. } = change {
        labels.push(&old.labels);
    }
    let labels: Vec<Labels> = labels
        .iter()
        .map(|l| l.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
        .collect();
    let namespace = &change.object().key.namespace;
    let pairs: BTreeSet<(&String, &String)> = labels.iter().flatten().collect();
    pairs
        .into_iter()
        .flat_map(|pair| services.cache().by_index(BY_SELECTOR, &index_key(namespace, pair)))
        .filter(|service| chooses(service, &labels))
        .map(|service| (service.key.namespace.to_string(), service.key.name.to_string()))
        .collect()
}

/// Whether the selector of a Service chooses one of these sets of labels.
fn chooses(service: &Object, labels: &[Labels]) -> bool {
    let selector = selector_of(service);
    labels.iter().any(|labels| client::labels::contains(&selector, Some(labels)))
}

/// The pods of a namespace that a selector chooses.
pub(crate) fn pods_of(pods: &Informer<Pod>, namespace: &str, selector: &Labels) -> Vec<Pod> {
    pods.cache()
        .list(namespace)
        .iter()
        .filter(|pod| selector.iter().all(|(name, value)| pod.label(name) == Some(value)))
        .filter_map(|pod| client::informer::decode(pod))
        .collect()
}

/// Makes `services` searchable by namespace and the first pair of their selectors, for
/// [`services_of_pod`].
pub(crate) fn index_by_selector(services: &Informer<Service>) {
    services.add_index(BY_SELECTOR, keys_of);
}

fn keys_of(service: &Object) -> Vec<String> {
    let first = selector_of(service).pop_first();
    let key = |(name, value)| index_key(&service.key.namespace, (&name, &value));
    first.map(key).into_iter().collect()
}

fn index_key(namespace: &str, (name, value): (&String, &String)) -> String {
    format!("{namespace}/{name}={value}")
}

/// The selector of a Service; empty without one.
fn selector_of(service: &Object) -> Labels {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Shape {
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        selector: Option<Labels>,
    }
    let shape: Shape = serde_json::from_slice(service.raw()).unwrap_or_default();
    shape.spec.selector.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use serde_json::json;

    fn object(kind: &str, name: &str, more: serde_json::Value) -> Arc<Object> {
        let mut value = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {"namespace": "n", "name": name, "resourceVersion": "1"},
        });
        let to = value.as_object_mut().unwrap();
        to.extend(more.as_object().unwrap().clone());
        Arc::new(Object::from_value(value).unwrap())
    }

    #[test]
    fn a_service_is_found_by_the_first_pair_of_its_selector_alone() {
        let service =
            object("Service", "s", json!({"spec": {"selector": {"tier": "web", "app": "shop"}}}));
        assert_eq!(keys_of(&service), ["n/app=shop"]);
        assert!(keys_of(&object("Service", "none", json!({"spec": {}}))).is_empty());
        assert!(keys_of(&object("Service", "all", json!({"spec": {"selector": {}}}))).is_empty());
    }

    #[test]
    fn a_selector_chooses_only_labels_that_contain_it_whole() {
        let service = object("Service", "s", json!({"spec": {"selector": {"a": "1", "b": "2"}}}));
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        assert!(chooses(&service, &[labels(&[("a", "1"), ("b", "2"), ("c", "3")])]));
        assert!(!chooses(&service, &[labels(&[("a", "1")]), labels(&[("b", "2")])]));
        // The labels before a change count as well.
        assert!(chooses(&service, &[labels(&[]), labels(&[("a", "1"), ("b", "2")])]));
    }
}
