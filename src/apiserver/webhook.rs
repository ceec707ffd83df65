//! Calls from the API server to webhooks: admission and conversion webhooks, and (`post.rs`, with a
//! kubeconfig) audit, authentication and authorization webhooks.
//!
//! HTTP/1.1 over TLS with the CA of the configuration, to a URL or to a ready endpoint of a Service
//! (upstream's `pkg/util/webhook`). Responses are bounded, redirects are not followed, and nothing
//! of the client's request is sent but the review.

mod client;
mod config;
mod errors;
pub(crate) mod kubeconfig;
pub(crate) mod post;
mod reach;

#[cfg(test)]
pub(crate) mod tests;

pub use client::Client;
pub use config::{ClientConfig, Endpoint};
pub use errors::{CallError, ConfigError, ResolveError, ResponseError, TransportError, UrlError};
pub use reach::{Callout, Reach, Services};

pub(crate) use client::answer;
pub(crate) use errors::go_duration;
