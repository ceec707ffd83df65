//! The join protocol of nodes: the request with its certificate requests, the response, and the
//! meaning of refusals.

pub mod files;
mod https;
pub mod servers;

use settings::ClusterSettings;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use api::Status;
use base::SecretValue;
use base::io::Dial;
use base::pki::reloadable_cert::{LiveCert, ReloadError};
use base::pki::request::{new_key, request};
use base::pki::{self, Leaf, tls};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::certs::{AdditionalNames, ServerCerts, node_client, node_serving, proxy_client};
use crate::token::Secret;
use https::{Exchange, ExchangeError, HttpResponse};

/// Path of join requests, authenticated by a token, or for renewal by the node's client
/// certificate.
pub const JOIN_PATH: &str = "/v1-kube-lite/join";
/// Path of the CA of servers, the same as in k3s.
pub const CA_PATH: &str = "/cacerts";
/// DNS name in the certificate of every server.
pub const SERVER_NAME: &str = "kubernetes";
/// Default port of servers.
const PORT: u16 = 6443;

/// Machine-readable reasons of refusals: `reason` of the Status in the response.
pub mod reason {
    /// The token is not valid.
    pub const WRONG_TOKEN: &str = "WrongToken";
    /// The token has expired.
    pub const TOKEN_EXPIRED: &str = "TokenExpired";
    /// The node name belongs to another machine.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// The version skew between machine and server is not supported.
    pub const VERSION_SKEW: &str = "VersionSkew";
    /// Too many failed attempts from one address.
    pub const TOO_MANY_ATTEMPTS: &str = "TooManyAttempts";
    /// The request is malformed.
    pub const BAD_REQUEST: &str = "BadRequest";
}

/// The body of a join request. It contains certificate requests; keys stay on the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Name of its Node.
    pub node_name: String,
    /// The password that reserves the name for this machine.
    pub node_password: String,
    /// Addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// Further names for the certificate of its kubelet API.
    #[serde(default, skip_serializing_if = "AdditionalNames::is_empty")]
    pub additional: AdditionalNames,
    /// Its version, such as `v1.37.1+kubelite.0.1.0`.
    pub version: String,
    /// PEM certificate request for `system:node:<name>`.
    pub kubelet_client: String,
    /// PEM certificate request for the kubelet API.
    pub kubelet_serving: String,
    /// PEM certificate request for `system:kube-proxy`.
    pub proxy_client: String,
}

/// A digest of the cluster's settings and CAs, without the list of servers, which a node watches
/// separately, and their port, in which they may differ. Tunnels carry it, so that nodes send a new
/// join request when it changes.
pub fn digest(settings: &ClusterSettings, server_ca: &str, client_ca: &str) -> String {
    let settings = ClusterSettings { servers: Vec::new(), listen_port: None, ..settings.clone() };
    let text = serde_json::to_vec(&settings).unwrap_or_default();
    let mut text = short_digest(&text);
    text.push_str(server_ca);
    text.push_str(client_ca);
    short_digest(text.as_bytes())
}

/// The first half of the SHA-256 digest, in hexadecimal.
fn short_digest(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text);
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The body of the response to a [`JoinRequest`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinResponse {
    /// PEM chain for [`JoinRequest::kubelet_client`].
    pub kubelet_client: String,
    /// PEM chain for [`JoinRequest::kubelet_serving`].
    pub kubelet_serving: String,
    /// PEM chain for [`JoinRequest::proxy_client`].
    pub proxy_client: String,
    /// PEM of the CA of servers.
    pub server_ca: String,
    /// PEM of the CA of clients.
    pub client_ca: String,
    /// The settings of the cluster.
    #[serde(rename = "facts")]
    pub settings: ClusterSettings,
}

/// The private keys of a machine, PEM.
#[derive(Clone)]
pub struct Keys {
    /// Key of `system:node:<name>`.
    pub kubelet_client: SecretValue<String>,
    /// Key of the kubelet API.
    pub kubelet_serving: SecretValue<String>,
    /// Key of `system:kube-proxy`.
    pub proxy_client: SecretValue<String>,
}

impl Keys {
    /// Generates new keys.
    ///
    /// # Errors
    /// When key generation fails.
    pub fn generate() -> Result<Self, pki::Error> {
        Ok(Self {
            kubelet_client: new_key()?,
            kubelet_serving: new_key()?,
            proxy_client: new_key()?,
        })
    }
}

/// Identity of a machine that joins.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Name of its Node.
    pub name: String,
    /// The password that reserves the name for this machine.
    pub password: Secret,
    /// Addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// Further names for the certificate of its kubelet API.
    pub additional: AdditionalNames,
    /// Its version.
    pub version: String,
}

