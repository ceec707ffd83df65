//! The first start of an agent: it joins a cluster and stores the answer as a whole.

use base::Shutdown;
use cluster::join::files::{self, Joined};
use cluster::join::{self, Error, JoinClient, Keys, Machine, ServerAddress};
use cluster::token::Token;

use crate::agent::config::Config;
use crate::agent::link::FixedServer;
use crate::error_catalogue::{CommandError, DATA_DIR, JOIN_REFUSED, OTHER_CLUSTER, USAGE};
use crate::join::{check_ca, check_clock, until_answered};
use crate::machine::VERSION;

/// What to do about missing flags.
const HELP: &str = "Run `kube-lite agent --help` for the flags and their defaults.";

/// The stored result of an earlier join, if it belongs to this node and to the cluster of the
/// token.
///
/// # Errors
/// The files belong to another node or cluster, or are damaged and there is no token to join again.
pub(super) fn load_joined(config: &Config) -> Result<Option<Joined>, CommandError> {
    let directory = config.machine.directory();
    let joined = match Joined::load(&directory) {
        Ok(joined) => joined,
        Err(error) if config.token.is_some() && config.server.is_some() => {
            tracing::warn!(%error, "join: the stored files are damaged, joining again");
            None
        }
        Err(error) => return Err(DATA_DIR.error(error)),
    };
    let Some(joined) = joined else { return Ok(None) };
    let name = &config.machine.node_name;
    if joined.node_name != *name {
        return Err(OTHER_CLUSTER.error(format!(
            "{} belongs to node {}, but --node-name is {name}",
            directory.display(),
            joined.node_name
        )));
    }
    let ca_hash = config.token.as_ref().and_then(|t| t.ca_hash.as_deref());
    let named = ca_hash.map(|hash| base::pki::rotation::named(&joined.server_ca, hash)).transpose();
    // A token from before the last rotation names the former CA, which is still trusted.
    if named.map_err(|e| DATA_DIR.error(e))?.is_some_and(|named| named.is_empty()) {
        return Err(OTHER_CLUSTER.error(format!(
            "{} belongs to a node of {}, and the token to another cluster",
            directory.display(),
            joined.server
        )));
    }
    Ok(Some(joined))
}

/// The description of this machine in join requests.
///
/// # Errors
/// The node password cannot be read.
pub(super) fn machine(config: &Config) -> Result<Machine, files::Error> {
    Ok(Machine {
        name: config.machine.node_name.clone(),
        password: files::node_password(&config.machine.directory())?,
        addresses: config.machine.node_ips.clone(),
        additional: config.machine.additional_names(),
        version: VERSION.to_owned(),
    })
}

/// Joins, and repeats the attempt as long as no server answers.
///
/// # Errors
/// The server rejects the request, or is not trusted.
pub(super) async fn join(config: &Config, shutdown: &Shutdown) -> Result<Joined, CommandError> {
    let (Some(server), Some(token)) = (&config.server, &config.token) else {
        let text = "the first start needs --server (or KUBE_LITE_URL) and --token, --token-file or KUBE_LITE_TOKEN";
        return Err(USAGE.usage_error(text).with_fix(HELP));
    };
    let machine = machine(config).map_err(|e| DATA_DIR.error(e))?;
    let keys = Keys::generate().map_err(|e| JOIN_REFUSED.error(e))?;
    let attempt = Attempt { config, server, token, machine, keys };
    until_answered(shutdown, async || attempt.run().await).await
}

/// One join with the same keys and password in every attempt.
struct Attempt<'a> {
    config: &'a Config,
    server: &'a ServerAddress,
    token: &'a Token,
    machine: Machine,
    keys: Keys,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Joined, Error> {
        let (server, dial) = (self.server, FixedServer(self.server.clone()));
        let shown = join::fetch_ca(&dial, server).await?;
        let trusted = check_ca(self.token, server, &shown)?;
        check_clock(&shown, server)?;
        let own = |e: &dyn std::fmt::Display| Error::Local(e.to_string());
        let directory = self.config.machine.directory();
        // Stored before it is sent: if the answer is lost, the next start must own the name.
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
            let why = "its answer contains another CA than /cacerts".into();
            return Err(Error::WrongCa { server: server.to_string(), why });
        }
        let joined = Joined::new(&self.machine, server, &self.keys, answer).map_err(|e| own(&e))?;
        joined.store(&directory).map_err(|e| own(&e))?;
        tracing::info!(node = self.machine.name, %server, "join: joined");
        Ok(joined)
    }
}
