//! Integration tests: one binary.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod imports;
mod structure;
mod tidy;
