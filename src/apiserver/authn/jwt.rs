//! Tokens of OpenID issuers (upstream's `plugin/pkg/authenticator/token/oidc`): maps claims to
//! users. A task per issuer fetches its discovery document and keys; requests wait for it.
//! Distributed claims are rejected with a message.

mod claims;
mod expressions;
mod fetch;
mod keys;
mod reload;
mod remote;

#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::Kind;

pub(crate) use claims::Mapper;
pub(crate) use expressions::{Expression, ResultType, Variable};
pub(super) use keys::{Algorithm, AlgorithmError};

use super::configuration::{Configuration, Jwt};
use super::{TokenAuthenticator, TokenError, TokenIdentity};
use crate::authn::config::AuthenticationConfig;
use crate::request::user::User;
use claims::ClaimError;
use keys::{Token, TokenClaimError};
use reload::Reloads;
use remote::{KeySet, VerificationError};
use webhook::Callout;

/// A token of an OpenID issuer is rejected. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
enum IssuerTokenError {
    #[error("oidc: authenticator not initialized")]
    NotInitialized,
    #[error("oidc: verify token: {0}")]
    Token(#[source] TokenClaimError),
    #[error("oidc: verify token: failed to verify signature: {0}")]
    Signature(#[source] VerificationError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// There are not enough resources to evaluate an expression.
    #[error(transparent)]
    NoStack(Box<api::Status>),
}

/// One issuer.
struct Authenticator {
    jwt: Jwt,
    mapper: Arc<Mapper>,
    algorithms: Vec<Algorithm>,
    keys: KeySet,
}

impl Authenticator {
    /// `None` if the token names another issuer.
    async fn authenticate(&self, token: &str) -> Result<Option<User>, IssuerTokenError> {
        let issuer = &self.jwt.issuer;
        let Some(token) = Token::of(token).filter(|token| token.issuer() == Some(&issuer.url))
        else {
            return Ok(None);
        };
        if !self.keys.is_ready() {
            return Err(IssuerTokenError::NotInitialized);
        }
        token.check_algorithm(&self.algorithms).map_err(IssuerTokenError::Token)?;
        self.keys.verify(&token).await.map_err(IssuerTokenError::Signature)?;
        let now = base::clock::unix_time();
        token.check_claims(&issuer.audiences, now).map_err(IssuerTokenError::Token)?;
        let mapped =
            crate::admission::expressions::cel_authorizer::on_stack(self.mapper.depth(), || {
                claims::user(&self.jwt, &self.mapper, &token.claims)
            });
        let user = mapped.map_err(|status| IssuerTokenError::NoStack(Box::new(status)))?;
        Ok(Some(user?))
    }
}

/// All issuers of a configuration, replaced when its file changes.
pub(crate) struct Issuers {
    current: ArcSwap<Vec<Authenticator>>,
    /// The audiences of the API server; a token of an issuer is valid for all of them.
    audiences: Vec<String>,
    reloads: Reloads,
}

impl Issuers {
    /// Starts the tasks that fetch keys, and follows the configuration file if there is one. They
    /// end with the tasks of `callout`. `None` if there is neither an issuer nor a file.
    pub(crate) fn start(
        plan: &AuthenticationConfig,
        audiences: Vec<String>,
        callout: &Callout,
    ) -> Option<Arc<Self>> {
        if plan.configuration.jwt.is_empty() && plan.file.is_none() {
            return None;
        }
        let made = build(&plan.configuration, plan.mappers.clone(), &plan.algorithms, callout);
        let issuers = Arc::new(Self {
            current: ArcSwap::from_pointee(made),
            audiences,
            reloads: Reloads::default(),
        });
        if let Some(file) = &plan.file {
            issuers.reloads.loaded(&file.content);
            let following = reload::Following {
                issuers: Arc::clone(&issuers),
                algorithms: plan.algorithms.clone(),
                anonymous: plan.configuration.anonymous.clone(),
                path: file.path.clone(),
                last_content: file.content.clone(),
                callout: callout.clone(),
            };
            callout.tasks.spawn(Kind::Critical, "authentication-config", following.run());
        }
        Some(issuers)
    }

    /// Renders lines for `/metrics`, and those of [`LATENCY`] (upstream's
    /// `apiserver_authentication_config_controller_…`).
    pub(crate) fn render(&self, out: &mut String) {
        self.reloads.render(out);
        let name = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds";
        let help = "[ALPHA] Timestamp of the last successful or failed JWKS fetch split by result, api server identity and jwt issuer for the JWT authenticator.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        let own = base::server_identity::own_hash();
        for one in self.current.load().iter() {
            let issuer = reload::hash(one.jwt.issuer.url.as_bytes());
            for (result, at) in one.keys.fetches() {
                let at = at.load(Ordering::Relaxed);
                if at > 0 {
                    let _ = writeln!(
                        out,
                        "{name}{{apiserver_id_hash=\"{own}\",jwt_issuer_hash=\"{issuer}\",result=\"{result}\"}} {at}"
                    );
                }
            }
        }
        let name = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info";
        let help = "[ALPHA] Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api server identity and jwt issuer.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for one in self.current.load().iter() {
            let issuer = reload::hash(one.jwt.issuer.url.as_bytes());
            let hash = one.keys.hash();
            if !hash.is_empty() {
                let _ = writeln!(
                    out,
                    "{name}{{apiserver_id_hash=\"{own}\",hash=\"{hash}\",jwt_issuer_hash=\"{issuer}\"}} 1"
                );
            }
        }
    }
}

/// The duration of token verification (`plugin/pkg/authenticator/token/oidc/metrics.go`).
pub(crate) static LATENCY: base::metrics::Family = base::metrics::Family::histogram(
    "apiserver_authentication_jwt_authenticator_latency_seconds",
    "[ALPHA] Latency of jwt authentication operations in seconds. This is the time spent authenticating a token for cache miss only (i.e. when the token is not found in the cache).",
    &["jwt_issuer_hash", "result"],
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
);

/// Starts the tasks of issuers; they end when the returned value is dropped.
fn build(
    configuration: &Configuration,
    mappers: Vec<Arc<Mapper>>,
    algorithms: &[Algorithm],
    callout: &Callout,
) -> Vec<Authenticator> {
    let all = configuration.jwt.iter().zip(mappers);
    all.map(|(jwt, mapper)| Authenticator {
        keys: KeySet::start(&jwt.issuer, callout),
        jwt: jwt.clone(),
        mapper,
        algorithms: algorithms.to_vec(),
    })
    .collect()
}

#[async_trait]
impl TokenAuthenticator for Issuers {
    async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, TokenError> {
        let ours: Vec<String> =
            audiences.iter().filter(|given| self.audiences.contains(given)).cloned().collect();
        if !audiences.is_empty() && ours.is_empty() {
            return Ok(None);
        }
        let current = self.current.load_full();
        for one in current.iter() {
            let begun = base::clock::now();
            let found = one.authenticate(token).await;
            if !matches!(found, Ok(None)) {
                let issuer = reload::hash(one.jwt.issuer.url.as_bytes());
                let result = if found.is_ok() { "success" } else { "failure" };
                LATENCY.took(&[&issuer, result], begun.elapsed());
            }
            if let Some(user) = found.map_err(TokenError::new)? {
                return Ok(Some(TokenIdentity { user, audiences: ours }));
            }
        }
        Ok(None)
    }
}
