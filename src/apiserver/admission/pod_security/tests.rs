//! Messages of upstream, some recorded from a live 1.37.1.

use super::super::testing::{Ask, admit, creates};
use super::*;
use api::Gvr;
use lookup::testing::Fixed;
use serde_json::json;

fn world(labels: Value) -> PodSecurity {
    let namespace = json!({"metadata": {"name": "a", "labels": labels}});
    PodSecurity {
        lookup: Fixed::new(&[(&lookup::NAMESPACES, namespace)]),
        hardened: false,
        config: None,
    }
}

fn bare() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Scenario "namespaces" of the answers recorded from a live 1.37.1.
#[tokio::test]
async fn a_privileged_pod_is_rejected_in_a_restricted_namespace() {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]}});
    let plugin = world(json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    let error = admit(&plugin, creates(&lookup::PODS, "Pod"), pod).await.unwrap_err();
    assert_eq!(
        error.message,
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true), privileged (container \"c\" must not set securityContext.privileged=true), allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
}

#[tokio::test]
async fn a_hardened_pod_meets_restricted_and_a_plain_pod_baseline() {
    let mut hard = bare();
    hard["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    hard["spec"]["containers"][0]["securityContext"] = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}});
    let restricted = world(json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    assert_eq!(
        admit(&restricted, creates(&lookup::PODS, "Pod"), hard).await.unwrap().1,
        Vec::<String>::new()
    );
    let baseline = world(json!({"pod-security.kubernetes.io/enforce": "baseline"}));
    assert!(admit(&baseline, creates(&lookup::PODS, "Pod"), bare()).await.is_ok());
}

#[tokio::test]
async fn pod_templates_are_only_warned_about() {
    let plugin = world(json!({"pod-security.kubernetes.io/enforce": "baseline"}));
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": {"hostPID": true, "containers": [{"name": "c"}]}}}});
    let gvr = Gvr::new("apps", "v1", "deployments");
    let (_, warnings) = admit(&plugin, creates(&gvr, "Deployment"), deployment).await.unwrap();
    assert_eq!(
        warnings,
        ["would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"]
    );
}

#[tokio::test]
async fn invalid_namespace_labels_are_rejected() {
    let namespace = json!({"metadata": {"name": "s-namespaces", "labels": {"pod-security.kubernetes.io/enforce": "bogus"}}});
    let ask = Ask { namespace: "", ..creates(&lookup::NAMESPACES, "Namespace") };
    let error = admit(&world(json!({})), ask, namespace).await.unwrap_err();
    assert_eq!(
        error.message,
        "Namespace \"s-namespaces\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"bogus\": must be one of privileged, baseline, restricted"
    );
}

#[tokio::test]
async fn a_stricter_level_warns_about_existing_pods() {
    let fixed = Fixed::new(&[]);
    for name in ["x2", "x1"] {
        fixed.put(&lookup::PODS, json!({"metadata": {"name": name, "namespace": "a"}, "spec": {"hostIPC": true, "containers": []}}));
    }
    let old = json!({"metadata": {"name": "a"}});
    let new = json!({"metadata": {"name": "a", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let ask = Ask {
        operation: Operation::Update,
        old: Some(old),
        namespace: "",
        ..creates(&lookup::NAMESPACES, "Namespace")
    };
    let (_, warnings) =
        admit(&PodSecurity { lookup: fixed, hardened: false, config: None }, ask, new)
            .await
            .unwrap();
    assert_eq!(
        warnings,
        [
            "existing pods in namespace \"a\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "x1 (and 1 other pod): host namespaces"
        ]
    );
}

#[test]
fn each_check_names_its_violations() {
    let detail_of = |level: Level, minor: Option<u32>, spec: Value| {
        let version = minor.map_or(policy::Version::Latest, policy::Version::Minor);
        detail(&evaluate(LevelVersion { level, version }, &json!({}), &spec))
    };
    let base = |spec| detail_of(Level::Baseline, None, spec);
    let two = json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}, {"name": "b", "ports": [{"hostPort": 443}]}]});
    assert_eq!(base(two), "hostPort (containers \"a\", \"b\" use hostPorts 443, 80)");
    let caps = json!({"initContainers": [{"name": "a", "securityContext": {"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}}}]});
    assert_eq!(
        base(caps),
        "non-default capabilities (container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)"
    );
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "kernel.msgmax"}]}});
    assert_eq!(base(sysctl.clone()), "forbidden sysctls (kernel.msgmax)");
    assert_eq!(
        detail_of(Level::Baseline, Some(31), sysctl),
        "forbidden sysctls (net.ipv4.tcp_rmem, kernel.msgmax)"
    );
    assert_eq!(
        base(json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]})),
        "hostPath volumes (volume \"h\")"
    );
    let restricted = json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]});
    assert_eq!(
        detail_of(Level::Restricted, None, restricted),
        "restricted volume types (volume \"h\" uses restricted volume type \"hostPath\")"
    );
    let selinux = json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}});
    assert_eq!(
        base(selinux),
        "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)"
    );
}

