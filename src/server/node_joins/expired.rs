//! Bootstrap tokens that ended: they are deleted at their end, and who comes with one shall be told why it is refused.

use std::collections::VecDeque;
use std::sync::Arc;

use api::k8s::api::core::v1::Secret;
use client::informer::decode;
use client::{Change, Informers};
use cluster::token::{bootstrap_parts, constant_time_eq};
use parking_lot::Mutex;

/// Tokens remembered; the oldest make room.
const TOKENS_MAX: usize = 256;
/// Where upstream keeps them.
const NAMESPACE: &str = "kube-system";
const PREFIX: &str = "bootstrap-token-";

/// Token and end of each.
type Ended = Mutex<VecDeque<(String, String)>>;

/// What is remembered.
#[derive(Default)]
pub(super) struct Expired(Arc<Ended>);

fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}

/// Token and end of a Secret whose end has come.
fn ended(secret: &Secret, now: jiff::Timestamp) -> Option<(String, String)> {
    let end = text(secret, "expiration")?;
    let at: jiff::Timestamp = end.parse().ok()?;
    let token = format!("{}.{}", text(secret, "token-id")?, text(secret, "token-secret")?);
    (at <= now && bootstrap_parts(&token).is_some()).then_some((token, end))
}

impl Expired {
    /// Learns of Secrets that are deleted, and of those that stand beyond their end.
    pub(super) fn follow(&self, informers: &Informers) {
        let known = Arc::clone(&self.0);
        informers.of::<Secret>().on_change(move |change| {
            let object = change.object();
            let of_tokens =
                &*object.key.namespace == NAMESPACE && object.key.name.starts_with(PREFIX);
            if !of_tokens {
                return;
            }
            let Some(secret) = decode::<Secret>(object) else { return };
            let deleted = matches!(change, Change::Deleted(_));
            let Some((token, end)) = ended(&secret, jiff::Timestamp::now()) else { return };
            let mut known = known.lock();
            known.retain(|(old, _)| *old != token);
            if known.len() >= TOKENS_MAX {
                known.pop_front();
            }
            tracing::debug!(deleted, "a bootstrap token ended");
            known.push_back((token, end));
        });
    }

    /// Id and end of a token that ended. Who does not know the whole token is told nothing.
    pub(super) fn when(&self, token: &str) -> Option<(String, String)> {
        let known = self.0.lock();
        let (whole, end) = known.iter().find(|(whole, _)| constant_time_eq(whole, token))?;
        let (id, _) = bootstrap_parts(whole)?;
        Some((id.to_owned(), end.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::ByteString;

    #[test]
    fn only_a_token_whose_end_has_come_is_remembered_as_such() {
        let secret = |end: &str| {
            let data =
                [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("expiration", end)];
            let data = data.map(|(k, v)| (k.to_owned(), ByteString(v.as_bytes().to_vec())));
            Secret { data: Some(data.into()), ..Secret::default() }
        };
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let past = secret("2026-05-31T00:00:00Z");
        let (token, end) = ended(&past, now).unwrap();
        assert_eq!(ended(&secret("2026-06-02T00:00:00Z"), now), None);
        assert_eq!(ended(&Secret::default(), now), None);
        let expired = Expired::default();
        expired.0.lock().push_back((token, end));
        assert_eq!(
            expired.when("abcdef.0123456789abcdef"),
            Some(("abcdef".into(), "2026-05-31T00:00:00Z".into()))
        );
        assert_eq!(expired.when("abcdef.0123456789abcdeX"), None);
    }
}
