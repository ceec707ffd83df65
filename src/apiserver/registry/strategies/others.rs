//! The remaining groups: networking, storage, RBAC, scheduling, flow control, admission, custom
//! resources.

use api::validation::names::{name_is_long_name, name_is_path_segment, name_is_subdomain};
use api::validation::warnings;
use api::validation::{
    admission, crd, endpoints, flow, networking, rbac, resource, small_kinds as small,
};
use api::value::{
    at, bool_at, ensure_object, get, int_at, is_empty, items, items_mut, object_mut, remove,
    semantic_equal, set, str_at, str_in,
};
use serde_json::{Value, json};

use super::super::rules::Rules;
use super::{pod_certificate, trust_bundle};

pub(super) const INGRESS: Rules = Rules {
    warnings: warnings::ingress,
    status: Some(r#"{"loadBalancer":{}}"#),
    generation: &["spec"],
    validate: networking::ingress,
    validate_change: networking::ingress_change,
    validate_subresource: networking::ingress_status,
    ..Rules::BASE
};

/// Kinds without status whose generation follows the spec.
pub(super) const WITH_SPEC_GENERATION: Rules = Rules { generation: &["spec"], ..Rules::BASE };

pub(super) const SERVICE_CIDR: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    validate: networking::service_cidr,
    validate_change: networking::service_cidr_change,
    ..Rules::BASE
};

pub(super) const ENDPOINT_SLICE: Rules = Rules {
    warnings: warnings::slice,
    prepare: |_, object| drop_topology(object, &Value::Null),
    prepare_change: |_, object, old| {
        let sent = get(object, "endpoints").clone();
        drop_topology(object, old);
        // What is taken off counts as a change.
        if sent != *get(object, "endpoints")
            && let Some(meta) = ensure_object(object, "metadata")
        {
            let before = int_at(get(old, "metadata"), "generation").unwrap_or_default();
            set(meta, "generation", before + 1);
        }
    },
    generation: &["ports", "endpoints", "addressType", "metadata.labels"],
    validate: endpoints::slice,
    validate_change: endpoints::slice_change,
    ..Rules::BASE
};

/// The topology of an older version is not written any more; a node that was named there alone goes
/// on being named.
fn drop_topology(slice: &mut Value, old: &Value) {
    const KEY: &str = "deprecatedTopology";
    const HOST: &str = "kubernetes.io/hostname";
    if old.is_object() && semantic_equal(get(slice, "endpoints"), get(old, "endpoints")) {
        return;
    }
    let node = |endpoint: &Value| str_at(get(endpoint, KEY), HOST).to_owned();
    let known: Vec<String> = items(old, "endpoints").iter().map(node).collect();
    for endpoint in items_mut(slice, "endpoints") {
        let name = node(endpoint);
        let good = !name.is_empty() && name_is_subdomain(&name, false).is_empty();
        if get(endpoint, "nodeName").is_null() && good && known.contains(&name) {
            set(endpoint, "nodeName", name);
        }
        remove(endpoint, KEY);
    }
}

/// Policies and webhook configurations.
pub(super) const WEBHOOKS: Rules = Rules {
    generation: &["webhooks"],
    unconditional_update: false,
    validate: admission::webhooks,
    validate_change: admission::webhooks_change,
    ..Rules::BASE
};
pub(super) const POLICY: Rules =
    Rules { generation: &["spec"], unconditional_update: false, ..Rules::BASE };
pub(super) const POLICY_WITH_STATUS: Rules = Rules {
    validate: admission::validating_policy,
    validate_change: admission::validating_policy_change,
    validate_subresource: admission::validating_policy_status,
    status: Some("{}"),
    generation: &["spec"],
    status_keeps_meta: true,
    unconditional_update: false,
    ..Rules::BASE
};

pub(super) const FLOW: Rules = Rules {
    status: Some("{}"),
    generation: &["spec"],
    status_keeps_meta: true,
    validate_subresource: flow::status,
    ..Rules::BASE
};

const RBAC: Rules = Rules { name: name_is_path_segment, create_on_update: true, ..Rules::BASE };

pub(super) const ROLE: Rules =
    Rules { validate: rbac::role, validate_change: |new, _| rbac::role(new), ..RBAC };

