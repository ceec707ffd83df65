//! Bootstrap tokens: Secrets of type `bootstrap.kubernetes.io/token` in `kube-system`.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sorting::CompactSort as _;

use super::static_token::same;
use super::{ReadError, TokenAuthenticator, TokenError, TokenIdentity};
use crate::request::user::User;
use lookup::Lookup;

const GROUP: &str = "system:bootstrappers";

/// Reads the tokens from the watch cache, so that deleting the Secret revokes the token at once.
pub struct BootstrapTokens(Arc<dyn Lookup>);

impl BootstrapTokens {
    /// Creates the authenticator; `lookup` finds the Secrets.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self(lookup)
    }
}

/// ID and secret of a token of the form `[a-z0-9]{6}.[a-z0-9]{16}`.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

fn data(secret: &Value, key: &str) -> Vec<u8> {
    secret
        .get("data")
        .and_then(|d| d.get(key))
        .and_then(Value::as_str)
        .and_then(|text| STANDARD.decode(text).ok())
        .unwrap_or_default()
}

/// Without an expiration, a token does not expire; an invalid expiration counts as expired.
fn expired(secret: &Value) -> bool {
    let expiry = data(secret, "expiration");
    if expiry.is_empty() {
        return false;
    }
    let at =
        std::str::from_utf8(&expiry).ok().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    at.is_none_or(|at| at <= jiff::Timestamp::now())
}

/// `system:bootstrappers` and the extra groups; `None` if one lacks the required prefix.
fn groups(secret: &Value) -> Option<Vec<String>> {
    let extra = String::from_utf8(data(secret, "auth-extra-groups")).ok()?;
    let mut all = vec![GROUP.to_owned()];
    for group in extra.split(',').filter(|g| !g.is_empty()) {
        let tail = group.strip_prefix("system:bootstrappers:")?;
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
        if !tail.bytes().all(fits)
            || !tail.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric())
        {
            return None;
        }
        all.push(group.to_owned());
    }
    all.compact_sort();
    all.dedup();
    Some(all)
}

#[async_trait]
impl TokenAuthenticator for BootstrapTokens {
    async fn authenticate_token(
        &self,
        token: &str,
        _: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        let Some((id, token_secret)) = split(token) else { return Ok(None) };
        let name = format!("bootstrap-token-{id}");
        let found = self.0.get(&lookup::SECRETS, "kube-system", &name).await;
        let found = found.map_err(|status| {
            let (object, status) = (format!("secret {name}"), Box::new(status));
            TokenError::new(ReadError { object, status })
        })?;
        let Some(object) = found else { return Ok(None) };
        let secret = object.value().map_err(TokenError::new)?;
        let usable = secret.pointer("/metadata/deletionTimestamp").is_none()
            && secret.get("type").and_then(Value::as_str) == Some("bootstrap.kubernetes.io/token")
            && same(&data(&secret, "token-secret"), token_secret.as_bytes())
            && data(&secret, "token-id") == id.as_bytes()
            && !expired(&secret)
            && data(&secret, "usage-bootstrap-authentication") == b"true";
        if !usable {
            return Ok(None);
        }
        let user = groups(&secret).map(|groups| User {
            name: format!("system:bootstrap:{id}"),
            groups,
            ..User::default()
        });
        Ok(user.map(|user| TokenIdentity { user, audiences: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookup::testing::Fixed;
    use serde_json::json;

    async fn try_with(change: impl FnOnce(&mut Value)) -> Option<User> {
        let b = |text: &str| json!(STANDARD.encode(text));
        let mut secret = json!({
            "metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef"},
            "type": "bootstrap.kubernetes.io/token",
            "data": {
                "token-id": b("abcdef"), "token-secret": b("0123456789abcdef"), "usage-bootstrap-authentication": b("true"),
                "auth-extra-groups": b("system:bootstrappers:k3s:default-node-token"),
            },
        });
        change(&mut secret);
        let tokens = BootstrapTokens::new(Fixed::new(&[(&lookup::SECRETS, secret)]));
        assert!(tokens.authenticate_token("abcdef.0123456789abcdeX", &[]).await.unwrap().is_none());
        tokens.authenticate_token("abcdef.0123456789abcdef", &[]).await.unwrap().map(|i| i.user)
    }

    #[tokio::test]
    async fn an_unreadable_secret_is_an_error_and_not_an_unknown_token() {
        let fixed = Fixed::new(&[]);
        let tokens = BootstrapTokens::new(Arc::clone(&fixed) as Arc<dyn Lookup>);
        let token = "abcdef.0123456789abcdef";
        assert!(tokens.authenticate_token(token, &[]).await.unwrap().is_none());
        fixed.break_reads(&lookup::SECRETS);
        let error = tokens.authenticate_token(token, &[]).await.unwrap_err().to_string();
        assert_eq!(error, "cannot read secret bootstrap-token-abcdef: the store has no leader");
    }

    #[tokio::test]
    async fn only_a_complete_unexpired_secret_authenticates() {
        let user = try_with(|_| ()).await.unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            ["system:bootstrappers", "system:bootstrappers:k3s:default-node-token"]
        );
        let set = |key: &'static str, value: &'static str| {
            move |s: &mut Value| s["data"][key] = json!(STANDARD.encode(value))
        };
        assert!(try_with(set("token-secret", "0123456789abcdee")).await.is_none());
        assert!(try_with(set("expiration", "2020-01-01T00:00:00Z")).await.is_none());
        assert!(try_with(set("expiration", "soon")).await.is_none());
        assert!(try_with(set("expiration", "2999-01-01T00:00:00Z")).await.is_some());
        assert!(try_with(set("usage-bootstrap-authentication", "false")).await.is_none());
        assert!(try_with(set("auth-extra-groups", "system:masters")).await.is_none());
        assert!(try_with(|s| s["type"] = json!("Opaque")).await.is_none());
    }
}
