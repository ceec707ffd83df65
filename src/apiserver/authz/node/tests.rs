//! The rules of the Node authorizer (upstream's `node_authorizer_test.go`).

use super::*;
use lookup::testing::Fixed;
use serde_json::json;

fn world() -> Node {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "nodeName": "a", "serviceAccountName": "bot",
            "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "env"}}]}],
            "volumes": [
                {"name": "v", "projected": {"sources": [{"configMap": {"name": "ca"}}]}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
            ],
        },
    });
    let volume = json!({
        "metadata": {"name": "pv1"},
        "spec": {"claimRef": {"namespace": "shop", "name": "data"}, "csi": {"nodeStageSecretRef": {"namespace": "csi", "name": "stage"}}},
    });
    let request =
        json!({"metadata": {"name": "req-1", "namespace": "shop"}, "spec": {"nodeName": "a"}});
    Node::new(
        Fixed::new(&[
            (&lookup::PODS, pod),
            (&lookup::PERSISTENT_VOLUMES, volume),
            (&lookup::POD_CERTIFICATE_REQUESTS, request),
        ]),
        Vec::new(),
    )
}

/// Neither allowed nor denied: the response is 500, and the node retries.
#[tokio::test]
async fn unreadable_relationships_are_an_error() {
    let user = User::authenticated("system:node:a", &["system:nodes"]);
    for (broken, resource, namespace, name) in [
        (&lookup::PODS, "secrets", "shop", "env"),
        (&lookup::PERSISTENT_VOLUMES, "persistentvolumes", "", "pv1"),
        (&lookup::PERSISTENT_VOLUMES, "secrets", "csi", "stage"),
        (&lookup::VOLUME_ATTACHMENTS, "volumeattachments", "", "x"),
    ] {
        let fixed = Fixed::new(&[]);
        fixed.break_reads(broken);
        let group = if resource == "volumeattachments" { "storage.k8s.io" } else { "" };
        let verb = "get";
        let attributes = Attributes {
            verb,
            group,
            version: "v1",
            resource,
            namespace,
            name,
            ..Attributes::default()
        };
        let decision = Node::new(fixed, Vec::new()).authorize(&user, &attributes).await;
        let Decision::Failed(Failure { denied: false, error, .. }) = decision else {
            panic!("{resource}: {decision:?}")
        };
        assert!(error.ends_with(lookup::testing::UNREADABLE), "{error}");
    }
}

async fn ask(node: &str, verb: &str, resource: &str, namespace: &str, name: &str) -> Decision {
    let attributes =
        Attributes { verb, version: "v1", resource, namespace, name, ..Attributes::default() };
    world()
        .authorize(
            &User::authenticated(&format!("system:node:{node}"), &["system:nodes"]),
            &attributes,
        )
        .await
}

fn allowed() -> Decision {
    Decision::Allow(String::new())
}

#[tokio::test]
async fn a_node_reads_only_objects_that_its_pods_reference() {
    assert_eq!(ask("a", "get", "secrets", "shop", "env").await, allowed());
    assert_eq!(ask("a", "watch", "configmaps", "shop", "ca").await, allowed());
    assert_eq!(ask("a", "get", "persistentvolumeclaims", "shop", "data").await, allowed());
    assert_eq!(ask("a", "get", "persistentvolumes", "", "pv1").await, allowed());
    assert_eq!(ask("a", "get", "secrets", "csi", "stage").await, allowed());
    let no = Decision::NoOpinion("no relationship found between node 'b' and this object".into());
    assert_eq!(ask("b", "get", "secrets", "shop", "env").await, no);
    assert_eq!(ask("b", "get", "persistentvolumes", "", "pv1").await, no);
    assert_eq!(
        ask("a", "list", "secrets", "shop", "").await,
        Decision::NoOpinion("No Object name found".into())
    );
    assert_eq!(
        ask("a", "delete", "secrets", "shop", "env").await,
        Decision::NoOpinion("can only read resources of this type".into())
    );
}

