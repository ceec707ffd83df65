//! How machines join, on the port of the API: the CA for everybody, certificates for who may have them.

mod attempts;
pub(crate) mod claims;
mod expired;
pub(crate) mod servers;
mod skew;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use apiserver::interfaces::ExtraRoutes;
use apiserver::request::body;
use apiserver::request::body::Body;
use apiserver::{ApiServer, User};
use async_trait::async_trait;
use base::pki;
use client::{Client, Informers};
use cluster::certs::ServerCerts;
use cluster::join::servers::{MEMBER_PATH, SHARED_PATH};
use cluster::join::{self, CA_PATH, JOIN_PATH, JoinRequest, reason};
use cluster::token::files::TokenFiles;
use cluster::token::{self, Secret};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use settings::ClusterSettings;
use tokio::sync::Semaphore;

use crate::machine::VERSION;
use crate::server::in_process::InProcess;
use attempts::Attempts;
use expired::Expired;

/// Bytes of a request: three certificate requests, a name, some addresses.
const REQUEST_MAX: usize = 64 * 1024;
/// Time for a client to send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Machines served at once; each costs some signatures and a write.
const AT_ONCE_MAX: usize = 16;
/// Time until a machine is told to come again.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Addresses of one node.
const ADDRESSES_MAX: usize = 16;
/// The liveness check that k3s has beside the CA.
const PING_PATH: &str = "/ping";

/// What it needs of its server.
pub(crate) struct Settings {
    /// Certificates and CAs.
    pub(crate) certs: Arc<ServerCerts>,
    /// Tokens.
    pub(crate) tokens: TokenFiles,
    /// The settings that nodes get.
    pub(crate) cluster: ClusterSettings,
    /// For servers that join.
    pub(crate) store: servers::Store,
}

/// Answers machines that join.
pub(crate) struct Joining {
    settings: Settings,
    client: Client,
    attempts: Attempts,
    expired: Expired,
    places: Semaphore,
}

/// Who may join, as proved.
enum Proved {
    /// Somebody with the token of servers: anything.
    Server,
    /// Somebody with a token: any free name.
    Token,
    /// A node: its own name.
    Node(String),
}

fn refuse(code: u16, why: &str, message: impl Into<String>) -> Status {
    Status::failure(code, why, message)
}

impl Joining {
    /// Acts through `server` as the API server itself.
    pub(crate) fn new(settings: Settings, server: &ApiServer, tasks: &base::Tasks) -> Arc<Self> {
        let user = User::apiserver();
        let transport = InProcess::new(server.clone(), user, tasks.clone());
        Arc::new(Self {
            settings,
            client: Client::new(Arc::new(transport), "kube-lite-join"),
            attempts: Attempts::default(),
            expired: Expired::default(),
            places: Semaphore::new(AT_ONCE_MAX),
        })
    }

    /// Follows Nodes and bootstrap tokens: a name is free once its Node is deleted, and of a token that ended it is known
    /// for a while that it was one.
    pub(crate) fn follow(self: &Arc<Self>, informers: &Informers, tasks: &base::Tasks) {
        claims::follow(&self.client, informers, tasks);
        self.expired.follow(informers);
    }

    /// Claims the name of this machine's own node.
    ///
    /// # Errors
    /// When it is another machine's.
    pub(crate) async fn claim_own(&self, node: &str, password: &Secret) -> Result<(), Status> {
        claims::claim(&self.client, node, password).await
    }

    /// Forgets whose the name of this machine's own node was: the data is a restored one.
    ///
    /// # Errors
    /// What the API says.
    pub(crate) async fn free_own(&self, node: &str) -> Result<(), Status> {
        claims::free(&self.client, node).await
    }

    async fn respond(
        &self,
        from: SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let path = request.uri().path();
        let wanted = if matches!(path, CA_PATH | PING_PATH) { Method::GET } else { Method::POST };
        if request.method() != wanted {
            return Err(refuse(405, "MethodNotAllowed", format!("{path} takes {wanted}")));
        }
        match path {
            CA_PATH => Ok(text(self.settings.certs.server_ca().cert_pem().to_owned())),
            PING_PATH => Ok(text("pong".to_owned())),
            _ => self.join(from.ip().to_canonical(), user, request).await,
        }
    }

