//! Credential providers as shell scripts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;

use super::exec::tests::script;
use super::keyring::{CredentialSource, TrackedCredential};
use super::lookup::ImageCredentials;
use super::provider_config::CredentialProviders;
use super::service_account::{AccountData, PodAccount};

/// The directories of plugins, and of the calls that they record.
struct Plugins {
    root: tempfile::TempDir,
}

impl Plugins {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bin")).unwrap();
        std::fs::create_dir(root.path().join("calls")).unwrap();
        Self { root }
    }

    /// Adds a plugin that records its requests and answers for `r.io` with these fields.
    fn add(&self, name: &str, response: &str, delay: &str) {
        let calls = self.root.path().join("calls").display().to_string();
        let body = format!(
            "cat >$(mktemp {calls}/{name}.XXXXXX)\nsleep {delay}\n\
             echo '{{\"kind\":\"CredentialProviderResponse\",\
             \"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",{response}}}'"
        );
        script(&self.root.path().join("bin").join(name), &body);
    }

    fn credentials(&self, providers: serde_json::Value) -> ImageCredentials {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
            "providers": providers,
        });
        let file = self.root.path().join("config.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let loaded = CredentialProviders::load(&file, &self.root.path().join("bin")).unwrap();
        ImageCredentials::new(Path::new("/none"), Some(&loaded))
    }

    /// The requests that plugins received.
    fn requests(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.root.path().join("calls")).unwrap();
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }
}