pub(super) const CLUSTER_ROLE: Rules = Rules {
    validate: rbac::cluster_role,
    validate_change: |new, _| rbac::cluster_role(new),
    ..RBAC
};

pub(super) const ROLE_BINDING: Rules =
    Rules { validate: rbac::role_binding, validate_change: rbac::role_binding_change, ..RBAC };

pub(super) const CLUSTER_ROLE_BINDING: Rules = Rules {
    validate: rbac::cluster_role_binding,
    validate_change: rbac::cluster_role_binding_change,
    ..RBAC
};

pub(super) const LEASE: Rules = Rules {
    prepare: |_, object| drop_coordination(object, &Value::Null),
    prepare_change: |_, object, old| drop_coordination(object, get(old, "spec")),
    create_on_update: true,
    unconditional_update: false,
    validate: small::lease,
    validate_change: |new, _| small::lease(new),
    ..Rules::BASE
};

/// Coordinated leader election is off in 1.37: its fields stay only where they were.
fn drop_coordination(lease: &mut Value, old: &Value) {
    if let Some(spec) = object_mut(lease, "spec") {
        for key in ["strategy", "preferredHolder"] {
            if old.get(key).is_none() {
                remove(spec, key);
            }
        }
    }
}

pub(super) const RUNTIME_CLASS: Rules = Rules {
    warnings: warnings::runtime_class,
    create_on_update: true,
    unconditional_update: false,
    validate: small::runtime_class,
    validate_change: small::runtime_class_change,
    ..Rules::BASE
};

pub(super) const PRIORITY_CLASS: Rules = Rules {
    generation: &[""],
    validate: small::priority_class,
    validate_change: small::priority_class_change,
    ..Rules::BASE
};

pub(super) const RESOURCE_CLAIM: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    validate: resource::claim,
    validate_change: resource::claim_change,
    validate_subresource: resource::claim_status,
    prepare_change: |context, object, old| {
        if context.subresource == "status" {
            claim_status(object, old);
        }
    },
    ..Rules::BASE
};

/// What drivers say of devices goes away with the devices; operations that a node leaves out are
/// off in 1.37.
fn claim_status(claim: &mut Value, old: &Value) {
    const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
    let identity = |device: &Value| {
        ["driver", "pool", "device", "shareID"].map(|key| str_at(device, key).to_owned())
    };
    let results = |claim: &Value| -> Vec<[String; 4]> {
        at(claim, &RESULTS).as_array().into_iter().flatten().map(identity).collect()
    };
    let left_out = "skipNodeOperations";
    let mut in_use = at(old, &RESULTS).as_array().into_iter().flatten();
    if !in_use.any(|result| !is_empty(result, left_out)) {
        let results = claim.pointer_mut("/status/allocation/devices/results");
        for result in results.and_then(Value::as_array_mut).into_iter().flatten() {
            remove(result, left_out);
        }
    }
    let (was, is) = (results(old), results(claim));
    let Some(status) = object_mut(claim, "status") else { return };
    let kept: Vec<Value> = items(status, "devices")
        .iter()
        .filter(|device| {
            let own = identity(device);
            is.contains(&own) || !was.contains(&own)
        })
        .cloned()
        .collect();
    if kept.is_empty() {
        remove(status, "devices");
    } else {
        set(status, "devices", kept);
    }
}

pub(super) const RESOURCE_SLICE: Rules = Rules {
    validate: resource::slice,
    validate_change: resource::slice_change,
    warnings: warnings::resource_slice,
    generation: &["spec"],
    selectable: |object| {
        vec![
            ("spec.nodeName", str_in(object, &["spec", "nodeName"]).to_owned()),
            ("spec.driver", str_in(object, &["spec", "driver"]).to_owned()),
        ]
    },
    ..Rules::BASE
};

pub(super) const CUSTOM_RESOURCE_DEFINITION: Rules = Rules {
    name: name_is_subdomain,
    status: Some(
        r#"{"acceptedNames":{"kind":"","plural":""},"conditions":null,"storedVersions":null}"#,
    ),
    generation: &["spec"],
    status_keeps_meta: true,
    unconditional_update: false,
    warnings: crd::warnings,
    validate: crd::validate,
    validate_change: crd::validate_change,
    validate_subresource: crd::validate_subresource,
    prepare: |_, object| stored_version(object),
    prepare_change: |context, object, _| {
        if context.subresource.is_empty() {
            stored_version(object);
        }
    },
    ..Rules::BASE
};

