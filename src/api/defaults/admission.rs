//! Defaults of webhook configurations and admission policies.

use serde_json::{Value, json};

use super::{Defaulter, none};
use crate::value::{default_to, ensure_object, items_mut, object_mut};

pub(super) fn defaulter(kind: &str) -> Defaulter {
    match kind {
        "ValidatingWebhookConfiguration" => {
            |object| items_mut(object, "webhooks").iter_mut().for_each(webhook)
        }
        "MutatingWebhookConfiguration" => |object| {
            for hook in items_mut(object, "webhooks") {
                webhook(hook);
                default_to(hook, "reinvocationPolicy", "Never");
            }
        },
        "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy" => |object| {
            if let Some(spec) = ensure_object(object, "spec") {
                default_to(spec, "failurePolicy", "Fail");
                if let Some(constraints) = object_mut(spec, "matchConstraints") {
                    match_resources(constraints);
                }
            }
        },
        "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding" => |object| {
            if let Some(resources) =
                object_mut(object, "spec").and_then(|spec| object_mut(spec, "matchResources"))
            {
                match_resources(resources);
            }
        },
        _ => none,
    }
}

fn webhook(hook: &mut Value) {
    default_to(hook, "failurePolicy", "Fail");
    default_to(hook, "matchPolicy", "Equivalent");
    default_to(hook, "namespaceSelector", json!({}));
    default_to(hook, "objectSelector", json!({}));
    default_to(hook, "timeoutSeconds", 10);
    if let Some(service) =
        object_mut(hook, "clientConfig").and_then(|config| object_mut(config, "service"))
    {
        default_to(service, "port", 443);
    }
    scopes(hook, "rules");
}

fn match_resources(resources: &mut Value) {
    default_to(resources, "matchPolicy", "Equivalent");
    default_to(resources, "namespaceSelector", json!({}));
    default_to(resources, "objectSelector", json!({}));
    scopes(resources, "resourceRules");
    scopes(resources, "excludeResourceRules");
}

fn scopes(value: &mut Value, key: &str) {
    for rule in items_mut(value, key) {
        default_to(rule, "scope", "*");
    }
}
