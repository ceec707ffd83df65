//! Why a token is rejected: the error of all authenticators, and the parts that several of them
//! share.

use api::Status;

use crate::authz::rule::go_list;

/// A token is rejected. The messages are upstream's; they are for logs and TokenReview, never for
/// the bearer.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The error of the authenticator for tokens of this kind.
    #[error(transparent)]
    Rejected(Box<dyn std::error::Error + Send + Sync>),
    /// Several authenticators reject the token.
    #[error("[{}]", joined(.0))]
    Several(Vec<TokenError>),
}

impl TokenError {
    /// Wraps the error of an authenticator.
    pub fn new(cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Rejected(Box::new(cause))
    }
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
