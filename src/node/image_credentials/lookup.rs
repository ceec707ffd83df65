//! The credentials for an image that a pod pulls, from all sources in the order of upstream.

use api::Object;
use client::Client;
use serde_json::Value;

use super::docker_config::{self, DockerConfig, DockerConfigError};
use super::docker_files::DockerFiles;
use super::keyring::{CredentialSource, Keyring, ObjectCoordinates, TrackedCredential};
use super::metrics;
use super::provider::Provider;
use super::provider_config::CredentialProviders;
use super::service_account::{ApiAccount, PodAccount};
use crate::credentials::tokens::Tokens;
use crate::pods::objects::{self, CachedObject, ObjectKind, ReferencedObjects};
use crate::pods::pod::Pod;
use crate::runtime::images::name;

/// The sources of credentials on a node.
#[derive(Debug)]
pub(crate) struct ImageCredentials {
    files: DockerFiles,
    providers: Vec<Provider>,
}

impl ImageCredentials {
    /// `root_dir` is the directory of the kubelet.
    pub(crate) fn new(root_dir: &std::path::Path, providers: Option<&CredentialProviders>) -> Self {
        if let Some(providers) = providers {
            metrics::CONFIG_INFO.set(&[&providers.hash], 1.0);
        }
        let providers = providers.map(Provider::all).unwrap_or_default();
        Self { files: DockerFiles::new(root_dir), providers }
    }

    /// Returns the credentials for an image: those of pull secrets, of the node's files, and of
    /// providers. Within each source the longest matching address comes first.
    pub(crate) async fn lookup(
        &self,
        client: &Client,
        tokens: &Tokens,
        secrets: &ReferencedObjects,
        pod: &Pod,
        image: &str,
    ) -> Vec<TrackedCredential> {
        let full = name::normalize(image);
        let (repository, _) = name::split(&full);
        let mut found = of_secrets(secrets, pod).lookup(repository);
        found.extend(self.files.keyring().await.lookup(repository));
        found.extend(self.of_providers(&ApiAccount { client, tokens, pod }, repository).await);
        found
    }

    /// The credentials of all responsible providers. An error is logged, and its provider
    /// contributes nothing.
    pub(super) async fn of_providers(
        &self,
        pod: &dyn PodAccount,
        repository: &str,
    ) -> Vec<TrackedCredential> {
        let mut keyring = Keyring::default();
        for provider in self.providers.iter().filter(|p| p.is_responsible(repository)) {
            match provider.provide(repository, pod).await {
                Ok(Some(provided)) => {
                    for (address, login) in provided.logins.iter() {
                        keyring.add(address, login, &provided.source);
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    provider = provider.name(), image = repository, %error,
                    "cannot get credentials for an image"
                ),
            }
        }
        keyring.lookup(repository)
    }
}

/// The credentials of a pod's pull secrets.
fn of_secrets(secrets: &ReferencedObjects, pod: &Pod) -> Keyring {
    let mut keyring = Keyring::default();
    for secret in pod.spec().image_pull_secrets.iter().flatten() {
        let reference = (ObjectKind::Secret, pod.namespace().to_owned(), secret.name.clone());
        let CachedObject::Present(object) = secrets.get(&reference) else { continue };
        match logins_of(&object) {
            Ok(logins) => {
                let source = CredentialSource::Secret(coordinates(&object));
                for (address, login) in &logins {
                    keyring.add(address, login, &source);
                }
            }
            Err(error) => {
                tracing::warn!(secret = secret.name, pod = %pod.key, %error, "invalid pull secret");
            }
        }
    }
    keyring
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn coordinates(object: &Object) -> ObjectCoordinates {
    let value = object.value().unwrap_or_default();
    ObjectCoordinates {
        uid: text(&value, "/metadata/uid").to_owned(),
        namespace: text(&value, "/metadata/namespace").to_owned(),
        name: text(&value, "/metadata/name").to_owned(),
    }
}

/// The logins of a Secret of one of the two types.
fn logins_of(object: &Object) -> Result<DockerConfig, DockerConfigError> {
    let kind = object.value().map(|value| text(&value, "/type").to_owned()).unwrap_or_default();
    let data = objects::data(ObjectKind::Secret, object);
    let content = |key: &str| data.get(key).filter(|content| !content.is_empty());
    match kind.as_str() {
        "kubernetes.io/dockerconfigjson" => content(".dockerconfigjson")
            .map_or(Ok(DockerConfig::new()), |text| docker_config::config_json(text)),
        "kubernetes.io/dockercfg" => content(".dockercfg")
            .map_or(Ok(DockerConfig::new()), |text| docker_config::dockercfg(text)),
        _ => Ok(DockerConfig::new()),
    }
}
