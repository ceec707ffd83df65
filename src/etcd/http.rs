//! What etcd answers over plain HTTP on the port of its gRPC: health, version, metrics; and what is counted of gRPC.

use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, Uri, header};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::health::{Check, Kind};
use crate::metrics::Call;
use crate::unary::{self, Hot};
use crate::{ETCD_VERSION, Etcd, STORAGE_VERSION};

const TEXT: &str = "text/plain; charset=utf-8";

/// Puts HTTP before gRPC.
#[derive(Debug, Clone)]
pub(crate) struct Front(pub(crate) Arc<Etcd>);

impl<S> Layer<S> for Front {
    type Service = Fronted<S>;

    fn layer(&self, inner: S) -> Fronted<S> {
        Fronted { inner, etcd: Arc::clone(&self.0) }
    }
}

/// gRPC behind HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Fronted<S> {
    inner: S,
    etcd: Arc<Etcd>,
}

impl<S> Service<Request<Body>> for Fronted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let kind = request.headers().get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            let call = Call::begin(&self.etcd.counters, request.uri().path());
            if let Some(hot) = Hot::of(&request) {
                let etcd = Arc::clone(&self.etcd);
                return Box::pin(unary::answer(etcd, hot, request.into_body(), call).map(Ok));
            }
            let answer = self.inner.call(call.receive(request));
            return Box::pin(async move { answer.await.map(|answer| call.send(answer)) });
        }
        let (etcd, (parts, _)) = (Arc::clone(&self.etcd), request.into_parts());
        Box::pin(async move { Ok(etcd.http(&parts.method, &parts.uri).await) })
    }
}

/// Values of a parameter of the query; names and values that are looked for need no escapes.
fn parameters<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

fn answer(code: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(http_body_util::Full::<bytes::Bytes>::from(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// Go's `http.Error`.
fn failure(code: StatusCode, text: &str) -> Response<Body> {
    let mut response = answer(code, TEXT, format!("{text}\n"));
    let nosniff = header::HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

fn not_allowed() -> Response<Body> {
    let mut response = failure(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET"));
    response
}

impl Etcd {
    async fn http(&self, method: &Method, uri: &Uri) -> Response<Body> {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let get = *method == Method::GET;
        match path {
            "/health" if get => self.answer_health(query).await,
            "/version" if get => answer(
                StatusCode::OK,
                "application/json",
                format!(
                    r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{STORAGE_VERSION}","storage":"{STORAGE_VERSION}"}}"#
                ),
            ),
            "/metrics" => {
                let text = self.metrics();
                answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/health" | "/version" => not_allowed(),
            path => match checks(path) {
                Some(_) if !get => not_allowed(),
                Some((kind, checks)) => {
                    // Who names one check wants it done.
                    let one = path.trim_start_matches('/').contains('/');
                    let excluded =
                        parameters(query, "exclude").filter(|_| !one).collect::<Vec<_>>();
                    let verbose = parameters(query, "verbose").next().is_some();
                    self.answer_checks(kind, checks, &excluded, verbose).await
                }
                None => failure(StatusCode::NOT_FOUND, "404 page not found"),
            },
        }
    }

    async fn answer_health(&self, query: &str) -> Response<Body> {
        let excluded: Vec<String> = parameters(query, "exclude").map(str::to_owned).collect();
        let local = parameters(query, "serializable").next() == Some("true");
        let health = self.health(&excluded, local).await;
        self.counters.health(health.is_ok());
        let (healthy, reason) = (health.is_ok(), health.err().unwrap_or_default());
        // Reasons have no characters that JSON would escape.
        let body = format!(r#"{{"health":"{healthy}","reason":"{reason}"}}"#);
        if healthy {
            answer(StatusCode::OK, TEXT, body)
        } else {
            failure(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
    }

    async fn answer_checks(
        &self,
        kind: Kind,
        checks: &[Check],
        excluded: &[&str],
        verbose: bool,
    ) -> Response<Body> {
        let (mut told, mut failed) = (String::new(), false);
        for check in checks.iter().filter(|check| !excluded.contains(&check.name())) {
            let result = self.check(*check).await;
            self.counters.checked(kind, *check, result.is_ok());
            failed |= result.is_err();
            // Writing to a string does not fail.
            let _ = match result {
                Ok(()) => writeln!(told, "[+]{} ok", check.name()),
                Err(error) => writeln!(told, "[-]{} failed: {error}", check.name()),
            };
        }
        if failed {
            return failure(StatusCode::SERVICE_UNAVAILABLE, &told);
        }
        if !verbose {
            told.clear();
        }
        let mut response = answer(StatusCode::OK, TEXT, told + "ok\n");
        let nosniff = header::HeaderValue::from_static("nosniff");
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
        response
    }
}

/// The checks behind a path: all of a kind, or one of them.
fn checks(path: &str) -> Option<(Kind, &'static [Check])> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let kind = match parts.next()? {
        "livez" => Kind::Livez,
        "readyz" => Kind::Readyz,
        _ => return None,
    };
    let all = kind.checks();
    let checks = match parts.next() {
        None => all,
        Some(name) => {
            let at = all.iter().position(|check| check.name() == name)?;
            all.get(at..=at)?
        }
    };
    parts.next().is_none().then_some((kind, checks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_all_checks_or_to_one() {
        assert_eq!(checks("/livez"), Some((Kind::Livez, &[Check::SerializableRead][..])));
        assert_eq!(checks("/readyz").map(|(_, checks)| checks.len()), Some(4));
        assert_eq!(checks("/readyz/non_learner"), Some((Kind::Readyz, &[Check::NonLearner][..])));
        for path in ["/livez/non_learner", "/readyz/", "/readyz/non_learner/x", "/", "/healthz"] {
            assert_eq!(checks(path), None, "{path}");
        }
    }
}
