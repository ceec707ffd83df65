//! What the server asks of others: tokens, reviews, nodes, impersonation. Each has one implementation elsewhere.

use api::Status;
use async_trait::async_trait;
use http::{HeaderMap, Request, Response};
use serde_json::Value;

use crate::request::body::Body;
use crate::request::user::User;

/// Issues tokens of service accounts (`serviceaccounts/token`).
#[async_trait]
pub trait TokenIssuer: Send + Sync {
    /// Answers a `TokenRequest` for an existing service account: the same object with `status` set.
    ///
    /// # Errors
    /// The refusal.
    async fn issue(
        &self,
        user: &User,
        service_account: &Value,
        request: Value,
    ) -> Result<Value, Status>;

    /// The documents at `/.well-known/openid-configuration` and `/openid/v1/jwks`, where the issuer is described.
    fn discovery(&self) -> Option<(Value, Value)> {
        None
    }
}

/// Answers the kinds that are only created: reviews of tokens, access, oneself.
#[async_trait]
pub trait ReviewHandler: Send + Sync {
    /// The review with its `status` set; `kind` is such as `SubjectAccessReview`.
    ///
    /// # Errors
    /// The refusal.
    async fn review(
        &self,
        kind: &str,
        user: &User,
        namespace: &str,
        review: Value,
    ) -> Result<Value, Status>;
}

/// Replaces the user of a request with `Impersonate-*` headers, after asking whether that is allowed.
#[async_trait]
pub trait Impersonation: Send + Sync {
    /// The user to act as.
    ///
    /// # Errors
    /// 403 or 400.
    async fn apply(&self, user: User, headers: &HeaderMap) -> Result<User, Status>;
}

/// A connection through the server to a node, a pod or a service.
#[derive(Debug)]
pub struct ConnectRequest {
    /// Who asks.
    pub user: User,
    /// Resource: `pods`, `services` or `nodes`.
    pub resource: String,
    /// `log`, `exec`, `attach`, `portforward` or `proxy`.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name, with scheme and port for services (`https:name:port`).
    pub name: String,
    /// Parts of the path behind `proxy`, joined, with a leading slash; empty when the URL ends with `proxy`.
    pub path: String,
    /// The object named, when there is one under that name.
    pub object: Option<Value>,
    /// The node on which a pod runs, or that is named.
    pub node: Option<Value>,
    /// The request itself, with the upgrade in its extensions.
    pub request: Request<Body>,
}

/// Reaches nodes, pods and services.
#[async_trait]
pub trait Connect: Send + Sync {
    /// Carries the request over.
    ///
    /// # Errors
    /// The refusal, as long as nothing was sent.
    async fn connect(&self, request: ConnectRequest) -> Result<Response<Body>, Status>;
}

/// Answers paths on the same listener that are not Kubernetes' own, such as those by which machines join.
#[async_trait]
pub trait Aside: Send + Sync {
    /// Whether a path is one of its.
    fn takes(&self, path: &str) -> bool;

    /// Answers. `from` is the other end of the connection; `user` is who the client's certificate or bearer token proves,
    /// nobody when there is none or it is wrong. Upgrades are in the request's extensions.
    async fn answer(
        &self,
        from: std::net::SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body>;
}
