//! Validation of configurations; the messages are those of
//! `pkg/apis/apiserver/validation/validation_test.go`.

use super::*;

fn valid_jwt() -> Jwt {
    Jwt {
        issuer: Issuer {
            url: "https://issuer-url".into(),
            audiences: vec!["audience".into()],
            ..Issuer::default()
        },
        mappings: Mappings { username: by_claim("sub"), ..Mappings::default() },
        ..Jwt::default()
    }
}

fn by_claim(claim: &str) -> Mapping {
    Mapping { claim: claim.into(), prefix: Some(String::new()), ..Mapping::default() }
}

fn by(expression: &str) -> Mapping {
    Mapping { expression: expression.into(), ..Mapping::default() }
}

fn extra(key: &str, expression: &str) -> Extra {
    Extra { key: key.into(), value_expression: expression.into() }
}

fn error_text(errors: api::field::ErrorList) -> String {
    InvalidConfiguration::check(errors).err().map(|e| e.to_string()).unwrap_or_default()
}

fn errors_of(jwt: Vec<Jwt>) -> String {
    let all = Configuration { jwt, anonymous: None };
    error_text(validate(&all, &["https://own".into()]).1)
}

fn changed(change: impl FnOnce(&mut Jwt)) -> String {
    let mut jwt = valid_jwt();
    change(&mut jwt);
    errors_of(vec![jwt])
}

const UNVERIFIED: &str = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";

