//! Errors of rendering.

/// An error of a template or of a function that it calls, with Go's text.
///
/// The chain of causes is the one that `errors.Unwrap` walks in Go: Helm prints one place for each
/// link of it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub message: String,
    #[source]
    pub cause: Option<Box<Failure>>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None }
    }

    /// An error whose text ends with that of `cause`.
    pub fn wrap(context: &str, cause: Self) -> Self {
        Self { message: format!("{context}{}", cause.message), cause: Some(Box::new(cause)) }
    }
}

/// The charts' templates cannot be rendered; the text names the template, the line and the
/// expression in Helm's form.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub String);

/// A lookup in the cluster failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct HostError(pub String);