/// The version that is stored from now on is among those that were ever stored.
fn stored_version(object: &mut Value) {
    let storage = items(get(object, "spec"), "versions")
        .iter()
        .find(|v| bool_at(v, "storage"))
        .map(|v| str_at(v, "name").to_owned());
    let Some(name) = storage else { return };
    if let Some(status) = ensure_object(object, "status") {
        let mut stored = items(status, "storedVersions").to_vec();
        if !stored.iter().any(|v| v.as_str() == Some(&name)) {
            stored.push(Value::from(name));
            set(status, "storedVersions", stored);
        }
    }
}

pub(super) const API_SERVICE: Rules = Rules {
    validate: small::api_service,
    validate_change: |new, _| small::api_service(new),
    validate_subresource: small::api_service_status,
    name: name_is_path_segment,
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    prepare: |_, object| {
        if get(get(object, "spec"), "service").is_null() {
            let local = json!([{
                "type": "Available", "status": "True", "lastTransitionTime": super::now(),
                "reason": "Local", "message": "Local APIServices are always available",
            }]);
            if let Some(status) = ensure_object(object, "status") {
                set(status, "conditions", local);
            }
        }
    },
    ..Rules::BASE
};

/// Cluster trust bundles may be selected by signer.
pub(super) const CLUSTER_TRUST_BUNDLE: Rules = Rules {
    // Which names are good depends on the signer.
    name: |_, _| Vec::new(),
    unconditional_update: false,
    validate: trust_bundle::validate,
    validate_change: trust_bundle::validate_change,
    selectable: |object| {
        vec![("spec.signerName", str_in(object, &["spec", "signerName"]).to_owned())]
    },
    ..Rules::BASE
};

pub(super) const POD_CERTIFICATE_REQUEST: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    unconditional_update: false,
    validate: pod_certificate::validate,
    validate_change: pod_certificate::validate_change,
    validate_subresource: pod_certificate::validate_status,
    prepare_change: |_, object, _| pod_certificate::whole_seconds(object),
    selectable: pod_certificate::selectable,
    ..Rules::BASE
};

pub(super) const NETWORK_POLICY: Rules = Rules {
    warnings: warnings::network_policy,
    validate: networking::policy,
    validate_change: networking::policy_change,
    ..WITH_SPEC_GENERATION
};

pub(super) const INGRESS_CLASS: Rules = Rules {
    validate: networking::ingress_class,
    validate_change: networking::ingress_class_change,
    ..WITH_SPEC_GENERATION
};

pub(super) const IP_ADDRESS: Rules = Rules {
    name: networking::address_name,
    validate: networking::address,
    validate_change: networking::address_change,
    ..Rules::BASE
};

pub(super) const MUTATING_POLICY: Rules = Rules {
    validate: admission::mutating_policy,
    validate_change: admission::mutating_policy_change,
    ..POLICY
};

pub(super) const MUTATING_BINDING: Rules = Rules {
    validate: admission::mutating_binding,
    validate_change: |new, _| admission::mutating_binding(new),
    ..POLICY
};

pub(super) const VALIDATING_BINDING: Rules = Rules {
    validate: admission::validating_binding,
    validate_change: |new, _| admission::validating_binding(new),
    ..POLICY
};

pub(super) const FLOW_SCHEMA: Rules =
    Rules { validate: flow::schema, validate_change: |new, _| flow::schema(new), ..FLOW };

pub(super) const PRIORITY_LEVEL: Rules = Rules {
    validate: flow::priority_level,
    validate_change: |new, _| flow::priority_level(new),
    ..FLOW
};

pub(super) const CONTROLLER_REVISION: Rules = Rules {
    validate: small::controller_revision,
    validate_change: small::controller_revision_change,
    ..Rules::BASE
};

pub(super) const RESOURCE_CLAIM_TEMPLATE: Rules = Rules {
    validate: resource::template,
    validate_change: resource::template_change,
    ..Rules::BASE
};

pub(super) const DEVICE_CLASS: Rules = Rules {
    name: name_is_long_name,
    validate: resource::class,
    validate_change: resource::class_change,
    ..WITH_SPEC_GENERATION
};
