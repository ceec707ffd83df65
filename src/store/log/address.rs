//! Addresses of members.

use std::fmt;
use std::sync::Arc;

/// `host:port` of a member, stored with its id in the membership; clones share it. Empty if never
/// announced: the only member of a cluster needs none.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address(Arc<str>);

impl Address {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Address {
    fn default() -> Self {
        Self::new("")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
