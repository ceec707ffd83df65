//! The rules of a built-in kind as a table of functions, which implements [`Strategy`].

use std::borrow::Cow;

use api::defaults::{Defaulter, defaulter};
use api::field::{Error, ErrorList, Path};
use api::validation::names::{NameRule, name_is_subdomain};
use api::value::{ensure_object, get, int_at, remove, restore, semantic_equal, set, str_at};
use serde_json::Value;

use super::{Strategy, WriteContext};

/// The rules of one kind. Fields not named come from [`Rules::BASE`].
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Validates names.
    pub(crate) name: NameRule,
    /// The kind's zero status as JSON; `None` when clients may write the status with the object.
    pub(crate) status: Option<&'static str>,
    /// A change of one of these fields increments `metadata.generation`; empty when the kind has no
    /// generation. For a field with `?`, adding or removing it is the change: an empty selector
    /// selects everything, an absent one nothing.
    pub(crate) generation: &'static [&'static str],
    /// Whether a write of `status` keeps labels, annotations, finalizers and owners.
    pub(crate) status_keeps_meta: bool,
    /// Whether an update validates `generateName`, because upstream validates the changed object as
    /// a new one. Set by [`Rules::of`].
    pub(crate) checks_prefix: bool,
    /// Whether a PUT creates an absent object.
    pub(crate) create_on_update: bool,
    /// Whether a PUT without resource version is accepted.
    pub(crate) unconditional_update: bool,
    /// Prepares a new object, after the common preparation.
    pub(crate) prepare: fn(&WriteContext<'_>, &mut Value),
    /// Prepares a changed object, after the common preparation; the context has the subresource.
    pub(crate) prepare_change: fn(&WriteContext<'_>, &mut Value, &Value),
    /// Errors of a new object, without those of `metadata`.
    pub(crate) validate: fn(&Value) -> ErrorList,
    /// Errors of a changed object, without those of `metadata`.
    pub(crate) validate_change: fn(&Value, &Value) -> ErrorList,
    /// Errors of a write to a subresource that replaces the object, without those of `metadata`.
    pub(crate) validate_subresource: fn(&str, &Value, &Value) -> ErrorList,
    /// Warnings about an object; the second argument is the old object of an update.
    pub(crate) warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// Selectable fields in addition to name and namespace.
    pub(crate) selectable: fn(&Value) -> Vec<(&'static str, String)>,
    /// Sets defaults. Set by [`Rules::of`].
    pub(crate) default: Defaulter,
}

/// Kinds whose `ValidateXUpdate` calls `ValidateX`, including the validation of metadata.
const VALIDATED_AS_NEW: [&str; 12] = [
    "Pod",
    "Endpoints",
    "EndpointSlice",
    "PersistentVolume",
    "StorageClass",
    "VolumeAttachment",
    "CSINode",
    "CSIStorageCapacity",
    "Ingress",
    "IngressClass",
    "IPAddress",
    "StorageVersionMigration",
];

impl Rules {
    /// The rules of a kind without specific rules.
    pub(crate) const BASE: Self = Self {
        name: name_is_subdomain,
        status: None,
        generation: &[],
        status_keeps_meta: false,
        checks_prefix: false,
        create_on_update: false,
        unconditional_update: true,
        prepare: |_, _| {},
        prepare_change: |_, _, _| {},
        validate: |_| Vec::new(),
        validate_change: |_, _| Vec::new(),
        validate_subresource: |_, _, _| Vec::new(),
        warnings: |_, _| Vec::new(),
        selectable: |_| Vec::new(),
        default: |_| {},
    };

    /// These rules with the defaults of a kind.
    pub(crate) fn of(self, group: &str, version: &str, kind: &str) -> Self {
        let checks_prefix = VALIDATED_AS_NEW.contains(&kind) && group != "events.k8s.io";
        Self { default: defaulter(group, version, kind), checks_prefix, ..self }
    }
}

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        (self.default)(object);
    }

    fn prepare_for_create(&self, context: &WriteContext<'_>, object: &mut Value) {
        if let Some(zero) = self.status {
            reset_status(object, zero);
        }
        if !self.generation.is_empty() {
            if let Some(meta) = ensure_object(object, "metadata") {
                set(meta, "generation", 1);
            }
        }
        (self.prepare)(context, object);
    }

    fn prepare_for_update(&self, context: &WriteContext<'_>, object: &mut Value, old: &Value) {
        match context.subresource {
            "" | "ephemeralcontainers" | "resize" | "finalize" if self.status.is_some() => {
                restore(object, old, "status");
            }
            "status" => keep_all_but_status(object, old, self.status_keeps_meta),
            _ => {}
        }
        let old_generation = int_at(get(old, "metadata"), "generation");
        if let Some(meta) = ensure_object(object, "metadata") {
            match old_generation {
                Some(generation) => set(meta, "generation", generation),
                None => {
                    remove(meta, "generation");
                }
            }
        }
        (self.prepare_change)(context, object, old);
        let changed = self.generation.iter().any(|key| match key.split_once('.') {
            Some((parent, child)) if child.ends_with('?') => {
                let child = child.trim_end_matches('?');
                get(get(object, parent), child).is_null() != get(get(old, parent), child).is_null()
            }
            Some((parent, child)) => {
                !semantic_equal(get(get(object, parent), child), get(get(old, parent), child))
            }
            None => !semantic_equal(get(object, key), get(old, key)),
        });
        if changed && context.subresource != "status" {
            if let Some(meta) = ensure_object(object, "metadata") {
                set(meta, "generation", old_generation.unwrap_or_default() + 1);
            }
        }
    }

    fn validate(&self, _: &WriteContext<'_>, object: &Value) -> ErrorList {
        (self.validate)(object)
    }

    fn validate_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> ErrorList {
        match context.subresource {
            "" => {
                let prefix = str_at(get(object, "metadata"), "generateName");
                let field = Path::new("metadata").child("generateName");
                let mut errors = ErrorList::new();
                if self.checks_prefix && !prefix.is_empty() {
                    let texts = (self.name)(prefix, true).into_iter();
                    errors.extend(texts.map(|text| Error::invalid(&field, prefix, text)));
                }
                errors.extend((self.validate_change)(object, old));
                errors
            }
            subresource => (self.validate_subresource)(subresource, object, old),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        (self.name)(name, prefix)
    }

    fn warnings_on_create(&self, context: &WriteContext<'_>, object: &Value) -> Vec<String> {
        let mut warnings = std::mem::take(&mut *context.warnings.lock());
        warnings.extend((self.warnings)(object, None));
        warnings
    }

    fn warnings_on_update(
        &self,
        context: &WriteContext<'_>,
        object: &Value,
        old: &Value,
    ) -> Vec<String> {
        if context.subresource.is_empty() { (self.warnings)(object, Some(old)) } else { Vec::new() }
    }

    fn allow_create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn allow_unconditional_update(&self) -> bool {
        self.unconditional_update
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(Cow<'static, str>, String)> {
        (self.selectable)(object).into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

/// Replaces the status that the client sent with Go's zero status.
fn reset_status(object: &mut Value, zero: &str) {
    match serde_json::from_str::<Value>(zero) {
        Ok(status) => set(object, "status", status),
        Err(error) => unreachable!("the zero status {zero:?} in the table is not JSON: {error}"),
    }
}

fn keep_all_but_status(object: &mut Value, old: &Value, keep_meta: bool) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
    for (key, value) in old.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            fields.insert(key.clone(), value.clone());
        }
    }
    if keep_meta {
        if let Some(meta) = ensure_object(object, "metadata") {
            for key in [
                "deletionTimestamp",
                "generation",
                "labels",
                "annotations",
                "finalizers",
                "ownerReferences",
            ] {
                restore(meta, get(old, "metadata"), key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::user::User;
    use serde_json::json;

    fn context<'a>(user: &'a User, subresource: &'a str) -> WriteContext<'a> {
        WriteContext::of(user, "n", subresource)
    }

    /// Answers of kube-apiserver 1.37.1.
    #[test]
    fn updates_of_some_kinds_validate_generate_name() {
        let user = User::default();
        let object = json!({"metadata": {"name": "a", "generateName": "Bad_Name!"}});
        let said = |rules: &Rules| {
            let errors = rules.validate_update(&context(&user, ""), &object, &object);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let text = "metadata.generateName: Invalid value: \"Bad_Name!\": a lowercase RFC 1123 subdomain must consist of";
        let rules = Rules::BASE.of("storage.k8s.io", "v1", "StorageClass");
        assert!(said(&rules)[0].starts_with(text), "{:?}", said(&rules));
        assert!(said(&Rules::BASE.of("", "v1", "ServiceAccount")).is_empty());
    }

    /// Upstream's `DeepEqual` distinguishes an empty selector from none.
    #[test]
    fn adding_or_removing_a_selector_increments_the_generation() {
        let rules = Rules { generation: &["spec", "spec.selector?"], ..Rules::BASE };
        let user = User::default();
        let old = json!({"metadata": {"generation": 2}, "spec": {}});
        let mut new = json!({"metadata": {}, "spec": {"selector": {}}});
        rules.prepare_for_update(&context(&user, ""), &mut new, &old);
        assert_eq!(new["metadata"]["generation"], 3);
    }

    #[test]
    fn only_changes_of_the_spec_increment_the_generation() {
        let rules = Rules { generation: &["spec"], status: Some("{}"), ..Rules::BASE };
        let user = User::default();
        let old = json!({"metadata": {"generation": 4}, "spec": {"a": 1}, "status": {"x": 1}});
        let mut new = json!({"metadata": {"generation": 9}, "spec": {"a": 2}});
        rules.prepare_for_update(&context(&user, ""), &mut new, &old);
        assert_eq!(
            new,
            json!({"metadata": {"generation": 5}, "spec": {"a": 2}, "status": {"x": 1}})
        );
        let mut status =
            json!({"metadata": {"labels": {"l": "1"}}, "spec": {"a": 3}, "status": {"x": 2}});
        rules.prepare_for_update(&context(&user, "status"), &mut status, &old);
        assert_eq!(
            status,
            json!({"metadata": {"generation": 4, "labels": {"l": "1"}}, "spec": {"a": 1}, "status": {"x": 2}})
        );
    }
}
