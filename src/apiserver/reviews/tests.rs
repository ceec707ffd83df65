//! Reviews with the responses of a live 1.37.1.

use super::*;
use crate::authn::static_token::StaticTokens;
use crate::authz::chain::Chain;
use crate::authz::rbac::Rbac;
use api::Object;
use lookup::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES};

fn reviews() -> Reviews {
    let rbac = Arc::new(Rbac::new());
    let role = json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, {"verbs": ["get"], "nonResourceURLs": ["/livez"]}]});
    rbac.put(&CLUSTER_ROLES, &Object::from_value(role).unwrap());
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "Group", "name": "dev"}]});
    rbac.put(&CLUSTER_ROLE_BINDINGS, &Object::from_value(binding).unwrap());
    let jane = User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() };
    let union = Arc::new(Union::new(
        vec![Arc::new(StaticTokens::new([("secret".to_owned(), jane)]))],
        true,
    ));
    let chain = Arc::new(Chain::new(vec![Arc::clone(&rbac) as Arc<dyn Authorizer>]));
    Reviews::new(union, chain, vec!["api".into()])
}

async fn ask(resource: &str, mut object: Value) -> Result<Value, Status> {
    let jane = User::authenticated("jane", &["dev"]);
    reviews().create(resource, "a", &jane, &mut object).await?;
    Ok(object["status"].clone())
}

#[tokio::test]
async fn access_reviews_answer_for_the_named_subject() {
    let sar = |user: &str, groups: &[&str], verb: &str| {
        let attributes = json!({"namespace": "a", "verb": verb, "resource": "pods"});
        json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}})
    };
    assert_eq!(
        ask("subjectaccessreviews", sar("u", &["g"], "get")).await.unwrap(),
        json!({"allowed": false})
    );
    assert_eq!(
        ask("subjectaccessreviews", sar("u", &["dev"], "get")).await.unwrap(),
        json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to Group \"dev\""})
    );
    let own = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/livez"}}});
    assert_eq!(ask("selfsubjectaccessreviews", own).await.unwrap()["allowed"], true);
}

#[tokio::test]
async fn bad_questions_are_refused_as_recorded() {
    let error = ask("subjectaccessreviews", json!({"spec": {}})).await.unwrap_err();
    assert_eq!(
        error.message,
        ".authorization.k8s.io \"\" is invalid: [spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: \"\": at least one of user or group must be specified]"
    );
    let both = json!({"spec": {"user": "u", "resourceAttributes": {"verb": "get", "fieldSelector": {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}},
        "nonResourceAttributes": {"path": "/x", "verb": "get"}}});
    let error = ask("subjectaccessreviews", both).await.unwrap_err();
    assert_eq!(
        error.message,
        ".authorization.k8s.io \"\" is invalid: [spec: Invalid value: {\"Path\":\"/x\",\"Verb\":\"get\"}: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements]"
    );
    let selectors = json!({"spec": {"resourceAttributes": {"verb": "get",
        "fieldSelector": {"requirements": [{"key": "", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]}, {"key": "a", "operator": "Later"}]},
        "labelSelector": {"requirements": [{"key": "a", "operator": "NotIn", "values": []}]}}}});
    let error = ask("selfsubjectaccessreviews", selectors).await.unwrap_err();
    assert_eq!(
        error.message,
        ".authorization.k8s.io \"\" is invalid: [spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified, spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn', spec.resourceAttributes.fieldSelector.requirements[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist', spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn']"
    );
    let named = json!({"metadata": {"name": "n", "namespace": "a", "managedFields": [{"manager": "m", "operation": "Update"}]}, "spec": {"user": "u", "resourceAttributes": {"namespace": "a"}}});
    let error = ask("localsubjectaccessreviews", named).await.unwrap_err();
    assert!(
        error.message.contains(
            "metadata: Invalid value: {\"name\":\"n\",\"namespace\":\"a\",\"managedFields\":["
        ),
        "{}",
        error.message
    );
    let error = ask("tokenreviews", json!({"spec": {}})).await.unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (400, "token is required for TokenReview in authentication")
    );
    let other = json!({"metadata": {"namespace": "a"}, "spec": {"user": "u", "resourceAttributes": {"namespace": "b"}}});
    assert!(ask("localsubjectaccessreviews", other).await.unwrap_err().message.contains(
        "spec.resourceAttributes.namespace: Invalid value: \"b\": must match metadata.namespace"
    ));
}

#[tokio::test]
async fn token_reviews_as_recorded() {
    assert_eq!(
        ask("tokenreviews", json!({"spec": {"token": "nope", "audiences": ["x"]}})).await.unwrap(),
        json!({"user": {}, "error": "invalid bearer token"})
    );
    assert_eq!(
        ask("tokenreviews", json!({"spec": {"token": "secret"}})).await.unwrap(),
        json!({"authenticated": true, "user": {"username": "jane", "groups": ["dev", "system:authenticated"]}, "audiences": ["api"]})
    );
}

#[tokio::test]
async fn rules_and_identity_of_the_caller() {
    let rules = ask("selfsubjectrulesreviews", json!({"spec": {"namespace": "a"}})).await.unwrap();
    assert_eq!(
        rules,
        json!({"resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
               "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/livez"]}], "incomplete": false})
    );
    assert_eq!(
        ask("selfsubjectrulesreviews", json!({"spec": {}})).await.unwrap_err().message,
        "no namespace on request"
    );
    let me = ask("selfsubjectreviews", json!({})).await.unwrap();
    assert_eq!(
        me,
        json!({"userInfo": {"username": "jane", "groups": ["dev", "system:authenticated"]}})
    );
}
