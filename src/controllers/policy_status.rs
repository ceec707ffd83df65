//! The status of validating admission policies: which of their expressions do not fit the types of the objects they are about.

use api::Typed;
use api::expressions::checking;
use api::k8s::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use api::schema::Schema;
use client::{Action, Client, Error, Informer, Patch};
use serde_json::{Value, json};

use crate::context::Context;
use crate::keyed::{Keyed, settled};

const MANAGER: &str = "validatingadmissionpolicy-status-controller";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(MANAGER);
    let policies = context.informers.of::<ValidatingAdmissionPolicy>();
    let mut keyed = Keyed::new();
    keyed.wakes_itself(&policies);
    keyed.run(&context.tasks, MANAGER, 1, move |(_, name)| {
        let (client, policies) = (client.clone(), policies.clone());
        async move { reconcile(&client, &policies, &name).await }
    });
}

async fn reconcile(
    client: &Client,
    informer: &Informer<ValidatingAdmissionPolicy>,
    name: &str,
) -> Result<Action, Error> {
    let Some(policy) = informer.get("", name) else { return Ok(Action::Done) };
    let policy = policy.to_value()?;
    if let Some(object) = status(&Schema::builtin(), name, &policy) {
        let patch = Patch::Apply { object: &object, manager: MANAGER, force: true };
        let written = client.patch::<ValidatingAdmissionPolicy>("", name, "status", &patch).await;
        settled(written)?;
    }
    Ok(Action::Done)
}

/// The status that is to be applied; none when this generation was looked at.
fn status(schema: &Schema, name: &str, policy: &Value) -> Option<Value> {
    let number = |pointer: &str| policy.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let generation = number("/metadata/generation");
    if generation <= number("/status/observedGeneration") {
        return None;
    }
    let warnings: Vec<Value> = checking::warnings(schema, policy)
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field, "warning": warning.text}))
        .collect();
    let mut checked = json!({});
    if !warnings.is_empty() {
        checked = json!({"expressionWarnings": warnings});
    }
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "status": {"observedGeneration": generation, "typeChecking": checked},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_looked_at_once() {
        let schema = Schema::builtin();
        let mut policy = json!({"metadata": {"generation": 2}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
            "validations": [{"expression": "object.spec.nodes == 1"}]}});
        let applied = status(&schema, "p", &policy).unwrap();
        assert_eq!(applied["status"]["observedGeneration"], 2);
        let warnings = &applied["status"]["typeChecking"]["expressionWarnings"];
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
        policy["status"]["observedGeneration"] = 2.into();
        assert_eq!(status(&schema, "p", &policy), None);
    }
}
