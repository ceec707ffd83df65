//! Image names and archives, and the built-in pause image.

pub(crate) mod name;
pub(crate) mod pause;
pub(crate) mod tarball;
