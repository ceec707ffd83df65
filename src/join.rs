//! Joins of agents and servers: repeats attempts until a server answers, and checks the CA of the
//! server before any secret is sent.

use std::time::Duration;

use base::pki::rotation;
use base::{Backoff, Shutdown, clock};
use cluster::join::{Error, FetchedCa, ServerAddress, reason};
use cluster::token::Token;

use crate::error_catalogue::{
    BAD_CLOCK, CommandError, JOIN_REFUSED, NAME_TAKEN, NOT_A_SERVER, SERVER_UNREACHABLE,
    TOKEN_EXPIRED, VERSION_SKEW, WRONG_CA, WRONG_TOKEN,
};

/// First and longest delay between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Interval of the warning that no server answers.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum difference of the clocks, which certificates, logs and leases tolerate.
const CLOCK_SECONDS_MAX: u64 = 60 * 60;

/// Repeats `attempt` until it succeeds or fails permanently.
///
/// # Errors
/// The server rejects the join or is not trusted; at shutdown the last error.
pub(crate) async fn until_answered<T>(
    shutdown: &Shutdown,
    mut attempt: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, CommandError> {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut warned = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(command_error(error)),
        };
        let now = clock::now();
        if warned.is_none_or(|at| now.duration_since(at) >= WARN_INTERVAL) {
            tracing::warn!(%error, "join: retrying until a server answers");
            warned = Some(now);
        }
        if !backoff.wait(shutdown).await {
            return Err(command_error(error));
        }
    }
}

/// The error of the command, with its fix.
pub(crate) fn command_error(error: Error) -> CommandError {
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
        Error::Local(_) => JOIN_REFUSED,
    };
    entry.error(error)
}

/// Checks that a server has the CA of the token, before any secret is sent. Returns the
/// certificates (PEM) that the hash names, which alone are trusted afterwards, even if the server
/// presents others.
///
/// # Errors
/// [`Error::WrongCa`], [`Error::NotAServer`].
pub(crate) fn check_ca(
    token: &Token,
    server: &ServerAddress,
    shown: &FetchedCa,
) -> Result<String, Error> {
    let at = server.to_string();
    let hash = base::pki::ca_hash(&shown.pem);
    let hash = hash.map_err(|e| Error::NotAServer { server: at.clone(), why: e.to_string() })?;
    let named = token.ca_hash.as_ref().map(|hash| rotation::named(&shown.pem, hash));
    let named = named
        .transpose()
        .map_err(|e| Error::NotAServer { server: at.clone(), why: e.to_string() })?
        .unwrap_or_default();
    match &token.ca_hash {
        Some(_) if !named.is_empty() => Ok(named.iter().map(rotation::pem).collect()),
        Some(expected) => Err(Error::WrongCa {
            server: at,
            why: format!(
                "the hash of its CA is {hash}, the token names {expected}; the token was not sent"
            ),
        }),
        None => {
            tracing::warn!(%server, hash, "join: trusting the CA of the server without verification (--insecure-join)");
            Ok(shown.pem.clone())
        }
    }
}

/// Checks that the clocks of this machine and the server agree.
///
/// # Errors
/// [`Error::Clock`].
pub(crate) fn check_clock(shown: &FetchedCa, server: &ServerAddress) -> Result<(), Error> {
    let Some(theirs) = shown.date else { return Ok(()) };
    let ours = i64::try_from(clock::unix_time().as_secs()).unwrap_or(i64::MAX);
    let off = ours.abs_diff(theirs);
    if off <= CLOCK_SECONDS_MAX {
        return Ok(());
    }
    let relation = if ours < theirs { "behind" } else { "ahead of" };
    let at = |seconds: i64| {
        jiff::Timestamp::from_second(seconds)
            .map_or_else(|_| seconds.to_string(), |t| t.to_string())
    };
    Err(Error::Clock(format!(
        "the clock of this machine is {} {relation} that of {server}: {} here, {} there",
        format_duration(off),
        at(ours),
        at(theirs)
    )))
}

/// A duration in its largest unit: `365 days`.
fn format_duration(seconds: u64) -> String {
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
    fn a_wrong_clock_is_an_error_with_the_difference() {
        let server: ServerAddress = "https://a".parse().unwrap();
        let ours = i64::try_from(clock::unix_time().as_secs()).unwrap();
        let check = |date| {
            let shown = FetchedCa { pem: String::new(), date };
            check_clock(&shown, &server).map_err(|e| e.to_string())
        };
        assert_eq!(check(None), Ok(()));
        assert_eq!(check(Some(ours + 3000)), Ok(()));
        let error = check(Some(ours - 365 * 86_400)).unwrap_err();
        assert!(
            error.starts_with(
                "the clock of this machine is 365 days ahead of that of https://a:6443: 20"
            ),
            "{error}"
        );
        let error = check(Some(ours + 3 * 3600 + 60)).unwrap_err();
        assert!(error.starts_with("the clock of this machine is 3 hours behind"), "{error}");
    }
}
