//! Tokens in Secrets of type `kubernetes.io/service-account-token`: they do not expire and are
//! valid as long as their Secret exists.

use std::sync::Arc;

use api::Object;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::jws::{self, BadKey, PublicKey, SigningKey};
use super::{TokenAuthenticator, TokenIdentity};
use crate::authz::rule::go_list;
use crate::metrics::requests as meters;
use crate::registry::lookup;
use crate::registry::lookup::Lookup;
use crate::request::user::User;

/// The issuer of these tokens (upstream's `LegacyIssuer`).
const ISSUER: &str = "kubernetes/serviceaccount";
/// The label of a Secret whose token is no longer accepted.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

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

/// Verifies the tokens of Secrets.
pub struct SecretTokens {
    lookup: Arc<dyn Lookup>,
    audiences: Vec<String>,
    keys: Vec<PublicKey>,
}

impl SecretTokens {
    /// Creates the authenticator. These tokens name no audience: they are valid for `audiences`,
    /// the API server's own.
    pub fn new(lookup: Arc<dyn Lookup>, audiences: Vec<String>, keys: Vec<PublicKey>) -> Self {
        Self { lookup, audiences, keys }
    }

    async fn check(&self, token: &str, claims: &Claims) -> Result<(), String> {
        for (what, value) in [
            ("sub", &claims.sub),
            ("namespace", &claims.namespace),
            ("secretName", &claims.secret),
            ("serviceAccountName", &claims.account),
            ("serviceAccountUID", &claims.uid),
        ] {
            if value.is_empty() {
                return Err(format!("{what} claim is missing"));
            }
        }
        if claims.sub != subject(&claims.namespace, &claims.account) {
            return Err("sub claim is invalid".into());
        }
        let (namespace, account) = (&claims.namespace, &claims.account);
        let secret = self.lookup.get_live(&lookup::SECRETS, namespace, &claims.secret).await;
        let secret = secret
            .map_err(|error| {
                format!("cannot read secret {namespace}/{}: {}", claims.secret, error.message)
            })?
            .and_then(|object| ObjectFields::of(&object))
            .filter(|facts| !facts.deleting)
            .ok_or("Token has been invalidated")?;
        // Compares digests, so that timing reveals nothing about the token.
        if digest(&SHA256, &secret.token).as_ref() != digest(&SHA256, token.as_bytes()).as_ref() {
            return Err("Token does not match server's copy".into());
        }
        let found = self.lookup.get_live(&lookup::SERVICE_ACCOUNTS, namespace, account).await;
        let found = found
            .map_err(|error| {
                format!("cannot read service account {namespace}/{account}: {}", error.message)
            })?
            .ok_or_else(|| format!("serviceaccounts {account:?} not found"))?;
        if ObjectFields::of(&found).is_none_or(|facts| facts.deleting) {
            return Err(format!("ServiceAccount {namespace}/{account} has been deleted"));
        }
        if *found.uid != *claims.uid {
            return Err(format!(
                "ServiceAccount UID ({}) does not match claim ({})",
                found.uid, claims.uid
            ));
        }
        if secret.invalid {
            meters::INVALID_TOKENS.inc(&[]);
            let key = "authentication.k8s.io/legacy-token-invalidated";
            crate::audit::annotate(key, || format!("{}/{namespace}", claims.secret));
            return Err(format!(
                "the token in secret {namespace}/{} for service account {namespace}/{account} has been marked invalid. Use tokens \
                 from the TokenRequest API or manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from \
                 the secret to temporarily allow use of this token",
                claims.secret
            ));
        }
        let named = |account: &serde_json::Value| {
            let secrets = api::value::items(account, "secrets");
            secrets.iter().any(|secret| api::value::str_at(secret, "name") == claims.secret)
        };
        let key = if found.value().is_ok_and(|account| named(&account)) {
            meters::AUTO_TOKENS.inc(&[]);
            "authentication.k8s.io/legacy-token-autogenerated-secret"
        } else {
            meters::MANUAL_TOKENS.inc(&[]);
            "authentication.k8s.io/legacy-token-manual-secret"
        };
        crate::audit::annotate(key, || claims.secret.clone());
        Ok(())
    }
}