impl Machine {
    /// Builds a join request with certificate requests for these keys.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub fn join_request(&self, keys: &Keys) -> Result<JoinRequest, pki::Error> {
        let serving = node_serving(&self.name, &[], &AdditionalNames::default());
        Ok(JoinRequest {
            node_name: self.name.clone(),
            node_password: self.password.reveal().to_owned(),
            addresses: self.addresses.clone(),
            additional: self.additional.clone(),
            version: self.version.clone(),
            kubelet_client: request(&node_client(&self.name), &keys.kubelet_client)?,
            kubelet_serving: request(&serving, &keys.kubelet_serving)?,
            proxy_client: request(&proxy_client(), &keys.proxy_client)?,
        })
    }
}

/// Signs the certificate requests of a join request. The caller has authorized the request.
///
/// # Errors
/// When a certificate request is damaged or names another identity.
pub fn sign(
    certs: &ServerCerts,
    request: &JoinRequest,
    settings: ClusterSettings,
    now: u64,
) -> Result<JoinResponse, pki::Error> {
    let (client_ca, server_ca) = (certs.client_ca(), certs.server_ca());
    let serving = node_serving(&request.node_name, &request.addresses, &request.additional);
    let client = |csr: &str, profile| client_ca.sign_request(csr, &profile, now);
    Ok(JoinResponse {
        kubelet_client: client(&request.kubelet_client, node_client(&request.node_name))?.cert_pem,
        kubelet_serving: server_ca.sign_request(&request.kubelet_serving, &serving, now)?.cert_pem,
        proxy_client: client(&request.proxy_client, proxy_client())?.cert_pem,
        server_ca: server_ca.cert_pem().to_owned(),
        client_ca: client_ca.cert_pem().to_owned(),
        settings,
    })
}

/// The address of a server: `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "https://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "https://{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for ServerAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let form = "must be https://HOST:PORT, such as https://192.0.2.10:6443";
        let uri: http::Uri = text.trim().trim_end_matches('/').parse().map_err(|_| form)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let plain = uri.authority().is_some_and(|a| !a.as_str().contains('@'));
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        if uri.scheme_str() != Some("https") || host.is_empty() || !plain || path != "/" {
            return Err(form);
        }
        Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(PORT) })
    }
}

/// Errors of joining.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server does not answer, or is not ready yet; transient.
    #[error("{server} does not answer: {why}")]
    Unreachable {
        /// Address of the server.
        server: String,
        /// The reason.
        why: String,
    },
    /// The address does not belong to a kube-lite server.
    #[error("{server} is no kube-lite server: {why}")]
    NotAServer {
        /// Address of the server.
        server: String,
        /// What the server answered.
        why: String,
    },
    /// The server's CA is not the one in the token, or its certificate is not signed by it. No
    /// secret was sent.
    #[error("{server}: {why}")]
    WrongCa {
        /// Address of the server.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// The clocks of the two machines differ. No secret was sent.
    #[error("{0}")]
    Clock(String),
    /// The server refused the request.
    #[error("{message}")]
    Refused {
        /// One of [`reason`], or a reason of another version.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// A failure on this machine, such as an unreadable key.
    #[error("{0}")]
    Local(String),
}

impl Error {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { reason, .. } => reason == reason::TOO_MANY_ATTEMPTS,
            _ => false,
        }
    }
}

/// The CA that an unverified server presents, and the time of its clock.
#[derive(Debug, Clone)]
pub struct FetchedCa {
    /// PEM.
    pub pem: String,
    /// Seconds since the epoch; `None` without a `Date` header.
    pub date: Option<i64>,
}

/// Fetches the CA over an unverified connection. No secret is sent; the caller verifies the result.
///
/// # Errors
/// When the server does not answer, or not with a certificate.
pub async fn fetch_ca(dial: &dyn Dial, server: &ServerAddress) -> Result<FetchedCa, Error> {
    let tls = tls::unverified_client(&["http/1.1"]).map_err(|e| Error::Local(e.to_string()))?;
    let request = Request::get(CA_PATH).body(Bytes::new());
    let response = exchange(dial, server, tls, request).await?;
    let not = |why: String| Error::NotAServer { server: server.to_string(), why };
    if response.status != StatusCode::OK {
        return Err(not(format!("it answers {CA_PATH} with {}", response.status)));
    }
    let pem = String::from_utf8(response.body.to_vec())
        .ok()
        .filter(|pem| pki::certificates(pem).is_ok_and(|all| !all.is_empty()))
        .ok_or_else(|| not(format!("what it has at {CA_PATH} holds no certificate")))?;
    Ok(FetchedCa { pem, date: response.date })
}

