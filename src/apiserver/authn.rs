//! Who is it? Client certificates, service-account and bootstrap tokens, static tokens, tokens of OpenID issuers; anonymous at the end.

pub mod bootstrap_token;
mod configuration;
pub mod impersonate;
pub mod issuer;
pub mod jws;
mod jwt;
pub mod legacy;
mod plan;
pub mod service_account;
pub mod settings;
pub mod static_token;
mod token_webhook;
pub mod x509;

use std::sync::Arc;

use api::Status;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;

use crate::user::User;
#[cfg(feature = "fuzzing")]
pub(crate) use configuration::read as fuzz_configuration;

pub use plan::{Anonymous, Plan};
use x509::Peer;

pub(crate) use jwt::Issuers;
pub(crate) use token_webhook::TokenWebhook;

/// WebSocket clients in browsers can set no header; they send the token as this subprotocol, base64url-encoded.
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Tells who sends a request.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// `None` when the request carries no credentials that this authenticator knows; `path` is what it asks for.
    ///
    /// # Errors
    /// 401 when credentials are there and wrong.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        path: &str,
    ) -> Result<Option<User>, Status>;

    /// Lines for `/metrics`.
    fn render(&self, _out: &mut String) {}
}

/// What a bearer token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIdentity {
    /// The user, without `system:authenticated`.
    pub user: User,
    /// Which of the asked audiences the token is for.
    pub audiences: Vec<String>,
}

/// One kind of bearer token.
#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// `None` when the token is not of this kind; `audiences` are those that the asker accepts, empty for the API server's own.
    ///
    /// # Errors
    /// Why a token of this kind is refused; for logs and TokenReview, never for the bearer.
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, String>;
}

/// The authenticators of the API server, in upstream's order.
pub struct Union {
    tokens: Vec<Arc<dyn TokenAuthenticator>>,
    /// Tokens of other issuers, behind all of the cluster's own: only these may ask a server elsewhere.
    issuers: Option<Arc<Issuers>>,
    /// Requests without credentials are `system:anonymous`; RBAC decides what that may do.
    anonymous: Anonymous,
    /// Tokens of others than this cluster's own accounts may make a member of `system:masters`, as upstream's may.
    masters_by_token: bool,
}

/// The 401 that tells nothing.
pub fn unauthorized() -> Status {
    Status::failure(401, "Unauthorized", "Unauthorized")
}

impl Union {
    /// These kinds of tokens beside client certificates.
    pub fn new(tokens: Vec<Arc<dyn TokenAuthenticator>>, anonymous: impl Into<Anonymous>) -> Self {
        Self { tokens, issuers: None, anonymous: anonymous.into(), masters_by_token: true }
    }

    /// Whether a token of an issuer, a webhook or the token file may make a member of `system:masters`.
    #[must_use]
    pub(crate) fn with_masters_by_token(mut self, may: bool) -> Self {
        self.masters_by_token = may;
        self
    }

    /// Behind the others, tokens of these issuers.
    #[must_use]
    pub(crate) fn with_issuers(mut self, issuers: Option<Arc<Issuers>>) -> Self {
        self.tokens.extend(issuers.clone().map(|issuers| issuers as Arc<dyn TokenAuthenticator>));
        self.issuers = issuers;
        self
    }

    /// Behind all others, tokens that a webhook knows.
    #[must_use]
    pub(crate) fn with_webhook(mut self, webhook: Option<TokenWebhook>) -> Self {
        self.tokens.extend(webhook.map(|webhook| Arc::new(webhook) as Arc<dyn TokenAuthenticator>));
        self
    }

