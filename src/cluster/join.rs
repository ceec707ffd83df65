//! How a machine joins: what it asks of a server, what it is told, and what a refusal means.

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
use base::pki::reloadable_cert::LiveCert;
use base::pki::request::{new_key, request};
use base::pki::{self, Leaf, tls};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::certs::{ServerCerts, node_client, node_serving, proxy_client};
use crate::token::Secret;
use https::{Answered, Exchange, Fault};

/// Where a machine asks; with a token, or for renewal with its own client certificate.
pub const JOIN_PATH: &str = "/v1-kube-lite/join";
/// Where the CA of servers is read, as with k3s.
pub const CA_PATH: &str = "/cacerts";
/// The name that the certificate of every server has.
pub const SERVER_NAME: &str = "kubernetes";
/// Port of servers when the address names none.
const PORT: u16 = 6443;

/// Reasons of refusals, for programs: `reason` of the answered Status.
pub mod reason {
    /// Nobody is proved.
    pub const WRONG_TOKEN: &str = "WrongToken";
    /// It was right once.
    pub const TOKEN_EXPIRED: &str = "TokenExpired";
    /// Another machine has the name.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// Versions too far apart.
    pub const VERSION_SKEW: &str = "VersionSkew";
    /// Too many failures from one address.
    pub const TOO_MANY_ATTEMPTS: &str = "TooManyAttempts";
    /// The request itself is wrong.
    pub const BAD_REQUEST: &str = "BadRequest";
}

/// What a machine asks for. Keys stay on the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    /// Name of its Node.
    pub node_name: String,
    /// What makes the name its own.
    pub node_password: String,
    /// Addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// Its version, such as `v1.37.1+kubelite.0.1.0`.
    pub version: String,
    /// PEM request of `system:node:<name>`.
    pub kubelet_client: String,
    /// PEM request of its kubelet API.
    pub kubelet_serving: String,
    /// PEM request of `system:kube-proxy`.
    pub proxy_client: String,
}

/// A digest of what a node has from its cluster besides its certificates: settings, except the
/// servers, which a node follows, and CAs. Tunnels carry it, so that nodes ask again when it is new
/// to them.
pub fn digest(settings: &ClusterSettings, server_ca: &str, client_ca: &str) -> String {
    let settings = ClusterSettings { servers: Vec::new(), ..settings.clone() };
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

/// What a machine is answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// PEM chain for [`Ask::kubelet_client`].
    pub kubelet_client: String,
    /// PEM chain for [`Ask::kubelet_serving`].
    pub kubelet_serving: String,
    /// PEM chain for [`Ask::proxy_client`].
    pub proxy_client: String,
    /// PEM of the CA of servers.
    pub server_ca: String,
    /// PEM of the CA of clients.
    pub client_ca: String,
    /// The cluster.
    #[serde(rename = "facts")]
    pub settings: ClusterSettings,
}

/// The keys of a machine, PEM.
#[derive(Clone)]
pub struct Keys {
    /// Of `system:node:<name>`.
    pub kubelet_client: SecretValue<String>,
    /// Of its kubelet API.
    pub kubelet_serving: SecretValue<String>,
    /// Of `system:kube-proxy`.
    pub proxy_client: SecretValue<String>,
}

impl Keys {
    /// New ones.
    ///
    /// # Errors
    /// When the generator fails.
    pub fn generate() -> Result<Self, pki::Error> {
        Ok(Self {
            kubelet_client: new_key()?,
            kubelet_serving: new_key()?,
            proxy_client: new_key()?,
        })
    }
}

/// Who a machine is.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Name of its Node.
    pub name: String,
    /// What makes the name its own.
    pub password: Secret,
    /// Addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// Its version.
    pub version: String,
}

impl Machine {
    /// What it asks for with these keys.
    ///
    /// # Errors
    /// When a key cannot be read.
    pub fn ask(&self, keys: &Keys) -> Result<Ask, pki::Error> {
        let serving = node_serving(&self.name, &[]);
        Ok(Ask {
            node_name: self.name.clone(),
            node_password: self.password.reveal().to_owned(),
            addresses: self.addresses.clone(),
            version: self.version.clone(),
            kubelet_client: request(&node_client(&self.name), &keys.kubelet_client)?,
            kubelet_serving: request(&serving, &keys.kubelet_serving)?,
            proxy_client: request(&proxy_client(), &keys.proxy_client)?,
        })
    }
}

/// Signs what a machine asks for. Whether it may have it was decided before.
///
/// # Errors
/// A request that is damaged or for somebody else.
pub fn sign(
    certs: &ServerCerts,
    ask: &Ask,
    settings: ClusterSettings,
    now: u64,
) -> Result<Answer, pki::Error> {
    let (client_ca, server_ca) = (certs.client_ca(), certs.server_ca());
    let serving = node_serving(&ask.node_name, &ask.addresses);
    let client = |csr: &str, profile| client_ca.sign_request(csr, &profile, now);
    Ok(Answer {
        kubelet_client: client(&ask.kubelet_client, node_client(&ask.node_name))?.cert_pem,
        kubelet_serving: server_ca.sign_request(&ask.kubelet_serving, &serving, now)?.cert_pem,
        proxy_client: client(&ask.proxy_client, proxy_client())?.cert_pem,
        server_ca: server_ca.cert_pem().to_owned(),
        client_ca: client_ca.cert_pem().to_owned(),
        settings,
    })
}

/// Where a server is: `https://host:port`.
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

