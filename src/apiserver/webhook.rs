//! Calls from the API server to programs of its users: admission webhooks and conversion webhooks, and (`post.rs`, by a kubeconfig) those
//! for audit, authentication and authorization.
//!
//! HTTP/1.1 over TLS that the configuration's own CA vouches for, to a URL or to a ready endpoint of a Service (upstream's
//! `pkg/util/webhook`). Answers are bounded, redirects are not followed, and nothing of the client's request goes along but the review.

mod client;
mod config;
mod errors;
pub(crate) mod kubeconfig;
pub(crate) mod post;
mod reach;

#[cfg(test)]
pub(crate) mod tests;

pub use client::Client;
pub use config::{ClientConfig, Place};
pub use errors::CallError;
pub use reach::{Callout, Reach, Services};

pub(crate) use client::answer;
pub(crate) use errors::{go_duration, handshake as handshake_text};
pub(crate) use reach::dial_text;
