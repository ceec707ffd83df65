//! Tokens in Secrets of type `kubernetes.io/service-account-token`: they do not expire and are
//! valid as long as their Secret exists.

use std::sync::Arc;

use api::Object;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::jws::{self, BadKey, PublicKey, SignatureError, SigningKey};
use super::{AudienceError, ReadError, TokenAuthenticator, TokenError, TokenIdentity};
use crate::metrics::requests as metrics;
use crate::request::user::User;
use lookup::Lookup;

/// The issuer of these tokens (upstream's `LegacyIssuer`).
const ISSUER: &str = "kubernetes/serviceaccount";
/// The label of a Secret whose token is no longer accepted.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label with the last day on which a token was used, in UTC.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Uses of tokens that wait for their labels; further ones are not recorded until the next request.
const USES_MAX: usize = 64;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Claims {
    iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
    sub: String,
}

/// Signs the tokens of Secrets.
pub struct Signer(SigningKey);

impl Signer {
    /// Parses the signing key of service account tokens, as PEM.
    ///
    /// # Errors
    /// If the key is unusable.
    pub fn from_pem(pem: &str) -> Result<Self, BadKey> {
        SigningKey::from_pem(pem).map(Self)
    }

    /// Signs the token of a Secret of this service account.
    ///
    /// # Errors
    /// If signing fails.
    pub fn sign(
        &self,
        namespace: &str,
        account: &str,
        uid: &str,
        secret: &str,
    ) -> Result<String, BadKey> {
        self.0.sign(&Claims {
            iss: ISSUER.into(),
            namespace: namespace.into(),
            secret: secret.into(),
            account: account.into(),
            uid: uid.into(),
            sub: subject(namespace, account),
        })
    }
}

fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// A token in a Secret is rejected. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum SecretTokenError {
    /// The signature is invalid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The token is for other audiences.
    #[error(transparent)]
    Audience(#[from] AudienceError),
    /// The Secret or the service account cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A required claim is missing.
    #[error("{0} claim is missing")]
    MissingClaim(&'static str),
    /// The subject is not the service account that other claims name.
    #[error("sub claim is invalid")]
    Subject,
    /// The Secret was deleted.
    #[error("Token has been invalidated")]
    Invalidated,
    /// The Secret contains another token.
    #[error("Token does not match server's copy")]
    Mismatch,
    /// The service account does not exist.
    #[error("serviceaccounts {name:?} not found")]
    AccountNotFound {
        /// The name of the service account.
        name: String,
    },
    /// The service account is being deleted.
    #[error("ServiceAccount {namespace}/{name} has been deleted")]
    AccountDeleted {
        /// The namespace of the service account.
        namespace: String,
        /// The name of the service account.
        name: String,
    },
    /// The service account was created again since the token was issued.
    #[error("ServiceAccount UID ({actual}) does not match claim ({claimed})")]
    AccountUid {
        /// The UID of the existing service account.
        actual: String,
        /// The UID in the token.
        claimed: String,
    },
    /// The Secret has the label that marks unused tokens as invalid.
    #[error(
        "the token in secret {namespace}/{secret} for service account {namespace}/{account} has \
         been marked invalid. Use tokens from the TokenRequest API or manually created secret-based \
         tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily allow use of \
         this token",
        INVALID_SINCE = INVALID_SINCE
    )]
    MarkedInvalid {
        /// The namespace of both.
        namespace: String,
        /// The name of the Secret.
        secret: String,
        /// The name of the service account.
        account: String,
    },
}

/// The use of a token whose Secret does not have today's label yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenUse {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name of the Secret.
    pub secret: String,
    /// The merge patch that labels the Secret.
    pub patch: Value,
}

impl TokenUse {
    /// `None` if the label `last_used` of the Secret is of today or, by the clock of another
    /// server, of tomorrow.
    fn new(claims: &Claims, uid: &str, last_used: &str, now: Timestamp) -> Option<Self> {
        let day = |time: Timestamp| time.to_zoned(TimeZone::UTC).date().to_string();
        let tomorrow = now.checked_add(SignedDuration::from_hours(24)).ok()?;
        let (today, tomorrow) = (day(now), day(tomorrow));
        (last_used != today && last_used != tomorrow).then(|| Self {
            namespace: claims.namespace.clone(),
            secret: claims.secret.clone(),
            patch: json!({"metadata": {"uid": uid, "labels": {LAST_USED: today}}}),
        })
    }
}

/// The receiving end of [`TokenUse`]s.
pub type TokenUses = mpsc::Receiver<TokenUse>;

/// Verifies the tokens of Secrets.
pub struct SecretTokens {
    lookup: Arc<dyn Lookup>,
    audiences: Vec<String>,
    keys: Vec<PublicKey>,
    uses: mpsc::Sender<TokenUse>,
}