/// C1.9, C2.10: every list of containers is checked, on every path that accepts containers.
#[tokio::test]
async fn all_lists_of_containers_are_checked() {
    let plugin = world(json!({"pod-security.kubernetes.io/enforce": "baseline"}));
    // On update, upstream compares images only.
    let bad = json!({"name": "x", "image": "j", "securityContext": {"privileged": true}});
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let mut pod = bare();
        pod["spec"][list] = json!([bad]);
        let refusal = admit(&plugin, creates(&lookup::PODS, "Pod"), pod.clone()).await.unwrap_err();
        let text = "privileged (container \"x\" must not set securityContext.privileged=true)";
        assert!(refusal.message.contains(text), "{list}: {}", refusal.message);
        for subresource in ["", "ephemeralcontainers", "resize"] {
            let ask = Ask {
                operation: Operation::Update,
                subresource,
                old: Some(bare()),
                ..creates(&lookup::PODS, "Pod")
            };
            let answer = admit(&plugin, ask, pod.clone()).await;
            assert_eq!(answer.unwrap_err().code, 403, "{list} by {subresource:?}");
        }
    }
}

/// C3.10: the policy of the hardened profile for namespaces with and without labels.
#[tokio::test]
async fn the_hardened_profile_enforces_baseline_without_labels() {
    let privileged = || {
        let mut pod = bare();
        pod["spec"]["hostNetwork"] = json!(true);
        pod
    };
    let fixed = Fixed::new(&[]);
    for (name, labels) in [
        ("a", json!({})),
        ("kube-system", json!({})),
        ("open", json!({"pod-security.kubernetes.io/enforce": "privileged"})),
    ] {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        fixed.put(&lookup::NAMESPACES, namespace);
    }
    let plugin = PodSecurity { lookup: fixed, hardened: true, config: None };
    let create =
        |namespace, pod| admit(&plugin, Ask { namespace, ..creates(&lookup::PODS, "Pod") }, pod);
    assert_eq!(create("a", privileged()).await.unwrap_err().code, 403);
    let (_, warnings) = create("a", bare()).await.unwrap();
    assert!(warnings[0].starts_with("would violate PodSecurity \"restricted:latest\""));
    assert!(create("kube-system", privileged()).await.unwrap().1.is_empty());
    assert!(create("open", privileged()).await.is_ok());
}

/// Upstream's exemptions: of namespaces, users and runtime classes; labels of an exempt namespace
/// cause a warning.
#[tokio::test]
async fn exemptions_and_defaults_of_a_configuration_apply() {
    let config = PodSecurityConfig {
        defaults: Policy { enforce: Policy::HARDENED.audit, ..Policy::OPEN },
        usernames: Vec::new(),
        runtime_classes: vec!["kata".into()],
        namespaces: vec!["free".into()],
    };
    let fixed = Fixed::new(&[]);
    for name in ["a", "free"] {
        fixed.put(&lookup::NAMESPACES, json!({"metadata": {"name": name}}));
    }
    let plugin = PodSecurity { lookup: fixed, hardened: false, config: Some(config) };
    let create =
        |namespace, pod| admit(&plugin, Ask { namespace, ..creates(&lookup::PODS, "Pod") }, pod);
    let refused = create("a", bare()).await.unwrap_err();
    assert!(refused.message.contains("violates PodSecurity \"restricted:latest\""), "{refused:?}");
    assert!(create("free", bare()).await.is_ok());
    let mut contained = bare();
    contained["spec"]["runtimeClassName"] = json!("kata");
    assert!(create("a", contained).await.is_ok());
    let labelled = json!({"metadata": {"name": "free",
        "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let ask = Ask { namespace: "", ..creates(&lookup::NAMESPACES, "Namespace") };
    let (_, warnings) = admit(&plugin, ask, labelled).await.unwrap();
    assert_eq!(
        warnings,
        [
            "namespace \"free\" is exempt from Pod Security, and the policy (enforce=baseline:latest) \
          will be ignored"
        ]
    );
}