#[test]
fn invalid_issuers_are_rejected() {
    assert_eq!(errors_of(vec![valid_jwt()]), "");
    assert_eq!(
        errors_of(vec![valid_jwt(), valid_jwt()]),
        r#"jwt[1].issuer.url: Duplicate value: "https://issuer-url""#
    );
    assert_eq!(errors_of(vec![valid_jwt(); 65]), "jwt: Too many: 65: must have at most 64 items");
    for (url, want) in [
        ("", "Required value"),
        ("invalid-url", r#"Invalid value: "invalid-url": URL scheme must be https"#),
        (
            "https://issuer-url:invalid-port",
            r#"Invalid value: "https://issuer-url:invalid-port": parse "https://issuer-url:invalid-port": invalid port ":invalid-port" after host"#,
        ),
        ("http://issuer-url", r#"Invalid value: "http://issuer-url": URL scheme must be https"#),
        (
            "https://user:pass@issuer-url",
            r#"Invalid value: "https://user:pass@issuer-url": URL must not contain a username or password"#,
        ),
        (
            "https://issuer-url?query",
            r#"Invalid value: "https://issuer-url?query": URL must not contain a query"#,
        ),
        (
            "https://issuer-url#fragment",
            r#"Invalid value: "https://issuer-url#fragment": URL must not contain a fragment"#,
        ),
        (
            "https://own",
            r#"Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]"#,
        ),
    ] {
        assert_eq!(
            changed(|jwt| jwt.issuer.url = url.into()),
            format!("jwt[0].issuer.url: {want}")
        );
    }
    assert_eq!(
        changed(|jwt| jwt.issuer.discovery_url = "https://issuer-url///".into()),
        r#"jwt[0].issuer.discoveryURL: Invalid value: "https://issuer-url///": discoveryURL must be different from URL"#
    );
    let discovered = |url: &str| {
        let mut jwt = valid_jwt();
        jwt.issuer.url = url.into();
        jwt.issuer.discovery_url = "https://discovery-url/.well-known/openid-configuration".into();
        jwt
    };
    assert_eq!(
        errors_of(vec![discovered("https://a"), discovered("https://b")]),
        r#"jwt[1].issuer.discoveryURL: Duplicate value: "https://discovery-url/.well-known/openid-configuration""#
    );
    assert_eq!(
        changed(|jwt| jwt.issuer.certificate_authority = "invalid".into()),
        r#"jwt[0].issuer.certificateAuthority: Invalid value: "<omitted>": data does not contain any valid RSA or ECDSA certificates"#
    );
    assert_eq!(
        changed(|jwt| jwt.issuer.egress_selector_type = "cluster".into()),
        r#"jwt[0].issuer.egressSelectorType: Invalid value: "cluster": egress selectors are not supported: the issuer is reached from this machine"#
    );
}

#[test]
fn invalid_audiences_are_rejected() {
    for (audiences, policy, want) in [
        (
            &[][..],
            "",
            "audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (&[""], "", "audiences[0]: Required value"),
        (
            &["audience"],
            "MatchExact",
            r#"audienceMatchPolicy: Invalid value: "MatchExact": audienceMatchPolicy must be empty or MatchAny for single audience"#,
        ),
        (&["audience", "audience"], "MatchAny", r#"audiences[1]: Duplicate value: "audience""#),
        (
            &["audience1", "audience2"],
            "",
            r#"audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences"#,
        ),
    ] {
        let message = changed(|jwt| {
            jwt.issuer.audiences = audiences.iter().map(|a| (*a).to_owned()).collect();
            jwt.issuer.audience_match_policy = policy.into();
        });
        assert_eq!(message, format!("jwt[0].issuer.{want}"));
    }
}

#[test]
fn invalid_validation_rules_are_rejected() {
    let rule = |claim: &str, value: &str, expression: &str, message: &str| ClaimRule {
        claim: claim.into(),
        required_value: value.into(),
        expression: expression.into(),
        message: message.into(),
    };
    let foo = || rule("", "", "claims.foo == 'bar'", "");
    for (rules, want) in [
        (vec![rule("", "", "", "")], "[0]: Required value: claim or expression is required".to_owned()),
        (vec![rule("claim", "", "expression", "")], r#"[0]: Invalid value: "claim": claim and expression can't both be set"#.to_owned()),
        (vec![rule("claim", "", "", "message")], r#"[0].message: Invalid value: "message": may not be specified when claim is set"#.to_owned()),
        (vec![rule("", "value", "claims.foo == 'bar'", "")], r#"[0].requiredValue: Invalid value: "value": may not be specified when expression is set"#.to_owned()),
        (vec![rule("claim", "v", "", ""), rule("claim", "w", "", "")], r#"[1].claim: Duplicate value: "claim""#.to_owned()),
        (vec![foo(), foo()], r#"[1].expression: Duplicate value: "claims.foo == 'bar'""#.to_owned()),
        (vec![rule("", "", "foo.bar", "")], "[0].expression: Invalid value: \"foo.bar\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo.bar\n | ^".to_owned()),
        (vec![rule("", "", "claims.foo", "")], r#"[0].expression: Invalid value: "claims.foo": must evaluate to bool"#.to_owned()),
        (vec![rule("", "", "claims.?email_verified.orValue(true)", "")], r#"[0].expression: Invalid value: "claims.?email_verified.orValue(true)": must evaluate to bool"#.to_owned()),
    ] {
        assert_eq!(changed(|jwt| jwt.claim_rules = rules), format!("jwt[0].claimValidationRules{want}"));
    }
    let rule = |text: &str| UserRule { expression: text.into(), message: String::new() };
    let same = "user.username == 'foo'";
    for (rules, want) in [
        (vec![rule("")], "[0].expression: Required value".to_owned()),
        (vec![rule(same), rule(same)], format!("[1].expression: Duplicate value: \"{same}\"")),
        (
            vec![rule("user.username")],
            r#"[0].expression: Invalid value: "user.username": must evaluate to bool"#.to_owned(),
        ),
    ] {
        assert_eq!(
            changed(|jwt| jwt.user_rules = rules),
            format!("jwt[0].userValidationRules{want}")
        );
    }
    assert_eq!(
        changed(|jwt| jwt.user_rules = vec![rule("user.groups.all(g, !g.startsWith('system:'))")]),
        ""
    );
}

#[test]
fn claim_mappings_need_either_a_claim_with_prefix_or_an_expression() {
    let both = Mapping { claim: "claim".into(), ..by("claims.a") };
    for (mapping, want) in [
        (both.clone(), r#": Invalid value: "": claim and expression can't both be set"#),
        (Mapping::default(), ": Required value: claim or expression is required"),
        (
            Mapping { prefix: Some("prefix".into()), ..by("claims.a") },
            r#".prefix: Invalid value: "prefix": may not be specified when expression is set"#,
        ),
        (
            Mapping { prefix: None, ..by_claim("claim") },
            ".prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
    ] {
        assert_eq!(
            changed(|jwt| jwt.mappings.username = mapping),
            format!("jwt[0].claimMappings.username{want}")
        );
    }
    assert_eq!(
        changed(|jwt| jwt.mappings.uid = both),
        r#"jwt[0].claimMappings.uid: Invalid value: "": claim and expression can't both be set"#
    );
}

#[test]
fn extra_mappings_need_unique_unreserved_keys() {
    for (entries, want) in [
        (vec![extra("", "claims.a")], "[0].key: Required value"),
        (vec![extra("example.org/foo", "")], "[0].valueExpression: Required value"),
        (
            vec![extra("example.org/foo", "claims.a"), extra("example.org/foo", "claims.b")],
            r#"[1].key: Duplicate value: "example.org/foo""#,
        ),
        (
            vec![extra("foo", "claims.a")],
            r#"[0].key: Invalid value: "foo": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
        (
            vec![extra("example.org/Foo", "claims.a")],
            r#"[0].key: Invalid value: "example.org/Foo": must be lowercase"#,
        ),
        (
            vec![extra("k8s.io/foo", "claims.a")],
            r#"[0].key: Invalid value: "k8s.io/foo": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"#,
        ),
        (
            vec![extra("example.kubernetes.io/foo", "claims.a")],
            r#"[0].key: Invalid value: "example.kubernetes.io/foo": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"#,
        ),
    ] {
        assert_eq!(
            changed(|jwt| jwt.mappings.extra = entries),
            format!("jwt[0].claimMappings.extra{want}")
        );
    }
}

#[test]
fn username_from_email_requires_email_verified() {
    for text in [
        "claims.email",
        "['yay', string(claims.email), 'panda'].join(' ')",
        "claims.?email",
        "[\"a\"].map(i, i + claims.email)",
        "{claims.?email: \"panda\"}",
        "has(claims.email) ? claims.email : claims.sub",
    ] {
        let quoted = api::field::go_quote(text);
        let want = format!(
            "jwt[0].claimMappings.username.expression: Invalid value: {quoted}: {UNVERIFIED}"
        );
        assert_eq!(changed(|jwt| jwt.mappings.username = by(text)), want);
    }
    for text in ["claims.email_panda", "claims.email_verified ? claims.email : claims.sub"] {
        assert_eq!(changed(|jwt| jwt.mappings.username = by(text)), "");
    }
    let verified = changed(|jwt| {
        jwt.mappings.username = by("claims.email");
        jwt.mappings.extra = vec![extra("example.org/verified", "string(claims.email_verified)")];
    });
    assert_eq!(verified, "");
}

#[test]
fn unknown_fields_and_wrong_types_are_rejected() {
    let text = br#"
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: https://i
    discoveryURL: https://d
    audiences: [a, b]
    audienceMatchPolicy: MatchAny
  claimValidationRules:
  - {claim: hd, requiredValue: example.com}
  - {expression: "claims.x == 1", message: nope}
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {expression: claims.roles}
    uid: {claim: uid}
    extra: [{key: example.com/team, valueExpression: claims.team}]
  userValidationRules: [{expression: "user.username != 'x'"}]
anonymous: {enabled: true, conditions: [{path: /livez}]}
"#;
    let read = super::read(text).unwrap();
    let jwt = &read.jwt[0];
    assert_eq!(
        (jwt.issuer.audiences.join(","), jwt.issuer.discovery_url.as_str()),
        ("a,b".into(), "https://d")
    );
    assert_eq!((jwt.claim_rules.len(), jwt.claim_rules[1].message.as_str()), (2, "nope"));
    assert_eq!(
        (jwt.mappings.username.prefix.as_deref(), jwt.mappings.groups.prefix.as_deref()),
        (Some(""), None)
    );
    assert_eq!(
        (jwt.mappings.uid.claim.as_str(), jwt.mappings.extra[0].key.as_str()),
        ("uid", "example.com/team")
    );
    assert_eq!(read.anonymous.unwrap().paths, ["/livez"]);
    let refused = |rest: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n{rest}"
        );
        super::read(text.as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(
        refused("jwt: [{issuer: {uri: x}}]"),
        r#"strict decoding error: unknown field "jwt[0].issuer.uri""#
    );
    assert_eq!(
        refused("jwt: [{issuer: {audiences: a}}]"),
        "jwt[0].issuer.audiences: must be a list of strings"
    );
    assert_eq!(
        refused("jwt: [{claimMappings: {uid: {prefix: x}}}]"),
        r#"strict decoding error: unknown field "jwt[0].claimMappings.uid.prefix""#
    );
    assert_eq!(super::read(b"").unwrap_err().to_string(), "empty config data");
    assert_eq!(
        super::read(b"apiVersion: apiserver.config.k8s.io/v2\nkind: AuthenticationConfiguration")
            .unwrap_err()
            .to_string(),
        r#"apiVersion: Unsupported value: "apiserver.config.k8s.io/v2": must be apiserver.config.k8s.io/v1 or apiserver.config.k8s.io/v1beta1"#
    );
}

#[test]
fn anonymous_conditions_require_anonymous_requests() {
    let anonymous = Anonymous { enabled: false, paths: vec!["/livez".into()] };
    let all = Configuration { jwt: Vec::new(), anonymous: Some(anonymous) };
    let message = error_text(validate(&all, &[]).1);
    assert!(message.starts_with("anonymous.conditions: Invalid value: "), "{message}");
    assert!(
        message.ends_with(": enabled should be set to true when conditions are defined"),
        "{message}"
    );
}
