//! The IngressClasses of the cluster: a controller that the user runs may act on Ingresses that
//! have one.

use std::collections::BTreeSet;

use api::Gvk;
use api::value::{str_at, str_in};
use lookup::Lookup;
use serde_json::Value;

/// The annotation that names a class in clusters older than `spec.ingressClassName`.
const CLASS: &str = "kubernetes.io/ingress.class";
/// The annotation of the default class.
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

/// The classes of a cluster.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct IngressClasses {
    names: BTreeSet<String>,
    has_default: bool,
    /// Whether the classes cannot be read, so that any class may exist.
    is_unknown: bool,
}

impl IngressClasses {
    /// The classes that matter for objects of a kind: none, except for Ingresses.
    pub(crate) async fn for_kind(kind: &Gvk, lookup: &dyn Lookup) -> Self {
        if (&*kind.group, &*kind.kind) != ("networking.k8s.io", "Ingress") {
            return Self::default();
        }
        let Ok(all) = lookup.list(&lookup::INGRESS_CLASSES, "").await else {
            return Self { is_unknown: true, ..Self::default() };
        };
        let mut classes = Self::default();
        for class in all {
            let value = class.value().unwrap_or_default();
            classes.has_default |=
                str_in(&value, &["metadata", "annotations", IS_DEFAULT]) == "true";
            classes.names.insert(class.key.name.to_string());
        }
        classes
    }

    /// Whether the class that the Ingress names exists, or the default one if it names none.
    pub(super) fn match_ingress(&self, ingress: &Value) -> bool {
        let annotated = str_in(ingress, &["metadata", "annotations", CLASS]);
        let named = str_at(api::value::get(ingress, "spec"), "ingressClassName");
        match (named, annotated) {
            _ if self.is_unknown => true,
            ("", "") => self.has_default,
            (named, annotated) => self.names.contains(named) || self.names.contains(annotated),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use lookup::testing::Fixed;

    fn ingress() -> Gvk {
        Gvk::new("networking.k8s.io", "v1", "Ingress")
    }

    fn class(name: &str, is_default: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {IS_DEFAULT: is_default}},
            "spec": {"controller": "example.com/ingress"}})
    }

    #[tokio::test]
    async fn an_ingress_is_matched_by_field_annotation_or_default() {
        let fixed = Fixed::new(&[(&lookup::INGRESS_CLASSES, class("mine", "false"))]);
        let classes = IngressClasses::for_kind(&ingress(), &*fixed).await;
        let named = |name: &str| json!({"spec": {"ingressClassName": name}});
        let annotated =
            |name: &str| json!({"metadata": {"annotations": {CLASS: name}}, "spec": {}});
        for (object, wanted) in [
            (named("mine"), true),
            (named("other"), false),
            (annotated("mine"), true),
            (annotated("other"), false),
            (json!({"spec": {}}), false),
        ] {
            assert_eq!(classes.match_ingress(&object), wanted, "{object}");
        }
        fixed.put(&lookup::INGRESS_CLASSES, class("default", "true"));
        let classes = IngressClasses::for_kind(&ingress(), &*fixed).await;
        assert!(classes.match_ingress(&json!({"spec": {}})));
        assert!(!classes.match_ingress(&named("other")));
    }

    #[tokio::test]
    async fn classes_that_cannot_be_read_cause_no_warning() {
        let fixed = Fixed::new(&[]);
        fixed.break_reads(&lookup::INGRESS_CLASSES);
        let classes = IngressClasses::for_kind(&ingress(), &*fixed).await;
        assert!(classes.match_ingress(&json!({"spec": {"ingressClassName": "x"}})));
        // Other kinds do not depend on them.
        let pod = Gvk::new("", "v1", "Pod");
        assert_eq!(IngressClasses::for_kind(&pod, &*fixed).await, IngressClasses::default());
    }
}
