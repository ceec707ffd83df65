//! Bootstrap tokens past their `expiration` are deleted, as is every token whose expiration cannot
//! be read.

use std::time::Duration;

use api::k8s::api::core::v1::Secret;
use api::k8s::jiff::Timestamp;
use client::{Action, Change, DeleteOptions};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

/// The namespace of bootstrap tokens.
pub(super) const NAMESPACE: &str = "kube-system";
/// The names of their Secrets, before the ID of the token.
pub(super) const PREFIX: &str = "bootstrap-token-";
/// The type of their Secrets.
pub(super) const TYPE: &str = "bootstrap.kubernetes.io/token";

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("token-cleaner");
    let secrets = context.informers.of::<Secret>();
    let mut keyed = Keyed::new();
    keyed.watches(&secrets, |change| match change {
        Change::Deleted(_) => Vec::new(),
        Change::Added(o) | Change::Updated { new: o, .. } => {
            let token = &*o.key.namespace == NAMESPACE && o.key.name.starts_with(PREFIX);
            let key = || (o.key.namespace.to_string(), o.key.name.to_string());
            token.then(key).into_iter().collect()
        }
    });
    keyed.run(&context.tasks, "token-cleaner-controller", 1, move |(namespace, name)| {
        let (client, secrets) = (client.clone(), secrets.clone());
        async move {
            let secret = secrets.get(&namespace, &name);
            let Some(secret) = secret.filter(|s| s.type_.as_deref() == Some(TYPE)) else {
                return Ok::<_, client::Error>(Action::Done);
            };
            match lifetime(&secret, Timestamp::now()) {
                TokenLifetime::Endless => Ok(Action::Done),
                TokenLifetime::For(time) => Ok(Action::After(time)),
                TokenLifetime::Over => {
                    let options =
                        DeleteOptions { uid: secret.metadata.uid, ..DeleteOptions::default() };
                    settled(client.delete::<Secret>(&namespace, &name, &options).await)?;
                    Ok(Action::Done)
                }
            }
        }
    });
}

/// How long a bootstrap token is valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenLifetime {
    /// It has no expiration.
    Endless,
    /// For this time.
    For(Duration),
    /// It has expired.
    Over,
}

/// How long the token of a Secret is valid from `now` on.
pub(super) fn lifetime(secret: &Secret, now: Timestamp) -> TokenLifetime {
    let Some(text) = secret.data.as_ref().and_then(|d| d.get("expiration")) else {
        return TokenLifetime::Endless;
    };
    let text = std::str::from_utf8(&text.0).unwrap_or_default();
    if text.is_empty() {
        return TokenLifetime::Endless;
    }
    // An unreadable date counts as past: a token must not live for ever by a slip.
    let Ok(ends) = text.parse::<Timestamp>() else { return TokenLifetime::Over };
    match u64::try_from(ends.as_second().saturating_sub(now.as_second())) {
        Ok(seconds @ 1..) => TokenLifetime::For(Duration::from_secs(seconds)),
        Ok(_) | Err(_) => TokenLifetime::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::ByteString;

    #[test]
    fn tokens_end_at_their_expiration() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let of = |text: &str| {
            let data = [("expiration".to_owned(), ByteString(text.as_bytes().to_vec()))].into();
            lifetime(&Secret { data: Some(data), ..Secret::default() }, now)
        };
        assert_eq!(of("2026-01-01T01:00:10+01:00"), TokenLifetime::For(Duration::from_secs(10)));
        assert_eq!(of("2026-01-01T00:00:00Z"), TokenLifetime::Over);
        assert_eq!(of("tomorrow"), TokenLifetime::Over);
        assert_eq!(lifetime(&Secret::default(), now), TokenLifetime::Endless);
    }
}