fn provider(name: &str, images: &[&str]) -> serde_json::Value {
    json!({
        "name": name, "matchImages": images, "defaultCacheDuration": "10m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    })
}

fn with_tokens(cache_type: &str, required: &[&str]) -> serde_json::Value {
    let mut provider = provider("p", &["r.io"]);
    provider["tokenAttributes"] = json!({
        "serviceAccountTokenAudience": "r", "cacheType": cache_type, "requireServiceAccount": true,
        "requiredServiceAccountAnnotationKeys": required,
    });
    provider
}

/// A service account in memory.
#[derive(Default)]
struct FakeAccount {
    name: &'static str,
    annotations: Vec<(&'static str, &'static str)>,
    token: &'static str,
    has_no_token: AtomicBool,
}

fn bot() -> FakeAccount {
    FakeAccount { name: "bot", token: "the-token", ..FakeAccount::default() }
}

#[async_trait]
impl PodAccount for FakeAccount {
    fn namespace(&self) -> &str {
        "n"
    }

    fn name(&self) -> &str {
        self.name
    }

    async fn read(&self) -> Result<AccountData, client::Error> {
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Ok(AccountData { uid: "u".to_owned(), annotations })
    }

    async fn token(&self, uid: &str, audience: &str) -> Result<String, client::Error> {
        assert_eq!((uid, audience), ("u", "r"));
        if self.has_no_token.load(Ordering::Relaxed) {
            return Err(client::Error::Transport("refused".to_owned()));
        }
        Ok(self.token.to_owned())
    }
}

fn users(found: &[TrackedCredential]) -> Vec<String> {
    found.iter().map(|credential| credential.auth().username).collect()
}

const AUTH: &str = r#""auth":{"r.io":{"username":"u","password":"p"},"*.r.io":{"username":"w"}}"#;

fn response(key_type: &str) -> String {
    format!("\"cacheKeyType\":\"{key_type}\",{AUTH}")
}

#[tokio::test]
async fn answers_are_used_for_the_image_the_registry_or_everything() {
    for (key_type, calls) in [("Image", 3), ("Registry", 2), ("Global", 1)] {
        let plugins = Plugins::new();
        plugins.add("p", &response(key_type), "0");
        let credentials = plugins.credentials(json!([provider("p", &["r.io", "*.r.io"])]));
        let pod = FakeAccount::default();
        for (image, want) in [("r.io/a", "u"), ("r.io/a", "u"), ("r.io/b", "u"), ("x.r.io/a", "w")]
        {
            let found = credentials.of_providers(&pod, image).await;
            assert_eq!(users(&found), [want], "{key_type} {image}");
            assert_eq!(found[0].source, CredentialSource::Node);
        }
        assert_eq!(plugins.requests().len(), calls, "{key_type}");
        assert!(credentials.of_providers(&pod, "q.io/a").await.is_empty());
        assert_eq!(plugins.requests().len(), calls, "no provider is responsible");
    }
}

#[tokio::test]
async fn without_a_duration_each_lookup_is_a_call() {
    let plugins = Plugins::new();
    plugins.add("p", &format!("\"cacheDuration\":\"0s\",{}", response("Image")), "0");
    let credentials = plugins.credentials(json!([provider("p", &["r.io"])]));
    for _ in 0..2 {
        assert_eq!(credentials.of_providers(&FakeAccount::default(), "r.io/a").await.len(), 1);
    }
    assert_eq!(plugins.requests().len(), 2);
}

#[tokio::test]
async fn concurrent_lookups_of_an_image_are_one_call() {
    let plugins = Plugins::new();
    plugins.add("p", &response("Image"), "0.3");
    let images = ["r.io/a", "r.io/b", "r.io/c", "r.io/d"];
    let credentials = Arc::new(plugins.credentials(json!([provider("p", &["r.io"])])));
    let lookups = (0..20).map(|n| {
        let credentials = Arc::clone(&credentials);
        async move {
            let image = images[n % images.len()];
            credentials.of_providers(&FakeAccount::default(), image).await.len()
        }
    });
    let found = futures::future::join_all(lookups).await;
    assert_eq!(found, [1; 20]);
    assert_eq!(plugins.requests().len(), 4);
}

#[tokio::test]
async fn a_hanging_plugin_delays_only_images_that_need_it() {
    let plugins = Plugins::new();
    plugins.add("p", &response("Image"), "600");
    plugins.add("q", &response("Image").replace("r.io", "q.io"), "0");
    let providers = json!([provider("p", &["r.io"]), provider("q", &["q.io"])]);
    let credentials = plugins.credentials(providers);
    let pod = FakeAccount::default();
    let hanging = credentials.of_providers(&pod, "r.io/a");
    let other = async {
        let started = Instant::now();
        assert_eq!(credentials.of_providers(&pod, "q.io/a").await.len(), 1);
        assert!(credentials.of_providers(&pod, "docker.io/library/a").await.is_empty());
        started.elapsed()
    };
    tokio::select! {
        _ = hanging => panic!("the plugin does not answer"),
        took = other => assert!(took < Duration::from_secs(20), "{took:?}"),
    }
}

#[tokio::test]
async fn all_responsible_providers_contribute_and_failing_ones_nothing() {
    let plugins = Plugins::new();
    plugins.add("p", &response("Image"), "0");
    plugins.add("q", &response("Image").replace("\"u\"", "\"second\""), "0");
    plugins.add("bad", "\"cacheKeyType\":\"Other\"", "0");
    script(&plugins.root.path().join("bin/failing"), "exit 1");
    let names = ["bad", "failing", "p", "q"];
    let providers: Vec<_> = names.iter().map(|name| provider(name, &["r.io"])).collect();
    let credentials = plugins.credentials(json!(providers));
    let found = credentials.of_providers(&FakeAccount::default(), "r.io/a").await;
    assert_eq!(users(&found), ["u", "second"]);
    assert!(super::metrics::ERRORS.read(&["failing"]) >= 1.0);
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(plugins.root.path().join("bin/q"), mode).unwrap();
    let error = CredentialProviders::load(
        &plugins.root.path().join("config.json"),
        &plugins.root.path().join("bin"),
    );
    assert!(error.unwrap_err().to_string().starts_with("error inspecting binary executable "));
}

#[tokio::test]
async fn plugins_receive_the_token_and_the_annotations_of_the_account() {
    let plugins = Plugins::new();
    plugins.add("p", &response("Registry"), "0");
    let credentials = plugins.credentials(json!([with_tokens("ServiceAccount", &["role"])]));
    let pod = FakeAccount { annotations: vec![("role", "x"), ("other", "y")], ..bot() };
    let found = credentials.of_providers(&pod, "r.io/a").await;
    let CredentialSource::ServiceAccount(account) = &found[0].source else { panic!("{found:?}") };
    assert_eq!((account.uid.as_str(), account.name.as_str()), ("u", "bot"));
    let request = plugins.requests().remove(0);
    let want = r#""serviceAccountToken":"the-token","serviceAccountAnnotations":{"role":"x"}}"#;
    assert!(request.trim_end().ends_with(want), "{request}");
    // Another token of the account has the same credentials, another account has not.
    let renewed = FakeAccount { annotations: vec![("role", "x")], token: "new", ..bot() };
    assert_eq!(credentials.of_providers(&renewed, "r.io/b").await.len(), 1);
    assert_eq!(plugins.requests().len(), 1);
    let other = FakeAccount { annotations: vec![("role", "x")], name: "other", ..bot() };
    assert_eq!(credentials.of_providers(&other, "r.io/b").await.len(), 1);
    assert_eq!(plugins.requests().len(), 2);
}

#[tokio::test]
async fn plugins_do_not_run_without_what_they_require_of_the_account() {
    let plugins = Plugins::new();
    plugins.add("p", &response("Registry"), "0");
    let credentials = plugins.credentials(json!([with_tokens("ServiceAccount", &["role"])]));
    let refused = FakeAccount { annotations: vec![("role", "x")], ..bot() };
    refused.has_no_token.store(true, Ordering::Relaxed);
    for pod in [FakeAccount::default(), bot(), refused] {
        assert!(credentials.of_providers(&pod, "r.io/a").await.is_empty());
    }
    assert!(plugins.requests().is_empty());
}

#[tokio::test]
async fn a_token_is_a_password_only_with_a_cache_per_token() {
    let echo = "\"cacheKeyType\":\"Registry\",\"auth\":{\"r.io\":{\"username\":\"u\",\
                \"password\":\"the-token\"}}";
    for (cache_type, count) in [("ServiceAccount", 0), ("Token", 1)] {
        let plugins = Plugins::new();
        plugins.add("p", echo, "0");
        let credentials = plugins.credentials(json!([with_tokens(cache_type, &[])]));
        assert_eq!(credentials.of_providers(&bot(), "r.io/a").await.len(), count, "{cache_type}");
        let renewed = FakeAccount { token: "new", ..bot() };
        credentials.of_providers(&renewed, "r.io/a").await;
        assert_eq!(plugins.requests().len(), 2, "{cache_type}");
    }
}
