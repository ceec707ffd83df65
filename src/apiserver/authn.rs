//! Authentication: client certificates, service account and bootstrap tokens, static tokens, tokens
//! of OpenID issuers, tokens of a webhook; finally anonymous.

pub mod bootstrap_token;
mod config;
mod configuration;
mod errors;
pub mod flags;
pub mod impersonate;
pub mod issuer;
pub mod jws;
mod jwt;
pub mod secret_token;
pub mod service_account;
pub mod static_token;
mod token_webhook;
pub mod x509;

use std::sync::Arc;

use api::Status;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;

use crate::request::user::User;
#[cfg(feature = "fuzzing")]
pub(crate) use configuration::read as fuzz_configuration;

pub use config::{Anonymous, AuthenticationConfig, AuthenticationConfigError};
pub use errors::{AudienceError, ReadError, TokenError};
use x509::Peer;

pub(crate) use jwt::Issuers;
pub(crate) use token_webhook::TokenWebhook;

/// WebSocket clients in browsers cannot set headers; they send the token in this subprotocol,
/// base64url-encoded.
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Determines the user of a request.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// `None` if the request carries no credentials that this authenticator handles; `path` is the
    /// request path.
    ///
    /// # Errors
    /// 401 if there are credentials and they are invalid.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        path: &str,
    ) -> Result<Option<User>, Status>;

    /// Renders lines for `/metrics`.
    fn render(&self, _out: &mut String) {}
}

/// The identity that a bearer token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIdentity {
    /// The user, without `system:authenticated`.
    pub user: User,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
}

/// An authenticator for one kind of bearer token.
#[async_trait]
pub trait TokenAuthenticator: Send + Sync {
    /// `None` if the token is not of this kind. `audiences` are those that the caller accepts,
    /// empty for the API server's own.
    ///
    /// # Errors
    /// If a token of this kind is rejected.
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError>;
}

/// The authenticators of the API server, in upstream's order.
pub struct Union {
    tokens: Vec<Arc<dyn TokenAuthenticator>>,
    /// Tokens of external issuers, after all of the cluster's own: only these may cause calls to
    /// other servers.
    issuers: Option<Arc<Issuers>>,
    /// Requests without credentials are `system:anonymous`; RBAC decides what it may do.
    anonymous: Anonymous,
    /// Whether tokens other than those of service accounts can carry the group `system:masters`, as
    /// upstream's can.
    masters_by_token: bool,
}

/// A 401 without details.
pub fn unauthorized() -> Status {
    Status::failure(401, "Unauthorized", "Unauthorized")
}

impl Union {
    /// Creates a union of these token authenticators and client certificates.
    pub fn new(tokens: Vec<Arc<dyn TokenAuthenticator>>, anonymous: impl Into<Anonymous>) -> Self {
        Self { tokens, issuers: None, anonymous: anonymous.into(), masters_by_token: true }
    }

    /// Sets whether a token of an issuer, a webhook or the token file can carry `system:masters`.
    #[must_use]
    pub(crate) fn with_masters_by_token(mut self, may: bool) -> Self {
        self.masters_by_token = may;
        self
    }

    /// Adds the authenticator for tokens of external issuers, after the others.
    #[must_use]
    pub(crate) fn with_issuers(mut self, issuers: Option<Arc<Issuers>>) -> Self {
        self.tokens.extend(issuers.clone().map(|issuers| issuers as Arc<dyn TokenAuthenticator>));
        self.issuers = issuers;
        self
    }

    /// Adds the token webhook, after all others.
    #[must_use]
    pub(crate) fn with_webhook(mut self, webhook: Option<TokenWebhook>) -> Self {
        self.tokens.extend(webhook.map(|webhook| Arc::new(webhook) as Arc<dyn TokenAuthenticator>));
        self
    }