    /// Nodes and servers that join, by path.
    async fn join(
        &self,
        from: IpAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let busy =
            || refuse(503, "ServiceUnavailable", "too many machines join at once, come again");
        let place = tokio::time::timeout(WAIT_MAX, self.places.acquire()).await;
        let _place = place.map_err(|_| busy())?.map_err(|_| busy())?;
        let header = request.headers().get(header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let proved = self.prove(from, user, &header).await?;
        match request.uri().path() {
            JOIN_PATH => self.join_node(from, &proved, read(request).await?).await,
            path => {
                if !matches!(proved, Proved::Server) {
                    let why = "only the token of servers, server/token, joins servers";
                    return Err(refuse(403, reason::WRONG_TOKEN, why));
                }
                let (store, cluster) = (&self.settings.store, &self.settings.cluster);
                if path == SHARED_PATH {
                    let shared = store.shared(cluster, &read(request).await?).await?;
                    tracing::info!(%from, "a server is given what servers share");
                    return json(&shared);
                }
                json(&store.add(&read(request).await?).await?)
            }
        }
    }

    async fn join_node(
        &self,
        from: IpAddr,
        proved: &Proved,
        ask: JoinRequest,
    ) -> Result<Response<Body>, Status> {
        self.check(from, proved, &ask)?;
        let password: Secret = ask.node_password.parse().unwrap_or_else(|never| match never {});
        claims::claim(&self.client, &ask.node_name, &password).await.inspect_err(|status| {
            if status.reason == reason::NAME_TAKEN {
                self.attempts.failed(from);
                tracing::warn!(node = ask.node_name, %from, "refused: the name is another machine's");
            }
        })?;
        let answer =
            join::sign(&self.settings.certs, &ask, self.settings.cluster.clone(), pki::now())
                .map_err(|e| refuse(400, reason::BAD_REQUEST, e.to_string()))?;
        tracing::info!(node = ask.node_name, %from, version = ask.version, "certificates issued");
        json(&answer)
    }

    /// Who asks: a node by its certificate, or somebody with a token.
    async fn prove(
        &self,
        from: IpAddr,
        user: Option<User>,
        header: &str,
    ) -> Result<Proved, Status> {
        if let Some(user) = &user {
            let node = user.name.strip_prefix("system:node:");
            if let Some(node) = node.filter(|_| user.in_group("system:nodes")) {
                return Ok(Proved::Node(node.to_owned()));
            }
        }
        if self.attempts.is_blocked(from) {
            return Err(refuse(
                429,
                reason::TOO_MANY_ATTEMPTS,
                format!("too many failed attempts to join from {from}, wait a minute"),
            ));
        }
        if user.is_some_and(|user| user.in_group("system:bootstrappers")) {
            return Ok(Proved::Token);
        }
        let told = match token::basic(header) {
            Some((user, secret)) => {
                if let Some(proved) = self.shown(&user, &secret).await? {
                    return Ok(proved);
                }
                None
            }
            None => {
                let bearer =
                    header.split_once(' ').filter(|(s, _)| s.eq_ignore_ascii_case("bearer"));
                bearer.and_then(|(_, token)| self.expired.when(token.trim()))
            }
        };
        self.attempts.failed(from);
        tracing::warn!(%from, "refused: no token that joins machines to this cluster");
        Err(told.map_or_else(
            || {
                refuse(
                    401,
                    reason::WRONG_TOKEN,
                    "this token does not join machines to this cluster",
                )
            },
            |(id, end)| {
                let message = format!("the bootstrap token {id} expired at {end}");
                refuse(401, reason::TOKEN_EXPIRED, message)
            },
        ))
    }

    async fn shown(&self, user: &str, secret: &Secret) -> Result<Option<Proved>, Status> {
        let files = self.settings.tokens.clone();
        let secrets = base::tasks::blocking(move || files.secrets()).await;
        let secrets = secrets.map_err(|e| e.to_string()).and_then(|s| s.map_err(|e| e.to_string()));
        let secrets = secrets.map_err(|error| {
            tracing::error!(error, "machines cannot join");
            Status::internal("the server cannot read its tokens, its log says why")
        })?;
        let (server, agent) =
            (secret.matches(secrets.server.reveal()), secret.matches(secrets.agent.reveal()));
        Ok(match user {
            "server" if server => Some(Proved::Server),
            "node" if server | agent => Some(Proved::Token),
            _ => None,
        })
    }

    /// Name, addresses and version.
    fn check(&self, from: IpAddr, proved: &Proved, ask: &JoinRequest) -> Result<(), Status> {
        let bad = |why: String| Err(refuse(400, reason::BAD_REQUEST, why));
        let (certs, name) = (&self.settings.certs, &ask.node_name);
        skew::check(VERSION, &ask.version).map_err(|why| refuse(403, reason::VERSION_SKEW, why))?;
        if crate::machine::node_name_fault(name).is_some() {
            return bad(format!("{name:?} is no node name"));
        }
        if let Proved::Node(own) = proved
            && own != name
        {
            let why =
                format!("node {own} may renew its own certificates only, not those of {name}");
            return Err(refuse(403, "Forbidden", why));
        }
        if ask.node_password.len() < cluster::password::CHARACTERS_MIN {
            return bad("the node password is too short".into());
        }
        if ask.addresses.is_empty() || ask.addresses.len() > ADDRESSES_MAX {
            return bad(format!("a node has one to {ADDRESSES_MAX} addresses"));
        }
        // With the name or an address of a server in its certificate a node could pass for one. A node on the very
        // machine of a server has them rightly.
        let same_machine = from.is_loopback() || certs.is_server_address(from);
        if certs.is_server_name(name) && !same_machine {
            return Err(taken(name, "it is a name of the server"));
        }
        let forbidden = |ip: &&IpAddr| {
            let service =
                self.settings.cluster.service_cidrs.iter().any(|cidr| cidr.contains(**ip));
            let server = certs.is_server_address(**ip) && !same_machine;
            service || server || ip.is_unspecified() || ip.is_multicast()
        };
        if let Some(ip) = ask.addresses.iter().find(forbidden) {
            return bad(format!(
                "{ip} cannot be the address of node {name}: it is the server's or a service's"
            ));
        }
        Ok(())
    }
}

/// 403 for a name of another machine.
fn taken(node: &str, why: &str) -> Status {
    refuse(403, reason::NAME_TAKEN, format!("the node name {node} is taken: {why}"))
}

async fn read<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Status> {
    let bad = |why: String| refuse(400, reason::BAD_REQUEST, why);
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| bad(format!("the request cannot be read: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > REQUEST_MAX {
                return Err(refuse(413, "RequestEntityTooLarge", "the request is too large"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    tokio::time::timeout(BODY_TIMEOUT, all)
        .await
        .unwrap_or_else(|_| Err(refuse(408, "Timeout", "the request did not end in time")))?;
    serde_json::from_slice(&bytes).map_err(|e| bad(format!("the request cannot be read: {e}")))
}

fn with_type(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(answer: &impl Serialize) -> Result<Response<Body>, Status> {
    let body = serde_json::to_vec(answer).map_err(|e| Status::internal(&e.to_string()))?;
    Ok(with_type("application/json", body::full(body)))
}

fn text(text: String) -> Response<Body> {
    with_type("text/plain", body::full(text))
}

#[async_trait]
impl ExtraRoutes for Joining {
    fn matches(&self, path: &str) -> bool {
        matches!(path, CA_PATH | PING_PATH | JOIN_PATH | SHARED_PATH | MEMBER_PATH)
    }

    async fn handle(
        &self,
        from: SocketAddr,
        user: Option<User>,
        request: Request<Body>,
    ) -> Response<Body> {
        let status = match self.respond(from, user, request).await {
            Ok(response) => return response,
            Err(status) => status,
        };
        let body = serde_json::to_vec(&status).unwrap_or_default();
        let mut response = with_type("application/json", body::full(body));
        *response.status_mut() =
            StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response
    }
}
