//! Pod certificates (KEP 4317): the node creates a key, requests a certificate in the pod's name
//! from a signer, and renews it.
//!
//! The requests of this node are watched from the first such pod on. Like upstream's kubelet, the
//! agent keeps nothing across a restart but the files in the pods' volumes: a running pod keeps its
//! certificate while a new one is requested.

mod state;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::k8s::ByteString;
use api::k8s::api::certificates::v1::{PodCertificateRequest, PodCertificateRequestSpec};
use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use base::pki::pod::{self as keys, KeyKind};
use client::events::EventType;
use client::{Client, Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::events::NodeEventRecorder;
use crate::pods::objects::OBJECTS_WAIT;
use crate::pods::pod::Pod;

pub(crate) use state::Credentials;
use state::{CertificateState, CurrentCertificate, Decision, NextAction, PendingRequest};

/// Lifetime to request if the pod sets none, in seconds.
const EXPIRATION: i32 = 24 * 3600;
/// Requests are delayed by up to this many seconds, so that many pods do not send theirs at the
/// same time.
const JITTER: u64 = 5 * 60;
/// How soon a failed refresh request is retried; until then the pod keeps the old certificate.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Pod, volume, and index of the source in the volume.
type CertificateKey = (Arc<str>, String, usize);

/// Credentials with the time of the next check, or the error, by volume and index of the source.
pub(crate) type IssuedCredentials =
    HashMap<(String, usize), Result<(Credentials, Option<Instant>), Arc<CertificateError>>>;

/// Why a pod has no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("PodCertificateRequest informer has not yet synced")]
    NotSynced,
    /// The signer denied or failed the request.
    #[error("{0}")]
    Rejected(String),
    #[error("credential bundle is not issued yet")]
    NotIssued,
    #[error("while creating initial PodCertificateRequest: {0}")]
    Request(#[from] RequestError),
    /// The sender of changes was dropped.
    #[error(transparent)]
    Stopped(#[from] watch::error::RecvError),
}

/// Why a request cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("this node cannot make keys of type {0}: use ECDSAP256, ECDSAP384 or ED25519")]
    KeyType(String),
    #[error("while fetching service account: {0}")]
    ServiceAccount(#[source] client::Error),
    #[error("while getting node object from local cache: node {0:?} not found")]
    NoNode(String),
    #[error("while generating keypair: {0}")]
    KeyPair(#[source] base::pki::Error),
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    #[error("while creating on API: {0}")]
    Create(#[source] client::Error),
}

/// The certificate requests of this node and their results.
#[derive(Debug)]
pub(crate) struct PodCertificates {
    client: Client,
    informers: Informers,
    own_node: Informer<core::Node>,
    events: NodeEventRecorder,
    node_name: String,
    /// The directory that holds the pod directories.
    pods_dir: PathBuf,
    running: OnceLock<Informer<PodCertificateRequest>>,
    wake_handles: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
    /// Counts changes of requests.
    changes: Arc<watch::Sender<u64>>,
    states: Mutex<HashMap<CertificateKey, CertificateState>>,
}

/// The certificate sources of a pod: volume, index, source.
fn sources(pod: &Pod) -> impl Iterator<Item = (&str, usize, &core::PodCertificateProjection)> {
    pod.spec().volumes.iter().flatten().flat_map(|volume| {
        let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        let all = projected.enumerate();
        all.filter_map(move |(at, s)| Some((volume.name.as_str(), at, s.pod_certificate.as_ref()?)))
    })
}

/// Whether a volume of the pod has a certificate from a signer.
pub(crate) fn has_certificates(pod: &Pod) -> bool {
    sources(pod).next().is_some()
}

fn now() -> i64 {
    i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX)
}

fn jitter() -> i64 {
    i64::try_from(base::clock::random_u64() % JITTER).unwrap_or_default()
}

impl PodCertificates {
    pub(crate) fn new(
        client: Client,
        informers: Informers,
        own_node: Informer<core::Node>,
        events: NodeEventRecorder,
        config: &Config,
    ) -> Self {
        Self {
            client,
            informers,
            own_node,
            events,
            node_name: config.node_name.clone(),
            pods_dir: config.root_dir.join("pods"),
            running: OnceLock::new(),
            wake_handles: Arc::default(),
            changes: Arc::default(),
            states: Mutex::default(),
        }
    }

    fn running(&self) -> &Informer<PodCertificateRequest> {
        self.running.get_or_init(|| {
            let scope = Client::scope::<PodCertificateRequest>();
            let scope = scope.fields(format!("spec.nodeName={}", self.node_name));
            let informer = self.informers.scoped(scope);
            let (wake_handles, changes) =
                (Arc::clone(&self.wake_handles), Arc::clone(&self.changes));
            informer.on_change(move |change| {
                changes.send_modify(|count| *count = count.wrapping_add(1));
                let Ok(request) = change.object().value() else { return };
                let uid = api::value::str_in(&request, &["spec", "podUID"]);
                if let Some(wake) = wake_handles.lock().get(uid) {
                    wake.notify_one();
                }
            });
            informer
        })
    }

    /// Registers a pod for notifications: decisions about its certificates wake it.
    pub(crate) fn follow(&self, pod: &Pod, wake: &Arc<Notify>) {
        if has_certificates(pod) {
            self.wake_handles.lock().insert(api_uid(pod).to_owned(), Arc::clone(wake));
            self.running();
        }
    }

    /// Drops the state of a pod that ended.
    pub(crate) fn forget(&self, pod: &Pod) {
        self.wake_handles.lock().remove(api_uid(pod));
        self.states.lock().retain(|(uid, ..), _| *uid != pod.uid);
    }

    /// Returns the certificates of a pod. All are requested at once; a signer has [`OBJECTS_WAIT`]
    /// to issue them.
    pub(crate) async fn certificates(&self, pod: &Pod) -> IssuedCredentials {
        if !has_certificates(pod) {
            return IssuedCredentials::new();
        }
        let until = base::clock::now() + OBJECTS_WAIT;
        let synced = tokio::time::timeout_at(until, self.running().synced()).await.is_ok();
        let each = sources(pod).map(|(volume, at, source)| async move {
            let key: CertificateKey = (Arc::clone(&pod.uid), volume.to_owned(), at);
            let outcome = if synced {
                self.certificate(pod, &key, source, until).await
            } else {
                Err(CertificateError::NotSynced)
            };
            ((volume.to_owned(), at), outcome.map_err(Arc::new))
        });
        futures::future::join_all(each).await.into_iter().collect()
    }

    async fn certificate(
        &self,
        pod: &Pod,
        key: &CertificateKey,
        source: &core::PodCertificateProjection,
        until: Instant,
    ) -> Result<(Credentials, Option<Instant>), CertificateError> {
        if !self.states.lock().contains_key(key) {
            let current = recover(&self.pods_dir, pod, &key.1, source).await;
            self.states
                .lock()
                .insert(key.clone(), CertificateState { current, ..CertificateState::default() });
        }
        loop {
            let mut changes = self.changes.subscribe();
            let (next, had) = self.advance(pod, key);
            match (next, had) {
                (NextAction::Fail(why), _) => return Err(CertificateError::Rejected(why)),
                (NextAction::Keep, Some(current)) => {
                    let left = current.refresh_at.saturating_sub(now());
                    let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
                    return Ok((current.credentials, Some(base::clock::now() + left)));
                }
                // The signer's decision wakes the pod.
                (NextAction::Wait, Some(current)) => return Ok((current.credentials, None)),
                (NextAction::Wait | NextAction::Keep, None) => {
                    let change = tokio::time::timeout_at(until, changes.changed()).await;
                    change.map_err(|_| CertificateError::NotIssued)??;
                }
                (NextAction::Request, had) => match (self.send_request(pod, source).await, had) {
                    (Ok(pending), _) => {
                        if let Some(entry) = self.states.lock().get_mut(key) {
                            entry.pending = Some(pending);
                        }
                    }
                    (Err(error), Some(current)) => {
                        tracing::debug!(pod = %pod.key, %error, "cannot renew a pod certificate, \
                            keeping the old one");
                        return Ok((current.credentials, Some(base::clock::now() + RETRY_AFTER)));
                    }
                    (Err(error), None) => return Err(error.into()),
                },
            }
        }
    }

    /// Applies the state of the request. Returns the next action and the certificate in use.
    fn advance(&self, pod: &Pod, key: &CertificateKey) -> (NextAction, Option<CurrentCertificate>) {
        let (next, events, had) = {
            let mut states = self.states.lock();
            let entry = states.entry(key.clone()).or_default();
            let decision = entry.pending.as_ref().and_then(|pending| {
                let request = self.running().get(pod.namespace(), &pending.name)?;
                Some(Decision::of(&request))
            });
            let (next, events) = entry.advance(decision, pod.namespace(), now(), jitter());
            (next, events, entry.current.clone())
        };
        for (reason, message) in events {
            self.events.pod_event(pod, EventType::Warning, reason, message);
        }
        (next, had)
    }

    /// Creates a key and a request for its certificate.
    async fn send_request(
        &self,
        pod: &Pod,
        source: &core::PodCertificateProjection,
    ) -> Result<PendingRequest, RequestError> {
        let kind = KeyKind::named(&source.key_type)
            .ok_or_else(|| RequestError::KeyType(source.key_type.clone()))?;
        let client = &self.client;
        let account = pod.spec().service_account_name.as_deref().unwrap_or("default");
        let fetched = client.get::<core::ServiceAccount>(pod.namespace(), account).await;
        let fetched = fetched.map_err(RequestError::ServiceAccount)?;
        let own = self
            .own_node
            .get("", &self.node_name)
            .ok_or_else(|| RequestError::NoNode(self.node_name.clone()))?;
        let made = base::tasks::blocking(move || keys::generate(kind)).await?;
        let key_and_request = made.map_err(RequestError::KeyPair)?;
        let request = PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: Some(pod.namespace().to_owned()),
                generate_name: Some("req-".to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: pod.name().to_owned(),
                    uid: api_uid(pod).to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: source.signer_name.clone(),
                pod_name: pod.name().to_owned(),
                pod_uid: api_uid(pod).to_owned(),
                service_account_name: account.to_owned(),
                service_account_uid: fetched.metadata.uid.unwrap_or_default(),
                node_name: self.node_name.clone(),
                node_uid: own.metadata.uid.unwrap_or_default(),
                max_expiration_seconds: Some(source.max_expiration_seconds.unwrap_or(EXPIRATION)),
                stub_pkc_s10_request: ByteString(key_and_request.request),
                unverified_user_annotations: source.user_annotations.clone(),
            },
            status: None,
        };
        let created = client.create(pod.namespace(), &request).await;
        let created = created.map_err(RequestError::Create)?;
        let name = created.metadata.name.unwrap_or_default();
        Ok(PendingRequest::new(key_and_request.key_pem, name, now(), jitter()))
    }
}

fn api_uid(pod: &Pod) -> &str {
    pod.object.metadata.uid.as_deref().unwrap_or_default()
}

/// Reads the key and certificates that an earlier process wrote into the pod's volume. The pod
/// keeps them while new ones are requested, no later than when they expire.
async fn recover(
    pods_dir: &Path,
    pod: &Pod,
    volume: &str,
    source: &core::PodCertificateProjection,
) -> Option<CurrentCertificate> {
    let folder = pods_dir.join(&*pod.uid).join("volumes/kubernetes.io~projected").join(volume);
    let source = source.clone();
    let read = move || read(&folder, &source);
    let (credentials, ends_at) = base::tasks::blocking(read).await.ok().flatten()?;
    Some(CurrentCertificate::new(credentials, now().saturating_add(jitter()).min(ends_at), ends_at))
}

/// Key, certificates and expiry from the files of a source.
fn read(folder: &Path, source: &core::PodCertificateProjection) -> Option<(Credentials, i64)> {
    let file = |path: &Option<String>| {
        let path = path.as_deref().filter(|p| !p.is_empty())?;
        std::fs::read_to_string(folder.join(path)).ok()
    };
    let bundle = file(&source.credential_bundle_path);
    let (key, chain) = match bundle.as_deref().and_then(state::split) {
        Some((key, chain)) => (key.to_owned(), chain.to_owned()),
        None => (file(&source.key_path)?, file(&source.certificate_chain_path)?),
    };
    let ends_at = keys::end_of_pair(&key, &chain)?;
    Some((Credentials { key: key.into(), chain: chain.into() }, ends_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn sources_are_identified_by_volume_and_index() {
        let source = |signer: &str| {
            json!({"podCertificate": {"signerName": signer,
            "keyType": "ED25519", "keyPath": "k"}})
        };
        let pod = pod(json!({"containers": [{"name": "c"}], "volumes": [
            {"name": "a", "emptyDir": {}},
            {"name": "b", "projected": {"sources": [{"configMap": {"name": "m"}}, source("s/1")]}},
            {"name": "c", "projected": {"sources": [source("s/2")]}},
        ]}));
        let all: Vec<_> = sources(&pod).map(|(v, at, s)| (v, at, s.signer_name.as_str())).collect();
        assert_eq!(all, [("b", 1, "s/1"), ("c", 0, "s/2")]);
        assert!(has_certificates(&pod));
    }

    #[test]
    fn credentials_are_recovered_from_the_volume() {
        // A self-signed certificate is a valid chain here.
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        base::pki::Ca::load_or_create(&at("chain"), &at("key"), "test").unwrap();
        let text = |name: &str| std::fs::read_to_string(at(name)).unwrap();
        std::fs::write(at("bundle"), format!("{}{}", text("key"), text("chain"))).unwrap();
        let of = |source: serde_json::Value| {
            let mut full = json!({"signerName": "s/1", "keyType": "ECDSAP256"});
            full.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            read(folder.path(), &serde_json::from_value(full).unwrap())
        };
        let (credentials, end) = of(json!({"credentialBundlePath": "bundle"})).unwrap();
        assert_eq!((&*credentials.key, &*credentials.chain), (&*text("key"), &*text("chain")));
        assert!(end > now());
        let apart = json!({"keyPath": "key", "certificateChainPath": "chain"});
        assert_eq!(of(apart), Some((credentials, end)));
        assert_eq!(of(json!({"keyPath": "key"})), None);
        assert_eq!(of(json!({"keyPath": "key", "certificateChainPath": "key"})), None);
    }
}
