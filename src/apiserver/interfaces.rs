//! Interfaces to the server's dependencies: tokens, reviews, impersonation, connections, extra
//! routes. Each is implemented elsewhere.

use api::Status;
use async_trait::async_trait;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use crate::request::body::Body;
use crate::request::user::User;

/// Issues service account tokens (`serviceaccounts/token`).
#[async_trait]
pub trait TokenIssuer: Send + Sync {
    /// Handles a `TokenRequest` for an existing service account: returns it with `status` set.
    ///
    /// # Errors
    /// The rejection.
    async fn issue(
        &self,
        user: &User,
        service_account: &Value,
        request: Value,
    ) -> Result<Value, Status>;

    /// The documents at `/.well-known/openid-configuration` and `/openid/v1/jwks`.
    fn discovery(&self) -> Option<(Value, Value)> {
        None
    }
}

/// Handles review resources, which are created and not stored.
#[async_trait]
pub trait ReviewHandler: Send + Sync {
    /// Returns the review with its `status` set; `kind` is such as `SubjectAccessReview`.
    ///
    /// # Errors
    /// The rejection.
    async fn review(
        &self,
        kind: &str,
        user: &User,
        namespace: &str,
        review: Value,
    ) -> Result<Value, Status>;
}

/// Authorizes impersonation and returns the impersonated user for `Impersonate-*` headers.
#[async_trait]
pub trait Impersonation: Send + Sync {
    /// Returns the user to act as.
    ///
    /// # Errors
    /// 403 or 400.
    async fn apply(&self, user: User, headers: &HeaderMap) -> Result<User, Status>;
}

/// A connection through the server to a node, a pod or a service.
#[derive(Debug)]
pub struct ConnectRequest {
    /// The user.
    pub user: User,
    /// The resource: `pods`, `services` or `nodes`.
    pub resource: String,
    /// The subresource: `log`, `exec`, `attach`, `portforward` or `proxy`.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name, with scheme and port for services (`https:name:port`).
    pub name: String,
    /// The path after `proxy`, with a leading slash; empty if the URL ends with `proxy`.
    pub path: String,
    /// The named object, if it exists.
    pub object: Option<Value>,
    /// The node that runs the pod, or the named node.
    pub node: Option<Value>,
    /// The request, with the upgrade in its extensions.
    pub request: Request<Body>,
}

/// Connects to nodes, pods and services.
#[async_trait]
pub trait Connect: Send + Sync {
    /// Forwards the request.
    ///
    /// # Errors
    /// The rejection, as long as nothing was sent.
    async fn connect(&self, request: ConnectRequest) -> Result<Response<Body>, Status>;
}

/// Adds families of metrics of other parts of the process to `/metrics`.
#[async_trait]
pub trait ExtraMetrics: Send + Sync {
    /// Appends families to the page. A family that the page has already must be left out.
    async fn append(&self, page: &mut String);
}

/// Serves paths on the same listener that are not part of the Kubernetes API, such as those for
/// joining machines.
#[async_trait]
pub trait ExtraRoutes: Send + Sync {
    /// Whether a path is served here.
    fn matches(&self, path: &str) -> bool;

    /// Handles a request. `from` is the peer address; `user` is the user of a valid client
    /// certificate or bearer token, `None` otherwise. Upgrades are in the request's extensions.
    async fn handle(
        &self,
        from: std::net::SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body>;
}
