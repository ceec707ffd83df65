//! Configurations and upstream's messages (`pkg/apis/apiserver/validation/validation_test.go`,
//! `pkg/kubeapiserver/authorizer`).

use super::*;

fn file() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new().unwrap()
}

fn read(authorizers: &str) -> Result<Configuration, LoadError> {
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: {authorizers}"
    );
    configuration(text.as_bytes())
}

/// A webhook with all required fields, without the fields in `without` and with those in `more`.
fn hook(kubeconfig: &str, without: &[&str], more: &str) -> String {
    let connection = format!("{{type: KubeConfigFile, kubeConfigFile: {kubeconfig:?}}}");
    let all = [
        ("timeout", "5s"),
        ("authorizedTTL", "60s"),
        ("unauthorizedTTL", "30s"),
        ("failurePolicy", "NoOpinion"),
        ("subjectAccessReviewVersion", "v1"),
        ("matchConditionSubjectAccessReviewVersion", "v1"),
        ("connectionInfo", &connection),
    ];
    let kept = all.iter().filter(|(name, _)| !without.contains(name));
    let mut members: Vec<String> = kept.map(|(name, value)| format!("{name}: {value}")).collect();
    members.extend((!more.is_empty()).then(|| more.to_owned()));
    format!("[{{type: Webhook, name: default, webhook: {{{}}}}}]", members.join(", "))
}

#[test]
fn all_fields_are_parsed() {
    let kubeconfig = file();
    let path = kubeconfig.path().to_str().unwrap();
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let text = format!(
            r#"
apiVersion: apiserver.config.k8s.io/{version}
kind: AuthorizationConfiguration
authorizers:
- type: Node
  name: node
- type: Webhook
  name: first.example.com
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    cacheUnauthorizedRequests: false
    connectionInfo:
      type: KubeConfigFile
      kubeConfigFile: {path}
    matchConditions:
    - expression: request.user != 'system:admin'
- type: RBAC
  name: rbac
"#
        );
        let read = configuration(text.as_bytes()).unwrap();
        let names: Vec<&str> = read.0.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["node", "first.example.com", "rbac"]);
        let Kind::Webhook(hook) = &read.0[1].kind else { panic!("no webhook") };
        // `SetDefaults_WebhookConfiguration`; without caching, the TTL is zero.
        assert_eq!((hook.authorized_ttl.as_secs(), hook.unauthorized_ttl.as_secs()), (300, 0));
        assert_eq!((hook.timeout.as_secs(), hook.denies_on_failure), (3, true));
        assert_eq!((hook.version, hook.conditions.len()), (Version::V1, 1));
    }
}

