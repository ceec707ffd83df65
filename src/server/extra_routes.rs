//! The paths other than those of the API on the API port: joins and tunnels.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver::User;
use apiserver::interfaces::ExtraRoutes;
use apiserver::request::body;
use apiserver::request::body::Body;
use async_trait::async_trait;
use http::{Request, Response, StatusCode};

/// Routes; the first that matches a path handles the request.
pub(crate) struct RouteList(pub(crate) Vec<Arc<dyn ExtraRoutes>>);

#[async_trait]
impl ExtraRoutes for RouteList {
    fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|route| route.matches(path))
    }

    async fn handle(
        &self,
        from: SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body> {
        match self.0.iter().find(|route| route.matches(request.uri().path())) {
            Some(route) => route.handle(from, user, request).await,
            None => {
                let mut response = Response::new(body::empty());
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }
}
