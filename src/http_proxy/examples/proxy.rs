//! The proxy alone, with one route for every host, to profile and compare it without a server:
//! `proxy HTTP_ADDRESS HTTPS_ADDRESS ENDPOINT...`. Ends with SIGTERM.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base::{Kind, Shutdown, Tasks};
use http_proxy::backend::{Backend, Protocol, Split, WeightedBackend};
use http_proxy::proxy::{CertificateStore, Certificates, Listener, serve};
use http_proxy::routes::hosts::WildcardLabels;
use http_proxy::routes::{Action, Conditions, Forward, Routes, Rule};
use tokio::net::TcpListener;

fn routes(endpoints: &[SocketAddr]) -> Routes {
    let backend = Arc::new(Backend::new("example/endpoints:80", Protocol::Http1));
    backend.set_endpoints(endpoints);
    let backend = Some(backend);
    let split =
        Split::new(vec![WeightedBackend { weight: 1, backend, ..WeightedBackend::default() }]);
    let mut routes = Routes::new(WildcardLabels::One);
    routes.set_default(Arc::new(Rule {
        source: "example/proxy".into(),
        order: (0, "example/proxy".into(), 0),
        conditions: Conditions::default(),
        action: Action::Forward(Box::new(Forward { split, ..Forward::default() })),
    }));
    routes
}

async fn run(addresses: Vec<SocketAddr>) -> Result<(), Box<dyn Error>> {
    let [http, https, endpoints @ ..] = addresses.as_slice() else {
        return Err("usage: proxy HTTP_ADDRESS HTTPS_ADDRESS ENDPOINT...".into());
    };
    let tasks = Tasks::new(Shutdown::new());
    let certificates = CertificateStore::new(Certificates::new(Some(Certificates::self_signed()?)));
    for (address, public_port, tls) in
        [(http, 80, None), (https, 443, Some(certificates.config()?))]
    {
        let listener = Arc::new(Listener {
            public_port,
            routes: ArcSwap::from_pointee(routes(endpoints)),
            tls,
            proxies: Arc::default(),
            tasks: tasks.clone(),
        });
        let socket = TcpListener::bind(address).await?;
        tasks.spawn(Kind::Critical, "listener", async move {
            drop(serve(listener, socket).await);
            Ok::<(), std::convert::Infallible>(())
        });
    }
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    stop.recv().await;
    tasks.shutdown().request();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let addresses = std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(addresses))
}