/// The fields of a Secret or ServiceAccount that the check depends on.
struct ObjectFields {
    deleting: bool,
    invalid: bool,
    token: Vec<u8>,
}

impl ObjectFields {
    fn of(object: &Object) -> Option<Self> {
        let value = object.value().ok()?;
        let token = api::value::str_in(&value, &["data", "token"]);
        Some(Self {
            deleting: value.pointer("/metadata/deletionTimestamp").is_some(),
            invalid: !api::value::str_in(&value, &["metadata", "labels", INVALID_SINCE]).is_empty(),
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
    ) -> Result<Option<TokenIdentity>, String> {
        let Some(claims) = jws::unverified_claims::<Claims>(token) else { return Ok(None) };
        if claims.iss != ISSUER {
            return Ok(None);
        }
        jws::verify(token, &self.keys)?;
        meters::LEGACY_TOKENS.inc(&[]);
        crate::audit::annotate("authentication.k8s.io/legacy-token", || claims.sub.clone());
        let asked = if audiences.is_empty() { &self.audiences } else { audiences };
        let shared: Vec<String> =
            self.audiences.iter().filter(|aud| asked.contains(aud)).cloned().collect();
        if shared.is_empty() {
            let (own, asked) = (go_list(&self.audiences), go_list(asked));
            return Err(format!(
                "token audiences {own} is invalid for the target audiences {asked}"
            ));
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
    use crate::registry::lookup::testing::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn a_token_lives_and_dies_with_its_secret() {
        let pem = SigningKey::generate_pem().unwrap();
        let signer = Signer::from_pem(&pem).unwrap();
        let token = signer.sign("shop", "bot", "u1", "bot-token").unwrap();
        let lookup = Fixed::new(&[(
            &lookup::SERVICE_ACCOUNTS,
            json!({"metadata": {"name": "bot", "namespace": "shop", "uid": "u1"}}),
        )]);
        let keys = vec![SigningKey::from_pem(&pem).unwrap().public().clone()];
        let tokens =
            SecretTokens::new(Arc::clone(&lookup) as Arc<dyn Lookup>, vec!["own".into()], keys);
        assert_eq!(
            tokens.authenticate_token(&token, &[]).await,
            Err("Token has been invalidated".to_owned())
        );
        let secret = |data: &str, labels: serde_json::Value| {
            json!({"metadata": {"name": "bot-token", "namespace": "shop", "uid": "s", "labels": labels},
                "data": {"token": STANDARD.encode(data)}})
        };
        lookup.put(&lookup::SECRETS, secret(&token, json!({})));
        let identity = tokens.authenticate_token(&token, &[]).await.unwrap().unwrap();
        assert_eq!(identity.user.name, "system:serviceaccount:shop:bot");
        assert_eq!(identity.audiences, ["own"]);
        assert!(tokens.authenticate_token(&token, &["other".into()]).await.is_err());
        lookup.break_reads(&lookup::SECRETS);
        let found = tokens.authenticate_token(&token, &[]).await.unwrap_err();
        assert_eq!(found, "cannot read secret shop/bot-token: the store has no leader");
        lookup.restore_reads();
        lookup.put(&lookup::SECRETS, secret(&token, json!({INVALID_SINCE: "2026-01-01"})));
        assert!(tokens.authenticate_token(&token, &[]).await.is_err());
        lookup.put(&lookup::SECRETS, secret("another", json!({})));
        assert_eq!(
            tokens.authenticate_token(&token, &[]).await,
            Err("Token does not match server's copy".to_owned())
        );
        // A token of another issuer is not handled here.
        let foreign = Claims { iss: "https://other".into(), ..Claims::default() };
        let foreign = SigningKey::from_pem(&pem).unwrap().sign(&foreign).unwrap();
        assert_eq!(tokens.authenticate_token(&foreign, &[]).await, Ok(None));
    }
}
