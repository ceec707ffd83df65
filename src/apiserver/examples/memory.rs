//! An API server over an in-memory store with one token and no access control, for manual requests:
//! `memory PORT TOKEN`.
#![expect(clippy::print_stdout, reason = "a tool for the command line")]

use std::sync::Arc;

use apiserver::authn::{Union, static_token::StaticTokens};
use apiserver::authz::{Attributes, Authorizer, Decision};
use apiserver::{Config, Objects, Parts, User};
use base::{Shutdown, Tasks};

struct AllowAll;

#[async_trait::async_trait]
impl Authorizer for AllowAll {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().and_then(|p| p.parse().ok()).unwrap_or(0);
    let token = arguments.next().unwrap_or_else(|| "token".into());
    let tasks = Tasks::new(Shutdown::new());
    let store = store::open_memory_with(&tasks);
    let objects = Objects::new(store, None, api::schema::Schema::builtin(), &tasks);
    let admin =
        User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
    let parts = Parts {
        objects,
        authenticator: Arc::new(Union::new(
            vec![Arc::new(StaticTokens::new([(token, admin.clone())]))],
            true,
        )),
        authorizer: Arc::new(AllowAll),
        admission: Vec::new(),
        token_issuer: None,
        reviews: None,
        connect: None,
        impersonation: None,
    };
    let config = Config { service_cidrs: vec!["10.96.0.0/16".into()], ..Config::default() };
    let server = apiserver::build(config, parts, tasks)?;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let body =
            apiserver::request::body::full(format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}"));
        let request = http::Request::post("/api/v1/namespaces").body(body)?;
        server.call(Some(admin.clone()), request).await;
    }
    let certified =
        rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])?;
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?;
    let mut tls =
        builder.with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("https://{}", listener.local_addr()?);
    server.serve(listener, Arc::new(tls), None, None).await;
    Ok(())
}
