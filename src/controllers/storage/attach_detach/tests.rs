//! The whole loop, against a fake API.