impl SecretTokens {
    /// Creates the authenticator. These tokens name no audience: they are valid for `audiences`,
    /// the API server's own. The receiver of the uses of tokens labels their Secrets.
    pub fn new(
        lookup: Arc<dyn Lookup>,
        audiences: Vec<String>,
        keys: Vec<PublicKey>,
    ) -> (Self, TokenUses) {
        let (uses, receiver) = mpsc::channel(USES_MAX);
        (Self { lookup, audiences, keys, uses }, receiver)
    }

    async fn check(&self, token: &str, claims: &Claims) -> Result<(), SecretTokenError> {
        check_claims(claims)?;
        let (namespace, account) = (&claims.namespace, &claims.account);
        let secret = self.lookup.get_live(&lookup::SECRETS, namespace, &claims.secret).await;
        let secret = secret
            .map_err(|status| ReadError {
                object: format!("secret {namespace}/{}", claims.secret),
                status: Box::new(status),
            })?
            .and_then(|object| ObjectFields::of(&object))
            .filter(|secret| !secret.is_deleting)
            .ok_or(SecretTokenError::Invalidated)?;
        // Compares digests, so that timing reveals nothing about the token.
        if digest(&SHA256, &secret.token).as_ref() != digest(&SHA256, token.as_bytes()).as_ref() {
            return Err(SecretTokenError::Mismatch);
        }
        let service_account = self.account(claims).await?;
        if let Some(token_use) =
            TokenUse::new(claims, &secret.uid, &secret.last_used, Timestamp::now())
        {
            // A use that finds the channel full is recorded with the next request.
            let _ = self.uses.try_send(token_use);
        }
        if secret.is_marked_invalid {
            metrics::INVALID_TOKENS.inc(&[]);
            let key = "authentication.k8s.io/legacy-token-invalidated";
            crate::audit::annotate(key, || format!("{}/{namespace}", claims.secret));
            return Err(SecretTokenError::MarkedInvalid {
                namespace: namespace.clone(),
                secret: claims.secret.clone(),
                account: account.clone(),
            });
        }
        record_use(&service_account, &claims.secret);
        Ok(())
    }

    /// The service account that the token names.
    async fn account(&self, claims: &Claims) -> Result<Arc<Object>, SecretTokenError> {
        let (namespace, name) = (&claims.namespace, &claims.account);
        let found = self.lookup.get_live(&lookup::SERVICE_ACCOUNTS, namespace, name).await;
        let found = found
            .map_err(|status| ReadError {
                object: format!("service account {namespace}/{name}"),
                status: Box::new(status),
            })?
            .ok_or_else(|| SecretTokenError::AccountNotFound { name: name.clone() })?;
        if ObjectFields::of(&found).is_none_or(|account| account.is_deleting) {
            let (namespace, name) = (namespace.clone(), name.clone());
            return Err(SecretTokenError::AccountDeleted { namespace, name });
        }
        if *found.uid != *claims.uid {
            let (actual, claimed) = (found.uid.to_string(), claims.uid.clone());
            return Err(SecretTokenError::AccountUid { actual, claimed });
        }
        Ok(found)
    }
}

/// Checks that all claims are present and that they name one service account.
fn check_claims(claims: &Claims) -> Result<(), SecretTokenError> {
    for (name, value) in [
        ("sub", &claims.sub),
        ("namespace", &claims.namespace),
        ("secretName", &claims.secret),
        ("serviceAccountName", &claims.account),
        ("serviceAccountUID", &claims.uid),
    ] {
        if value.is_empty() {
            return Err(SecretTokenError::MissingClaim(name));
        }
    }
    if claims.sub != subject(&claims.namespace, &claims.account) {
        return Err(SecretTokenError::Subject);
    }
    Ok(())
}

/// Records the use of a token: in the metrics and in the audit event.
fn record_use(account: &Object, secret_name: &str) {
    let lists_secret = |account: &serde_json::Value| {
        let secrets = api::value::items(account, "secrets");
        secrets.iter().any(|secret| api::value::str_at(secret, "name") == secret_name)
    };
    let key = if account.value().is_ok_and(|account| lists_secret(&account)) {
        metrics::AUTO_TOKENS.inc(&[]);
        "authentication.k8s.io/legacy-token-autogenerated-secret"
    } else {
        metrics::MANUAL_TOKENS.inc(&[]);
        "authentication.k8s.io/legacy-token-manual-secret"
    };
    crate::audit::annotate(key, || secret_name.to_owned());
}

/// The fields of a Secret or ServiceAccount that the check depends on.
struct ObjectFields {
    is_deleting: bool,
    /// Whether the Secret has the label [`INVALID_SINCE`].
    is_marked_invalid: bool,
    /// The value of the label [`LAST_USED`]; empty without it.
    last_used: String,
    uid: Arc<str>,
    token: Vec<u8>,
}

