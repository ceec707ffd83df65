//! Copies of requests for other backends.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Kind, Tasks};
use http::{Request, request};
use http_body_util::BodyExt as _;
use tokio::sync::Semaphore;

use super::body::RequestBody;
use super::exchange::{as_http2, send};
use crate::backend::{Backend, Protocol};
use crate::routes::{Mirror, Timeouts};

/// Copies that are sent at once; more are left out.
const COPIES_MAX: usize = 512;
static COPIES: Semaphore = Semaphore::const_new(COPIES_MAX);

/// Whether the next request belongs to a share of all requests. Multiples of the golden ratio
/// modulo 1 are spread evenly at each length.
fn is_due(share: (u32, u32)) -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if share.0 >= share.1 {
        return true;
    }
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    let fraction = u128::from(turn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (fraction * u128::from(share.1)) >> 64 < u128::from(share.0)
}

/// Sends copies of a request in tasks of their own; `parts` have the form of HTTP/1.1.
pub(super) fn start(
    tasks: &Tasks,
    mirrors: &[Mirror],
    parts: &request::Parts,
    body: &mut RequestBody,
) {
    for mirror in mirrors {
        let Some(backend) = mirror.backend.as_ref().filter(|_| is_due(mirror.share)) else {
            continue;
        };
        let Ok(place) = COPIES.try_acquire() else { continue };
        let mut copy = Request::new(body.mirrored());
        copy.method_mut().clone_from(&parts.method);
        copy.uri_mut().clone_from(&parts.uri);
        copy.headers_mut().clone_from(&parts.headers);
        let (backend, own) = (Arc::clone(backend), tasks.clone());
        tasks.spawn(Kind::Request, "ingress-mirror", async move {
            deliver(&own, &backend, copy).await;
            drop(place);
            Ok::<(), Infallible>(())
        });
    }
}

async fn deliver(tasks: &Tasks, backend: &Arc<Backend>, request: Request<RequestBody>) {
    let (mut parts, body) = request.into_parts();
    if backend.protocol == Protocol::Http2 && as_http2(&mut parts).is_err() {
        return;
    }
    let request = Request::from_parts(parts, body);
    match send(tasks, Timeouts::default(), backend, Box::new(request)).await {
        Ok(response) => {
            let mut body = response.into_body();
            // The connection can be used again once the response has ended.
            while let Some(Ok(_)) = body.frame().await {}
        }
        Err(error) => tracing::debug!(backend = %backend.name, %error, "ingress: mirror failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_at_each_length() {
        let count = |share| (0..500).filter(|_| is_due(share)).count();
        assert_eq!(count((100, 100)), 500);
        assert!((95..=105).contains(&count((20, 100))));
        assert_eq!(count((0, 100)), 0);
    }
}
