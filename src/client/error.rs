//! Errors of calls, classified by what the caller can do about them.

use api::Status;

/// Error of a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server refused the request with this Status. Retry only if [`Error::is_retryable`].
    #[error("{0}")]
    Api(Box<Status>),
    /// The server could not be reached or closed the connection; retry with backoff.
    #[error("cannot reach the API server: {0}")]
    Transport(String),
    /// An object could not be encoded or decoded; a retry does not help.
    #[error("cannot read the server's answer: {0}")]
    Decode(String),
}

impl Error {
    fn reason(&self) -> &str {
        match self {
            Self::Api(status) => &status.reason,
            Self::Transport(_) | Self::Decode(_) => "",
        }
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason() == "NotFound"
    }

    /// The object already exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// The object was changed concurrently: read it again.
    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    /// The caller is not authorized.
    pub fn is_forbidden(&self) -> bool {
        self.reason() == "Forbidden"
    }

    /// The object is invalid.
    pub fn is_invalid(&self) -> bool {
        self.reason() == "Invalid"
    }

    /// The revision was compacted: list again.
    pub fn is_expired(&self) -> bool {
        matches!(self.reason(), "Expired" | "Gone")
    }

    /// The revision is newer than the server's, which was restored from a backup: list again.
    pub fn is_too_new(&self) -> bool {
        self.status().is_some_and(is_too_new)
    }

    /// Status 429: an eviction is blocked, or there are too many requests.
    pub fn is_too_many_requests(&self) -> bool {
        self.reason() == "TooManyRequests"
    }

    /// The namespace of a creation is being deleted (cause `NamespaceTerminating`).
    pub fn is_namespace_terminating(&self) -> bool {
        match self {
            Self::Api(status) => status
                .details
                .as_ref()
                .is_some_and(|d| d.causes.iter().any(|c| c.reason == "NamespaceTerminating")),
            Self::Transport(_) | Self::Decode(_) => false,
        }
    }

    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
            Self::Transport(_) => true,
            Self::Decode(_) => false,
        }
    }

    /// The Status, if the server sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            Self::Transport(_) | Self::Decode(_) => None,
        }
    }
}

/// Whether a Status says that a resource version is too large (cause `ResourceVersionTooLarge` of a
/// 504; older servers only have it in the message of a 400 or 504).
pub(crate) fn is_too_new(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|d| &d.causes);
    causes.any(|c| c.reason == "ResourceVersionTooLarge")
        || matches!(status.code, 400 | 504) && status.message.contains("Too large resource version")
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Api(Box::new(status))
    }
}

impl From<api::object::BadObject> for Error {
    fn from(error: api::object::BadObject) -> Self {
        Self::Decode(error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Decode(error.to_string())
    }
}
