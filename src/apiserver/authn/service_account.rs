//! Service account tokens: signed by this cluster, bound to objects that must still exist.

use std::collections::HashMap;
use std::sync::Arc;

use api::{Gvr, Object};
use async_trait::async_trait;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::jws::{self, PublicKey};
use super::x509::CREDENTIAL_ID;
use super::{TokenAuthenticator, TokenIdentity};
use crate::authz::rule::go_list;
use crate::registry::lookup;
use crate::registry::lookup::Lookup;
use crate::request::user::User;

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

    fn claims(&self, token: &str) -> Result<Option<Arc<Claims>>, String> {
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

    async fn check_bound(&self, bound: &Bound, now: i64) -> Result<(), String> {
        let Bound { namespace, serviceaccount: account, .. } = bound;
        let Some(object) = self.find(&lookup::SERVICE_ACCOUNTS, namespace, &account.name).await?
        else {
            return Err(format!("serviceaccounts \"{}\" not found", account.name));
        };
        if *object.uid != *account.uid {
            return Err(format!(
                "service account UID ({}) does not match claim ({})",
                object.uid, account.uid
            ));
        }
        if deleted(&object, now) {
            return Err(format!("service account {namespace}/{} has been deleted", account.name));
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
        kind: &str,
        now: i64,
    ) -> Result<(), String> {
        let invalid = || "service account token has been invalidated".to_owned();
        let object = self.find(gvr, namespace, &r.name).await?.ok_or_else(invalid)?;
        if *object.uid != *r.uid {
            return Err(format!(
                "{kind} UID ({}) does not match service account {kind} ref claim ({})",
                object.uid, r.uid
            ));
        }
        if deleted(&object, now) { Err(invalid()) } else { Ok(()) }
    }

    /// Reads the cache, then the store: a token may be used before the cache has seen its pod.
    async fn find(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, String> {
        let found = self.lookup.find(gvr, namespace, name).await;
        found.map_err(|error| {
            let resource = &gvr.resource;
            format!("cannot read {resource} \"{name}\" that the token names: {}", error.message)
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

fn in_time(claims: &Claims, now: i64) -> Result<(), String> {
    if now - LEEWAY > claims.exp {
        return Err("service account token has expired".into());
    }
    if now + LEEWAY < claims.nbf {
        return Err("service account token is not valid yet".into());
    }
    if now + LEEWAY < claims.iat {
        return Err("service account token is issued in the future".into());
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
    ) -> Result<Option<TokenIdentity>, String> {
        let Some(claims) = self.claims(token)? else { return Ok(None) };
        let asked = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared: Vec<String> =
            claims.aud.iter().filter(|aud| asked.contains(aud)).cloned().collect();
        if shared.is_empty() {
            let (own, asked) = (go_list(&claims.aud), go_list(asked));
            return Err(format!(
                "token audiences {own} is invalid for the target audiences {asked}"
            ));
        }
        let now = now();
        in_time(&claims, now)?;
        let bound = &claims.kubernetes;
        if bound.validatingwebhookconfiguration.is_some()
            || bound.mutatingwebhookconfiguration.is_some()
        {
            return Err("tokens bound to webhook configurations are not supported".into());
        }
        self.check_bound(bound, now).await?;
        Ok(Some(TokenIdentity { user: user(&claims), audiences: shared }))
    }
}

#[cfg(test)]
mod tests;