impl ObjectFields {
    fn of(object: &Object) -> Option<Self> {
        let value = object.value().ok()?;
        let token = api::value::str_in(&value, &["data", "token"]);
        let label = |name| api::value::str_in(&value, &["metadata", "labels", name]);
        Some(Self {
            is_deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            is_marked_invalid: !label(INVALID_SINCE).is_empty(),
            last_used: label(LAST_USED).to_owned(),
            uid: Arc::clone(&object.uid),
            token: STANDARD.decode(token).ok()?,
        })
    }
}

#[async_trait]
impl TokenAuthenticator for SecretTokens {
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        self.authenticate(token, audiences).await.map_err(TokenError::new)
    }
}

impl SecretTokens {
    async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, SecretTokenError> {
        let Some(claims) = jws::unverified_claims::<Claims>(token) else { return Ok(None) };
        if claims.iss != ISSUER {
            return Ok(None);
        }
        jws::verify(token, &self.keys)?;
        metrics::LEGACY_TOKENS.inc(&[]);
        crate::audit::annotate("authentication.k8s.io/legacy-token", || claims.sub.clone());
        let target = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared: Vec<String> =
            self.audiences.iter().filter(|aud| target.contains(aud)).cloned().collect();
        if shared.is_empty() {
            let (token, target) = (self.audiences.clone(), target.to_vec());
            return Err(AudienceError { token, target }.into());
        }
        self.check(token, &claims).await?;
        let user = User {
            name: claims.sub,
            uid: claims.uid,
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{}", claims.namespace),
            ],
            ..User::default()
        };
        Ok(Some(TokenIdentity { user, audiences: shared }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookup::testing::Fixed;

    #[tokio::test]
    async fn a_token_is_valid_while_its_secret_contains_it() {
        let pem = SigningKey::generate_pem().unwrap();
        let signer = Signer::from_pem(&pem).unwrap();
        let token = signer.sign("shop", "bot", "u1", "bot-token").unwrap();
        let lookup = Fixed::new(&[(
            &lookup::SERVICE_ACCOUNTS,
            json!({"metadata": {"name": "bot", "namespace": "shop", "uid": "u1"}}),
        )]);
        let keys = vec![SigningKey::from_pem(&pem).unwrap().public().clone()];
        let (tokens, mut uses) =
            SecretTokens::new(Arc::clone(&lookup) as Arc<dyn Lookup>, vec!["own".into()], keys);
        let rejection = async |token: &str| {
            tokens.authenticate_token(token, &[]).await.unwrap_err().to_string()
        };
        assert_eq!(rejection(&token).await, "Token has been invalidated");
        let secret = |data: &str, labels: serde_json::Value| {
            json!({"metadata": {"name": "bot-token", "namespace": "shop", "uid": "s", "labels": labels},
                "data": {"token": STANDARD.encode(data)}})
        };
        lookup.put(&lookup::SECRETS, secret(&token, json!({})));
        let identity = tokens.authenticate_token(&token, &[]).await.unwrap().unwrap();
        assert_eq!(identity.user.name, "system:serviceaccount:shop:bot");
        assert_eq!(identity.audiences, ["own"]);
        let token_use = uses.try_recv().unwrap();
        assert_eq!((&*token_use.namespace, &*token_use.secret), ("shop", "bot-token"));
        assert_eq!(token_use.patch["metadata"]["uid"], "s");
        assert!(tokens.authenticate_token(&token, &["other".into()]).await.is_err());
        lookup.break_reads(&lookup::SECRETS);
        assert_eq!(
            rejection(&token).await,
            "cannot read secret shop/bot-token: the store has no leader"
        );
        lookup.restore_reads();
        lookup.put(&lookup::SECRETS, secret(&token, json!({INVALID_SINCE: "2026-01-01"})));
        assert!(tokens.authenticate_token(&token, &[]).await.is_err());
        assert!(uses.try_recv().is_ok(), "the rejected token is in use");
        lookup.put(&lookup::SECRETS, secret("another", json!({})));
        assert_eq!(rejection(&token).await, "Token does not match server's copy");
        // A token of another issuer is not handled here.
        let foreign = Claims { iss: "https://other".into(), ..Claims::default() };
        let foreign = SigningKey::from_pem(&pem).unwrap().sign(&foreign).unwrap();
        assert!(tokens.authenticate_token(&foreign, &[]).await.unwrap().is_none());
    }

    #[test]
    fn a_use_is_recorded_once_a_day() {
        let claims =
            Claims { namespace: "shop".into(), secret: "bot-token".into(), ..Claims::default() };
        let now = "2026-01-31T23:59:59Z".parse().unwrap();
        for (last_used, is_recorded) in [
            ("", true),
            ("2026-01-30", true),
            ("2026-01-31", false),
            ("2026-02-01", false),
            ("2026-02-02", true),
        ] {
            let patch = TokenUse::new(&claims, "u", last_used, now).map(|found| found.patch);
            let want = json!({"metadata": {"uid": "u", "labels": {LAST_USED: "2026-01-31"}}});
            assert_eq!(patch, is_recorded.then_some(want), "{last_used}");
        }
    }
}