#[tokio::test]
async fn a_node_lists_only_secrets_with_certificates() {
    let user = User::authenticated("system:node:a", &["system:nodes"]);
    for (verb, field_selector, is_allowed) in [
        ("list", "type=kubernetes.io/tls", true),
        ("watch", "type=kubernetes.io/tls", true),
        ("list", "type!=kubernetes.io/tls", false),
        ("list", "type=Opaque", false),
        ("list", "", false),
        ("deletecollection", "type=kubernetes.io/tls", false),
    ] {
        let attributes = Attributes {
            verb,
            version: "v1",
            resource: "secrets",
            field_selector,
            ..Attributes::default()
        };
        let decision = world().authorize(&user, &attributes).await;
        assert_eq!(decision == allowed(), is_allowed, "{verb} {field_selector}: {decision:?}");
    }
}

/// Users of Ingresses: Secrets of the same namespace, named by an Ingress of a served class.
#[tokio::test]
async fn a_node_reads_secrets_that_ingresses_name() {
    let ingress = |name: &str, class: &str, secret: &str| {
        json!({"metadata": {"name": name, "namespace": "shop", "annotations":
            {"nginx.ingress.kubernetes.io/auth-secret": secret}},
            "spec": {"ingressClassName": class}})
    };
    let class = |name: &str, controller: &str| json!({"metadata": {"name": name}, "spec": {"controller": controller}});
    let node = Node::new(
        Fixed::new(&[
            (&lookup::INGRESSES, ingress("a", "own", "users")),
            (&lookup::INGRESSES, ingress("b", "other", "theirs")),
            (&lookup::INGRESSES, ingress("c", "own", "bank/users")),
            (&lookup::INGRESS_CLASSES, class("own", "kube-lite.io/ingress")),
            (&lookup::INGRESS_CLASSES, class("other", "k8s.io/ingress-nginx")),
        ]),
        Vec::new(),
    );
    let user = User::authenticated("system:node:a", &["system:nodes"]);
    for (verb, namespace, name, is_allowed) in [
        ("get", "shop", "users", true),
        ("list", "shop", "users", true),
        ("watch", "shop", "users", true),
        ("update", "shop", "users", false),
        ("list", "shop", "", false),
        ("get", "shop", "theirs", false),
        ("get", "bank", "users", false),
        ("get", "shop", "other", false),
    ] {
        let attributes = Attributes {
            verb,
            version: "v1",
            resource: "secrets",
            namespace,
            name,
            ..Attributes::default()
        };
        let decision = node.authorize(&user, &attributes).await;
        assert_eq!(decision == allowed(), is_allowed, "{verb} {namespace}/{name}: {decision:?}");
    }
}

#[tokio::test]
async fn a_node_lists_only_itself_and_its_pods() {
    assert_eq!(ask("a", "get", "nodes", "", "a").await, allowed());
    assert_eq!(
        ask("a", "get", "nodes", "", "b").await,
        Decision::NoOpinion("node 'a' cannot read 'b', only its own Node object".into())
    );
    assert_eq!(ask("a", "get", "pods", "shop", "web").await, allowed());
    assert_eq!(
        ask("a", "list", "pods", "", "").await,
        Decision::NoOpinion("can only list/watch pods with spec.nodeName field selector".into())
    );
    assert!(
        selects("spec.nodeName=a", "spec.nodeName", "a")
            && selects("x!=y,spec.nodeName==a", "spec.nodeName", "a")
    );
    assert!(
        !selects("spec.nodeName!=a", "spec.nodeName", "a") && !selects("", "spec.nodeName", "a")
    );
}

