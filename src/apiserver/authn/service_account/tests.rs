//! The life of a service account token: issued, used, and revoked by a deletion.

use super::*;
use crate::authn::issuer::TokenIssuer;
use crate::authn::jws::SigningKey;
use lookup::testing::Fixed;
use serde_json::json;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

struct World {
    lookup: Arc<Fixed>,
    issuer: TokenIssuer,
    accounts: ServiceAccounts,
}

fn world() -> World {
    let account = json!({"metadata": {"name": "bot", "namespace": "shop", "uid": "u1"}});
    let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "p1"}, "spec": {"serviceAccountName": "bot", "nodeName": "a"}});
    let node = json!({"metadata": {"name": "a", "uid": "n1"}});
    let lookup = Fixed::new(&[
        (&lookup::SERVICE_ACCOUNTS, account),
        (&lookup::PODS, pod),
        (&lookup::NODES, node),
    ]);
    let key = SigningKey::from_pem(&SigningKey::generate_pem().unwrap()).unwrap();
    let keys = vec![key.public().clone()];
    let accounts = ServiceAccounts::new(
        Arc::clone(&lookup) as Arc<dyn Lookup>,
        vec![ISSUER.into()],
        vec![ISSUER.into()],
        keys,
    );
    let issuer =
        TokenIssuer::new(Arc::clone(&lookup) as Arc<dyn Lookup>, ISSUER, vec![ISSUER.into()], key);
    World { lookup, issuer, accounts }
}

async fn token(world: &World, spec: Value) -> String {
    let mut request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec});
    world.issuer.create("shop", "bot", &mut request).await.unwrap();
    request["status"]["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_pod_bound_token_is_valid_while_its_pod_exists() {
    let world = world();
    let token = token(
        &world,
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p1"}}),
    )
    .await;
    let identity = world.accounts.authenticate_token(&token, &[]).await.unwrap().unwrap();
    assert_eq!(identity.user.name, "system:serviceaccount:shop:bot");
    assert_eq!(identity.user.uid, "u1");
    assert_eq!(identity.user.groups, ["system:serviceaccounts", "system:serviceaccounts:shop"]);
    assert_eq!(identity.audiences, [ISSUER]);
    let extra: Vec<(&str, &str)> = identity
        .user
        .extra
        .iter()
        .map(|(k, v)| (k.as_str(), v[0].get(..4).unwrap_or(&v[0])))
        .collect();
    assert_eq!(
        extra,
        [
            ("authentication.kubernetes.io/credential-id", "JTI="),
            ("authentication.kubernetes.io/node-name", "a"),
            ("authentication.kubernetes.io/node-uid", "n1"),
            ("authentication.kubernetes.io/pod-name", "web"),
            ("authentication.kubernetes.io/pod-uid", "p1"),
        ]
    );
    world
        .lookup
        .put(&lookup::PODS, json!({"metadata": {"name": "web", "namespace": "shop", "uid": "p2"}}));
    let error = world.accounts.authenticate_token(&token, &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "pod UID (p2) does not match service account pod ref claim (p1)");
    let gone = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "p1", "deletionTimestamp": "2020-01-01T00:00:00Z"}});
    world.lookup.put(&lookup::PODS, gone);
    let error = world.accounts.authenticate_token(&token, &[]).await.unwrap_err();
    assert_eq!(error.to_string(), "service account token has been invalidated");
}

#[tokio::test]
async fn a_token_for_another_audience_is_rejected() {
    let world = world();
    let token = token(&world, json!({"audiences": ["vault"]})).await;
    let error = world.accounts.authenticate_token(&token, &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("token audiences [\"vault\"] is invalid for the target audiences [\"{ISSUER}\"]")
    );
    let identity = world
        .accounts
        .authenticate_token(&token, &["vault".into(), "x".into()])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(identity.audiences, ["vault"]);
}

#[tokio::test]
async fn tokens_of_other_issuers_are_ignored_and_forged_ones_are_rejected() {
    let world = world();
    assert!(world.accounts.authenticate_token("abc", &[]).await.unwrap().is_none());
    let stranger = SigningKey::from_pem(&SigningKey::generate_pem().unwrap()).unwrap();
    let other = Claims { iss: "https://other".into(), ..Claims::default() };
    let other = stranger.sign(&other).unwrap();
    assert!(world.accounts.authenticate_token(&other, &[]).await.unwrap().is_none());
    let forged =
        Claims { iss: ISSUER.into(), aud: vec![ISSUER.into()], exp: i64::MAX, ..Claims::default() };
    assert!(
        world.accounts.authenticate_token(&stranger.sign(&forged).unwrap(), &[]).await.is_err()
    );
}

#[test]
fn times_are_checked_with_a_minute_of_leeway() {
    let claims = Claims { exp: 1000, nbf: 500, iat: 500, ..Claims::default() };
    assert!(check_times(&claims, 1060).is_ok());
    let error = |now| check_times(&claims, now).unwrap_err().to_string();
    assert_eq!(error(1061), "service account token has expired");
    assert_eq!(error(439), "service account token is not valid yet");
}

#[tokio::test]
async fn invalid_token_requests_are_rejected() {
    let world = world();
    let ask = |spec: Value| {
        let world = &world;
        async move { world.issuer.create("shop", "bot", &mut json!({"spec": spec})).await.unwrap_err() }
    };
    let short = ask(json!({"expirationSeconds": 599})).await;
    assert_eq!(
        short.message,
        "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
    );
    let pod =
        ask(json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "gone"}})).await;
    assert_eq!((pod.code, pod.message.as_str()), (404, "pods \"gone\" not found"));
    let uid = ask(
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "zz"}}),
    )
    .await;
    assert_eq!(
        uid.message,
        "Operation cannot be fulfilled on Pod \"web\": the UID in the bound object reference (zz) does not match the UID in record. The object might have been deleted and then recreated"
    );
    let kind =
        ask(json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Service", "name": "x"}})).await;
    assert_eq!(kind.message, "cannot bind token to object of type /v1, Kind=Service");
}

/// Upstream responds with 401, too; but the reason is not that the pod is gone.
#[tokio::test]
async fn an_unreadable_pod_does_not_invalidate_its_token() {
    let world = world();
    let spec =
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "p1"}});
    let token = token(&world, spec.clone()).await;
    world.lookup.break_reads(&lookup::PODS);
    let why = world.accounts.authenticate_token(&token, &[]).await.unwrap_err();
    assert_eq!(
        why.to_string(),
        "cannot read pods \"web\" that the token names: the store has no leader"
    );
    let mut request = json!({"metadata": {}, "spec": spec});
    let refused = world.issuer.create("shop", "bot", &mut request).await.unwrap_err();
    assert_eq!(refused.code, 503);
    world.lookup.restore_reads();
    assert!(world.accounts.authenticate_token(&token, &[]).await.unwrap().is_some());
}
