//! Joins of machines on the API port: the CA for every client, certificates for authenticated
//! machines.

mod attempts;
pub(crate) mod claims;
mod expired;
pub(crate) mod servers;
mod skew;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::validation::names::dns1123_subdomain;
use apiserver::{ApiServer, User};
use axum::body::Body;
use base::pki;
use client::{Client, Informers};
use cluster::certs::{AdditionalNames, ServerCerts};
use cluster::join::servers::{AddMemberResponse, SharedFiles};
use cluster::join::{self, JoinRequest, JoinResponse, reason};
use cluster::token::files::TokenFiles;
use cluster::token::{self, Secret};
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use settings::ClusterSettings;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::machine::VERSION;
use crate::server::in_process::InProcess;
use crate::server::supervisor_api::Sender;
use attempts::FailedAttempts;
use expired::ExpiredTokens;

/// Maximum size of a request in bytes: three certificate requests, a name, some addresses.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// How long a client may take to send it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent joins; each one costs some signatures and a write.
const CONCURRENT_JOINS_MAX: usize = 16;
/// How long a join waits for its turn before it is rejected with 503.
const SLOT_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of addresses of a node.
const ADDRESSES_MAX: usize = 16;

/// What joins need from the server.
pub(crate) struct Settings {
    /// Certificates and CAs.
    pub(crate) certs: Arc<ServerCerts>,
    /// Tokens.
    pub(crate) tokens: TokenFiles,
    /// The settings that nodes get.
    pub(crate) cluster: ClusterSettings,
    /// Admits servers as members of the store.
    pub(crate) store: servers::MemberAdmission,
}

/// Answers join requests.
pub(crate) struct JoinService {
    settings: Settings,
    client: Client,
    attempts: FailedAttempts,
    expired_tokens: ExpiredTokens,
    slots: Semaphore,
}

/// The authenticated sender of a join request.
enum Requester {
    /// Has the token of servers: may join as a server, or as a node with any free name.
    Server,
    /// Has a token for agents: may join as a node with any free name.
    Token,
    /// A node with its certificate: may renew the certificates of its name only.
    Node(String),
}

fn failure(code: u16, why: &str, message: impl Into<String>) -> Status {
    Status::failure(code, why, message)
}

impl JoinService {
    /// Creates the service, which acts as the API server itself.
    pub(crate) fn new(settings: Settings, server: &ApiServer, tasks: &base::Tasks) -> Arc<Self> {
        let user = User::apiserver();
        let transport = InProcess::new(server.clone(), user, tasks.clone());
        Arc::new(Self {
            settings,
            client: Client::new(Arc::new(transport), "kube-lite-join"),
            attempts: FailedAttempts::default(),
            expired_tokens: ExpiredTokens::default(),
            slots: Semaphore::new(CONCURRENT_JOINS_MAX),
        })
    }

    /// Follows Nodes and bootstrap tokens: a deleted Node frees its name, and expired tokens are
    /// recognized for a while.
    pub(crate) fn follow(self: &Arc<Self>, informers: &Informers, tasks: &base::Tasks) {
        claims::follow(&self.client, informers, tasks);
        self.expired_tokens.follow(informers);
    }

    /// Claims the name of this machine's own node.
    ///
    /// # Errors
    /// Another machine has the name.
    pub(crate) async fn claim_own_name(&self, node: &str, password: &Secret) -> Result<(), Status> {
        claims::claim(&self.client, node, password).await
    }

    /// Releases the name of this machine's own node, after a restore of another machine's data.
    ///
    /// # Errors
    /// Errors of the API.
    pub(crate) async fn release_own_name(&self, node: &str) -> Result<(), Status> {
        claims::release(&self.client, node).await
    }

    /// The CA of the servers' certificates, which every client may have.
    pub(crate) fn ca(&self) -> String {
        self.settings.certs.server_ca().cert_pem().to_owned()
    }

    /// Joins a node: checks its request, claims its name and signs its certificates.
    ///
    /// # Errors
    /// The reason why the node may not join.
    pub(crate) async fn join_node(
        &self,
        sender: Sender,
        request: Request<Body>,
    ) -> Result<JoinResponse, Status> {
        let from = sender.from;
        let (_slot, requester) = self.admit(sender, request.headers()).await?;
        let mut ask: JoinRequest = read_request(request).await?;
        self.check_request(from, &requester, &ask)?;
        self.keep_free_names(from, &mut ask).await?;
        let password: Secret = ask.node_password.parse().unwrap_or_else(|never| match never {});
        claims::claim(&self.client, &ask.node_name, &password).await.inspect_err(|status| {
            if status.reason == reason::NAME_TAKEN {
                self.attempts.failed(from);
                tracing::warn!(node = ask.node_name, %from, "joins: rejected, another machine has the node name");
            }
        })?;
        let answer =
            join::sign(&self.settings.certs, &ask, self.settings.cluster.clone(), pki::now())
                .map_err(|e| failure(400, reason::BAD_REQUEST, e.to_string()))?;
        tracing::info!(node = ask.node_name, %from, version = ask.version, "joins: issued certificates");
        Ok(answer)
    }