#[tokio::test]
async fn a_node_requests_certificates_of_its_own_pods() {
    let ask = async |node: &str, verb, subresource, name, field_selector| {
        let attributes = Attributes {
            verb,
            group: "certificates.k8s.io",
            version: "v1",
            resource: "podcertificaterequests",
            subresource,
            namespace: "shop",
            name,
            field_selector,
            ..Attributes::default()
        };
        let user = User::authenticated(&format!("system:node:{node}"), &["system:nodes"]);
        world().authorize(&user, &attributes).await
    };
    let no = |why: &str| Decision::NoOpinion(why.into());
    assert_eq!(ask("a", "create", "", "", "").await, allowed());
    assert_eq!(ask("a", "get", "", "req-1", "").await, allowed());
    assert_eq!(
        ask("b", "get", "", "req-1", "").await,
        no("no relationship found between node 'b' and this object")
    );
    assert_eq!(ask("a", "watch", "", "", "spec.nodeName=a").await, allowed());
    assert_eq!(
        ask("a", "list", "", "", "spec.nodeName=b").await,
        no("can only list/watch podcertificaterequests with nodeName field selector")
    );
    assert_eq!(
        ask("a", "update", "status", "req-1", "").await,
        no("nodes may not access the status subresource of PodCertificateRequests")
    );
    assert_eq!(
        ask("a", "delete", "", "req-1", "").await,
        no("nodes may not delete podcertificaterequests")
    );
}

#[tokio::test]
async fn a_node_name_without_the_group_is_not_a_node() {
    let attributes =
        Attributes { verb: "get", resource: "nodes", name: "a", ..Attributes::default() };
    assert_eq!(
        world().authorize(&User::authenticated("system:node:a", &[]), &attributes).await,
        Decision::NoOpinion(String::new())
    );
}

#[tokio::test]
async fn a_node_writes_only_resource_slices_that_name_it() {
    let slice = json!({"metadata": {"name": "s"}, "spec": {"nodeName": "a"}});
    let node = Node::new(Fixed::new(&[(&lookup::RESOURCE_SLICES, slice)]), Vec::new());
    let ask = async |of: &str, verb: &str, name: &str, subresource: &str| {
        let attributes = Attributes {
            verb,
            group: "resource.k8s.io",
            version: "v1",
            resource: "resourceslices",
            subresource,
            name,
            ..Attributes::default()
        };
        let user = User::authenticated(&format!("system:node:{of}"), &["system:nodes"]);
        match node.authorize(&user, &attributes).await {
            Decision::NoOpinion(why) => why,
            decision => format!("{decision:?}"),
        }
    };
    let allowed = format!("{:?}", allowed());
    for verb in ["get", "update", "patch", "delete"] {
        assert_eq!(ask("a", verb, "s", "").await, allowed, "{verb}");
        let no = "no relationship found between node 'b' and this object";
        assert_eq!(ask("b", verb, "s", "").await, no, "{verb}");
    }
    assert_eq!(ask("b", "create", "", "").await, allowed);
    assert!(ask("a", "list", "", "").await.starts_with("can only list/watch/deletecollection"));
    assert!(ask("a", "proxy", "s", "").await.starts_with("only the following verbs are allowed"));
    assert!(ask("a", "get", "s", "status").await.starts_with("cannot authorize ResourceSlice"));
}

#[tokio::test]
async fn a_node_reads_the_resource_claims_of_its_pods() {
    let pod = json!({"metadata": {"name": "p", "namespace": "n"},
        "spec": {"nodeName": "a", "resourceClaims": [{"name": "r", "resourceClaimName": "direct"},
            {"name": "s", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "s", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended"}}});
    let node = Node::new(Fixed::new(&[(&lookup::PODS, pod)]), Vec::new());
    for (of, verb, name, want) in [
        ("a", "get", "direct", true),
        ("a", "get", "made", true),
        ("a", "get", "extended", true),
        ("a", "get", "other", false),
        ("a", "update", "made", false),
        ("b", "get", "made", false),
    ] {
        let attributes = Attributes {
            verb,
            group: "resource.k8s.io",
            version: "v1",
            resource: "resourceclaims",
            namespace: "n",
            name,
            ..Attributes::default()
        };
        let user = User::authenticated(&format!("system:node:{of}"), &["system:nodes"]);
        assert_eq!(
            node.authorize(&user, &attributes).await == allowed(),
            want,
            "{of} {verb} {name}"
        );
    }
}
