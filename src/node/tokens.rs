//! Service-account tokens of pods: asked for once, kept until four fifths of their life are over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use client::Client;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::pod::Pod;

/// A token is renewed at this age at the latest (`pkg/kubelet/token`: `maxTTL`).
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

type Key = (Arc<str>, String, i64);

#[derive(Debug, Clone)]
struct Token {
    text: String,
    refresh_at: Instant,
    expires_at: Instant,
}

/// Tokens by pod, audience and lifetime.
#[derive(Debug)]
pub(crate) struct Tokens {
    client: Client,
    known: Mutex<HashMap<Key, Token>>,
}

impl Tokens {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The token of a pod for `audience` (empty: the API server's), and when to ask again. A known one is given on while
    /// the server cannot be reached, even when it is due.
    pub(crate) async fn get(
        &self,
        pod: &Pod,
        audience: &str,
        seconds: i64,
    ) -> Result<(String, Instant), client::Error> {
        let key = (Arc::clone(&pod.uid), audience.to_owned(), seconds);
        let known = self.known.lock().get(&key).cloned();
        if let Some(token) = known.as_ref().filter(|t| t.refresh_at > base::clock::now()) {
            return Ok((token.text.clone(), token.refresh_at));
        }
        match self.request(pod, audience, seconds).await {
            Ok(token) => {
                let answer = (token.text.clone(), token.refresh_at);
                self.known.lock().insert(key, token);
                Ok(answer)
            }
            Err(error) => match known {
                Some(token) if token.expires_at > base::clock::now() => {
                    tracing::debug!(pod = %pod.key, %error, "token not renewed, the old one still holds");
                    Ok((token.text, base::clock::now() + Duration::from_secs(60)))
                }
                _ => Err(error),
            },
        }
    }

    async fn request(
        &self,
        pod: &Pod,
        audience: &str,
        seconds: i64,
    ) -> Result<Token, client::Error> {
        let account = pod.spec().service_account_name.as_deref().unwrap_or("default");
        let audiences: Vec<&str> = if audience.is_empty() { Vec::new() } else { vec![audience] };
        let uid = pod.object.metadata.uid.as_deref().unwrap_or_default();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name(), "uid": uid}},
        });
        let gvr = Gvr::new("", "v1", "serviceaccounts");
        let answer = self.client.post_value(&gvr, pod.namespace(), account, "token", &body).await?;
        let text = answer["status"]["token"].as_str().unwrap_or_default().to_owned();
        // The lifetime as granted, counted on our own clock: a wrong wall clock does not matter.
        let life = answer["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
        let life = Duration::from_secs(life);
        let now = base::clock::now();
        Ok(Token { text, refresh_at: now + (life * 4 / 5).min(AGE_MAX), expires_at: now + life })
    }

    /// Forgets the tokens of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.known.lock().retain(|(owner, ..), _| **owner != *uid);
    }
}
