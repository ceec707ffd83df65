//! Service account tokens: signed by this cluster, bound to objects that must still exist.

use std::collections::HashMap;
use std::sync::Arc;

use api::{Gvr, Object};
use async_trait::async_trait;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::jws::{self, PublicKey, SignatureError};
use super::x509::CREDENTIAL_ID;
use super::{AudienceError, ReadError, TokenAuthenticator, TokenError, TokenIdentity};
use crate::request::user::User;
use lookup::Lookup;

/// The tolerated clock skew, in seconds.
const LEEWAY: i64 = 60;

/// The number of verified tokens in the cache; verifying a signature takes about 0.1 ms on a small
/// core.
const CACHE: usize = 1024;

/// The claims of a service-account token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// Audiences.
    #[serde(deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// Expiration, Unix time in seconds.
    pub exp: i64,
    /// Issued at, Unix time in seconds.
    pub iat: i64,
    /// Issuer.
    pub iss: String,
    /// The ID of the token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// The objects that the token is bound to.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Bound,
    /// Not before, Unix time in seconds.
    pub nbf: i64,
    /// `system:serviceaccount:<namespace>:<name>`.
    pub sub: String,
}

/// Objects a token is bound to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// The namespace of the account, pod and secret.
    pub namespace: String,
    /// The node of the pod, or the node that the token is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    /// The secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    /// The service account.
    pub serviceaccount: Reference,
    /// Tokens bound to webhook configurations are not issued here; such a token is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validatingwebhookconfiguration: Option<Value>,
    /// Like `mutatingwebhookconfiguration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutatingwebhookconfiguration: Option<Value>,
}

/// The name and UID of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// The name.
    pub name: String,
    /// The UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::One(one) => vec![one],
        Either::Many(many) => many,
    })
}

/// A service-account token is rejected. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum AccountTokenError {
    /// The signature is invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The token is for other audiences.
    #[error(transparent)]
    Audience(#[from] AudienceError),
    /// An object that the token is bound to cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The token has expired.
    #[error("service account token has expired")]
    Expired,
    /// `nbf` is in the future.
    #[error("service account token is not valid yet")]
    NotYetValid,
    /// `iat` is in the future.
    #[error("service account token is issued in the future")]
    IssuedInFuture,
    /// The token is bound to a webhook configuration.
    #[error("tokens bound to webhook configurations are not supported")]
    WebhookBound,
    /// The service account does not exist.
    #[error("serviceaccounts \"{name}\" not found")]
    AccountNotFound {
        /// The name of the service account.
        name: String,
    },
    /// The service account was created again since the token was issued.
    #[error("service account UID ({actual}) does not match claim ({claimed})")]
    AccountUid {
        /// The UID of the existing service account.
        actual: String,
        /// The UID in the token.
        claimed: String,
    },
    /// The service account is being deleted.
    #[error("service account {namespace}/{name} has been deleted")]
    AccountDeleted {
        /// The namespace of the service account.
        namespace: String,
        /// The name of the service account.
        name: String,
    },
    /// The bound object was deleted.
    #[error("service account token has been invalidated")]
    Invalidated,
    /// The bound object was created again since the token was issued.
    #[error("{kind} UID ({actual}) does not match service account {kind} ref claim ({claimed})")]
    BoundUid {
        /// `pod`, `node` or `secret`.
        kind: &'static str,
        /// The UID of the existing object.
        actual: String,
        /// The UID in the token.
        claimed: String,
    },
}

