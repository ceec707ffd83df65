//! The supervisor API: the fixed paths on the API port that are not part of Kubernetes, for
//! joins of machines and tunnels of agents.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::Status;
use apiserver::User;
use apiserver::interfaces::ExtraRoutes;
use apiserver::request::body::Body;
use async_trait::async_trait;
use axum::Router;
use axum::extract::{Extension, Request as RouterRequest, State};
use axum::response::{IntoResponse, Response as RouterResponse};
use axum::routing::{get, post};
use cluster::join::servers::{MEMBER_PATH, SHARED_PATH};
use cluster::join::{CA_PATH, JOIN_PATH};
use cluster::tunnel;
use cluster::tunnel::Tunnels;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use serde::Serialize;
use tower::ServiceExt as _;

use crate::server::node_joins::JoinService;
use crate::server::static_files::{self, StaticFiles};
use crate::server::virtual_addresses::AddressLeases;

/// Path of the liveness check that k3s serves next to the CA.
const PING_PATH: &str = "/ping";
/// Path of leases of virtual addresses.
pub(crate) const ADDRESS_LEASES_PATH: &str = "/v1-kube-lite/addresses";
/// Maximum size of a request for leases in bytes: every address of the largest pool.
const LEASES_BYTES_MAX: usize = 4 << 20;
/// All paths but those of static files; requests for others are requests for the Kubernetes API.
const PATHS: [&str; 7] =
    [CA_PATH, PING_PATH, JOIN_PATH, SHARED_PATH, MEMBER_PATH, ADDRESS_LEASES_PATH, tunnel::PATH];

/// The sender of a request.
#[derive(Clone)]
pub(crate) struct Sender {
    /// Its address.
    pub(crate) from: IpAddr,
    /// The user of its client certificate or bearer token, if that is valid.
    pub(crate) user: Option<User>,
}

type Joins = State<Arc<JoinService>>;

/// Routes requests of machines.
pub(crate) struct SupervisorApi {
    router: Router,
}

impl SupervisorApi {
    /// Creates the routes.
    pub(crate) fn new(
        joins: Arc<JoinService>,
        tunnels: Tunnels,
        static_files: Arc<StaticFiles>,
        leases: Arc<AddressLeases>,
    ) -> Self {
        let accept = move |Extension(sender): Extension<Sender>, mut request: RouterRequest| {
            let user = sender.user.as_ref().map(|user| (user.name.as_str(), &*user.groups));
            std::future::ready(tunnels.accept(user, &mut request).map(axum::body::Body::from))
        };
        let router = Router::new()
            .route(CA_PATH, get(ca))
            .route(PING_PATH, get("pong"))
            .route(JOIN_PATH, post(join))
            .route(SHARED_PATH, post(shared_files))
            .route(MEMBER_PATH, post(add_member))
            .route(static_files::ROUTE, get(static_files::serve).with_state(static_files))
            .route(ADDRESS_LEASES_PATH, post(address_leases).with_state(leases))
            .method_not_allowed_fallback(method_not_allowed)
            .route(tunnel::PATH, axum::routing::any(accept))
            .with_state(joins);
        Self { router }
    }
}

async fn ca(State(joins): Joins) -> String {
    joins.ca()
}

async fn join(
    State(joins): Joins,
    Extension(sender): Extension<Sender>,
    request: RouterRequest,
) -> Result<RouterResponse, StatusResponse> {
    json(&joins.join_node(sender, request).await?)
}

async fn shared_files(
    State(joins): Joins,
    Extension(sender): Extension<Sender>,
    request: RouterRequest,
) -> Result<RouterResponse, StatusResponse> {
    json(&joins.shared_files(sender, request).await?)
}

async fn add_member(
    State(joins): Joins,
    Extension(sender): Extension<Sender>,
    request: RouterRequest,
) -> Result<RouterResponse, StatusResponse> {
    json(&joins.add_member(sender, request).await?)
}

async fn address_leases(
    State(leases): State<Arc<AddressLeases>>,
    Extension(sender): Extension<Sender>,
    request: RouterRequest,
) -> Result<RouterResponse, StatusResponse> {
    let node = sender.user.as_ref().and_then(|user| tunnel::node_of(&user.name, &user.groups));
    let Some(node) = node else {
        let text = "leases of addresses require the client certificate of a node";
        return Err(Status::failure(403, "Forbidden", text).into());
    };
    if !leases.has_pool() {
        let text = "this server has no virtual addresses; see --lb-pool";
        return Err(Status::failure(404, "NotFound", text).into());
    }
    let body = axum::body::to_bytes(request.into_body(), LEASES_BYTES_MAX).await;
    let body = body.map_err(|e| Status::failure(400, "BadRequest", e.to_string()))?;
    let request = serde_json::from_slice(&body)
        .map_err(|e| Status::failure(400, "BadRequest", format!("not a lease request: {e}")))?;
    json(&leases.answer_node(node, request).await)
}

async fn method_not_allowed(uri: Uri) -> StatusResponse {
    let path = uri.path();
    let is_read = matches!(path, CA_PATH | PING_PATH) || path.starts_with(static_files::PREFIX);
    let allowed = if is_read { Method::GET } else { Method::POST };
    Status::failure(405, "MethodNotAllowed", format!("{path} takes {allowed}")).into()
}

fn json(answer: &impl Serialize) -> Result<RouterResponse, StatusResponse> {
    let body = serde_json::to_vec(answer).map_err(|e| Status::internal(&e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A request that is rejected; the body is the Status.
struct StatusResponse(Status);

impl From<Status> for StatusResponse {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl IntoResponse for StatusResponse {
    fn into_response(self) -> RouterResponse {
        let code = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

#[async_trait]
impl ExtraRoutes for SupervisorApi {
    fn matches(&self, path: &str) -> bool {
        PATHS.contains(&path) || path.starts_with(static_files::PREFIX)
    }

    async fn handle(
        &self,
        from: SocketAddr,
        user: Option<User>,
        mut request: Request<Body>,
    ) -> Response<Body> {
        request.extensions_mut().insert(Sender { from: from.ip().to_canonical(), user });
        let Ok(response) = self.router.clone().oneshot(request.map(axum::body::Body::new)).await;
        response.map(|body| body.map_err(Into::into).boxed_unsync())
    }
}
