//! Calls to webhooks: admission and conversion webhooks, and (`post.rs`) audit, authentication and
//! authorization webhooks and extenders of the scheduler.
//!
//! HTTP/1.1 over TLS with the CA of the configuration, to a URL or to a ready endpoint of a Service
//! (upstream's `pkg/util/webhook`). Responses are bounded, redirects are not followed, and nothing
//! of the client's request is sent but the review.

mod client;
mod config;
mod errors;
pub mod kubeconfig;
pub mod post;
mod reach;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

/// The families of this crate, in the order of `/metrics`.
pub static METRICS: [&base::metrics::Family; 1] = [&errors::NAMELESS];

pub use client::Client;
pub use config::{ClientConfig, Endpoint};
pub use errors::{CallError, ConfigError, ResolveError, ResponseError, TransportError, UrlError};
pub use reach::{Callout, Reach, Services};

pub use client::answer;
pub use errors::go_duration;