    /// Authenticates a token of any kind; for TokenReview.
    ///
    /// # Errors
    /// The errors of the authenticators that rejected it.
    pub async fn review(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        let mut errors = Vec::new();
        for authenticator in &self.tokens {
            match authenticator.authenticate_token(token, audiences).await {
                Ok(None) => {}
                Ok(identity) => return Ok(identity),
                Err(error) => errors.push(error),
            }
        }
        match errors.pop() {
            None => Ok(None),
            Some(only) if errors.is_empty() => Err(only),
            Some(last) => {
                errors.push(last);
                Err(TokenError::Several(errors))
            }
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
        let mut is_rejected = match peer {
            Some(peer) => match peer.user(headers) {
                Ok(Some(user)) => return Ok(Some(with_authenticated(user))),
                Ok(None) => false,
                Err(error) => {
                    tracing::debug!(%error, "client certificate rejected");
                    true
                }
            },
            None => false,
        };
        // Tries both tokens, as upstream's union of authenticators does.
        let tokens = [Ok(authorization_token(headers).token), websocket_token(headers)];
        for token in tokens {
            let token = match token {
                Ok(Some(token)) => token,
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(error, "bearer token rejected");
                    is_rejected = true;
                    continue;
                }
            };
            match self.review(&token, &[]).await {
                Ok(Some(identity)) => {
                    let mut user = identity.user;
                    // Only a client certificate can carry `system:masters`, unless the
                    // administrator configured otherwise.
                    if !self.masters_by_token
                        || user.name.starts_with("system:serviceaccount:")
                        || user.name.starts_with("system:bootstrap:")
                    {
                        user.groups.retain(|group| group != "system:masters");
                    }
                    return Ok(Some(with_authenticated(user)));
                }
                Ok(None) => is_rejected = true,
                Err(error) => {
                    tracing::debug!(%error, "bearer token rejected");
                    is_rejected = true;
                }
            }
        }
        if !is_rejected && self.anonymous.allows(path) {
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

/// The token in the `Authorization` header.
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthorizationToken {
    token: Option<String>,
    /// Whether more than one space precedes the token, which is then ignored.
    has_extra_space: bool,
}

/// Parses the token of `Authorization` like upstream's `bearertoken`: one space precedes the token,
/// text after the next space is ignored.
fn authorization_token(headers: &HeaderMap) -> AuthorizationToken {
    let Some(value) = headers.get(http::header::AUTHORIZATION) else {
        return AuthorizationToken::default();
    };
    let value = String::from_utf8_lossy(value.as_bytes());
    let mut parts = value.trim().splitn(3, ' ');
    if !parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer")) {
        return AuthorizationToken::default();
    }
    let token = parts.next().filter(|token| !token.is_empty()).map(str::to_owned);
    let has_extra_space = token.is_none() && parts.next().is_some();
    AuthorizationToken { token, has_extra_space }
}

/// Upstream's warning for an ignored token in `Authorization`.
pub(crate) fn ignored_token_warning(headers: &HeaderMap) -> Option<&'static str> {
    authorization_token(headers).has_extra_space.then_some(
        "the provided Authorization header contains extra space before the bearer token, and is ignored",
    )
}

/// The token in the subprotocols of a WebSocket request, parsed like upstream's
/// `websocket.ProtocolAuthenticator`.
///
/// # Errors
/// If there are several tokens, the token is malformed, or no other subprotocol is offered.
fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    if !stream::upgrade::is_websocket(headers) {
        return Ok(None);
    }
    let (mut found, mut others) = (None, 0_usize);
    for value in headers.get_all(http::header::SEC_WEBSOCKET_PROTOCOL) {
        for protocol in String::from_utf8_lossy(value.as_bytes()).split(',') {
            let Some(encoded) = protocol.trim().strip_prefix(WEBSOCKET_TOKEN) else {
                others += 1;
                continue;
            };
            if found.is_some() {
                return Err("multiple base64.bearer.authorization tokens specified");
            }
            let decoded = URL_SAFE_NO_PAD
                .decode(encoded)
                .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
            let token = String::from_utf8(decoded)
                .map_err(|_| "invalid base64.bearer.authorization token")?;
            found = Some(token);
        }
    }
    match found.filter(|token| !token.is_empty()) {
        Some(_) if others == 0 => Err("missing additional subprotocol"),
        token => Ok(token),
    }
}

