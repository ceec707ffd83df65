//! The operation of a write or connection in admission and its metrics.

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// POST, or a PUT or apply that creates the object.
    Create,
    /// PUT or PATCH of an existing object.
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
