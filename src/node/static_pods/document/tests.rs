//! Documents with static pods: parsing, validation and rejection.

use super::*;

pub(crate) const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: b}}\nspec:\n  \
    containers:\n  - {name: c, image: busybox}\n";

fn of(text: &str) -> Result<Pod, InvalidManifest> {
    parse(text.as_bytes(), ManifestSource::File(Path::new("/m/web.yaml")), "node1")
}

#[test]
fn a_manifest_becomes_a_pod_of_this_node() {
    let pod = of(WEB).unwrap();
    assert_eq!(
        (pod.namespace(), pod.name(), pod.origin),
        ("default", "web-node1", PodOrigin::Static)
    );
    let annotations = pod.annotations().unwrap();
    assert_eq!(annotations[SOURCE_ANNOTATION], "file");
    assert_eq!(annotations[HASH_ANNOTATION], *pod.uid);
    assert_eq!(pod.uid.len(), 32);
    assert_eq!(pod.spec().node_name.as_deref(), Some("node1"));
    assert_eq!(pod.restart_policy(), "Always");
    let tolerations = pod.spec().tolerations.as_ref().unwrap();
    assert_eq!(tolerations[0].effect.as_deref(), Some("NoExecute"));
    // The same content has the same uid, also as JSON with other spacing; different content has a
    // different uid.
    assert_eq!(of(&WEB.replace("busybox}", "busybox }")).unwrap().uid, pod.uid);
    assert_ne!(of(&WEB.replace("busybox", "busybox:1")).unwrap().uid, pod.uid);
}

#[test]
fn invalid_manifests_are_rejected_by_name() {
    let says = |text: &str| of(text).unwrap_err().to_string();
    assert_eq!(
        says("apiVersion: apps/v1\nkind: Deployment\n"),
        "contains kind \"Deployment\" of \"apps/v1\"; a static pod is a Pod of v1"
    );
    let secret =
        WEB.to_owned() + "  volumes: [{name: v, secret: {secretName: s, defaultMode: 420}}]\n";
    assert_eq!(says(&secret), "static pods may not reference secrets");
    let account = WEB.to_owned() + "  serviceAccountName: x\n";
    assert_eq!(says(&account), "static pods may not reference serviceaccounts");
    assert!(says(&WEB.replace("name: web", "name: ../web")).contains("metadata.name"));
    assert!(
        says(&WEB.replace("image: busybox", "image: ''"))
            .starts_with("invalid pod: spec.containers[0].image")
    );
    assert!(says("a: [").starts_with("not a valid Pod"));
}

const URL: ManifestSource<'_> = ManifestSource::Url("https://m.example/pods?token=x");

#[test]
fn a_pod_of_a_url_has_the_source_http_and_no_toleration_of_its_own() {
    let pods = parse_all(WEB.as_bytes(), URL, "node1").unwrap();
    let [pod] = &pods[..] else { unreachable!("one pod") };
    assert_eq!(
        (pod.name(), pod.annotations().unwrap()[SOURCE_ANNOTATION].as_str()),
        ("web-node1", "http")
    );
    assert_eq!(pod.spec().tolerations, None);
    assert_ne!(pod.uid, of(WEB).unwrap().uid);
    // As upstream: without the name of the node.
    assert_eq!(parse_all(WEB.as_bytes(), URL, "n2").unwrap()[0].uid, pod.uid);
    assert_eq!(URL.to_string(), "https://m.example/pods");
}

#[test]
fn a_list_has_several_pods_and_one_invalid_pod_rejects_it() {
    let item = |name: &str, image: &str| {
        format!(
            "- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    };
    let list = |items: &[String]| {
        let text = format!("apiVersion: v1\nkind: PodList\nitems:\n{}", items.concat());
        parse_all(text.as_bytes(), URL, "n").map_err(|error| error.to_string())
    };
    let pods = list(&[item("a", "b"), item("c", "b")]).unwrap();
    let names: Vec<_> = pods.iter().map(|pod| pod.name().to_owned()).collect();
    assert_eq!(names, ["a-n", "c-n"]);
    assert_eq!(pods[0].restart_policy(), "Always", "defaults are set");
    let twice = list(&[item("a", "b"), item("a", "c")]).unwrap_err();
    assert_eq!(twice, "contains the pod default/a-n twice");
    let error = list(&[item("a", "b"), item("c", "''")]).unwrap_err();
    assert!(error.starts_with("invalid pod: spec.containers[0].image"), "{error}");
    let empty = b"{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": []}";
    assert!(parse_all(empty, URL, "n").unwrap().is_empty());
}

#[test]
fn other_kinds_of_a_url_are_rejected() {
    let says = |text: &str| parse_all(text.as_bytes(), URL, "n").unwrap_err().to_string();
    assert_eq!(
        says("apiVersion: v1\nkind: List\nitems: []\n"),
        "contains kind \"List\" of \"v1\"; a static pod is a Pod of v1"
    );
    assert!(!says("apiVersion: v1\nkind: PodList\nitems: [null]\n").is_empty());
    assert!(says("<html>").starts_with("not a valid Pod"), "{}", says("<html>"));
}