/// Whether the subprotocol carries a token; it must be neither forwarded nor selected.
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
    async fn an_invalid_token_is_401_and_no_token_is_anonymous() {
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

    /// C1.4: the group that passes every authorizer requires a client certificate; service account
    /// tokens never carry it, and under the hardened profile no token does.
    #[tokio::test]
    async fn tokens_do_not_carry_system_masters() {
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

    #[test]
    fn the_bearer_token_follows_exactly_one_space() {
        let read = |value: &str| {
            let found = authorization_token(&headers(http::header::AUTHORIZATION, value));
            (found.token, found.has_extra_space)
        };
        let token = |text: &str| (Some(text.to_owned()), false);
        assert_eq!(read("Bearer a"), token("a"));
        assert_eq!(read("bEARER a"), token("a"));
        assert_eq!(read(" Bearer a "), token("a"));
        assert_eq!(read("Bearer a b"), token("a"), "what follows the token is ignored");
        assert_eq!(read("Bearer  a"), (None, true));
        assert_eq!(read("Bearer   a"), (None, true));
        assert_eq!(read("Bearer"), (None, false));
        assert_eq!(read("Bearer "), (None, false));
        assert_eq!(read("Bearer\ta"), (None, false));
        assert_eq!(read("Basic a"), (None, false));
    }

    #[tokio::test]
    async fn a_token_after_several_spaces_is_ignored_with_a_warning() {
        let spaces = headers(http::header::AUTHORIZATION, "Bearer  secret");
        let user = union(true).authenticate(&spaces, None, "/api").await.unwrap().unwrap();
        assert_eq!(user, User::anonymous());
        assert_eq!(union(false).authenticate(&spaces, None, "/api").await.unwrap_err().code, 401);
        assert_eq!(
            ignored_token_warning(&spaces),
            Some(
                "the provided Authorization header contains extra space before the bearer token, and is ignored"
            )
        );
        let one = headers(http::header::AUTHORIZATION, "Bearer secret");
        assert_eq!(ignored_token_warning(&one), None);
    }

    fn websocket(protocols: &str) -> HeaderMap {
        let mut headers = headers(http::header::SEC_WEBSOCKET_PROTOCOL, protocols);
        headers.insert(http::header::UPGRADE, "websocket".parse().unwrap());
        headers.insert(http::header::CONNECTION, "Upgrade".parse().unwrap());
        headers
    }

    #[test]
    fn the_websocket_token_is_one_of_several_subprotocols() {
        let encoded = |token: &str| format!("{WEBSOCKET_TOKEN}{}", URL_SAFE_NO_PAD.encode(token));
        let read = |protocols: &str| websocket_token(&websocket(protocols));
        let good = format!("v5.channel.k8s.io, {}", encoded("a"));
        assert_eq!(read(&good), Ok(Some("a".to_owned())));
        assert_eq!(read("v5.channel.k8s.io"), Ok(None));
        assert_eq!(read(&format!("x, {WEBSOCKET_TOKEN}")), Ok(None));
        assert_eq!(read(&encoded("a")), Err("missing additional subprotocol"));
        let twice = format!("x,{},{}", encoded("a"), encoded("a"));
        assert_eq!(read(&twice), Err("multiple base64.bearer.authorization tokens specified"));
        let padded = format!("x,{WEBSOCKET_TOKEN}YQ==");
        assert_eq!(read(&padded), Err("invalid base64.bearer.authorization token encoding"));
        let binary = format!("x,{WEBSOCKET_TOKEN}{}", URL_SAFE_NO_PAD.encode([0xff]));
        assert_eq!(read(&binary), Err("invalid base64.bearer.authorization token"));
        let plain = headers(http::header::SEC_WEBSOCKET_PROTOCOL, &good);
        assert_eq!(websocket_token(&plain), Ok(None), "no WebSocket request");
    }

    #[tokio::test]
    async fn a_websocket_token_authenticates() {
        let value =
            format!("v5.channel.k8s.io, {WEBSOCKET_TOKEN}{}", URL_SAFE_NO_PAD.encode("secret"));
        let user =
            union(true).authenticate(&websocket(&value), None, "/api").await.unwrap().unwrap();
        assert_eq!(user.name, "admin");
        assert!(is_token_protocol(value.split(", ").nth(1).unwrap()));
    }
}
