//! The operation of a write or connection, as admission and its metrics name it.

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// POST, and PUT or apply that creates.
    Create,
    /// PUT, PATCH.
    Update,
    /// DELETE.
    Delete,
    /// exec, attach, portforward, proxy.
    Connect,
}

impl Operation {
    /// The value of `operation` in admission reviews and metric labels.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}
