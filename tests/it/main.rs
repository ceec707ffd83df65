//! Integration tests: one binary.

mod tidy;
