//! Keys of the state.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

/// A key: one allocation shared by all parts of the state, half the size of [`Bytes`] in each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(Arc<[u8]>);

impl Key {
    pub(crate) fn new(key: &[u8]) -> Self {
        Self(key.into())
    }

    /// Converts to the contract's type; shares the bytes.
    pub(crate) fn shared(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}
