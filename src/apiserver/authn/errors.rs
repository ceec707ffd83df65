//! Why a token is rejected: one error over all kinds of tokens, and the parts that several kinds
//! share.

use api::Status;

use super::bootstrap_token::BootstrapTokenError;
use super::jwt::IssuerTokenError;
use super::secret_token::SecretTokenError;
use super::service_account::AccountTokenError;
use super::token_webhook::TokenWebhookError;
use crate::authz::rule::go_list;

/// A token is rejected. The messages are upstream's; they are for logs and TokenReview, never for
/// the bearer.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A token of a service account.
    #[error(transparent)]
    Account(#[from] AccountTokenError),
    /// A token in a Secret of a service account.
    #[error(transparent)]
    Secret(#[from] SecretTokenError),
    /// A bootstrap token.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapTokenError),
    /// A token of an OpenID issuer.
    #[error(transparent)]
    Issuer(#[from] IssuerTokenError),
    /// A token that the webhook rejects or cannot check.
    #[error(transparent)]
    Webhook(#[from] TokenWebhookError),
    /// Several authenticators reject the token.
    #[error("[{}]", joined(.0))]
    Several(Vec<TokenError>),
}

fn joined(errors: &[TokenError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// The token is not valid for any of the target audiences.
#[derive(Debug, thiserror::Error)]
#[error(
    "token audiences {} is invalid for the target audiences {}",
    go_list(.token),
    go_list(.target)
)]
pub struct AudienceError {
    pub(super) token: Vec<String>,
    pub(super) target: Vec<String>,
}

/// An object that the token depends on cannot be read. `object` is its description, such as
/// `secret NAMESPACE/NAME`.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {object}: {}", .status.message)]
pub struct ReadError {
    pub(super) object: String,
    pub(super) status: Box<Status>,
}
