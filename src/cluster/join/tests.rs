//! A machine and the signing side of a server, over pipes.

use super::files::Joined;
use super::*;
use crate::certs::{self, Names};
use async_trait::async_trait;
use base::io::BoxIo;
use parking_lot::Mutex;
use std::io::Error as IoError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn settings() -> ClusterSettings {
    ClusterSettings {
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.43.0.0/16".parse().unwrap()],
        cluster_dns: vec!["10.43.0.10".parse().unwrap()],
        servers: vec!["192.0.2.2:6443".into()],
        ..ClusterSettings::default()
    }
}

fn machine() -> Machine {
    Machine {
        name: "edge2".into(),
        password: crate::password::new(),
        addresses: vec!["192.0.2.7".parse().unwrap()],
        additional: AdditionalNames {
            addresses: vec!["203.0.113.7".parse().unwrap()],
            dns: vec!["edge2.example.com".into()],
        },
        version: "v1.37.1".into(),
    }
}

fn server_certs(dir: &tempfile::TempDir) -> ServerCerts {
    let names = Names { cluster_domain: "cluster.local".into(), ..Names::default() };
    certs::ensure(dir.path(), &names).unwrap()
}

#[test]
fn server_addresses_parse_and_display() {
    let shown = |text: &str| text.parse::<ServerAddress>().map(|a| a.to_string());
    assert_eq!(shown("https://edge1"), Ok("https://edge1:6443".into()));
    assert_eq!(shown("https://192.0.2.2:443/"), Ok("https://192.0.2.2:443".into()));
    assert_eq!(shown("https://[2001:db8::2]:6443"), Ok("https://[2001:db8::2]:6443".into()));
    for bad in
        ["", "edge1", "http://edge1", "https://", "https://a/b", "https://u@a", "https://a?x"]
    {
        assert!(shown(bad).is_err(), "{bad}");
    }
}

#[test]
fn joined_machine_is_stored_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let certs = server_certs(&dir);
    let keys = Keys::generate().unwrap();
    let (machine, server) = (machine(), "https://s".parse().unwrap());
    let request = machine.join_request(&keys).unwrap();
    let answer = sign(&certs, &request, settings(), pki::now()).unwrap();
    let agent = dir.path().join("agent");
    assert!(Joined::load(&agent).unwrap().is_none());
    let joined = Joined::new(&machine, &server, &keys, answer.clone()).unwrap();
    joined.store(&agent).unwrap();
    let read = Joined::load(&agent).unwrap().unwrap();
    assert_eq!((read.settings, read.node_name.as_str()), (settings(), "edge2"));
    assert_eq!(
        (read.addresses, read.additional),
        (machine.addresses.clone(), machine.additional.clone())
    );
    assert_eq!(read.kubelet_client.cert_pem, joined.kubelet_client.cert_pem);
    assert!(!joined.is_due(pki::now()));
    let other = Keys::generate().unwrap();
    assert!(Joined::new(&machine, &server, &other, answer).is_err());
    std::fs::write(agent.join("client-kubelet.key"), other.kubelet_client.as_bytes()).unwrap();
    assert!(Joined::load(&agent).is_err());
}

/// A dialer to a server with this CA and certificate that records the requests it receives.
struct FakeServer {
    tls: Arc<rustls::ServerConfig>,
    answer: String,
    heard: Arc<Mutex<Vec<u8>>>,
}

#[async_trait]
impl Dial for FakeServer {
    async fn dial(&self, _: &str, _: u16) -> std::io::Result<BoxIo> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (tls, answer, heard) =
            (Arc::clone(&self.tls), self.answer.clone(), Arc::clone(&self.heard));
        let tasks = base::Tasks::new(base::Shutdown::new());
        tasks.spawn(base::Kind::Request, "fake server", async move {
            let mut stream = tokio_rustls::TlsAcceptor::from(tls).accept(theirs).await?;
            let mut bytes = vec![0; 16 * 1024];
            let n = stream.read(&mut bytes).await?;
            heard.lock().extend_from_slice(&bytes[..n]);
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await?;
            Ok::<(), IoError>(())
        });
        Ok(Box::new(ours))
    }
}

fn fake_server(certs: &ServerCerts, body: &str) -> FakeServer {
    let text = format!(
        "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    FakeServer {
        tls: Arc::new(tls::server(Arc::clone(&certs.serving), &[], &["http/1.1"]).unwrap()),
        answer: text,
        heard: Arc::default(),
    }
}

#[tokio::test]
async fn no_secret_is_sent_to_a_server_whose_certificate_the_ca_did_not_sign() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (real, impostor) = (server_certs(&dir), server_certs(&other));
    let address: ServerAddress = "https://192.0.2.2:6443".parse().unwrap();
    // The server presents the CA in the token, but its certificate is signed by another one.
    let server = fake_server(&impostor, real.server_ca().cert_pem());
    let shown = fetch_ca(&server, &address).await.unwrap();
    assert_eq!((shown.pem.as_str(), shown.date), (real.server_ca().cert_pem(), Some(784_111_777)));
    let authorization: Secret = "Basic aHVzaA==".parse().unwrap();
    let keys = Keys::generate().unwrap();
    let asked = machine().join_request(&keys).unwrap();
    let party = JoinClient {
        dial: &server,
        server: &address,
        server_ca: &shown.pem,
        authorization: Some(&authorization),
        cert: None,
    };
    let refused = super::send_join_request(party, &asked).await.unwrap_err();
    assert!(matches!(&refused, Error::WrongCa { .. }) && !refused.is_transient(), "{refused}");
    let heard = String::from_utf8_lossy(&server.heard.lock()).into_owned();
    assert!(heard.starts_with("GET /cacerts") && !heard.contains("aHVzaA"), "{heard}");
}

#[tokio::test]
async fn responses_are_distinguished_from_refusals() {
    let dir = tempfile::tempdir().unwrap();
    let certs = server_certs(&dir);
    let address: ServerAddress = "https://192.0.2.2:6443".parse().unwrap();
    let keys = Keys::generate().unwrap();
    let asked = machine().join_request(&keys).unwrap();
    let answer = sign(&certs, &asked, settings(), pki::now()).unwrap();
    let ca = certs.server_ca().cert_pem();
    let party = |dial| JoinClient {
        dial,
        server: &address,
        server_ca: ca,
        authorization: None,
        cert: None,
    };
    let good = fake_server(&certs, &serde_json::to_string(&answer).unwrap());
    let result = super::send_join_request(party(&good), &asked).await.unwrap();
    assert_eq!(result.settings, settings());
    let mut no =
        fake_server(&certs, r#"{"kind":"Status","code":403,"reason":"NameTaken","message":"no"}"#);
    no.answer = no.answer.replacen("200 OK", "403 Forbidden", 1);
    let result = super::send_join_request(party(&no), &asked).await.unwrap_err();
    assert!(matches!(result, Error::Refused { reason, message }
            if reason == reason::NAME_TAKEN && message == "no"));
    let mut web = fake_server(&certs, "<html>");
    web.answer = web.answer.replacen("200 OK", "404 Not Found", 1);
    let result = fetch_ca(&web, &address).await.unwrap_err().to_string();
    assert_eq!(
        result,
        "https://192.0.2.2:6443 is no kube-lite server: it answers /cacerts with 404 Not Found"
    );
}
