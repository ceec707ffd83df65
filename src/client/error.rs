//! Why a call failed, by what the caller can do about it.

use api::Status;

/// Failure of one call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server refused; the Status says why. Retry only when [`Error::is_retryable`].
    #[error("{0}")]
    Api(Box<Status>),
    /// The server could not be reached or hung up; retry with back-off.
    #[error("cannot reach the API server: {0}")]
    Transport(String),
    /// An object could not be encoded or decoded; retrying is no use.
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

    /// The object exists already.
    pub fn is_already_exists(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// The object changed in between: read it again.
    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    /// The caller may not do this.
    pub fn is_forbidden(&self) -> bool {
        self.reason() == "Forbidden"
    }

    /// The object is refused as it is.
    pub fn is_invalid(&self) -> bool {
        self.reason() == "Invalid"
    }

    /// The revision was compacted: list again.
    pub fn is_expired(&self) -> bool {
        matches!(self.reason(), "Expired" | "Gone")
    }

    /// The revision lies in the server's future, which was restored from a backup: list again.
    pub fn is_too_new(&self) -> bool {
        self.status().is_some_and(is_too_new)
    }

    /// 429: eviction blocked, or too many requests.
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

    /// Trying the same again may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
            Self::Transport(_) => true,
            Self::Decode(_) => false,
        }
    }

    /// The Status, when the server sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(status) => Some(status),
            Self::Transport(_) | Self::Decode(_) => None,
        }
    }
}

/// Whether a Status says that a resource version is larger than the newest there is (cause
/// `ResourceVersionTooLarge` of a 504; older servers say it in the message of a 400 or 504 only).
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
