//! The decisions of upstream's `image_pull_manager_test.go` with files on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Tasks;
use proto::runtime::v1 as cri;

use super::policy::ImageVerification;
use super::record::{Credentials, PulledRecord, RecordFile};
use super::store::{RecordStore, StoreSizes};
use super::{Access, ImageAccess};
use crate::digest::sha256;
use crate::image_credentials::keyring::{
    CredentialSource, Keyring, ObjectCoordinates, RegistryLogin, TrackedCredential,
};

const IMAGE: &str = "r.io/team/app:v1";
const ID: &str = "sha256:0000";
const SIZES: StoreSizes = StoreSizes { intents: 10, records: 10 };

fn object(uid: &str, name: &str) -> ObjectCoordinates {
    ObjectCoordinates { uid: uid.to_owned(), namespace: "n".to_owned(), name: name.to_owned() }
}

fn credential(source: CredentialSource, password: &str) -> TrackedCredential {
    let mut keyring = Keyring::default();
    let password = password.to_owned();
    keyring.add("r.io", &RegistryLogin { password, ..RegistryLogin::default() }, &source);
    keyring.lookup("r.io/a").remove(0)
}

fn secret(uid: &str, name: &str, password: &str) -> TrackedCredential {
    credential(CredentialSource::Secret(object(uid, name)), password)
}

fn account(uid: &str, name: &str) -> TrackedCredential {
    credential(CredentialSource::ServiceAccount(object(uid, name)), "p")
}

async fn open(root: &Path, policy: &str) -> Arc<ImageAccess> {
    let policy = ImageVerification::parse(policy, &[]).unwrap();
    ImageAccess::open(root, policy, 10, 4, &Tasks::new(base::Shutdown::new())).await.unwrap()
}

async fn pull(access: &Arc<ImageAccess>, image: &str, with: Option<&TrackedCredential>) {
    access.begin_pull(image).await.unwrap().succeed(ID, with).await;
}

/// Whether a pod with these credentials has to pull the image.
async fn must_pull(access: &ImageAccess, image: &str, with: &[TrackedCredential]) -> bool {
    match access.check(image, ID).await {
        Access::Allowed => false,
        Access::MustPull => true,
        Access::Compare(comparison) => !access.allows(comparison, with).await,
    }
}

fn names(root: &Path, dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("image_manager").join(dir)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn stored(root: &Path) -> PulledRecord {
    let file = root.join("image_manager/pulled").join(sha256(ID.as_bytes()).replace(':', "-"));
    PulledRecord::decode(&std::fs::read(file).unwrap()).unwrap().0
}

#[tokio::test]
async fn a_secret_is_known_by_its_content_or_its_coordinates() {
    for (pod, want, count) in [
        (vec![secret("1", "a", "p")], false, 1),
        (vec![], true, 1),
        (vec![secret("1", "a", "other")], false, 1),
        (vec![secret("2", "a", "other")], true, 1),
        (vec![secret("1", "b", "other")], true, 1),
        (vec![secret("2", "b", "p")], false, 2),
        (vec![secret("2", "b", "other"), secret("1", "a", "p")], false, 1),
        (vec![credential(CredentialSource::Node, "p")], true, 1),
        (vec![account("1", "a")], true, 1),
    ] {
        let root = tempfile::tempdir().unwrap();
        let access = open(root.path(), "").await;
        pull(&access, IMAGE, Some(&secret("1", "a", "p"))).await;
        assert_eq!(must_pull(&access, IMAGE, &pod).await, want, "{pod:?}");
        let known = &stored(root.path()).credential_mapping["r.io/team/app"].kubernetes_secrets;
        assert_eq!(known.len(), count, "{pod:?}");
        if !want {
            assert_eq!(known.last().unwrap().credential_hash, pod.last().unwrap().hash);
        }
        assert!(must_pull(&access, "r.io/team/other:v1", &pod).await, "another name");
    }
}

#[tokio::test]
async fn a_service_account_is_known_by_its_coordinates() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, Some(&account("1", "a"))).await;
    assert!(!must_pull(&access, IMAGE, &[account("1", "a")]).await);
    assert!(must_pull(&access, IMAGE, &[account("2", "a")]).await);
    assert!(must_pull(&access, IMAGE, &[account("1", "b")]).await);
    assert!(must_pull(&access, IMAGE, &[]).await);
}

#[tokio::test]
async fn credentials_of_the_node_open_the_image_to_every_pod() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, Some(&secret("1", "a", "p"))).await;
    pull(&access, IMAGE, Some(&account("1", "a"))).await;
    pull(&access, IMAGE, None).await;
    assert!(!must_pull(&access, IMAGE, &[]).await);
    pull(&access, IMAGE, Some(&secret("1", "a", "p"))).await;
    let known = &stored(root.path()).credential_mapping["r.io/team/app"];
    assert_eq!(*known, Credentials::of_pull(None));
}

#[tokio::test]
async fn images_without_a_record_follow_the_policy() {
    for (policy, without, with_intent) in [
        ("", false, true),
        ("NeverVerify", false, false),
        ("NeverVerifyAllowlistedImages", true, true),
        ("AlwaysVerify", true, true),
    ] {
        let root = tempfile::tempdir().unwrap();
        let access = open(root.path(), policy).await;
        assert!(matches!(access.check(IMAGE, "").await, Access::MustPull));
        assert_eq!(must_pull(&access, IMAGE, &[]).await, without, "{policy}");
        let _intent = access.begin_pull(IMAGE).await.unwrap();
        assert_eq!(must_pull(&access, IMAGE, &[]).await, with_intent, "{policy}");
        let again = open(root.path(), policy).await;
        assert_eq!(must_pull(&again, IMAGE, &[]).await, with_intent, "{policy} after a restart");
    }
}

