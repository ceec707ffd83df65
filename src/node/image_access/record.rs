//! The files of one pull: an intent while it runs, and a record of its result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::image_credentials::keyring::{CredentialSource, ObjectCoordinates, TrackedCredential};

/// The version that is written.
pub(super) const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// An older version that is read.
const VERSION_ALPHA: &str = "kubelet.config.k8s.io/v1alpha1";
const INTENT: &str = "ImagePullIntent";
const RECORD: &str = "ImagePulledRecord";

/// Why a file is none of both.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
}

/// A pull that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Intent {
    kind: String,
    api_version: String,
    /// As the pod has it.
    pub(super) image: String,
}

/// An image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PulledRecord {
    kind: String,
    api_version: String,
    /// RFC 3339, in seconds.
    pub(super) last_updated_time: Option<String>,
    /// The id of the image in the runtime.
    pub(super) image_ref: String,
    /// Credentials by the name as pods have it, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) credential_mapping: BTreeMap<String, Credentials>,
}

/// The credentials with which an image was pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_service_accounts: Vec<PullAccount>,
    /// Whether every pod of the node may use the image.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) node_pods_accessible: bool,
}

/// A pull secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PullSecret {
    uid: String,
    namespace: String,
    name: String,
    pub(super) credential_hash: String,
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PullAccount {
    uid: String,
    namespace: String,
    name: String,
}

impl PullSecret {
    pub(super) fn new(secret: &ObjectCoordinates, hash: &str) -> Self {
        Self {
            uid: secret.uid.clone(),
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            credential_hash: hash.to_owned(),
        }
    }

    /// Whether both are the same object.
    pub(super) fn is_same_object(&self, other: &Self) -> bool {
        self.sort_key() == other.sort_key()
    }

    fn sort_key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl PullAccount {
    pub(super) fn new(account: &ObjectCoordinates) -> Self {
        let ObjectCoordinates { uid, namespace, name } = account.clone();
        Self { uid, namespace, name }
    }

    fn sort_key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

impl Credentials {
    pub(super) fn of_secret(secret: PullSecret) -> Self {
        Self { kubernetes_secrets: vec![secret], ..Self::default() }
    }

    /// What a pull with these credentials proves; `None` are those of the node, or none at all.
    pub(super) fn of_pull(credential: Option<&TrackedCredential>) -> Self {
        let node = Self { node_pods_accessible: true, ..Self::default() };
        match credential.map(|credential| (&credential.source, &credential.hash)) {
            None | Some((CredentialSource::Node, _)) => node,
            Some((CredentialSource::Secret(secret), hash)) => {
                Self::of_secret(PullSecret::new(secret, hash))
            }
            Some((CredentialSource::ServiceAccount(account), _)) => Self {
                kubernetes_service_accounts: vec![PullAccount::new(account)],
                ..Self::default()
            },
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds credentials; returns whether that changes something.
    fn merge(&mut self, new: &Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        let before = self.clone();
        if new.node_pods_accessible {
            *self = Self { node_pods_accessible: true, ..Self::default() };
            return true;
        }
        for secret in &new.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| !known.is_same_object(secret));
            self.kubernetes_secrets.push(secret.clone());
        }
        for account in &new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(account) {
                self.kubernetes_service_accounts.push(account.clone());
            }
        }
        self.kubernetes_secrets.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        self.kubernetes_service_accounts.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        *self != before
    }
}

impl PulledRecord {
    /// The record of an image; `name` is that of the pod without tag and digest.
    pub(super) fn new(id: &str, name: &str, credentials: Option<&Credentials>, now: &str) -> Self {
        let mapping = credentials.map(|credentials| (name.to_owned(), credentials.clone()));
        Self {
            kind: RECORD.to_owned(),
            api_version: VERSION.to_owned(),
            last_updated_time: Some(now.to_owned()),
            image_ref: id.to_owned(),
            credential_mapping: mapping.into_iter().collect(),
        }
    }

    /// Returns the record with further credentials; `None` if they change nothing.
    pub(super) fn merged(
        &self,
        name: &str,
        credentials: Option<&Credentials>,
        now: &str,
    ) -> Option<Self> {
        let new = credentials.filter(|new| !new.is_empty())?;
        let mut record = self.clone();
        let changed = match record.credential_mapping.get_mut(name) {
            Some(known) => known.merge(new),
            None => {
                record.credential_mapping.insert(name.to_owned(), new.clone());
                true
            }
        };
        record.last_updated_time = Some(now.to_owned());
        changed.then_some(record)
    }
}

fn check(kind: &str, version: &str, want: &str) -> Result<bool, RecordError> {
    if kind != want || !matches!(version, VERSION | VERSION_ALPHA) {
        return Err(RecordError::Kind { kind: kind.to_owned(), version: version.to_owned() });
    }
    Ok(version == VERSION)
}

/// A type of file.
pub(super) trait RecordFile: Sized {
    /// One line of JSON.
    fn encode(&self) -> Vec<u8>;
    /// Decodes a file strictly; the second value tells whether it has the current version.
    fn decode(text: &[u8]) -> Result<(Self, bool), RecordError>;
    /// The text whose hash is the name of the file.
    fn key(&self) -> &str;
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut line = api::field::escape_html(&json).into_bytes();
    line.push(b'\n');
    line
}

impl Intent {
    pub(super) fn new(image: &str) -> Self {
        let (kind, api_version) = (INTENT.to_owned(), VERSION.to_owned());
        Self { kind, api_version, image: image.to_owned() }
    }
}

impl RecordFile for Intent {
    fn encode(&self) -> Vec<u8> {
        line(self)
    }

    fn decode(text: &[u8]) -> Result<(Self, bool), RecordError> {
        let mut intent: Self = serde_json::from_slice(text)?;
        let is_current = check(&intent.kind, &intent.api_version, INTENT)?;
        VERSION.clone_into(&mut intent.api_version);
        Ok((intent, is_current))
    }

    fn key(&self) -> &str {
        &self.image
    }
}

impl RecordFile for PulledRecord {
    fn encode(&self) -> Vec<u8> {
        line(self)
    }

    fn decode(text: &[u8]) -> Result<(Self, bool), RecordError> {
        let mut record: Self = serde_json::from_slice(text)?;
        let is_current = check(&record.kind, &record.api_version, RECORD)?;
        VERSION.clone_into(&mut record.api_version);
        Ok((record, is_current))
    }

    fn key(&self) -> &str {
        &self.image_ref
    }
}
