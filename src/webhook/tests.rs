//! The client with a real TLS server on the loopback address; expected messages are those of Go's
//! `net/http`, `crypto/tls` and of client-go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::io::Tcp;
use base::pki::{Leaf, Profile};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use lookup::testing::Fixed;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::testing::{Answer, Hook, To, body, ca, hook, hook_with};
use super::*;

const SECONDS: Duration = Duration::from_secs(10);

impl Hook {
    fn client(&self, service: &str, bundle: &str) -> Client {
        let endpoint = Endpoint::Service {
            namespace: "n".into(),
            name: service.into(),
            path: "/check".into(),
            port: 443,
        };
        let config = ClientConfig { endpoint, ca_bundle: bundle.as_bytes().to_vec() };
        let callout = Callout { reach: Arc::new(To(self.address)), tasks: self.tasks.clone() };
        Client::new(config, callout).unwrap()
    }

    async fn call(&self, client: &Client) -> Result<Value, String> {
        client.post(&json!({"asked": 1}), SECONDS).await.map_err(|e| e.to_string())
    }
}

fn echo(target: &str, sent: Value) -> Response<Full<Bytes>> {
    body(200, "application/json", json!({"target": target, "sent": sent}).to_string())
}

#[tokio::test]
async fn a_call_sends_its_timeout_and_reuses_connections() {
    let hook = hook(echo).await;
    let client = hook.client("s", hook.ca.cert_pem());
    for _ in 0..3 {
        assert_eq!(
            hook.call(&client).await,
            Ok(json!({"target": "/check?timeout=10s", "sent": {"asked": 1}}))
        );
    }
    assert_eq!(hook.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn certificates_of_another_ca_or_name_are_rejected() {
    let hook = hook(echo).await;
    let other = tempfile::tempdir().unwrap();
    let stranger = hook.client("s", ca(&other).cert_pem());
    assert_eq!(
        hook.call(&stranger).await.unwrap_err(),
        "Post \"https://s.n.svc:443/check?timeout=10s\": tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    let misnamed = hook.client("other", hook.ca.cert_pem());
    assert_eq!(
        hook.call(&misnamed).await.unwrap_err(),
        "Post \"https://other.n.svc:443/check?timeout=10s\": tls: failed to verify certificate: x509: certificate is valid for s.n.svc, not other.n.svc"
    );
}

#[tokio::test]
async fn a_self_signed_certificate_is_accepted_as_its_own_ca_bundle() {
    // A certificate like those of `openssl req -x509`.
    let mut params = rcgen::CertificateParams::new(vec!["s.n.svc".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pair = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&pair).unwrap();
    let leaf = Leaf { cert_pem: made.pem(), key_pem: pair.serialize_pem().into(), not_after: 0 };
    let dir = tempfile::tempdir().unwrap();
    let ca = ca(&dir);
    let hook = hook_with(dir, ca, &leaf, echo).await;
    assert!(hook.call(&hook.client("s", &made.pem())).await.is_ok());
    let error = hook.call(&hook.client("other", &made.pem())).await.unwrap_err();
    assert!(error.ends_with("x509: certificate is valid for s.n.svc, not other.n.svc"), "{error}");
}

#[tokio::test]
async fn redirects_invalid_error_and_oversized_responses_are_errors() {
    let hook = hook(|_, _| {
        Response::builder()
            .status(302)
            .header("location", "https://127.0.0.1:1/")
            .body(Full::default())
            .unwrap()
    })
    .await;
    assert_eq!(
        hook.call(&hook.client("s", hook.ca.cert_pem())).await.unwrap_err(),
        "the server responded with the status code 302 but did not return more information"
    );
    let cases: [(Answer, &str); 4] = [
        (
            |_, _| body(200, "application/json", ""),
            "0-length response with status code: 200 and content type: application/json",
        ),
        (
            |_, _| body(200, "application/json", "nonsense"),
            "couldn't get version/kind; json parse error: ",
        ),
        (
            |_, _| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "not today", "code": 403});
                body(403, "application/json", status.to_string())
            },
            "not today",
        ),
        (
            |_, _| body(200, "application/json", vec![b' '; (16 << 20) + 1]),
            "unexpected error when reading response body. Please retry. Original error: length limit exceeded",
        ),
    ];
    for (answer, wanted) in cases {
        let hook = super::testing::hook(answer).await;
        let error = hook.call(&hook.client("s", hook.ca.cert_pem())).await.unwrap_err();
        assert!(error.starts_with(wanted), "{error}");
    }
}

#[tokio::test]
async fn a_call_without_response_ends_at_its_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca = ca(&dir);
    let leaf = ca.issue(&Profile::server("hook", &["s.n.svc".to_owned()], &[])).unwrap();
    let mut hook = hook_with(dir, ca, &leaf, echo).await;
    hook.address = listener.local_addr().unwrap();
    let client = hook.client("s", hook.ca.cert_pem());
    let error = client.post(&json!({}), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Post \"https://s.n.svc:443/check?timeout=1s\": context deadline exceeded"
    );
    drop(listener);
    let error = client.post(&json!({}), SECONDS).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "Post \"https://s.n.svc:443/check?timeout=10s\": dial tcp {}: connect: connection refused",
            hook.address
        )
    );
}

