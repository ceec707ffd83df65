//! The managers with their state files.
