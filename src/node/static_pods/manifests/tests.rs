//! Directories of static pods: changed, removed and rejected files.

use super::*;
use crate::static_pods::document::is_of_same_document;
use crate::static_pods::document::tests::WEB;

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
    assert!(is_of_same_document(&first, &read(false)));
    // Other text of the same pod.
    std::fs::write(&file, format!("# a comment\n{WEB}")).unwrap();
    assert!(Arc::ptr_eq(&first, &read(false)));
    let second = read(true);
    assert_eq!(first.uid, second.uid);
    assert!(!is_of_same_document(&first, &second));
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
