//! Expired bootstrap tokens. The token cleaner deletes them; this list keeps them for a while, so
//! that a machine that uses one learns why it is rejected.

use std::collections::VecDeque;
use std::sync::Arc;

use api::k8s::api::core::v1::Secret;
use client::informer::decode;
use client::{Change, Informers};
use cluster::token::{bootstrap_parts, constant_time_eq};
use parking_lot::Mutex;

/// Maximum number of tokens; the oldest is dropped.
const TOKENS_MAX: usize = 256;
/// Namespace and name prefix of upstream's bootstrap token Secrets.
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";

/// Token and expiration of each.
type TokenList = Mutex<VecDeque<(String, String)>>;

/// The expired bootstrap tokens, each with its expiration.
#[derive(Default)]
pub(super) struct ExpiredTokens(Arc<TokenList>);

fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}

/// Token and expiration of a Secret that has expired at `now`.
fn expired_token(secret: &Secret, now: jiff::Timestamp) -> Option<(String, String)> {
    let end = text(secret, "expiration")?;
    let at: jiff::Timestamp = end.parse().ok()?;
    let token = format!("{}.{}", text(secret, "token-id")?, text(secret, "token-secret")?);
    (at <= now && bootstrap_parts(&token).is_some()).then_some((token, end))
}

impl ExpiredTokens {
    /// Follows Secrets, and keeps the expired tokens among them, deleted or not.
    pub(super) fn follow(&self, informers: &Informers) {
        let tokens = Arc::clone(&self.0);
        informers.of::<Secret>().on_change(move |change| {
            let object = change.object();
            let is_token =
                &*object.key.namespace == NAMESPACE && object.key.name.starts_with(PREFIX);
            if !is_token {
                return;
            }
            let Some(secret) = decode::<Secret>(object) else { return };
            let deleted = matches!(change, Change::Deleted(_));
            let Some((token, end)) = expired_token(&secret, jiff::Timestamp::now()) else { return };
            let mut tokens = tokens.lock();
            tokens.retain(|(old, _)| *old != token);
            if tokens.len() >= TOKENS_MAX {
                tokens.pop_front();
            }
            tracing::debug!(deleted, "joins: a bootstrap token expired");
            tokens.push_back((token, end));
        });
    }

    /// Id and expiration of an expired token. The whole token must match, so that a client cannot
    /// probe ids.
    pub(super) fn expiry(&self, token: &str) -> Option<(String, String)> {
        let tokens = self.0.lock();
        let (whole, end) = tokens.iter().find(|(whole, _)| constant_time_eq(whole, token))?;
        let (id, _) = bootstrap_parts(whole)?;
        Some((id.to_owned(), end.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::ByteString;

    #[test]
    fn only_expired_tokens_are_recognized() {
        let secret = |end: &str| {
            let data =
                [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("expiration", end)];
            let data = data.map(|(k, v)| (k.to_owned(), ByteString(v.as_bytes().to_vec())));
            Secret { data: Some(data.into()), ..Secret::default() }
        };
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let past = secret("2026-05-31T00:00:00Z");
        let (token, end) = expired_token(&past, now).unwrap();
        assert_eq!(expired_token(&secret("2026-06-02T00:00:00Z"), now), None);
        assert_eq!(expired_token(&Secret::default(), now), None);
        let expired_tokens = ExpiredTokens::default();
        expired_tokens.0.lock().push_back((token, end));
        assert_eq!(
            expired_tokens.expiry("abcdef.0123456789abcdef"),
            Some(("abcdef".into(), "2026-05-31T00:00:00Z".into()))
        );
        assert_eq!(expired_tokens.expiry("abcdef.0123456789abcdeX"), None);
    }
}