/// Verifies service-account tokens.
pub struct ServiceAccounts {
    lookup: Arc<dyn Lookup>,
    issuers: Vec<String>,
    audiences: Vec<String>,
    keys: Vec<PublicKey>,
    /// The claims of tokens with a verified signature, by the token's digest. The bound objects are
    /// checked on every request.
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl ServiceAccounts {
    /// Accepts tokens of these issuers for these audiences (the API server's own), signed with one
    /// of `keys`.
    pub fn new(
        lookup: Arc<dyn Lookup>,
        issuers: Vec<String>,
        audiences: Vec<String>,
        keys: Vec<PublicKey>,
    ) -> Self {
        Self { lookup, issuers, audiences, keys, verified: Mutex::default() }
    }

    fn claims(&self, token: &str) -> Result<Option<Arc<Claims>>, SignatureError> {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(known) = self.verified.lock().get(&key) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(claims) = jws::unverified_claims::<Claims>(token) else { return Ok(None) };
        if !self.issuers.contains(&claims.iss) {
            return Ok(None);
        }
        jws::verify(token, &self.keys)?;
        let claims = Arc::new(claims);
        let mut verified = self.verified.lock();
        if verified.len() >= CACHE {
            verified.clear();
        }
        verified.insert(key, Arc::clone(&claims));
        Ok(Some(claims))
    }

    async fn check_bound(&self, bound: &Bound, now: i64) -> Result<(), AccountTokenError> {
        let Bound { namespace, serviceaccount: account, .. } = bound;
        let Some(object) = self.find(&lookup::SERVICE_ACCOUNTS, namespace, &account.name).await?
        else {
            return Err(AccountTokenError::AccountNotFound { name: account.name.clone() });
        };
        if *object.uid != *account.uid {
            return Err(AccountTokenError::AccountUid {
                actual: object.uid.to_string(),
                claimed: account.uid.clone(),
            });
        }
        if deleted(&object, now) {
            return Err(AccountTokenError::AccountDeleted {
                namespace: namespace.clone(),
                name: account.name.clone(),
            });
        }
        if let Some(secret) = &bound.secret {
            self.check_exists(&lookup::SECRETS, namespace, secret, "secret", now).await?;
        }
        match (&bound.pod, &bound.node) {
            (Some(pod), _) => self.check_exists(&lookup::PODS, namespace, pod, "pod", now).await,
            (None, Some(node)) => self.check_exists(&lookup::NODES, "", node, "node", now).await,
            (None, None) => Ok(()),
        }
    }

    async fn check_exists(
        &self,
        gvr: &Gvr,
        namespace: &str,
        r: &Reference,
        kind: &'static str,
        now: i64,
    ) -> Result<(), AccountTokenError> {
        let object = self.find(gvr, namespace, &r.name).await?;
        let object = object.ok_or(AccountTokenError::Invalidated)?;
        if *object.uid != *r.uid {
            let (actual, claimed) = (object.uid.to_string(), r.uid.clone());
            return Err(AccountTokenError::BoundUid { kind, actual, claimed });
        }
        if deleted(&object, now) { Err(AccountTokenError::Invalidated) } else { Ok(()) }
    }

    /// Reads the cache, then the store: a token may be used before the cache has seen its pod.
    async fn find(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, ReadError> {
        let found = self.lookup.find(gvr, namespace, name).await;
        found.map_err(|status| ReadError {
            object: format!("{} \"{name}\" that the token names", gvr.resource),
            status: Box::new(status),
        })
    }
}

/// Whether the object was deleted longer ago than the tolerated clock skew.
fn deleted(object: &Object, now: i64) -> bool {
    #[derive(Deserialize)]
    struct Only {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        deletion_timestamp: Option<String>,
    }
    let Ok(only) = serde_json::from_slice::<Only>(object.raw()) else { return true };
    match only.metadata.deletion_timestamp {
        None => false,
        Some(text) => text.parse::<jiff::Timestamp>().is_ok_and(|at| at.as_second() < now - LEEWAY),
    }
}

/// The current Unix time, in seconds.
pub(super) fn now() -> i64 {
    i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX)
}

fn check_times(claims: &Claims, now: i64) -> Result<(), AccountTokenError> {
    if now - LEEWAY > claims.exp {
        return Err(AccountTokenError::Expired);
    }
    if now + LEEWAY < claims.nbf {
        return Err(AccountTokenError::NotYetValid);
    }
    if now + LEEWAY < claims.iat {
        return Err(AccountTokenError::IssuedInFuture);
    }
    Ok(())
}

/// The user of these claims.
fn user(claims: &Claims) -> User {
    let bound = &claims.kubernetes;
    let (namespace, account) = (&bound.namespace, &bound.serviceaccount);
    let mut user = User {
        name: format!("system:serviceaccount:{namespace}:{}", account.name),
        uid: account.uid.clone(),
        groups: vec![
            "system:serviceaccounts".into(),
            format!("system:serviceaccounts:{namespace}"),
        ],
        ..User::default()
    };
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(key.to_owned(), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = bound.pod.as_ref().filter(|pod| !pod.uid.is_empty()) {
        extra("authentication.kubernetes.io/pod-name", &pod.name);
        extra("authentication.kubernetes.io/pod-uid", &pod.uid);
    }
    if let Some(node) = bound.node.as_ref().filter(|node| !node.name.is_empty()) {
        extra("authentication.kubernetes.io/node-name", &node.name);
        extra("authentication.kubernetes.io/node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        extra(CREDENTIAL_ID, &format!("JTI={}", claims.jti));
    }
    user
}

#[async_trait]
impl TokenAuthenticator for ServiceAccounts {
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        self.authenticate(token, audiences).await.map_err(TokenError::new)
    }
}

impl ServiceAccounts {
    async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, AccountTokenError> {
        let Some(claims) = self.claims(token)? else { return Ok(None) };
        let target = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared: Vec<String> =
            claims.aud.iter().filter(|aud| target.contains(aud)).cloned().collect();
        if shared.is_empty() {
            return Err(AudienceError { token: claims.aud.clone(), target: target.to_vec() }.into());
        }
        let now = now();
        check_times(&claims, now)?;
        let bound = &claims.kubernetes;
        if bound.validatingwebhookconfiguration.is_some()
            || bound.mutatingwebhookconfiguration.is_some()
        {
            return Err(AccountTokenError::WebhookBound);
        }
        self.check_bound(bound, now).await?;
        Ok(Some(TokenIdentity { user: user(&claims), audiences: shared }))
    }
}

#[cfg(test)]
mod tests;
