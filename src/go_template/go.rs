//! Parts of Go's standard library whose results templates show.

pub(crate) mod duration;
pub(crate) mod float;
pub(crate) mod path;
pub(crate) mod print;
pub(crate) mod printf;
pub(crate) mod quote;
pub(crate) mod url;
