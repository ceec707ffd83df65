//! The page `/metrics` at the port of the servers (`--supervisor-metrics`): the metrics of the node
//! and of the process, for users that may read `/metrics` of the API server.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response as AxumResponse};
use axum::routing::get;
use axum::{Extension, Router};
use http::{Response, StatusCode};

use super::auth::CertificateUser;
use super::response::{Body, response, text_response};
use super::router::METRICS_TYPE;
use super::state::KubeletApi;
use super::stats;
use crate::config::ProcessFamilies;

#[derive(Clone)]
struct Page {
    api: Arc<KubeletApi>,
    families: Arc<dyn ProcessFamilies>,
}

/// The routes of the listener.
pub(super) fn router(api: Arc<KubeletApi>, families: Arc<dyn ProcessFamilies>) -> Router {
    let page = Page { api, families };
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(async || text_response(StatusCode::NOT_FOUND, "404 page not found\n"))
        .layer(middleware::from_fn_with_state(page.clone(), authorize))
        .with_state(page)
}

async fn authorize(
    State(page): State<Page>,
    Extension(CertificateUser(user)): Extension<CertificateUser>,
    request: Request,
    next: Next,
) -> AxumResponse {
    let user = match page.api.auth.authenticate(user, request.headers()).await {
        Ok(user) => user,
        Err(refusal) => return refusal.into_response(),
    };
    if let Err(refusal) = page.api.auth.authorize_metrics_path(&user).await {
        return refusal.into_response();
    }
    next.run(request).await
}

async fn metrics(State(page): State<Page>) -> Response<Body> {
    let text = stats::agent_metrics(&page.api).await + &page.families.render().await;
    response(StatusCode::OK, METRICS_TYPE, text)
}
