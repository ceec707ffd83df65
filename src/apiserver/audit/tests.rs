//! Requests through a whole server in memory, and what is recorded of them.
