//! Integration tests: one binary.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod compatibility;
mod documents;
mod errors;
mod files;
mod imports;
mod k3s;
mod language;
mod structure;
mod tidy;