    /// What a token proves, whichever kind it is; for TokenReview.
    ///
    /// # Errors
    /// Why it was refused by the kinds that it might be of.
    pub async fn review(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, String> {
        let mut errors = Vec::new();
        for kind in &self.tokens {
            match kind.authenticate_token(token, audiences).await {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(why) => errors.push(why),
            }
        }
        match errors.as_slice() {
            [] => Ok(None),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

#[async_trait]
impl Authenticator for Union {
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        path: &str,
    ) -> Result<Option<User>, Status> {
        let token = bearer(headers);
        let mut refused = match peer {
            Some(peer) => match peer.user(headers) {
                Ok(Some(user)) => return Ok(Some(with_authenticated(user))),
                Ok(None) => false,
                Err(why) => {
                    tracing::debug!(why, "client certificate refused");
                    true
                }
            },
            None => false,
        };
        if let Some(token) = token {
            match self.review(&token, &[]).await {
                Ok(Some(identity)) => {
                    let mut user = identity.user;
                    // Only a client certificate makes a member of system:masters, or what the administrator trusts as much.
                    if !self.masters_by_token
                        || user.name.starts_with("system:serviceaccount:")
                        || user.name.starts_with("system:bootstrap:")
                    {
                        user.groups.retain(|group| group != "system:masters");
                    }
                    return Ok(Some(with_authenticated(user)));
                }
                Ok(None) => refused = true,
                Err(why) => {
                    tracing::debug!(why, "bearer token refused");
                    refused = true;
                }
            }
        }
        if !refused && self.anonymous.allows(path) {
            return Ok(Some(User::anonymous()));
        }
        Err(unauthorized())
    }

    fn render(&self, out: &mut String) {
        if let Some(issuers) = &self.issuers {
            issuers.render(out);
            jwt::LATENCY.render(out);
        }
    }
}

fn with_authenticated(mut user: User) -> User {
    const ALL: &str = "system:authenticated";
    if user.name != "system:anonymous"
        && !user.groups.iter().any(|g| g == ALL || g == "system:unauthenticated")
    {
        user.groups.push(ALL.into());
    }
    user
}

/// The bearer token of the request, from `Authorization` or from the WebSocket subprotocols.
fn bearer(headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(http::header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        return (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty())
            .then(|| token.trim().to_owned());
    }
    headers
        .get_all(http::header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| protocol.trim().strip_prefix(WEBSOCKET_TOKEN))
        .and_then(|encoded| URL_SAFE_NO_PAD.decode(encoded).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|token| !token.is_empty())
}

/// The subprotocol carries a token and must not be offered onwards or chosen.
pub fn is_token_protocol(protocol: &str) -> bool {
    protocol.starts_with(WEBSOCKET_TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use static_token::StaticTokens;

    fn headers(name: http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn union(anonymous: bool) -> Union {
        let admin =
            User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        Union::new(vec![Arc::new(StaticTokens::new([("secret".to_owned(), admin)]))], anonymous)
    }

    #[tokio::test]
    async fn a_good_token_a_bad_one_and_none() {
        let good = headers(http::header::AUTHORIZATION, "Bearer secret");
        let user = union(true).authenticate(&good, None, "/api").await.unwrap().unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups),
            ("admin", vec!["system:masters".into(), "system:authenticated".into()])
        );
        let bad = headers(http::header::AUTHORIZATION, "Bearer secret2");
        let error = union(true).authenticate(&bad, None, "/api").await.unwrap_err();
        assert_eq!(
            serde_json::to_value(&error).unwrap(),
            serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
        );
        assert_eq!(
            union(true).authenticate(&HeaderMap::new(), None, "/api").await.unwrap().unwrap(),
            User::anonymous()
        );
        assert_eq!(
            union(false).authenticate(&HeaderMap::new(), None, "/api").await.unwrap_err().code,
            401
        );
    }

    /// C1.4: the group that passes every authorizer comes with a certificate; a token of an account never has it, and under the
    /// hardened profile no token has.
    #[tokio::test]
    async fn tokens_make_no_masters() {
        let masters = |name: &str| User {
            name: name.into(),
            groups: vec!["system:masters".into(), "dev".into()],
            ..User::default()
        };
        let names = ["system:serviceaccount:a:b", "system:bootstrap:abc", "jane"];
        let tokens = || StaticTokens::new(names.map(|name| (name.to_owned(), masters(name))));
        let groups = async |union: &Union, token: &str| {
            let header = headers(http::header::AUTHORIZATION, &format!("Bearer {token}"));
            union.authenticate(&header, None, "/api").await.unwrap().unwrap().groups
        };
        let union = Union::new(vec![Arc::new(tokens())], false);
        for name in &names[..2] {
            assert_eq!(groups(&union, name).await, ["dev", "system:authenticated"], "{name}");
        }
        let all = ["system:masters", "dev", "system:authenticated"];
        assert_eq!(groups(&union, "jane").await, all);
        let union = Union::new(vec![Arc::new(tokens())], false).with_masters_by_token(false);
        for name in names {
            assert_eq!(groups(&union, name).await, ["dev", "system:authenticated"], "{name}");
        }
    }

    #[tokio::test]
    async fn browsers_send_the_token_as_a_subprotocol() {
        let value =
            format!("v5.channel.k8s.io, {WEBSOCKET_TOKEN}{}", URL_SAFE_NO_PAD.encode("secret"));
        let user = union(true)
            .authenticate(&headers(http::header::SEC_WEBSOCKET_PROTOCOL, &value), None, "/api")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(user.name, "admin");
        assert!(is_token_protocol(value.split(", ").nth(1).unwrap()));
    }
}
