//! Calls between servers over real connections, and calls with foreign certificates.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Tasks;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Profile, Usage, tls};
use bytes::Bytes;
use tokio::net::TcpListener;

use super::{CallError, PEER_NAME, PeerClient, PeerHandler, PeerService, serve};

const MESSAGE_MAX: usize = 1000;

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
        [b"heard ", message].concat()
    }

    async fn answer_control(&self, message: &[u8]) -> Vec<u8> {
        [b"control ", message].concat()
    }
}

fn ca() -> Ca {
    let dir = tempfile::tempdir().unwrap();
    Ca::load_or_create(&dir.path().join("ca.crt"), &dir.path().join("ca.key"), "peers").unwrap()
}

fn cert(ca: &Ca) -> Arc<LiveCert> {
    let profile =
        Profile { usage: Usage::Peer, ..Profile::server("etcd-peer", &[PEER_NAME.into()], &[]) };
    LiveCert::new(&ca.issue(&profile).unwrap()).unwrap()
}

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

fn calls(ca: &Ca, own: &Ca, tasks: &Tasks) -> PeerClient {
    let tls = tls::client(&[ca.der().clone()], Some(cert(own)), &["h2"]).unwrap();
    PeerClient::new(tls, MESSAGE_MAX, tasks.clone())
}

#[tokio::test]
async fn calls_share_a_connection_and_reconnect_after_it_was_lost() {
    let (ca, tasks, first) = (ca(), Tasks::default(), Tasks::default());
    let address = listen(&ca, &first).await;
    let calls = calls(&ca, &ca, &tasks);
    let say = |text: &'static str| calls.call(&address, 0, Bytes::from_static(text.as_bytes()));
    assert_eq!(say("a").await.unwrap(), "heard a");
    let all = futures::future::join_all(["b", "c", "d"].map(say)).await;
    assert_eq!(
        all.into_iter().map(|a| a.unwrap()).collect::<Vec<_>>(),
        ["heard b", "heard c", "heard d"]
    );
    assert_eq!(calls.call_control(&address, Bytes::from_static(b"x")).await.unwrap(), "control x");
    // A dropped call does not delay others.
    let waiting = tokio::time::timeout(Duration::from_millis(50), say("wait"));
    waiting.await.unwrap_err();
    assert_eq!(say("e").await.unwrap(), "heard e");
    first.shutdown().request();
    first.drain(Duration::from_secs(5)).await;
    assert!(matches!(say("f").await, Err(CallError::NotSent(_) | CallError::Unanswered(_))));
    let listener = TcpListener::bind(&address).await.unwrap();
    let tls = tls::demanding_server(cert(&ca), &[ca.der().clone()], &["h2"]).unwrap();
    let serving = serve(listener, Arc::new(tls), MESSAGE_MAX, Arc::new(Echo), tasks.clone());
    let calling = async {
        while calls.call(&address, 0, Bytes::from_static(b"g")).await.is_err() {
            tokio::task::yield_now().await;
        }
        tasks.shutdown().request();
    };
    tokio::join!(serving, calling);
}

#[tokio::test]
async fn peers_without_a_certificate_of_the_cluster_are_refused_in_both_directions() {
    let (ours, theirs, tasks) = (ca(), ca(), Tasks::default());
    let address = listen(&ours, &tasks).await;
    let message = Bytes::from_static(b"secret");
    // A client certificate of a foreign CA; a server certificate of a foreign CA.
    for calls in [calls(&ours, &theirs, &tasks), calls(&theirs, &ours, &tasks)] {
        let error = calls.call(&address, 0, message.clone()).await.unwrap_err();
        assert!(matches!(&error, CallError::NotSent(_) | CallError::Unanswered(_)), "{error}");
    }
    let error = calls(&ours, &ours, &tasks).call("nowhere", 0, message).await.unwrap_err();
    let text = "\"nowhere\" is no address of a server such as 192.0.2.10:2380";
    assert_eq!(error, CallError::NotSent(text.into()));
}

#[tokio::test]
async fn messages_and_responses_above_the_size_limit_are_refused() {
    let (ca, tasks) = (ca(), Tasks::default());
    let address = listen(&ca, &tasks).await;
    let long = Bytes::from(vec![b'x'; MESSAGE_MAX + 1]);
    let calls = calls(&ca, &ca, &tasks);
    assert!(matches!(calls.call(&address, 0, long).await, Err(CallError::Unanswered(_))));
    // The response exceeds the limit.
    let long = Bytes::from(vec![b'x'; MESSAGE_MAX]);
    assert!(matches!(calls.call(&address, 0, long).await, Err(CallError::Unanswered(_))));
    tasks.shutdown().request();
}
