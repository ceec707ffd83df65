//! Rules of the kinds of the core group except pods and services.

use api::validation::core as rules;
use api::validation::names::{name_is_label, name_is_long_name, name_is_path_segment};
use api::validation::warnings;
use api::validation::{endpoints, events};
use api::value::{
    at, bool_at, ensure_object, get, has, is_empty, items, object_mut, remove, restore, set,
    str_at, str_in,
};
use serde_json::{Value, json};

use super::super::rules::Rules;
use super::pod_fields::drop_of_template;
use super::{now, status_replicas};

pub(super) const NAMESPACE: Rules = Rules {
    name: name_is_label,
    status: Some(r#"{"phase":"Active"}"#),
    prepare: |_, object| {
        if let Some(spec) = ensure_object(object, "spec") {
            let mut finalizers = items(spec, "finalizers").to_vec();
            if !finalizers.contains(&json!("kubernetes")) {
                finalizers.push(json!("kubernetes"));
            }
            set(spec, "finalizers", finalizers);
        }
        own_label(object);
    },
    prepare_change: |context, object, old| {
        if context.subresource.is_empty() {
            if let Some(spec) = ensure_object(object, "spec") {
                restore(spec, get(old, "spec"), "finalizers");
            }
        }
        own_label(object);
    },
    validate: rules::namespace::validate,
    validate_change: |new, _| rules::namespace::validate(new),
    validate_subresource: rules::namespace::validate_subresource,
    selectable: |object| {
        let name = str_in(object, &["metadata", "name"]).to_owned();
        vec![("status.phase", str_in(object, &["status", "phase"]).to_owned()), ("name", name)]
    },
    ..Rules::BASE
};

/// Labels a namespace with its name.
fn own_label(object: &mut Value) {
    let name = str_in(object, &["metadata", "name"]).to_owned();
    if let Some(labels) =
        ensure_object(object, "metadata").and_then(|meta| ensure_object(meta, "labels"))
    {
        set(labels, "kubernetes.io/metadata.name", name);
    }
}

/// Drops a field of `InPlacePodVerticalScalingSchedulerPreemption`, which is off by default.
fn drop_preemption(spec: &mut Value, old: &Value) {
    if !has(old, "podPreemptionPolicy") {
        remove(spec, "podPreemptionPolicy");
    }
}

pub(super) const NODE: Rules = Rules {
    warnings: warnings::node,
    prepare: |_, object| {
        if let Some(spec) = ensure_object(object, "spec") {
            remove(spec, "configSource");
            drop_preemption(spec, &Value::Null);
        }
        if let Some(status) = ensure_object(object, "status") {
            remove(status, "config");
        }
    },
    prepare_change: |context, object, old| {
        if context.subresource.is_empty() {
            restore(object, old, "status");
        }
        if let Some(spec) = ensure_object(object, "spec") {
            drop_preemption(spec, get(old, "spec"));
        }
    },
    validate: rules::node::node,
    validate_change: rules::node::node_change,
    validate_subresource: rules::node::node_status,
    selectable: |object| {
        vec![("spec.unschedulable", bool_at(get(object, "spec"), "unschedulable").to_string())]
    },
    ..Rules::BASE
};

pub(super) const CONFIG_MAP: Rules = Rules {
    validate: rules::config_map::validate,
    validate_change: rules::config_map::validate_change,
    ..Rules::BASE
};

pub(super) const SECRET: Rules = Rules {
    warnings: super::tls::warnings,
    validate: rules::secret::validate,
    validate_change: rules::secret::validate_change,
    prepare_change: |_, object, old| {
        if str_at(object, "type").is_empty() {
            restore(object, old, "type");
        }
    },
    selectable: |object| vec![("type", str_at(object, "type").to_owned())],
    ..Rules::BASE
};

pub(super) const SERVICE_ACCOUNT: Rules = Rules {
    validate_change: |object, _| rules::config_map::prefix(object),
    prepare: |_, object| bare_secrets(object),
    prepare_change: |_, object, _| bare_secrets(object),
    warnings: |object, old| {
        const KEY: &str = "kubernetes.io/enforce-mountable-secrets";
        let marked = |object: &Value| at(object, &["metadata", "annotations"]).get(KEY).is_some();
        if !marked(object) || old.is_some_and(marked) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{KEY}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    },
    ..Rules::BASE
};

/// Keeps only the name of references to secrets.
fn bare_secrets(object: &mut Value) {
    let bare: Vec<Value> = items(object, "secrets")
        .iter()
        .map(|secret| {
            if is_empty(secret, "name") {
                json!({})
            } else {
                json!({"name": str_at(secret, "name")})
            }
        })
        .collect();
    if !bare.is_empty() {
        set(object, "secrets", bare);
    }
}

pub(super) const REPLICATION_CONTROLLER: Rules = Rules {
    warnings: warnings::replication_controller,
    name: name_is_long_name,
    status: Some(r#"{"replicas":0}"#),
    generation: &["spec"],
    selectable: status_replicas,
    validate: rules::replication_controller::validate,
    validate_change: |new, _| rules::replication_controller::validate(new),
    validate_subresource: rules::replication_controller::validate_subresource,
    ..Rules::BASE
};

pub(super) const POD_TEMPLATE: Rules = Rules {
    warnings: warnings::pod_template,
    generation: &["template"],
    prepare: |_, object| {
        if let Some(template) = object_mut(object, "template") {
            drop_of_template(template, &Value::Null);
        }
    },
    prepare_change: |_, object, old| {
        if let Some(template) = object_mut(object, "template") {
            drop_of_template(template, get(old, "template"));
        }
    },
    validate: rules::replication_controller::validate_pod_template,
    validate_change: |new, _| rules::replication_controller::validate_pod_template(new),
    ..Rules::BASE
};

pub(super) const PERSISTENT_VOLUME: Rules = Rules {
    warnings: warnings::volume,
    status: Some(r#"{"phase":"Pending"}"#),
    prepare: |_, object| {
        if let Some(status) = ensure_object(object, "status") {
            set(status, "lastPhaseTransitionTime", now());
        }
    },
    prepare_change: |context, object, old| {
        if context.subresource == "status" {
            phase_time(object, get(old, "status"));
        }
    },
    validate: rules::persistent_volume::validate,
    validate_change: rules::persistent_volume::validate_change,
    ..Rules::BASE
};

/// Keeps the time of an unchanged phase and sets the current time for a new one.
fn phase_time(object: &mut Value, old: &Value) {
    const TIME: &str = "lastPhaseTransitionTime";
    let Some(status) = ensure_object(object, "status") else { return };
    let same_phase = str_at(status, "phase") == str_at(old, "phase");
    let stated = get(status, TIME).is_string();
    if same_phase && !stated {
        restore(status, old, TIME);
    } else if !same_phase && (!stated || get(status, TIME) == get(old, TIME)) {
        set(status, TIME, now());
    }
}

pub(super) const PERSISTENT_VOLUME_CLAIM: Rules = Rules {
    warnings: warnings::claim,
    status: Some(r#"{"phase":"Pending"}"#),
    prepare: |_, object| {
        if let Some(spec) = ensure_object(object, "spec") {
            data_sources(spec, &Value::Null);
        }
    },
    prepare_change: |context, object, old| {
        if context.subresource.is_empty() {
            if let Some(spec) = ensure_object(object, "spec") {
                data_sources(spec, get(old, "spec"));
            }
        } else if !has(get(old, "status"), "healthStatus")
            && let Some(status) = ensure_object(object, "status")
        {
            // The feature `CSIVolumeHealth` is off by default.
            remove(status, "healthStatus");
        }
    },
    validate: rules::claim::validate,
    validate_change: rules::claim::validate_change,
    validate_subresource: rules::claim::status,
    ..Rules::BASE
};

const POPULATED: [(&str, &str); 2] =
    [("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")];

/// Makes `dataSource` and `dataSourceRef` equal and drops unknown kinds of `dataSource`.
fn data_sources(spec: &mut Value, old: &Value) {
    // Sources in other namespaces (`CrossNamespaceVolumeDataSource`) are off by default and dropped
    // unless the old object has one.
    let is_elsewhere = !str_at(get(spec, "dataSourceRef"), "namespace").is_empty();
    if is_elsewhere && !has(old, "dataSourceRef") {
        remove(spec, "dataSourceRef");
    }
    if is_empty(spec, "dataSourceRef") {
        let source = get(spec, "dataSource");
        let known = POPULATED.contains(&(str_at(source, "apiGroup"), str_at(source, "kind")));
        if source.is_object() && !known {
            remove(spec, "dataSource");
        }
    }
    let (old, new) = (get(spec, "dataSource").clone(), get(spec, "dataSourceRef").clone());
    if old.is_object() && !new.is_object() {
        set(spec, "dataSourceRef", old);
    } else if new.is_object() && !old.is_object() && str_at(&new, "namespace").is_empty() {
        set(spec, "dataSource", new);
    }
}

pub(super) const RESOURCE_QUOTA: Rules = Rules {
    status: Some("{}"),
    validate: rules::quota::quota,
    validate_change: rules::quota::quota_change,
    validate_subresource: rules::quota::quota_status,
    ..Rules::BASE
};

pub(super) const LIMIT_RANGE: Rules = Rules {
    create_on_update: true,
    prepare: |_, object| {
        if str_in(object, &["metadata", "name"]).is_empty() {
            if let Some(meta) = ensure_object(object, "metadata") {
                set(meta, "name", base::clock::random_uuid());
            }
        }
    },
    validate: rules::limit_range::validate,
    validate_change: |new, _| rules::limit_range::validate(new),
    ..Rules::BASE
};

pub(super) const ENDPOINTS: Rules = Rules {
    warnings: warnings::endpoints,
    create_on_update: true,
    validate: endpoints::validate,
    validate_change: endpoints::validate_change,
    ..Rules::BASE
};

/// Rules of `v1` Events; `events.k8s.io` names some fields differently.
pub(super) const EVENT: Rules = Rules {
    name: name_is_path_segment,
    create_on_update: true,
    validate: events::validate,
    validate_change: events::validate_change,
    selectable: event_fields,
    ..Rules::BASE
};

/// Rules of `events.k8s.io` Events, whose names are DNS subdomains.
pub(super) const NEW_EVENT: Rules =
    Rules { name: api::validation::names::name_is_subdomain, ..EVENT };

fn event_fields(object: &Value) -> Vec<(&'static str, String)> {
    let about = if object.get("involvedObject").is_some() {
        get(object, "involvedObject")
    } else {
        get(object, "regarding")
    };
    let first = |keys: [&str; 2]| {
        let [one, two] = keys.map(|key| str_at(object, key));
        (if one.is_empty() { two } else { one }).to_owned()
    };
    let reporter = first(["reportingComponent", "reportingController"]);
    let component = str_in(object, &["source", "component"]);
    let component = if component.is_empty() {
        str_in(object, &["deprecatedSource", "component"])
    } else {
        component
    };
    let source = if component.is_empty() { reporter.clone() } else { component.to_owned() };
    vec![
        ("involvedObject.kind", str_at(about, "kind").to_owned()),
        ("involvedObject.namespace", str_at(about, "namespace").to_owned()),
        ("involvedObject.name", str_at(about, "name").to_owned()),
        ("involvedObject.uid", str_at(about, "uid").to_owned()),
        ("involvedObject.apiVersion", str_at(about, "apiVersion").to_owned()),
        ("involvedObject.resourceVersion", str_at(about, "resourceVersion").to_owned()),
        ("involvedObject.fieldPath", str_at(about, "fieldPath").to_owned()),
        ("reason", str_at(object, "reason").to_owned()),
        ("reportingComponent", reporter),
        ("source", source),
        ("type", str_at(object, "type").to_owned()),
    ]
}