#[test]
fn invalid_authorizers_are_rejected() {
    for (authorizers, want) in [
        ("[]", "authorizers: Required value: at least one authorization mode must be defined"),
        ("[{name: x}]", "authorizers[0].type: Required value"),
        (
            "[{type: Foo, name: foo}]",
            r#"authorizers[0].type: Unsupported value: "Foo": supported values: "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook""#,
        ),
        (
            "[{type: ABAC, name: abac}]",
            "authorizers[0].type: Forbidden: attribute-based access control is not there, write roles and bindings (RBAC) or ask a webhook",
        ),
        (
            "[{type: RBAC, name: rbac}, {type: RBAC, name: other}]",
            r#"authorizers[1].type: Duplicate value: "RBAC""#,
        ),
        ("[{type: RBAC}]", "authorizers[0].name: Required value"),
        (
            "[{type: RBAC, name: x}, {type: Node, name: x}]",
            r#"authorizers[1].name: Duplicate value: "x""#,
        ),
        ("[{type: RBAC, name: node}]", "expected name rbac for authorizer RBAC instead of node"),
        (
            "[{type: Webhook, name: w}]",
            "authorizers[0].webhook: Required value: required when type=Webhook",
        ),
        (
            "[{type: RBAC, name: rbac, webhook: {}}]",
            r#"authorizers[0].webhook: Invalid value: "non-null": may only be specified when type=Webhook"#,
        ),
        (
            "[{type: RBAC, name: rbac, color: red}]",
            r#"failed to load AuthorizationConfiguration from file: strict decoding error: unknown field "authorizers[0].color""#,
        ),
        (
            "[{type: Webhook, name: w, webhook: {timeout: 5}}]",
            "failed to load AuthorizationConfiguration from file: authorizers[0].webhook.timeout: must be a string",
        ),
        (
            "[{type: Webhook, name: w, webhook: {timeout: 5x}}]",
            r#"failed to load AuthorizationConfiguration from file: authorizers[0].webhook.timeout: time: unknown unit "x" in duration "5x""#,
        ),
    ] {
        assert_eq!(read(authorizers).unwrap_err().to_string(), want, "{authorizers}");
    }
    let name = read("[{type: Webhook, name: '..', webhook: {}}]").unwrap_err().to_string();
    assert!(
        name.starts_with(r#"[authorizers[0].name: Invalid value: "..": authorizer name is invalid: a lowercase RFC 1123 subdomain must consist of"#),
        "{name}"
    );
}

/// Checks (field to leave out, fields to add, expected error below `authorizers[0].`); the messages
/// are those of upstream's `validation_test.go`.
fn assert_webhook_errors(cases: &[(&str, &str, &str)]) {
    let kubeconfig = file();
    let path = kubeconfig.path().to_str().unwrap();
    assert!(read(&hook(path, &[], "")).is_ok());
    for (without, more, want) in cases {
        let want = format!("authorizers[0].{want}");
        assert_eq!(read(&hook(path, &[without], more)).unwrap_err().to_string(), want, "{more}");
    }
}

#[test]
fn webhook_fields_are_validated() {
    assert_webhook_errors(&[
        ("timeout", "", "timeout: Required value"),
        ("timeout", "timeout: 31s", r#"timeout: Invalid value: "31s": must be > 0s and <= 30s"#),
        ("timeout", "timeout: -1s", r#"timeout: Invalid value: "-1s": must be > 0s and <= 30s"#),
        (
            "authorizedTTL",
            "authorizedTTL: -1m",
            r#"authorizedTTL: Invalid value: "-1m0s": must be > 0s"#,
        ),
        (
            "unauthorizedTTL",
            "unauthorizedTTL: -1s",
            r#"unauthorizedTTL: Invalid value: "-1s": must be > 0s"#,
        ),
        ("subjectAccessReviewVersion", "", "subjectAccessReviewVersion: Required value"),
        (
            "subjectAccessReviewVersion",
            "subjectAccessReviewVersion: v2beta1",
            r#"subjectAccessReviewVersion: Unsupported value: "v2beta1": supported values: "v1", "v1beta1""#,
        ),
        (
            "matchConditionSubjectAccessReviewVersion",
            "matchConditions: [{expression: 'true'}]",
            "matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
        ),
        (
            "matchConditionSubjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion: v1beta1",
            r#"matchConditionSubjectAccessReviewVersion: Unsupported value: "v1beta1": supported values: "v1""#,
        ),
        ("failurePolicy", "", "failurePolicy: Required value"),
        (
            "failurePolicy",
            "failurePolicy: AlwaysAllow",
            r#"failurePolicy: Unsupported value: "AlwaysAllow": supported values: "NoOpinion", "Deny""#,
        ),
    ]);
}

#[test]
fn webhook_connection_info_is_validated() {
    assert_webhook_errors(&[
        ("connectionInfo", "", "connectionInfo.type: Required value"),
        (
            "connectionInfo",
            "connectionInfo: {type: ExternalClusterConfig}",
            r#"connectionInfo.type: Unsupported value: "ExternalClusterConfig": supported values: "InClusterConfig", "KubeConfigFile""#,
        ),
        (
            "connectionInfo",
            "connectionInfo: {type: InClusterConfig, kubeConfigFile: /x}",
            r#"connectionInfo.kubeConfigFile: Invalid value: "/x": can only be set when type=KubeConfigFile"#,
        ),
        (
            "connectionInfo",
            "connectionInfo: {type: KubeConfigFile}",
            "connectionInfo.kubeConfigFile: Required value",
        ),
        (
            "connectionInfo",
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: x.conf}",
            r#"connectionInfo.kubeConfigFile: Invalid value: "x.conf": must be an absolute path"#,
        ),
        (
            "connectionInfo",
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: /nowhere/x}",
            r#"connectionInfo.kubeConfigFile: Invalid value: "/nowhere/x": error loading file: stat /nowhere/x: no such file or directory"#,
        ),
        (
            "connectionInfo",
            "connectionInfo: {type: KubeConfigFile, kubeConfigFile: /proc}",
            r#"connectionInfo.kubeConfigFile: Invalid value: "/proc": must be a regular file"#,
        ),
    ]);
}

#[test]
fn webhook_match_conditions_are_validated() {
    assert_webhook_errors(&[
        (
            "",
            "matchConditions: [{expression: ' '}]",
            "matchConditions[0].expression: Required value",
        ),
        (
            "",
            "matchConditions: [{expression: 'true'}, {expression: 'true'}]",
            r#"matchConditions[1].expression: Duplicate value: "true""#,
        ),
        (
            "",
            "matchConditions: [{expression: request.user}]",
            r#"matchConditions[0].expression: Invalid value: "request.user": must evaluate to bool but got string"#,
        ),
    ]);
    let kubeconfig = file();
    let path = kubeconfig.path().to_str().unwrap();
    let many = format!("matchConditions: [{}]", vec!["{expression: 'true'}"; 65].join(","));
    assert_eq!(
        read(&hook(path, &[], &many)).unwrap_err().to_string(),
        "authorizers[0].matchConditions: Too many: 65: must have at most 64 items"
    );
    let syntax = read(&hook(path, &[], "matchConditions: [{expression: 'user == '}]")).unwrap_err();
    let syntax = syntax.to_string();
    assert!(
        syntax.starts_with(r#"authorizers[0].matchConditions[0].expression: Invalid value: "user == ": compilation failed: ERROR: <input>:1:"#),
        "{syntax}"
    );
}

#[test]
fn kind_and_version_are_required() {
    let load = "failed to load AuthorizationConfiguration from file: ";
    let refused = |text: &str| configuration(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(
        refused(""),
        "authorizers: Required value: at least one authorization mode must be defined"
    );
    assert_eq!(
        refused("kind: AuthorizationConfiguration"),
        format!(
            r#"{load}apiVersion: Unsupported value: "": must be apiserver.config.k8s.io/v1, v1beta1 or v1alpha1"#
        )
    );
    assert_eq!(
        refused("apiVersion: apiserver.config.k8s.io/v1\nkind: Other"),
        format!(
            r#"{load}no kind "Other" is registered for version "apiserver.config.k8s.io/v1": must be AuthorizationConfiguration"#
        )
    );
    assert!(refused("a: 1\na: 2").starts_with(load));
    assert_eq!(refused("- a"), format!("{load}is no object with apiVersion, kind and authorizers"));
}
