//! The paths beside the API on its port, each part answering its own.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver::User;
use apiserver::interfaces::ExtraRoutes;
use apiserver::request::body;
use apiserver::request::body::Body;
use async_trait::async_trait;
use http::{Request, Response, StatusCode};

/// The parts, asked in this order.
pub(crate) struct Parts(pub(crate) Vec<Arc<dyn ExtraRoutes>>);

#[async_trait]
impl ExtraRoutes for Parts {
    fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|part| part.matches(path))
    }

    async fn handle(
        &self,
        from: SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body> {
        match self.0.iter().find(|part| part.matches(request.uri().path())) {
            Some(part) => part.handle(from, user, request).await,
            None => {
                let mut response = Response::new(body::empty());
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }
}
