//! Tokens of an issuer over TLS, and the users that their claims map to. Messages are those of
//! upstream's `oidc_test.go` and of go-oidc.

use std::time::Duration;

use base::{Shutdown, Tasks};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use serde_json::{Value, json};

use super::*;
use crate::authn::config::Anonymous;
use crate::authn::configuration::{ClaimRule, Extra, Issuer, Mapping, Mappings, UserRule};
use crate::authn::flags::Settings;
use crate::authn::jws::{self, SigningKey};
use webhook::testing::{self as peer, To};

fn by_claim(claim: &str, prefix: &str) -> Mapping {
    Mapping { claim: claim.into(), prefix: Some(prefix.into()), ..Mapping::default() }
}

fn by(expression: &str) -> Mapping {
    Mapping { expression: expression.into(), ..Mapping::default() }
}

fn base() -> Jwt {
    Jwt {
        issuer: Issuer {
            url: "https://auth.example.com".into(),
            audiences: vec!["my-client".into()],
            ..Issuer::default()
        },
        mappings: Mappings { username: by_claim("username", ""), ..Mappings::default() },
        ..Jwt::default()
    }
}

fn mapped(change: impl FnOnce(&mut Jwt), claims: Value) -> Result<User, String> {
    let mut jwt = base();
    change(&mut jwt);
    let all = Configuration { jwt: vec![jwt.clone()], anonymous: None };
    let (mappers, errors) = crate::authn::configuration::validate(&all, &[]);
    assert!(errors.is_empty(), "{errors:?}");
    claims::user(&jwt, &mappers[0], &claims).map_err(|e| e.to_string())
}

#[test]
fn claims_are_mapped_to_users() {
    let user = mapped(
        |jwt| {
            jwt.mappings.username = by_claim("email", "oidc:");
            jwt.mappings.groups = by_claim("groups", "g:");
            jwt.mappings.uid = Mapping { claim: "sub".into(), ..Mapping::default() };
        },
        json!({"email": "jane@example.com", "email_verified": true, "groups": ["a", "b"], "sub": "1", "jti": "x"}),
    )
    .unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("oidc:jane@example.com", "1"));
    assert_eq!(user.groups, ["g:a", "g:b"]);
    assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], ["JTI=x"]);
    let groups = |value: Value| {
        let claims = json!({"username": "jane", "groups": value});
        mapped(|jwt| jwt.mappings.groups = by_claim("groups", ""), claims).map(|user| user.groups)
    };
    assert_eq!(groups(json!("team1")).unwrap(), ["team1"]);
    assert_eq!(
        groups(json!(42)).unwrap_err(),
        r#"oidc: parse groups claim "groups": json: cannot unmarshal number into Go value of type string"#
    );
    assert_eq!(
        groups(json!(["a", 1])).unwrap_err(),
        r#"oidc: parse groups claim "groups": json: cannot unmarshal array into Go value of type string"#
    );
}

#[test]
fn missing_and_mistyped_claims_are_rejected() {
    let email = |verified: Value| {
        let claims = json!({"email": "jane@example.com", "email_verified": verified});
        mapped(|jwt| jwt.mappings.username = by_claim("email", ""), claims).unwrap_err()
    };
    assert_eq!(email(json!(false)), "oidc: email not verified");
    assert_eq!(
        email(json!("true")),
        "oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool"
    );
    assert_eq!(
        mapped(|_| {}, json!({"email": "x"})).unwrap_err(),
        r#"oidc: parse username claims "username": claim not present"#
    );
    let hd = |claims: Value| {
        let rule = ClaimRule {
            claim: "hd".into(),
            required_value: "example.com".into(),
            ..ClaimRule::default()
        };
        mapped(|jwt| jwt.claim_rules = vec![rule], claims).unwrap_err()
    };
    assert_eq!(hd(json!({"username": "jane"})), "oidc: required claim hd not present in ID token");
    assert_eq!(
        hd(json!({"username": "jane", "hd": "example.org"})),
        "oidc: required claim hd value does not match. Got = example.org, want = example.com"
    );
    let distributed = json!({"username": "jane", "_claim_names": {"groups": "s"}});
    let message =
        mapped(|jwt| jwt.mappings.groups = by_claim("groups", ""), distributed).unwrap_err();
    assert!(message.starts_with("oidc: could not expand distributed claims: claim \"groups\": distributed claims are not supported"), "{message}");
}

