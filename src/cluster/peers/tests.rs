//! Servers that call each other over real connections, and strangers who try to.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Tasks;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Profile, Usage, tls};
use bytes::Bytes;
use tokio::net::TcpListener;

use super::{Answer, Answers, CallError, Calls, PEER_NAME, serve};

const MESSAGE_MAX: usize = 1000;

struct Echo;

impl Answers for Echo {
    fn connected(&self) -> Arc<dyn Answer> {
        Arc::new(Self)
    }
}

#[async_trait]
impl Answer for Echo {
    async fn answer(&self, message: &[u8]) -> Vec<u8> {
        if message == b"wait" {
            std::future::pending::<()>().await;
        }
        [b"heard ", message].concat()
    }

    async fn told(&self, message: &[u8]) -> Vec<u8> {
        [b"told ", message].concat()
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

fn calls(ca: &Ca, own: &Ca, tasks: &Tasks) -> Calls {
    let tls = tls::client(&[ca.der().clone()], Some(cert(own)), &["h2"]).unwrap();
    Calls::new(tls, MESSAGE_MAX, tasks.clone())
}

#[tokio::test]
async fn peers_answer_each_other_over_one_connection_and_again_after_it_was_lost() {
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
    assert_eq!(calls.tell(&address, Bytes::from_static(b"x")).await.unwrap(), "told x");
    // A call that nobody waits for holds up no other.
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
async fn who_has_no_certificate_of_the_cluster_is_neither_heard_nor_told() {
    let (ours, theirs, tasks) = (ca(), ca(), Tasks::default());
    let address = listen(&ours, &tasks).await;
    let message = Bytes::from_static(b"secret");
    // A stranger's certificate; a stranger that is called.
    for calls in [calls(&ours, &theirs, &tasks), calls(&theirs, &ours, &tasks)] {
        let error = calls.call(&address, 0, message.clone()).await.unwrap_err();
        assert!(matches!(&error, CallError::NotSent(_) | CallError::Unanswered(_)), "{error}");
    }
    let error = calls(&ours, &ours, &tasks).call("nowhere", 0, message).await.unwrap_err();
    let text = "\"nowhere\" is no address of a server such as 192.0.2.10:2380";
    assert_eq!(error, CallError::NotSent(text.into()));
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused() {
    let (ca, tasks) = (ca(), Tasks::default());
    let address = listen(&ca, &tasks).await;
    let long = Bytes::from(vec![b'x'; MESSAGE_MAX + 1]);
    let calls = calls(&ca, &ca, &tasks);
    assert!(matches!(calls.call(&address, 0, long).await, Err(CallError::Unanswered(_))));
    // So is an answer.
    let long = Bytes::from(vec![b'x'; MESSAGE_MAX]);
    assert!(matches!(calls.call(&address, 0, long).await, Err(CallError::Unanswered(_))));
    tasks.shutdown().request();
}