    /// The files that a joining server shares with this one.
    ///
    /// # Errors
    /// The reason why the server may not join.
    pub(crate) async fn shared_files(
        &self,
        sender: Sender,
        request: Request<Body>,
    ) -> Result<SharedFiles, Status> {
        let from = sender.from;
        let (_slot, requester) = self.admit(sender, request.headers()).await?;
        check_server(&requester)?;
        let request = read_request(request).await?;
        let shared = self.settings.store.shared(&self.settings.cluster, &request).await?;
        tracing::info!(%from, "joins: sent the shared files to a server");
        Ok(shared)
    }

    /// Adds a joining server to the members of the store.
    ///
    /// # Errors
    /// The reason why the server may not join.
    pub(crate) async fn add_member(
        &self,
        sender: Sender,
        request: Request<Body>,
    ) -> Result<AddMemberResponse, Status> {
        let (_slot, requester) = self.admit(sender, request.headers()).await?;
        check_server(&requester)?;
        self.settings.store.add(&read_request(request).await?).await
    }

    /// Waits for a slot and authenticates the sender.
    async fn admit(
        &self,
        sender: Sender,
        headers: &HeaderMap,
    ) -> Result<(SemaphorePermit<'_>, Requester), Status> {
        let busy = || {
            failure(503, "ServiceUnavailable", "too many machines join at once, try again later")
        };
        let slot = tokio::time::timeout(SLOT_TIMEOUT, self.slots.acquire()).await;
        let slot = slot.map_err(|_| busy())?.map_err(|_| busy())?;
        let header = headers.get(header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let requester = self.authenticate(sender.from, sender.user, header).await?;
        Ok((slot, requester))
    }

    /// Authenticates the sender: a node by its certificate, or a machine by a token.
    async fn authenticate(
        &self,
        from: IpAddr,
        user: Option<User>,
        header: &str,
    ) -> Result<Requester, Status> {
        if let Some(user) = &user {
            let node = user.name.strip_prefix("system:node:");
            if let Some(node) = node.filter(|_| user.in_group("system:nodes")) {
                return Ok(Requester::Node(node.to_owned()));
            }
        }
        if self.attempts.is_blocked(from) {
            return Err(failure(
                429,
                reason::TOO_MANY_ATTEMPTS,
                format!("too many failed attempts to join from {from}, wait a minute"),
            ));
        }
        if user.is_some_and(|user| user.in_group("system:bootstrappers")) {
            return Ok(Requester::Token);
        }
        let expired = match token::basic(header) {
            Some((user, secret)) => {
                if let Some(requester) = self.match_shared_token(&user, &secret).await? {
                    return Ok(requester);
                }
                None
            }
            None => {
                let bearer =
                    header.split_once(' ').filter(|(s, _)| s.eq_ignore_ascii_case("bearer"));
                bearer.and_then(|(_, token)| self.expired_tokens.expiry(token.trim()))
            }
        };
        self.attempts.failed(from);
        tracing::warn!(%from, "joins: rejected, the token is not valid in this cluster");
        Err(expired.map_or_else(
            || {
                failure(
                    401,
                    reason::WRONG_TOKEN,
                    "this token does not join machines to this cluster",
                )
            },
            |(id, end)| {
                let message = format!("the bootstrap token {id} expired at {end}");
                failure(401, reason::TOKEN_EXPIRED, message)
            },
        ))
    }

    /// What the tokens in files allow the sender to join as.
    async fn match_shared_token(
        &self,
        user: &str,
        secret: &Secret,
    ) -> Result<Option<Requester>, Status> {
        let files = self.settings.tokens.clone();
        let secrets = base::tasks::blocking(move || files.secrets()).await;
        let secrets = secrets.map_err(|e| e.to_string()).and_then(|s| s.map_err(|e| e.to_string()));
        let secrets = secrets.map_err(|error| {
            tracing::error!(error, "joins: cannot read the token files");
            Status::internal("the server cannot read its tokens, see its log")
        })?;
        let (server, agent) =
            (secret.matches(secrets.server.reveal()), secret.matches(secrets.agent.reveal()));
        Ok(match user {
            "server" if server => Some(Requester::Server),
            "node" if server | agent => Some(Requester::Token),
            _ => None,
        })
    }

    /// Removes the additional names that belong to a server, to a Service or to another node: with
    /// these in its certificate the node could impersonate them. Machines behind one NAT may share
    /// an external address, so this is no reason to reject the node.
    async fn keep_free_names(&self, from: IpAddr, ask: &mut JoinRequest) -> Result<(), Status> {
        let certs = &self.settings.certs;
        let same_machine = from.is_loopback() || certs.is_server_address(from);
        let node = ask.node_name.clone();
        let services = &self.settings.cluster.service_cidrs;
        ask.additional.addresses.retain(|ip| {
            let is_free = !(services.iter().any(|cidr| cidr.contains(*ip))
                || (certs.is_server_address(*ip) && !same_machine));
            if !is_free {
                tracing::warn!(node, %ip, "joins: an external address of a node belongs to a server or Service, its certificate does not contain it");
            }
            is_free
        });
        for name in std::mem::take(&mut ask.additional.dns) {
            let is_servers = certs.is_server_name(&name) && !same_machine;
            if !is_servers && (name == node || !claims::is_taken(&self.client, &name).await?) {
                ask.additional.dns.push(name);
                continue;
            }
            tracing::warn!(
                node,
                name,
                "joins: a DNS name of a node belongs to a server or another node, its certificate does not contain it"
            );
        }
        Ok(())
    }

    /// Checks version, name, password and addresses of a node.
    fn check_request(
        &self,
        from: IpAddr,
        requester: &Requester,
        ask: &JoinRequest,
    ) -> Result<(), Status> {
        let bad = |why: String| Err(failure(400, reason::BAD_REQUEST, why));
        let (certs, name) = (&self.settings.certs, &ask.node_name);
        skew::check(VERSION, &ask.version)
            .map_err(|e| failure(403, reason::VERSION_SKEW, e.to_string()))?;
        if crate::machine::node_name_error(name).is_some() {
            return bad(format!("{name:?} is not a valid node name"));
        }
        if let Requester::Node(own) = requester
            && own != name
        {
            let why =
                format!("node {own} may renew its own certificates only, not those of {name}");
            return Err(failure(403, "Forbidden", why));
        }
        if ask.node_password.len() < cluster::password::CHARACTERS_MIN {
            return bad("the node password is too short".into());
        }
        if ask.addresses.is_empty() || ask.addresses.len() > ADDRESSES_MAX {
            return bad(format!("a node has one to {ADDRESSES_MAX} addresses"));
        }
        if let Some(why) = invalid_names(&ask.additional) {
            return bad(why);
        }
        // With the name or an address of a server in its certificate a node could impersonate the
        // server. A node on the machine of a server shares them.
        let same_machine = from.is_loopback() || certs.is_server_address(from);
        if certs.is_server_name(name) && !same_machine {
            return Err(name_taken(name, "it is a name of the server"));
        }
        let forbidden = |ip: &&IpAddr| {
            let service =
                self.settings.cluster.service_cidrs.iter().any(|cidr| cidr.contains(**ip));
            let server = certs.is_server_address(**ip) && !same_machine;
            service || server || ip.is_unspecified() || ip.is_multicast()
        };
        if let Some(ip) = ask.addresses.iter().find(forbidden) {
            return bad(format!(
                "{ip} cannot be the address of node {name}: it belongs to the server or to a Service"
            ));
        }
        Ok(())
    }
}

/// Why additional names of a node cannot be in a certificate; `None` if they can.
fn invalid_names(names: &AdditionalNames) -> Option<String> {
    if names.addresses.len() > ADDRESSES_MAX || names.dns.len() > ADDRESSES_MAX {
        let limit = ADDRESSES_MAX;
        return Some(format!("a node has at most {limit} external addresses and DNS names"));
    }
    let is_special = |ip: &&IpAddr| ip.is_unspecified() || ip.is_multicast() || ip.is_loopback();
    if let Some(ip) = names.addresses.iter().find(is_special) {
        return Some(format!("{ip} cannot be an external address of a node"));
    }
    let wrong = names.dns.iter().find(|name| !dns1123_subdomain(name).is_empty())?;
    Some(format!("{wrong:?} is not a DNS name"))
}

/// Rejects a request about servers that has not the token of servers.
fn check_server(requester: &Requester) -> Result<(), Status> {
    match requester {
        Requester::Server => Ok(()),
        Requester::Token | Requester::Node(_) => {
            let why = "only the token of servers, server/token, joins servers";
            Err(failure(403, reason::WRONG_TOKEN, why))
        }
    }
}

/// The answer 403 for the name of another machine.
fn name_taken(node: &str, why: &str) -> Status {
    failure(403, reason::NAME_TAKEN, format!("the node name {node} is taken: {why}"))
}

/// Reads a request of limited size in limited time.
async fn read_request<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Status> {
    let bad = |why: String| failure(400, reason::BAD_REQUEST, why);
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| bad(format!("the request cannot be read: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > REQUEST_BYTES_MAX {
                return Err(failure(413, "RequestEntityTooLarge", "the request is too large"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    tokio::time::timeout(BODY_TIMEOUT, all)
        .await
        .unwrap_or_else(|_| Err(failure(408, "Timeout", "the request did not end in time")))?;
    serde_json::from_slice(&bytes).map_err(|e| bad(format!("the request cannot be read: {e}")))
}