#[test]
fn expressions_are_mapped_to_users() {
    let user = mapped(
        |jwt| {
            jwt.mappings.username = by("claims.username + ':x'");
            jwt.mappings.groups = by("(claims.roles.split(',') + claims.other_roles.split(',')).map(role, 'prefix:' + role)");
            jwt.mappings.uid = by("claims.uid");
            jwt.mappings.extra = vec![
                Extra { key: "example.org/foo".into(), value_expression: "claims.foo".into() },
                Extra { key: "example.org/empty".into(), value_expression: "''".into() },
                Extra { key: "example.org/dot".into(), value_expression: "claims.a.example__dot__com".into() },
            ];
            // Numbers are doubles, as in Go's decoder.
            jwt.claim_rules = vec![ClaimRule { expression: "type(claims.n) == double && claims.n == 3".into(), ..ClaimRule::default() }];
            jwt.user_rules = vec![UserRule { expression: "user.username == 'jane:x' && user.extra['example.org/foo'] == ['bar']".into(), message: String::new() }];
        },
        json!({"username": "jane", "roles": "foo,bar", "other_roles": "baz", "uid": "1234", "foo": ["bar", ""], "n": 3, "a": {"example.com": "dotted"}}),
    )
    .unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane:x", "1234"));
    assert_eq!(user.groups, ["prefix:foo", "prefix:bar", "prefix:baz"]);
    let extra: Vec<(&str, &[String])> =
        user.extra.iter().map(|(k, v)| (k.as_str(), v.as_slice())).collect();
    assert_eq!(
        extra,
        [
            ("example.org/dot", &["dotted".to_owned()][..]),
            ("example.org/foo", &["bar".to_owned()][..])
        ]
    );
}