#[tokio::test]
async fn an_invalid_record_requires_a_pull_which_replaces_it() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, None).await;
    let name = names(root.path(), "pulled").remove(0);
    std::fs::write(root.path().join("image_manager/pulled").join(&name), "").unwrap();
    let access = open(root.path(), "").await;
    assert!(must_pull(&access, IMAGE, &[]).await);
    pull(&access, IMAGE, None).await;
    assert!(!must_pull(&access, IMAGE, &[]).await);
}

#[tokio::test]
async fn files_have_the_names_and_the_form_of_upstream() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    let intent = access.begin_pull(IMAGE).await.unwrap();
    let name = sha256(IMAGE.as_bytes()).replace(':', "-");
    assert_eq!(names(root.path(), "pulling"), std::slice::from_ref(&name));
    let text = std::fs::read_to_string(root.path().join("image_manager/pulling").join(name));
    let kind = r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","#;
    assert_eq!(text.unwrap(), format!("{kind}\"image\":\"{IMAGE}\"}}\n"));
    intent.succeed(ID, Some(&secret("1", "a", "p"))).await;
    assert!(names(root.path(), "pulling").is_empty());
    let name = names(root.path(), "pulled").remove(0);
    let text = std::fs::read_to_string(root.path().join("image_manager/pulled").join(name));
    let time = stored(root.path()).last_updated_time.unwrap();
    let hash = secret("1", "a", "p").hash;
    let want = format!(
        "{{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
         \"lastUpdatedTime\":\"{time}\",\"imageRef\":\"{ID}\",\"credentialMapping\":\
         {{\"r.io/team/app\":{{\"kubernetesSecrets\":[{{\"uid\":\"1\",\"namespace\":\"n\",\
         \"name\":\"a\",\"credentialHash\":\"{hash}\"}}]}}}}}}\n"
    );
    assert_eq!(text.unwrap(), want);
    assert!(time.ends_with('Z') && time.len() == 20, "{time}");
}

#[tokio::test]
async fn an_intent_stays_until_the_last_pull_of_its_image_ends() {
    let root = tempfile::tempdir().unwrap();
    let store = RecordStore::open(&root.path().join("image_manager"), SIZES).unwrap();
    store.begin_pull(IMAGE).unwrap();
    store.begin_pull(IMAGE).unwrap();
    assert_eq!(names(root.path(), "pulling").len(), 1);
    store.end_pull(IMAGE).unwrap();
    assert_eq!(names(root.path(), "pulling").len(), 1);
    store.end_pull(IMAGE).unwrap();
    assert!(names(root.path(), "pulling").is_empty());
    let access = open(root.path(), "").await;
    drop(access.begin_pull(IMAGE).await.unwrap());
    for _ in 0..200 {
        if names(root.path(), "pulling").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the intent of a pull that was given up stays");
}

#[tokio::test]
async fn records_are_made_of_intents_whose_image_arrived() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    let intents = [IMAGE, "ubuntu"].map(|image| access.begin_pull(image));
    for intent in intents {
        std::mem::forget(intent.await.unwrap());
    }
    let access = open(root.path(), "").await;
    assert!(access.has_intents());
    let tags = ["docker.io/library/ubuntu:latest", IMAGE].map(str::to_owned).to_vec();
    let image = cri::Image { id: ID.to_owned(), repo_tags: tags, ..cri::Image::default() };
    access.finish_intents(vec![image]).await;
    assert_eq!(names(root.path(), "pulling"), [sha256(b"ubuntu").replace(':', "-")]);
    assert!(stored(root.path()).credential_mapping.is_empty());
    assert!(must_pull(&access, IMAGE, &[secret("1", "a", "p")]).await);
}

#[tokio::test]
async fn records_of_missing_images_are_pruned_unless_they_are_new() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, None).await;
    let later = base::clock::unix_time() + Duration::from_secs(10);
    access.prune(vec![ID.to_owned()], later).await;
    access.prune(Vec::new(), later - Duration::from_secs(60)).await;
    assert_eq!(names(root.path(), "pulled").len(), 1);
    access.prune(vec!["other".to_owned()], later).await;
    assert!(names(root.path(), "pulled").is_empty());
    assert!(matches!(access.check(IMAGE, ID).await, Access::Allowed), "it counts as preloaded");
}

#[tokio::test]
async fn an_unchanged_record_is_not_written() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, Some(&secret("2", "b", "p"))).await;
    let before = stored(root.path());
    assert_eq!(before.merged("r.io/team/app", None, "later"), None);
    let same = Credentials::of_pull(Some(&secret("2", "b", "p")));
    assert_eq!(before.merged("r.io/team/app", Some(&same), "later"), None);
    let empty = Credentials::default();
    assert_eq!(before.merged("r.io/team/app", Some(&empty), "later"), None);
    let more = Credentials::of_pull(Some(&secret("1", "a", "q")));
    let merged = before.merged("r.io/team/app", Some(&more), "later").unwrap();
    let hashes = merged.credential_mapping["r.io/team/app"].kubernetes_secrets.iter();
    let want = [secret("1", "a", "q").hash, secret("2", "b", "p").hash];
    assert_eq!(hashes.map(|secret| secret.credential_hash.clone()).collect::<Vec<_>>(), want);
    assert_eq!(merged.last_updated_time.as_deref(), Some("later"));
}

#[tokio::test]
async fn files_of_the_first_version_are_rewritten() {
    let root = tempfile::tempdir().unwrap();
    let access = open(root.path(), "").await;
    pull(&access, IMAGE, None).await;
    let file =
        root.path().join("image_manager/pulled").join(names(root.path(), "pulled").remove(0));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("v1beta1", "v1alpha1")).unwrap();
    open(root.path(), "").await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}
