//! Tests calls between servers over TCP and TLS, and the refusal of certificates of another CA.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Tasks;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Profile, Usage, tls};
use bytes::Bytes;
use tokio::net::TcpListener;

use super::{CallError, PEER_NAME, PeerClient, PeerHandler, PeerService, serve};

/// Maximum size of a message in bytes.
const MESSAGE_MAX: usize = 1000;

/// Returns each message with a prefix; never answers `wait`.
struct Echo;

impl PeerService for Echo {
    fn handler(&self) -> Arc<dyn PeerHandler> {
        Arc::new(Self)
    }
}

#[async_trait]
impl PeerHandler for Echo {
    async fn answer(&self, message: &[u8]) -> Vec<u8> {
        if message == b"wait" {
            std::future::pending::<()>().await;
        }
        [b"echo ", message].concat()
    }

    async fn answer_control(&self, message: &[u8]) -> Vec<u8> {
        [b"control ", message].concat()
    }
}

/// Creates a CA.
fn ca() -> Ca {
    let dir = tempfile::tempdir().unwrap();
    Ca::load_or_create(&dir.path().join("ca.crt"), &dir.path().join("ca.key"), "peers").unwrap()
}

/// Issues a certificate that is valid for servers and clients between servers.
fn cert(ca: &Ca) -> Arc<LiveCert> {
    let profile =
        Profile { usage: Usage::Peer, ..Profile::server("etcd-peer", &[PEER_NAME.into()], &[]) };
    LiveCert::new(&ca.issue(&profile).unwrap()).unwrap()
}

/// Starts a server and returns its address.
async fn listen(ca: &Ca, tasks: &Tasks) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tls = tls::demanding_server(cert(ca), &[ca.der().clone()], &["h2"]).unwrap();
    let serving = serve(listener, Arc::new(tls), MESSAGE_MAX, Arc::new(Echo), tasks.clone());
    tasks.spawn(base::Kind::Request, "test", async move {
        serving.await;
        Ok::<(), String>(())
    });
    address
}

/// A client that trusts servers of `trusted` and has a certificate of `own`.
fn client(trusted: &Ca, own: &Ca, tasks: &Tasks) -> PeerClient {
    let tls = tls::client(&[trusted.der().clone()], Some(cert(own)), &["h2"]).unwrap();
    PeerClient::new(tls, MESSAGE_MAX, tasks.clone())
}

#[tokio::test]
async fn calls_share_a_connection_and_reconnect_after_it_was_lost() {
    let (ca, tasks, server_tasks) = (ca(), Tasks::default(), Tasks::default());
    let address = listen(&ca, &server_tasks).await;
    let client = client(&ca, &ca, &tasks);
    let call = |text: &'static str| client.call(&address, 0, Bytes::from_static(text.as_bytes()));
    assert_eq!(call("a").await.unwrap(), "echo a");
    let all = futures::future::join_all(["b", "c", "d"].map(call)).await;
    assert_eq!(
        all.into_iter().map(|a| a.unwrap()).collect::<Vec<_>>(),
        ["echo b", "echo c", "echo d"]
    );
    assert_eq!(client.call_control(&address, Bytes::from_static(b"x")).await.unwrap(), "control x");
    // A dropped call does not delay others.
    let waiting = tokio::time::timeout(Duration::from_millis(50), call("wait"));
    waiting.await.unwrap_err();
    assert_eq!(call("e").await.unwrap(), "echo e");
    server_tasks.shutdown().request();
    server_tasks.drain(Duration::from_secs(5)).await;
    assert!(matches!(call("f").await, Err(CallError::NotSent(_) | CallError::Unanswered(_))));
    // The client reconnects once a server listens at the address again.
    let listener = TcpListener::bind(&address).await.unwrap();
    let tls = tls::demanding_server(cert(&ca), &[ca.der().clone()], &["h2"]).unwrap();
    let serving = serve(listener, Arc::new(tls), MESSAGE_MAX, Arc::new(Echo), tasks.clone());
    let calls = async {
        while client.call(&address, 0, Bytes::from_static(b"g")).await.is_err() {
            tokio::task::yield_now().await;
        }
        tasks.shutdown().request();
    };
    tokio::join!(serving, calls);
}

#[tokio::test]
async fn peers_without_a_certificate_of_the_cluster_are_refused_in_both_directions() {
    let (ours, theirs, tasks) = (ca(), ca(), Tasks::default());
    let address = listen(&ours, &tasks).await;
    let message = Bytes::from_static(b"secret");
    // The server refuses a client certificate of another CA; the client refuses a server
    // certificate of another CA.
    for client in [client(&ours, &theirs, &tasks), client(&theirs, &ours, &tasks)] {
        let error = client.call(&address, 0, message.clone()).await.unwrap_err();
        assert!(matches!(&error, CallError::NotSent(_) | CallError::Unanswered(_)), "{error}");
    }
    let error = client(&ours, &ours, &tasks).call("nowhere", 0, message).await.unwrap_err();
    let text = "\"nowhere\" is no address of a server such as 192.0.2.10:2380";
    assert_eq!(error, CallError::NotSent(text.into()));
}

#[tokio::test]
async fn messages_and_responses_above_the_size_limit_are_refused() {
    let (ca, tasks) = (ca(), Tasks::default());
    let address = listen(&ca, &tasks).await;
    let too_long = Bytes::from(vec![b'x'; MESSAGE_MAX + 1]);
    let client = client(&ca, &ca, &tasks);
    assert!(matches!(client.call(&address, 0, too_long).await, Err(CallError::Unanswered(_))));
    // The message is within the limit; the response with its prefix exceeds it.
    let longest = Bytes::from(vec![b'x'; MESSAGE_MAX]);
    assert!(matches!(client.call(&address, 0, longest).await, Err(CallError::Unanswered(_))));
    tasks.shutdown().request();
}
