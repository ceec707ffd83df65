//! The decision whether a pod may use an image that is present.

use super::policy::{ImageVerification, trim};
use super::record::{PullAccount, PullSecret, PulledRecord};
use crate::image_credentials::keyring::{CredentialSource, TrackedCredential};

/// With as many secrets stored, matching ones are no longer added.
const SECRETS_MAX: usize = 100;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckResult {
    PolicyAllowed,
    Found,
    MustPull,
    Error,
}

impl CheckResult {
    /// The label of the metric.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::PolicyAllowed => "credentialPolicyAllowed",
            Self::Found => "credentialRecordFound",
            Self::MustPull => "mustAuthenticate",
            Self::Error => "error",
        }
    }

    pub(super) fn is_allowed(self) -> bool {
        matches!(self, Self::PolicyAllowed | Self::Found)
    }
}

/// The decision without the credentials of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Done(CheckResult),
    Compare,
}

/// Decides as far as possible without credentials; `is_pulled` tells whether this node pulled the
/// image.
pub(super) fn without_credentials(
    policy: &ImageVerification,
    image: &str,
    record: Option<&PulledRecord>,
    is_pulled: bool,
) -> Step {
    if !policy.requires_check(image, is_pulled) {
        return Step::Done(CheckResult::PolicyAllowed);
    }
    let Some(record) = record else { return Step::Done(CheckResult::MustPull) };
    let Some(name) = trim(image) else { return Step::Done(CheckResult::Error) };
    match record.credential_mapping.get(name) {
        Some(known) if known.node_pods_accessible => Step::Done(CheckResult::Found),
        Some(known)
            if !known.kubernetes_secrets.is_empty()
                || !known.kubernetes_service_accounts.is_empty() =>
        {
            Step::Compare
        }
        _ => Step::Done(CheckResult::MustPull),
    }
}

/// Credentials of the pod that are known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KnownCredential {
    /// A secret that has to be recorded.
    pub(super) changed: Option<PullSecret>,
}

/// Finds credentials of the pod in a record: a secret with the same content, the same secret with
/// other content, or the service account.
pub(super) fn compare(
    record: &PulledRecord,
    image: &str,
    credentials: &[TrackedCredential],
) -> Option<KnownCredential> {
    let known = record.credential_mapping.get(trim(image)?)?;
    let has_room = known.kubernetes_secrets.len() < SECRETS_MAX;
    let secrets = credentials.iter().filter_map(|credential| match &credential.source {
        CredentialSource::Secret(secret) => Some(PullSecret::new(secret, &credential.hash)),
        _ => None,
    });
    for secret in secrets {
        for stored in &known.kubernetes_secrets {
            let has_same_content = !stored.credential_hash.is_empty()
                && stored.credential_hash == secret.credential_hash;
            let is_same = stored.is_same_object(&secret);
            if has_same_content {
                let changed = (!is_same && has_room).then(|| secret.clone());
                return Some(KnownCredential { changed });
            }
            if is_same && has_room {
                return Some(KnownCredential { changed: Some(secret) });
            }
        }
    }
    let account = credentials.iter().find_map(|credential| match &credential.source {
        CredentialSource::ServiceAccount(account) => Some(PullAccount::new(account)),
        _ => None,
    });
    let is_known = account.is_some_and(|a| known.kubernetes_service_accounts.contains(&a));
    is_known.then(KnownCredential::default)
}