/// Why a machine did not join.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Nobody answers, or not now: try again.
    #[error("{server} does not answer: {why}")]
    Unreachable {
        /// Who.
        server: String,
        /// Why.
        why: String,
    },
    /// Somebody else answers there.
    #[error("{server} is no kube-lite server: {why}")]
    NotAServer {
        /// Who.
        server: String,
        /// How that shows.
        why: String,
    },
    /// Another CA than the token names, or a server that has no certificate of it; no secret was
    /// sent.
    #[error("{server}: {why}")]
    WrongCa {
        /// Who.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// The clocks differ; no secret was sent.
    #[error("{0}")]
    Clock(String),
    /// The server says no: its reason and its sentence.
    #[error("{message}")]
    Refused {
        /// One of [`reason`], or what another version says.
        reason: String,
        /// The server's sentence.
        message: String,
    },
    /// Something of this machine's own.
    #[error("{0}")]
    Own(String),
}

impl Error {
    /// Trying the same again may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { reason, .. } => reason == reason::TOO_MANY_ATTEMPTS,
            _ => false,
        }
    }
}

/// The CA of servers, as somebody at that address shows it, and when that was by their clock.
#[derive(Debug, Clone)]
pub struct ShownCa {
    /// PEM.
    pub pem: String,
    /// Seconds since the epoch; `None` when the answer does not say.
    pub date: Option<i64>,
}

/// Reads the CA from whoever answers. Nothing secret is sent, nothing is believed yet.
///
/// # Errors
/// When nobody answers, or not as a server does.
pub async fn shown_ca(dial: &dyn Dial, server: &ServerAddress) -> Result<ShownCa, Error> {
    let tls = tls::unverified_client(&["http/1.1"]).map_err(|e| Error::Own(e.to_string()))?;
    let request = Request::get(CA_PATH).body(Bytes::new());
    let answered = exchange(dial, server, tls, request).await?;
    let not = |why: String| Error::NotAServer { server: server.to_string(), why };
    if answered.status != StatusCode::OK {
        return Err(not(format!("it answers {CA_PATH} with {}", answered.status)));
    }
    let pem = String::from_utf8(answered.body.to_vec())
        .ok()
        .filter(|pem| pki::certificates(pem).is_ok_and(|all| !all.is_empty()))
        .ok_or_else(|| not(format!("what it has at {CA_PATH} holds no certificate")))?;
    Ok(ShownCa { pem, date: answered.date })
}

async fn exchange(
    dial: &dyn Dial,
    server: &ServerAddress,
    tls: rustls::ClientConfig,
    request: http::Result<Request<Bytes>>,
) -> Result<Answered, Error> {
    let request = request.map_err(|e| Error::Own(e.to_string()))?;
    let at = server.to_string();
    let fault = match (Exchange { dial, server, tls }).run(request).await {
        Ok(answered) => match answered.status.as_u16() {
            // A load balancer before a server that is starting.
            502..=504 => Fault::Unreachable(format!("it answers {}", answered.status)),
            _ => return Ok(answered),
        },
        Err(fault) => fault,
    };
    Err(match fault {
        Fault::Unreachable(why) => Error::Unreachable { server: at, why },
        Fault::NotTls(why) => Error::NotAServer { server: at, why },
        Fault::Certificate(why) => Error::WrongCa { server: at, why },
        Fault::Expired(why) => Error::Clock(format!("{at}: {why}")),
    })
}

/// A server that a CA vouches for, and who asks it.
#[derive(Clone)]
pub struct Party<'a> {
    /// The way there.
    pub dial: &'a dyn Dial,
    /// Where it is.
    pub server: &'a ServerAddress,
    /// PEM of its CA.
    pub server_ca: &'a str,
    /// What proves the right to ask; sent only to a server of this CA. Without one, `cert` says who
    /// asks.
    pub authorization: Option<&'a Secret>,
    /// Who asks.
    pub cert: Option<Arc<LiveCert>>,
}

/// Asks to join as a node.
///
/// # Errors
/// When nobody answers, the server is not of this CA, or it says no.
pub async fn ask(party: Party<'_>, ask: &Ask) -> Result<Answer, Error> {
    party.post(JOIN_PATH, ask).await
}

impl Party<'_> {
    async fn post<A: Serialize, R: DeserializeOwned>(
        self,
        path: &str,
        ask: &A,
    ) -> Result<R, Error> {
        let own = |e: &dyn fmt::Display| Error::Own(e.to_string());
        let ca = pki::certificates(self.server_ca).map_err(|e| own(&e))?;
        let tls = tls::client(&ca, self.cert, &["http/1.1"]).map_err(|e| own(&e))?;
        let body = serde_json::to_vec(ask).map_err(|e| own(&e))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = self.authorization {
            let mut value = header::HeaderValue::from_str(authorization.reveal())
                .map_err(|_| Error::Own("the token cannot stand in a header".into()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let answered = exchange(self.dial, self.server, tls, request.body(body.into())).await?;
        let not = |why: String| Error::NotAServer { server: self.server.to_string(), why };
        if answered.status == StatusCode::OK {
            return serde_json::from_slice(&answered.body)
                .map_err(|e| not(format!("its answer cannot be read: {e}")));
        }
        match serde_json::from_slice::<Status>(&answered.body) {
            Ok(status) if status.kind == "Status" && status.code != 404 => {
                Err(Error::Refused { reason: status.reason, message: status.message })
            }
            _ => Err(not(format!("it answers {path} with {}", answered.status))),
        }
    }
}

/// What a machine keeps of an answer to its keys.
///
/// # Errors
/// When a certificate is none, or is not for the key.
pub fn leaf(cert_pem: &str, key_pem: &str) -> Result<Leaf, String> {
    let leaf = Leaf {
        cert_pem: cert_pem.to_owned(),
        key_pem: key_pem.to_owned().into(),
        not_after: pki::request::not_after(cert_pem)?,
    };
    LiveCert::new(&leaf).map_err(|e| e.to_string())?;
    Ok(leaf)
}

#[cfg(test)]
mod tests;
