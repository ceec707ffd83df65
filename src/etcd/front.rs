//! Routes requests: plain HTTP for health, version and metrics, gRPC for everything else.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::Either;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use crate::checks::{Check, Kind};
use crate::counters::Call;
use crate::kv_fast_path;
use crate::kv_fast_path::{FastMethod, UnaryBody};
use crate::service::{ETCD_VERSION, Etcd, STORAGE_VERSION};

const TEXT: &str = "text/plain; charset=utf-8";

/// Routes HTTP and gRPC requests.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    etcd: Arc<Etcd>,
    routes: Routes,
}

impl Front {
    /// `routes` contains all services of `etcd`.
    pub(crate) fn new(etcd: Arc<Etcd>, routes: Routes) -> Self {
        Self { etcd, routes }
    }

    /// Routes frequent methods to the fast path, and all others to the services.
    pub(crate) fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<UnaryBody>, Infallible>> + Send + use<> {
        let etcd = Arc::clone(&self.etcd);
        let kind = request.headers().get(header::CONTENT_TYPE);
        if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            let (parts, _) = request.into_parts();
            let answer =
                async move { etcd.http(&parts.method, &parts.uri).await.map(UnaryBody::Any) };
            return Either::Right(answer.map(Ok).boxed());
        }
        let call = Call::begin(&etcd.counters, request.uri().path());
        let limit = limit(request.headers());
        if let Some(method) = FastMethod::of(&request) {
            let answer = kv_fast_path::answer(etcd, method, request.into_body(), call);
            return match limit {
                None => Either::Left(answer.map(Ok)),
                Some(limit) => Either::Right(within(limit, answer).map(Ok).boxed()),
            };
        }
        let answer = self.routes.clone().call(call.receive(request));
        let answer = async move {
            let Ok(answer) = answer.await;
            call.send(answer).map(UnaryBody::Any)
        };
        Either::Right(match limit {
            None => answer.map(Ok).boxed(),
            Some(limit) => within(limit, answer).map(Ok).boxed(),
        })
    }
}

/// Bounds the time until the response starts.
async fn within(
    limit: Duration,
    answer: impl Future<Output = Response<UnaryBody>>,
) -> Response<UnaryBody> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Status::cancelled("Timeout expired").into_http(),
    }
}

/// The client's timeout in gRPC's format: up to eight digits and a unit. Other values are ignored.
fn limit(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Values of a query parameter; the names and values in use need no unescaping.
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
    /// Answers a request that is not gRPC.
    pub(crate) async fn http(&self, method: &Method, uri: &Uri) -> Response<Body> {
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
                    // A check named by the path runs even if excluded.
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
        let healthy = health.is_ok();
        let reason = health.err().map(|error| error.to_string()).unwrap_or_default();
        // Reasons contain no characters that JSON escapes.
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
        let (mut page, mut failed) = (String::new(), false);
        for check in checks.iter().filter(|check| !excluded.contains(&check.name())) {
            let result = self.check(*check).await;
            self.counters.checked(kind, *check, result.is_ok());
            failed |= result.is_err();
            // Writing to a string does not fail.
            let _ = match result {
                Ok(()) => writeln!(page, "[+]{} ok", check.name()),
                Err(error) => writeln!(page, "[-]{} failed: {error}", check.name()),
            };
        }
        if failed {
            return failure(StatusCode::SERVICE_UNAVAILABLE, &page);
        }
        if !verbose {
            page.clear();
        }
        let mut response = answer(StatusCode::OK, TEXT, page + "ok\n");
        let nosniff = header::HeaderValue::from_static("nosniff");
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
        response
    }
}

/// The checks of a path: all of a set, or a single one.
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
    fn a_client_says_how_long_it_waits_as_grpc_has_it() {
        let parsed = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            limit(&headers)
        };
        assert_eq!(limit(&HeaderMap::new()), None);
        assert_eq!(parsed("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parsed("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parsed("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parsed("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parsed("7u"), Some(Duration::from_micros(7)));
        assert_eq!(parsed("0n"), Some(Duration::ZERO));
        for none in ["", "S", "5", "100000000S", "+5S", "-1S", "5 S", "5s", "1.5S"] {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }

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
