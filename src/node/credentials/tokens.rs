//! Service account tokens of pods. A token is requested once, renewed after four fifths of its
//! lifetime, and kept in an encrypted file for a start without a server: a pod can run with an old
//! token, but not without one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use base::{EncryptedDir, Kind, Tasks};
use base64::Engine;
use client::Client;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::digest::sha256;
use crate::pods::pod::Pod;

/// Maximum age at which a token is renewed (`pkg/kubelet/token`: `maxTTL`).
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// How long the server has to answer if there is an old token to use instead.
const ANSWER_WAIT: Duration = Duration::from_millis(1500);
/// How soon a failed renewal is retried; the return of the server triggers it earlier.
const RETRY_AFTER: Duration = Duration::from_secs(300);

/// The token that a caller needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    pod_uid: Arc<str>,
    audience: String,
    /// The requested lifetime.
    seconds: i64,
    /// The uid that the service account must have; empty for any.
    account_uid: String,
}

/// A token of a pod.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// When it expires, in the form of the API.
    pub(crate) expires: String,
    /// When it is renewed.
    pub(crate) refresh_at: Instant,
    expires_at: Instant,
}

/// Tokens by pod, audience and lifetime.
#[derive(Debug)]
pub(crate) struct Tokens {
    client: Client,
    tasks: Tasks,
    files: Option<Arc<EncryptedDir>>,
    cache: Mutex<HashMap<TokenKey, Token>>,
}

/// The prefix of the names of a pod's files.
fn prefix(uid: &str) -> String {
    format!("token-{uid}-")
}

fn file_name(key: &TokenKey) -> String {
    let mut text = format!("{}\n{}", key.audience, key.seconds);
    if !key.account_uid.is_empty() {
        text = format!("{text}\n{}", key.account_uid);
    }
    let digest = sha256(text.as_bytes());
    let digest = digest.trim_start_matches("sha256:");
    format!("{}{}", prefix(&key.pod_uid), digest.get(..16).unwrap_or(digest))
}

/// Returns when a token says that it expires, in the form of the API.
fn expiry(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1)?;
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    let expires = jiff::Timestamp::from_second(claims.get("exp")?.as_i64()?).ok()?;
    Some(expires.to_string())
}

impl Tokens {
    pub(crate) fn new(client: Client, tasks: Tasks) -> Self {
        let files = client.transport().kept();
        Self { client, tasks, files, cache: Mutex::default() }
    }

    /// Returns the token of a pod for `audience` (empty: the API server's). While the server cannot
    /// be reached, an existing token is returned even if it has expired: its pod starts, and gets a
    /// new token when the server is back.
    pub(crate) async fn get(
        &self,
        pod: &Pod,
        audience: &str,
        seconds: i64,
    ) -> Result<Token, client::Error> {
        self.get_for(pod, "", audience, seconds).await
    }

    /// As [`Tokens::get`], but only if the pod's service account has this uid.
    pub(crate) async fn of_account(
        &self,
        pod: &Pod,
        account_uid: &str,
        audience: &str,
        seconds: i64,
    ) -> Result<Token, client::Error> {
        self.get_for(pod, account_uid, audience, seconds).await
    }

    async fn get_for(
        &self,
        pod: &Pod,
        account_uid: &str,
        audience: &str,
        seconds: i64,
    ) -> Result<Token, client::Error> {
        let key = TokenKey {
            pod_uid: Arc::clone(&pod.uid),
            audience: audience.to_owned(),
            seconds,
            account_uid: account_uid.to_owned(),
        };
        let known = self.cache.lock().get(&key).cloned();
        let known = if known.is_some() { known } else { self.read_file(&key).await };
        if let Some(token) = known.as_ref().filter(|t| t.refresh_at > base::clock::now()) {
            return Ok(token.clone());
        }
        let request = self.request(pod, &key);
        let outcome = if known.is_none() {
            request.await
        } else if self.client.transport().is_away() {
            Err(client::Error::Transport("no API server can be reached".to_owned()))
        } else {
            let late = |_| {
                Err(client::Error::Transport("the API server did not answer in time".to_owned()))
            };
            tokio::time::timeout(ANSWER_WAIT, request).await.unwrap_or_else(late)
        };
        match outcome {
            Ok(token) => {
                self.write_file(&key, &token.text);
                self.cache.lock().insert(key.clone(), token.clone());
                Ok(token)
            }
            Err(error) => match known {
                Some(token) if error.is_retryable() || token.expires_at > base::clock::now() => {
                    tracing::debug!(pod = %pod.key, %error, "cannot renew a service account \
                        token, keeping the old one");
                    Ok(Token { refresh_at: base::clock::now() + RETRY_AFTER, ..token })
                }
                _ => Err(error),
            },
        }
    }