#[test]
fn false_and_failing_expressions_are_rejected() {
    let rule = |text: &str, message: &str| ClaimRule {
        expression: text.into(),
        message: message.into(),
        ..ClaimRule::default()
    };
    let jane = || json!({"username": "jane", "hd": "example.com"});
    let message = mapped(
        |jwt| jwt.claim_rules = vec![rule(r#"claims.hd == "x""#, "hd claim must be x")],
        jane(),
    )
    .unwrap_err();
    assert_eq!(
        message,
        r#"oidc: error evaluating claim validation expression: validation expression 'claims.hd == "x"' failed: hd claim must be x"#
    );
    let message = mapped(
        |jwt| jwt.claim_rules = vec![rule(r#"claims.hd == "example.com""#, "")],
        json!({"username": "jane"}),
    )
    .unwrap_err();
    assert_eq!(
        message,
        r#"oidc: error evaluating claim validation expression: expression 'claims.hd == "example.com"' resulted in error: no such key: hd"#
    );
    let user_rule = UserRule {
        expression: "!user.username.startsWith('system:')".into(),
        message: "username cannot used reserved system: prefix".into(),
    };
    let message = mapped(
        |jwt| {
            jwt.mappings.username = by_claim("username", "system:");
            jwt.user_rules = vec![user_rule];
        },
        jane(),
    )
    .unwrap_err();
    assert_eq!(
        message,
        "oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith('system:')' failed: username cannot used reserved system: prefix"
    );
    let revoked = UserRule {
        expression: "!(user.extra[?'authentication.kubernetes.io/credential-id'][0].orValue('') in [\"JTI=ea28ed49-2e11-4280-9ec5-bc3d1d84661a\"])".into(),
        message: "credential is revoked".into(),
    };
    let claims = json!({"username": "jane", "jti": "ea28ed49-2e11-4280-9ec5-bc3d1d84661a"});
    let message = mapped(|jwt| jwt.user_rules = vec![revoked], claims).unwrap_err();
    assert!(message.ends_with("failed: credential is revoked"), "{message}");
    for (text, want) in [
        (
            "claims.n",
            "oidc: error evaluating username claim expression: username claim expression must return a string",
        ),
        ("''", "oidc: empty username via CEL expression is not allowed"),
    ] {
        assert_eq!(
            mapped(|jwt| jwt.mappings.username = by(text), json!({"n": 1})).unwrap_err(),
            want
        );
    }
    let message =
        mapped(|jwt| jwt.mappings.groups = by("claims.n"), json!({"username": "jane", "n": 1}))
            .unwrap_err();
    assert_eq!(
        message,
        "oidc: error evaluating group claim expression: expression must return a string or a list of strings"
    );
}

fn key() -> SigningKey {
    SigningKey::from_pem(&SigningKey::generate_pem().unwrap()).unwrap()
}

fn set_of(key: &SigningKey) -> Value {
    jws::jwks(&[key.public().clone()])
}

#[test]
fn audience_and_validity_period_are_checked() {
    let (ours, other) = (key(), key());
    let token = |claims: Value| Token::of(&ours.sign(&claims).unwrap()).unwrap();
    let keys = keys::set(set_of(&ours).to_string().as_bytes()).unwrap();
    assert!(token(json!({})).is_signed_by(&keys));
    assert!(!Token::of(&other.sign(&json!({})).unwrap()).unwrap().is_signed_by(&keys));
    assert_eq!(keys::set(br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"eA"}]}"#).unwrap(), []);
    assert!(keys::set(b"[]").is_err());
    let rs = [Algorithm::of("RS256").unwrap()];
    assert_eq!(
        token(json!({})).check_algorithm(&rs).unwrap_err().to_string(),
        r#"oidc: id token signed with unsupported algorithm, expected ["RS256"] got "ES256""#
    );
    let ours_is = |audiences: &[&str], claims: Value| {
        let audiences: Vec<String> = audiences.iter().map(|a| (*a).to_owned()).collect();
        let now = Duration::from_secs(1_000_000_000);
        token(claims).check_claims(&audiences, now).map_err(|e| e.to_string())
    };
    let late = 1_000_000_001;
    assert_eq!(ours_is(&["my-client"], json!({"aud": ["x", "my-client"], "exp": late})), Ok(()));
    for (audiences, claims, want) in [
        (
            &["my-client"][..],
            json!({"aud": "not-my-client"}),
            r#"oidc: expected audience "my-client" got ["not-my-client"]"#,
        ),
        (
            &["random-client", "my-client"],
            json!({"aud": "not-my-client"}),
            r#"oidc: expected audience in ["my-client" "random-client"] got ["not-my-client"]"#,
        ),
        (
            &["a"],
            json!({"aud": "a", "exp": 999_999_999}),
            "oidc: token is expired (Token Expiry: 2001-09-09 01:46:39 +0000 UTC)",
        ),
        (
            &["a"],
            json!({"aud": "a"}),
            "oidc: token is expired (Token Expiry: 0001-01-01 00:00:00 +0000 UTC)",
        ),
        (
            &["a"],
            json!({"aud": "a", "exp": late, "nbf": 1_000_000_061}),
            "oidc: current time 2001-09-09 01:46:40 +0000 UTC before the nbf (not before) time: 2001-09-09 01:47:41 +0000 UTC",
        ),
    ] {
        assert_eq!(ours_is(audiences, claims).unwrap_err(), want);
    }
    assert_eq!(ours_is(&["a"], json!({"aud": "a", "exp": late, "nbf": 1_000_000_060})), Ok(()));
    assert_eq!(
        token(json!({"iss": "accounts.google.com"})).issuer(),
        Some("https://accounts.google.com")
    );
    assert!(
        Token::of("a.b").is_none() && Token::of("a.b.c.d").is_none() && Token::of("").is_none()
    );
}

/// The issuer's server: every path is its response document, in base64.
fn answer(target: &str, _: Value) -> Response<Full<Bytes>> {
    let document = URL_SAFE_NO_PAD.decode(target.trim_start_matches('/')).unwrap_or_default();
    Response::builder().status(200).body(Full::new(Bytes::from(document))).unwrap()
}

fn at(document: &Value) -> String {
    format!("https://s.n.svc/{}", URL_SAFE_NO_PAD.encode(document.to_string()))
}

#[tokio::test]
async fn keys_are_fetched_from_the_issuer() {
    let hook = peer::hook(answer).await;
    let tasks = Tasks::new(Shutdown::new());
    let callout = Callout { reach: Arc::new(To(hook.address)), tasks: tasks.clone() };
    let (ours, other) = (key(), key());
    let issuer = "https://auth.example.com";
    let place = at(&set_of(&ours));
    let described = |issuer: &str| at(&json!({"issuer": issuer, "jwks_uri": place}));
    let plan = |discovery_url: String| {
        let mut jwt = base();
        jwt.issuer.discovery_url = discovery_url;
        jwt.issuer.certificate_authority = hook.ca.cert_pem().to_owned();
        let configuration = Configuration { jwt: vec![jwt], anonymous: None };
        let (mappers, errors) = crate::authn::configuration::validate(&configuration, &[]);
        assert!(errors.is_empty(), "{errors:?}");
        AuthenticationConfig {
            configuration,
            mappers,
            algorithms: Algorithm::ALL.to_vec(),
            ..AuthenticationConfig::default()
        }
    };
    let exp = base::clock::unix_time().as_secs() + 600;
    let claims = json!({"iss": issuer, "aud": "my-client", "exp": exp, "username": "jane"});
    let issuers = Issuers::start(&plan(described(issuer)), vec!["api".into()], &callout).unwrap();
    issuers.current.load()[0].keys.ready(Duration::from_secs(20)).await.unwrap();
    let good = ours.sign(&claims).unwrap();
    let found = issuers.authenticate_token(&good, &[]).await.unwrap().unwrap();
    assert_eq!((found.user.name.as_str(), found.audiences.len()), ("jane", 0));
    let found = issuers.authenticate_token(&good, &["b".into(), "api".into()]).await.unwrap();
    assert_eq!(found.unwrap().audiences, ["api"]);
    assert!(issuers.authenticate_token(&good, &["b".into()]).await.unwrap().is_none());
    assert_eq!(
        issuers
            .authenticate_token(&other.sign(&claims).unwrap(), &[])
            .await
            .unwrap_err()
            .to_string(),
        "oidc: verify token: failed to verify signature: failed to verify id token signature"
    );
    let elsewhere =
        json!({"iss": "https://other", "aud": "my-client", "exp": exp, "username": "jane"});
    let elsewhere = ours.sign(&elsewhere).unwrap();
    assert!(issuers.authenticate_token(&elsewhere, &[]).await.unwrap().is_none());
    // An issuer whose discovery document names another issuer is not used.
    let liar = Issuers::start(&plan(described("https://liar")), Vec::new(), &callout).unwrap();
    assert_eq!(
        liar.authenticate_token(&good, &[]).await.unwrap_err().to_string(),
        "oidc: authenticator not initialized"
    );
    assert_eq!(
        liar.current.load()[0].keys.first_error().await,
        r#"oidc: authenticator for issuer "https://auth.example.com" is not healthy: oidc: issuer did not match the issuer returned by provider, expected "https://auth.example.com" got "https://liar""#
    );
    tasks.shutdown().request();
    assert_eq!(tasks.drain(Duration::from_secs(10)).await, Vec::<&str>::new());
}

#[test]
fn flag_and_file_configure_anonymous_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f.yaml");
    let plan = |anonymous: &str, flag: Option<bool>| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{anonymous}\n"
        );
        std::fs::write(&path, text).unwrap();
        let settings =
            Settings { config_file: Some(path.clone()), anonymous: flag, ..Settings::default() };
        AuthenticationConfig::read(&settings, &[])
            .map(|plan| plan.anonymous)
            .map_err(|e| e.to_string())
    };
    assert_eq!(plan("", None), Ok(Anonymous::Everywhere));
    assert_eq!(plan("", Some(false)), Ok(Anonymous::Nowhere));
    assert_eq!(plan("anonymous: {enabled: false}", None), Ok(Anonymous::Nowhere));
    assert_eq!(plan("anonymous: {enabled: true}", None), Ok(Anonymous::Everywhere));
    let some = plan("anonymous: {enabled: true, conditions: [{path: /livez}]}", None).unwrap();
    assert!(some.allows("/livez") && !some.allows("/livez/") && !some.allows("/api"));
    assert_eq!(
        plan("anonymous: {enabled: true}", Some(true)).unwrap_err(),
        format!(
            "authentication-config={}: invalid authentication configuration: anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file; correct it and start again",
            path.display()
        )
    );
}
