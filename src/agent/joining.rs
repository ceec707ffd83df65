//! The first start of an agent: it joins, and nothing of it is kept before everything was answered.

use std::time::Duration;

use base::{Backoff, Shutdown, clock};
use cluster::join::files::{self, Joined};
use cluster::join::{self, Error, Keys, Machine, ServerAddress, ShownCa, reason};
use cluster::token::Token;

use crate::agent::config::Config;
use crate::agent::link::To;
use crate::catalogue::{
    BAD_CLOCK, DATA_DIR, JOIN_REFUSED, NAME_TAKEN, NOT_A_SERVER, OTHER_CLUSTER, Refusal,
    SERVER_UNREACHABLE, TOKEN_EXPIRED, USAGE, VERSION_SKEW, WRONG_CA, WRONG_TOKEN,
};
use crate::machine::VERSION;

/// First and longest wait between attempts.
const WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// A server that does not answer is complained about this often.
const TOLD_INTERVAL: Duration = Duration::from_secs(60);
/// So much the clocks may differ: certificates, logs and leases bear it.
const CLOCK_SECONDS_MAX: u64 = 60 * 60;

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
    let kept = base::pki::ca_hash(&joined.server_ca).map_err(|e| DATA_DIR.refuse(e))?;
    if wanted.is_some_and(|wanted| wanted != kept) {
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
    let mut backoff = Backoff::new(WAIT.0, WAIT.1);
    let mut told = None;
    loop {
        let error = match attempt.run().await {
            Ok(joined) => return Ok(joined),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(refusal(error)),
        };
        let now = clock::now();
        if told.is_none_or(|at| now.duration_since(at) >= TOLD_INTERVAL) {
            tracing::warn!("{error}; tried again until it does");
            told = Some(now);
        }
        if !backoff.wait(shutdown).await {
            return Err(refusal(error));
        }
    }
}

/// The refusal of an error, with what mends it.
pub(super) fn refusal(error: Error) -> Refusal {
    let entry = match &error {
        Error::Unreachable { .. } => SERVER_UNREACHABLE,
        Error::NotAServer { .. } => NOT_A_SERVER,
        Error::WrongCa { .. } => WRONG_CA,
        Error::Clock(_) => BAD_CLOCK,
        Error::Refused { reason, .. } => match reason.as_str() {
            reason::WRONG_TOKEN => WRONG_TOKEN,
            reason::TOKEN_EXPIRED => TOKEN_EXPIRED,
            reason::NAME_TAKEN => NAME_TAKEN,
            reason::VERSION_SKEW => VERSION_SKEW,
            _ => JOIN_REFUSED,
        },
        Error::Own(_) => JOIN_REFUSED,
    };
    entry.refuse(error)
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
        let shown = join::shown_ca(&dial, server).await?;
        self.check_ca(&shown)?;
        check_clock(&shown, server)?;
        let own = |e: &dyn std::fmt::Display| Error::Own(e.to_string());
        let directory = self.config.machine.directory();
        // Kept before it is shown: an answer that is lost must not leave the name to nobody.
        files::store_node_password(&directory, &self.machine.password).map_err(|e| own(&e))?;
        let ask = self.machine.ask(&self.keys).map_err(|e| own(&e))?;
        let authorization = self.token.authorization();
        let answer = join::ask(&dial, server, &shown.pem, Some(&authorization), None, &ask).await?;
        if answer.server_ca != shown.pem {
            let why = "it says another CA than it shows".into();
            return Err(Error::WrongCa { server: server.to_string(), why });
        }
        let joined = Joined::new(&self.machine, server, &self.keys, answer).map_err(|e| own(&e))?;
        joined.store(&directory).map_err(|e| own(&e))?;
        tracing::info!(node = self.machine.name, %server, "joined");
        Ok(joined)
    }

    /// Before anything secret is sent.
    fn check_ca(&self, shown: &ShownCa) -> Result<(), Error> {
        let server = self.server.to_string();
        let hash = base::pki::ca_hash(&shown.pem);
        let hash = hash.map_err(|why| Error::NotAServer { server: server.clone(), why })?;
        match &self.token.ca_hash {
            Some(wanted) if *wanted == hash => Ok(()),
            Some(wanted) => Err(Error::WrongCa {
                server,
                why: format!(
                    "the hash of its CA is {hash}, the token names {wanted}; the token was not sent"
                ),
            }),
            None => {
                tracing::warn!(%server, hash, "the server is believed without proof (--insecure-join)");
                Ok(())
            }
        }
    }
}

fn check_clock(shown: &ShownCa, server: &ServerAddress) -> Result<(), Error> {
    let Some(theirs) = shown.date else { return Ok(()) };
    let ours = i64::try_from(clock::unix_time().as_secs()).unwrap_or(i64::MAX);
    let off = ours.abs_diff(theirs);
    if off <= CLOCK_SECONDS_MAX {
        return Ok(());
    }
    let way = if ours < theirs { "behind" } else { "ahead of" };
    let at = |seconds: i64| {
        jiff::Timestamp::from_second(seconds)
            .map_or_else(|_| seconds.to_string(), |t| t.to_string())
    };
    Err(Error::Clock(format!(
        "the clock of this machine is {} {way} that of {server}: {} here, {} there",
        rough(off),
        at(ours),
        at(theirs)
    )))
}

/// A time in its largest unit: `365 days`.
fn rough(seconds: u64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        7_200.. => format!("{} hours", seconds / 3_600),
        _ => format!("{} minutes", seconds / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_told_by_how_much() {
        let server: ServerAddress = "https://a".parse().unwrap();
        let ours = i64::try_from(clock::unix_time().as_secs()).unwrap();
        let check = |date| {
            let shown = ShownCa { pem: String::new(), date };
            check_clock(&shown, &server).map_err(|e| e.to_string())
        };
        assert_eq!(check(None), Ok(()));
        assert_eq!(check(Some(ours + 3000)), Ok(()));
        let told = check(Some(ours - 365 * 86_400)).unwrap_err();
        assert!(
            told.starts_with(
                "the clock of this machine is 365 days ahead of that of https://a:6443: 20"
            ),
            "{told}"
        );
        let told = check(Some(ours + 3 * 3600 + 60)).unwrap_err();
        assert!(told.starts_with("the clock of this machine is 3 hours behind"), "{told}");
    }
}