async fn exchange(
    dial: &dyn Dial,
    server: &ServerAddress,
    tls: rustls::ClientConfig,
    request: http::Result<Request<Bytes>>,
) -> Result<HttpResponse, Error> {
    let request = request.map_err(|e| Error::Local(e.to_string()))?;
    let at = server.to_string();
    let error = match (Exchange { dial, server, tls }).run(request).await {
        Ok(response) => match response.status.as_u16() {
            // A load balancer in front of a server that is starting.
            502..=504 => ExchangeError::Unreachable(format!("it answers {}", response.status)),
            _ => return Ok(response),
        },
        Err(error) => error,
    };
    Err(match error {
        ExchangeError::Unreachable(why) => Error::Unreachable { server: at, why },
        ExchangeError::NotTls(why) => Error::NotAServer { server: at, why },
        ExchangeError::Certificate(why) => Error::WrongCa { server: at, why },
        ExchangeError::Expired(why) => Error::Clock(format!("{at}: {why}")),
    })
}

/// A client for one server whose certificate must be signed by a given CA.
#[derive(Clone)]
pub struct JoinClient<'a> {
    /// Opens the connection.
    pub dial: &'a dyn Dial,
    /// Address of the server.
    pub server: &'a ServerAddress,
    /// PEM of the server's CA.
    pub server_ca: &'a str,
    /// Value of the header `Authorization`, sent only to a server of this CA. Without it, `cert`
    /// authenticates the client.
    pub authorization: Option<&'a Secret>,
    /// Client certificate.
    pub cert: Option<Arc<LiveCert>>,
}

/// Sends a request to join as a node.
///
/// # Errors
/// When the server does not answer, is not signed by this CA, or refuses the request.
pub async fn send_join_request(
    party: JoinClient<'_>,
    request: &JoinRequest,
) -> Result<JoinResponse, Error> {
    party.post(JOIN_PATH, request).await
}

impl JoinClient<'_> {
    async fn post<A: Serialize, R: DeserializeOwned>(
        self,
        path: &str,
        request: &A,
    ) -> Result<R, Error> {
        let own = |e: &dyn fmt::Display| Error::Local(e.to_string());
        let ca = pki::certificates(self.server_ca).map_err(|e| own(&e))?;
        let tls = tls::client(&ca, self.cert, &["http/1.1"]).map_err(|e| own(&e))?;
        let body = serde_json::to_vec(request).map_err(|e| own(&e))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = self.authorization {
            let mut value = header::HeaderValue::from_str(authorization.reveal())
                .map_err(|_| Error::Local("the token cannot be sent in a header".into()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let response = exchange(self.dial, self.server, tls, request.body(body.into())).await?;
        let not = |why: String| Error::NotAServer { server: self.server.to_string(), why };
        if response.status == StatusCode::OK {
            return serde_json::from_slice(&response.body)
                .map_err(|e| not(format!("its answer cannot be read: {e}")));
        }
        match serde_json::from_slice::<Status>(&response.body) {
            Ok(status) if status.kind == "Status" && status.code != 404 => {
                Err(Error::Refused { reason: status.reason, message: status.message })
            }
            _ => Err(not(format!("it answers {path} with {}", response.status))),
        }
    }
}

/// Why a signed certificate cannot be used with its key.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The certificate cannot be parsed.
    #[error(transparent)]
    Certificate(#[from] pki::CertificateError),
    /// The certificate does not match the key.
    #[error(transparent)]
    Pair(#[from] ReloadError),
}

/// Combines a signed certificate chain with its key.
///
/// # Errors
/// When the certificate cannot be parsed or does not match the key.
pub fn leaf(cert_pem: &str, key_pem: &str) -> Result<Leaf, LeafError> {
    let leaf = Leaf {
        cert_pem: cert_pem.to_owned(),
        key_pem: key_pem.to_owned().into(),
        not_after: pki::request::not_after(cert_pem)?,
    };
    LiveCert::new(&leaf)?;
    Ok(leaf)
}

#[cfg(test)]
mod tests;
