//! The first start of an agent: it joins, and nothing of it is kept before everything was answered.

use base::Shutdown;
use cluster::join::files::{self, Joined};
use cluster::join::{self, Error, JoinClient, Keys, Machine, ServerAddress};
use cluster::token::Token;

use crate::agent::config::Config;
use crate::agent::link::To;
use crate::error_catalogue::{DATA_DIR, JOIN_REFUSED, OTHER_CLUSTER, Refusal, USAGE};
use crate::join::{check_ca, check_clock, until_answered};
use crate::machine::VERSION;

/// What an earlier start left, if it was this node's and is of the cluster of the token.
///
/// # Errors
/// Files of another node or cluster, or damaged ones that cannot be made anew for want of a token.
pub(super) fn remembered(config: &Config) -> Result<Option<Joined>, Refusal> {
    let directory = config.machine.directory();
    let joined = match Joined::load(&directory) {
        Ok(joined) => joined,
        Err(error) if config.token.is_some() && config.server.is_some() => {
            tracing::warn!(%error, "what was kept of joining is damaged, joining anew");
            None
        }
        Err(error) => return Err(DATA_DIR.refuse(error)),
    };
    let Some(joined) = joined else { return Ok(None) };
    let name = &config.machine.node_name;
    if joined.node_name != *name {
        return Err(OTHER_CLUSTER.refuse(format!(
            "{} is of node {}, and --node-name says {name}",
            directory.display(),
            joined.node_name
        )));
    }
    let wanted = config.token.as_ref().and_then(|t| t.ca_hash.as_deref());
    let named = wanted.map(|hash| base::pki::rotation::named(&joined.server_ca, hash)).transpose();
    // A token from before the last change of the CA names the former one, which is still believed.
    if named.map_err(|e| DATA_DIR.refuse(e))?.is_some_and(|named| named.is_empty()) {
        return Err(OTHER_CLUSTER.refuse(format!(
            "{} is of a node of {}, and the token is of another cluster",
            directory.display(),
            joined.server
        )));
    }
    Ok(Some(joined))
}

/// This machine as servers are told of it.
pub(super) fn machine(config: &Config) -> Result<Machine, files::Error> {
    Ok(Machine {
        name: config.machine.node_name.clone(),
        password: files::node_password(&config.machine.directory())?,
        addresses: config.machine.node_ips.clone(),
        version: VERSION.to_owned(),
    })
}

/// Joins; as long as no server answers, again and again.
///
/// # Errors
/// What the server or the check of it says no to.
pub(super) async fn join(config: &Config, shutdown: &Shutdown) -> Result<Joined, Refusal> {
    let (Some(server), Some(token)) = (&config.server, &config.token) else {
        let text = "the first start needs --server (or KUBE_LITE_URL) and --token, --token-file or KUBE_LITE_TOKEN";
        return Err(USAGE.refuse_usage(text));
    };
    let machine = machine(config).map_err(|e| DATA_DIR.refuse(e))?;
    let keys = Keys::generate().map_err(|e| JOIN_REFUSED.refuse(e))?;
    let attempt = Attempt { config, server, token, machine, keys };
    until_answered(shutdown, async || attempt.run().await).await
}

struct Attempt<'a> {
    config: &'a Config,
    server: &'a ServerAddress,
    token: &'a Token,
    machine: Machine,
    keys: Keys,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Joined, Error> {
        let (server, dial) = (self.server, To(self.server.clone()));
        let shown = join::fetch_ca(&dial, server).await?;
        let trusted = check_ca(self.token, server, &shown)?;
        check_clock(&shown, server)?;
        let own = |e: &dyn std::fmt::Display| Error::Local(e.to_string());
        let directory = self.config.machine.directory();
        // Kept before it is shown: an answer that is lost must not leave the name to nobody.
        files::store_node_password(&directory, &self.machine.password).map_err(|e| own(&e))?;
        let ask = self.machine.join_request(&self.keys).map_err(|e| own(&e))?;
        let authorization = self.token.authorization();
        let party = JoinClient {
            dial: &dial,
            server,
            server_ca: &trusted,
            authorization: Some(&authorization),
            cert: None,
        };
        let answer = join::send_join_request(party, &ask).await?;
        if answer.server_ca != shown.pem {
            let why = "it says another CA than it shows".into();
            return Err(Error::WrongCa { server: server.to_string(), why });
        }
        let joined = Joined::new(&self.machine, server, &self.keys, answer).map_err(|e| own(&e))?;
        joined.store(&directory).map_err(|e| own(&e))?;
        tracing::info!(node = self.machine.name, %server, "joined");
        Ok(joined)
    }
}
