//! Manifests of static pods: parsing, validation and rejection.

use super::*;

const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: b}}\nspec:\n  \
    containers:\n  - {name: c, image: busybox}\n";

fn of(text: &str) -> Result<Pod, InvalidManifest> {
    parse(text.as_bytes(), Path::new("/m/web.yaml"), "node1")
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

#[test]
fn an_invalid_file_keeps_its_pod_and_a_removed_file_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    let missing = folder.path().join("none");
    let mut manifests = ManifestReader::new(vec![missing, folder.path().to_owned()], "n".into());
    assert!(manifests.read().is_empty());
    std::fs::write(&file, WEB).unwrap();
    std::fs::write(folder.path().join(".hidden.yaml"), WEB).unwrap();
    let uid = manifests.read()[0].uid.clone();
    std::fs::write(&file, "kind: [").unwrap();
    let pods = manifests.read();
    assert_eq!((pods.len(), &pods[0].uid), (1, &uid));
    std::fs::write(folder.path().join("z.yaml"), WEB).unwrap();
    assert_eq!(manifests.read().len(), 1, "one pod of a name");
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(folder.path().join("z.yaml")).unwrap();
    assert!(manifests.read().is_empty());
}

#[test]
fn a_file_that_is_removed_and_written_again_is_a_new_pod() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.yaml");
    let mut manifests = ManifestReader::new(vec![folder.path().to_owned()], "n".into());
    let mut read = |removed: bool| {
        if removed {
            manifests.forget(&[file.clone()].into());
        }
        Arc::clone(&manifests.read()[0])
    };
    std::fs::write(&file, WEB).unwrap();
    let first = read(false);
    assert!(is_of_same_file(&first, &read(false)));
    // Other text of the same pod.
    std::fs::write(&file, format!("# a comment\n{WEB}")).unwrap();
    assert!(Arc::ptr_eq(&first, &read(false)));
    let second = read(true);
    assert_eq!(first.uid, second.uid);
    assert!(!is_of_same_file(&first, &second));
}

#[test]
fn every_invalid_manifest_is_a_problem_until_it_is_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut manifests = ManifestReader::new(vec![folder.path().to_owned()], "n".into());
    let whats = |manifests: &mut ManifestReader| -> Vec<String> {
        manifests.read();
        manifests.problems().into_iter().map(|(_, problem)| problem.what).collect()
    };
    std::fs::write(path("a.yaml"), WEB).unwrap();
    assert_eq!(whats(&mut manifests), [""; 0]);
    std::fs::write(path("b.yaml"), "apiVersion: v1\nkind: Secret\n").unwrap();
    std::fs::write(path("c.yaml"), WEB.replace("busybox", "busybox:1")).unwrap();
    nix::unistd::mkfifo(&path("d.yaml"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let invalid = |name: &str, why: &str| {
        format!("the static pod {} is invalid: {why}", path(name).display())
    };
    // A second read: an unchanged file stays rejected.
    for _ in 0..2 {
        assert_eq!(
            whats(&mut manifests),
            [
                invalid(
                    "b.yaml",
                    "contains kind \"Secret\" of \"v1\"; a static pod is a Pod of v1"
                ),
                invalid("c.yaml", "another manifest contains the pod default/web-n"),
                invalid("d.yaml", "not a regular file"),
            ]
        );
    }
    for name in ["b.yaml", "c.yaml", "d.yaml"] {
        std::fs::remove_file(path(name)).unwrap();
    }
    assert_eq!(whats(&mut manifests), [""; 0]);
}