    /// Reads the token of an earlier process. Its age is unknown, so it is due for renewal.
    async fn read_file(&self, key: &TokenKey) -> Option<Token> {
        let (files, name) = (self.files.clone()?, file_name(key));
        let content = base::tasks::blocking(move || files.read(&name)).await.ok().flatten()?;
        let now = base::clock::now();
        let text = String::from_utf8(content).ok()?;
        let expires = expiry(&text).unwrap_or_default();
        Some(Token { text, expires, refresh_at: now, expires_at: now })
    }

    fn write_file(&self, key: &TokenKey, text: &str) {
        let Some(files) = self.files.clone() else { return };
        let (name, text) = (file_name(key), text.to_owned());
        self.tasks.spawn(Kind::Request, "token-file", async move {
            let written = base::tasks::blocking(move || files.write(&name, text.as_bytes())).await;
            written.map_err(std::io::Error::other)?
        });
    }

    fn remove_files(&self, is_of: impl Fn(&str) -> bool + Send + 'static) {
        let Some(files) = self.files.clone() else { return };
        self.tasks.spawn(Kind::Request, "token-file", async move {
            let removed = base::tasks::blocking(move || {
                let mut names = files.names().into_iter().map(|(name, _)| name);
                names.try_for_each(|name| if is_of(&name) { files.remove(&name) } else { Ok(()) })
            });
            removed.await.map_err(std::io::Error::other)?
        });
    }

    /// Removes the files of all pods except these.
    pub(crate) fn retain_pods(&self, known: HashSet<Arc<str>>) {
        let files: Vec<String> = known.iter().map(|uid| prefix(uid)).collect();
        self.remove_files(move |name| {
            name.starts_with("token-") && !files.iter().any(|prefix| name.starts_with(prefix))
        });
    }

    async fn request(&self, pod: &Pod, key: &TokenKey) -> Result<Token, client::Error> {
        let account = pod.spec().service_account_name.as_deref().unwrap_or("default");
        let audience = Some(key.audience.as_str()).filter(|audience| !audience.is_empty());
        let audiences: Vec<&str> = audience.into_iter().collect();
        let uid = pod.object.metadata.uid.as_deref().unwrap_or_default();
        let mut body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": key.seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name(),
                "uid": uid}},
        });
        if !key.account_uid.is_empty() {
            body["metadata"] = json!({"uid": key.account_uid});
        }
        let gvr = Gvr::new("", "v1", "serviceaccounts");
        let answer = self.client.post_value(&gvr, pod.namespace(), account, "token", &body).await?;
        let text = answer["status"]["token"].as_str().unwrap_or_default().to_owned();
        // The granted lifetime is counted on the monotonic clock, so that a wrong wall clock has no
        // effect.
        let life = answer["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
        let life = Duration::from_secs(life);
        let now = base::clock::now();
        let expires = answer["status"]["expirationTimestamp"].as_str().unwrap_or_default();
        Ok(Token {
            text,
            expires: expires.to_owned(),
            refresh_at: now + (life * 4 / 5).min(AGE_MAX),
            expires_at: now + life,
        })
    }

    /// Removes the tokens of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.cache.lock().retain(|key, _| *key.pod_uid != *uid);
        let prefix = prefix(uid);
        self.remove_files(move |name| name.starts_with(&prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_expires() {
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(r#"{"exp":1800000000,"sub":"s"}"#);
        assert_eq!(expiry(&format!("h.{claims}.s")).as_deref(), Some("2027-01-15T08:00:00Z"));
        assert_eq!(expiry("no token"), None);
    }
}