fn service(kind: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"},
        "spec": {"type": kind, "ipFamilies": ["IPv4"], "ports": [{"name": "https", "port": 443}]},
    })
}

fn slice(name: &str, family: &str, address: &str, ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": family, "ports": [{"name": "https", "port": 8443}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
    })
}

#[tokio::test]
async fn service_endpoints_are_ready_and_not_of_this_machine() {
    let find = async |service: Option<Value>, slices: &[Value], port| {
        let fixed = Fixed::new(&[]);
        service.into_iter().for_each(|s| {
            fixed.put(&lookup::SERVICES, s);
        });
        for slice in slices {
            fixed.put(&lookup::ENDPOINT_SLICES, slice.clone());
        }
        let found = Services::new(fixed, Arc::new(Tcp)).endpoint("n", "s", port).await;
        found.map(|address| address.to_string()).map_err(|e| e.to_string())
    };
    let error = |text: &str| Err(text.to_owned());
    assert_eq!(find(None, &[], 443).await, error("service \"s\" not found"));
    assert_eq!(
        find(Some(service("ExternalName")), &[], 443).await,
        error("unsupported service type \"ExternalName\"")
    );
    assert_eq!(
        find(Some(service("ClusterIP")), &[], 80).await,
        error("no service port 80 found for service \"s\"")
    );
    assert_eq!(
        find(Some(service("ClusterIP")), &[slice("a", "IPv4", "10.0.0.1", false)], 443).await,
        error("no endpoints available for service \"s\"")
    );
    let both = [slice("a", "IPv6", "fd00::1", true), slice("b", "IPv4", "10.0.0.1", true)];
    assert_eq!(find(Some(service("")), &both, 443).await, Ok("10.0.0.1:8443".to_owned()));
    for own in ["127.0.0.1", "169.254.169.254", "::1", "fe80::1", "::ffff:127.0.0.1"] {
        let found = find(Some(service("")), &[slice("a", "IPv4", own, true)], 443).await;
        assert!(found.is_err_and(|e| e.contains("is not allowed")), "{own}");
    }
}

#[tokio::test]
async fn urls_can_name_loopback_but_not_link_local_addresses() {
    let services = Services::new(Fixed::new(&[]), Arc::new(Tcp));
    let resolve = async |host| {
        let resolved = services.resolve(host, 443).await;
        resolved.map(|all| all[0].to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(resolve("127.0.0.1").await, Ok("127.0.0.1:443".to_owned()));
    for host in ["169.254.169.254", "0.0.0.0", "::ffff:169.254.169.254", "fe80::1", "224.0.0.1"] {
        let error = resolve(host).await.unwrap_err();
        assert!(error.ends_with("address not allowed"), "{error}");
    }
    assert_eq!(
        resolve("nowhere.invalid").await,
        Err("dial tcp: lookup nowhere.invalid: no such host".to_owned())
    );
}
