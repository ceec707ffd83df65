//! The status of validating admission policies: which of their expressions do not fit the types of
//! the objects they are about.

use api::Typed;
use api::expressions::checking::{self, Served};
use api::k8s::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use api::schema::Schema;
use client::{Action, Client, Error, Informer, Patch};
use serde_json::{Value, json};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

const MANAGER: &str = "validatingadmissionpolicy-status-controller";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(MANAGER);
    let policies = context.informers.of::<ValidatingAdmissionPolicy>();
    let mut keyed = Keyed::new();
    keyed.watches_self(&policies);
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
    if is_checked(&policy) {
        return Ok(Action::Done);
    }
    let schema = Schema::builtin();
    let served = served(client, &schema, &policy).await;
    let object = status(&schema, &served, name, &policy);
    let patch = Patch::Apply { object: &object, manager: MANAGER, force: true };
    settled(client.patch::<ValidatingAdmissionPolicy>("", name, "status", &patch).await)?;
    Ok(Action::Done)
}

/// Reads the kinds that the policy names and that are not built in. As upstream, an API that does
/// not answer leaves its kinds unchecked, and so does one that begins to be served later: a policy
/// is checked once per generation.
async fn served(client: &Client, schema: &Schema, policy: &Value) -> Served {
    let mut served = Served::default();
    for (group, version) in checking::versions_beyond(schema, policy) {
        let root = match &*group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let Some(resources) = document(client, &root).await else { continue };
        let types = document(client, &format!("/openapi/v3{root}")).await;
        served.add(&group, &version, &resources, types);
    }
    served
}

async fn document(client: &Client, path: &str) -> Option<Value> {
    let read = client.get_as(path, "application/json").await;
    match read.and_then(|text| Ok(serde_json::from_slice(&text)?)) {
        Ok(document) => Some(document),
        Err(error) => {
            tracing::debug!(path, %error, "cannot read the types that a policy names, it is not \
                checked against them");
            None
        }
    }
}

fn number(policy: &Value, pointer: &str) -> i64 {
    policy.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// The status belongs to this generation.
fn is_checked(policy: &Value) -> bool {
    number(policy, "/metadata/generation") <= number(policy, "/status/observedGeneration")
}

/// The status that is to be applied.
fn status(schema: &Schema, served: &Served, name: &str, policy: &Value) -> Value {
    let warnings: Vec<Value> = checking::warnings(schema, served, policy)
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field, "warning": warning.text}))
        .collect();
    let mut checked = json!({});
    if !warnings.is_empty() {
        checked = json!({"expressionWarnings": warnings});
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "status": {"observedGeneration": number(policy, "/metadata/generation"),
            "typeChecking": checked},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use async_trait::async_trait;
    use bytes::Bytes;
    use client::{Scope, Transport, WatchStream};
    use http::{Request, Response, StatusCode};

    use super::*;

    /// Documents by path; all else is not found.
    #[derive(Debug)]
    struct Documents(BTreeMap<&'static str, Value>);

    #[async_trait]
    impl Transport for Documents {
        async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
            let mut answer = Response::default();
            match self.0.get(request.uri().path()) {
                Some(document) => *answer.body_mut() = document.to_string().into(),
                None => *answer.status_mut() = StatusCode::NOT_FOUND,
            }
            Ok(answer)
        }

        async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
            Err(Error::Transport("no watches here".into()))
        }
    }

    fn policy(group: &str, resource: &str, expression: &str) -> Value {
        json!({"metadata": {"generation": 2}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"],
                "resources": [resource]}]},
            "validations": [{"expression": expression}]}})
    }

    #[test]
    fn a_generation_is_looked_at_once() {
        let mut policy = policy("", "pods", "object.spec.nodes == 1");
        assert!(!is_checked(&policy));
        let applied = status(&Schema::builtin(), &Served::default(), "p", &policy);
        assert_eq!(applied["status"]["observedGeneration"], 2);
        let warnings = &applied["status"]["typeChecking"]["expressionWarnings"];
        assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
        policy["status"] = applied["status"].clone();
        assert!(is_checked(&policy));
    }

    #[tokio::test]
    async fn custom_resources_are_checked_against_the_published_schema() {
        let schema = Schema::builtin();
        let policy = policy("stable.example.com", "crontabs", "object.spec.replicas > '1'");
        let mut documents = BTreeMap::from([(
            "/apis/stable.example.com/v1",
            json!({"resources": [{"name": "crontabs", "singularName": "crontab",
                "kind": "CronTab"}]}),
        )]);
        let check = async |documents: &BTreeMap<&'static str, Value>| {
            let client = Client::new(Arc::new(Documents(documents.clone())), "test");
            let served = served(&client, &schema, &policy).await;
            status(&schema, &served, "p", &policy)["status"]["typeChecking"].clone()
        };
        // As upstream: without a document there is nothing to check against.
        assert_eq!(check(&BTreeMap::new()).await, json!({}));
        assert_eq!(check(&documents).await, json!({}));
        documents.insert(
            "/openapi/v3/apis/stable.example.com/v1",
            json!({"components": {"schemas": {"com.example.stable.v1.CronTab": {"type": "object",
                "x-kubernetes-group-version-kind": [{"group": "stable.example.com",
                    "version": "v1", "kind": "CronTab"}],
                "properties": {"spec": {"type": "object",
                    "properties": {"replicas": {"type": "integer"}}}}}}}}),
        );
        let checked = check(&documents).await;
        let warning = &checked["expressionWarnings"][0];
        assert_eq!(warning["fieldRef"], "spec.validations[0].expression");
        let text = warning["warning"].as_str().unwrap();
        assert!(text.starts_with("stable.example.com/v1, Kind=CronTab: ERROR: "), "{text}");
        assert!(text.contains("found no matching overload for '_>_' applied to '(int, string)'"));
    }
}
