//! What agents and servers do alike when they join: try until somebody answers, and believe nobody before it is proved.

use std::time::Duration;

use base::pki::rotation;
use base::{Backoff, Shutdown, clock};
use cluster::join::{Error, FetchedCa, ServerAddress, reason};
use cluster::token::Token;

use crate::error_catalogue::{
    BAD_CLOCK, JOIN_REFUSED, NAME_TAKEN, NOT_A_SERVER, Refusal, SERVER_UNREACHABLE, TOKEN_EXPIRED,
    VERSION_SKEW, WRONG_CA, WRONG_TOKEN,
};

/// First and longest wait between attempts.
const WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// A server that does not answer is complained about this often.
const TOLD_INTERVAL: Duration = Duration::from_secs(60);
/// So much the clocks may differ: certificates, logs and leases bear it.
const CLOCK_SECONDS_MAX: u64 = 60 * 60;

/// Tries until it succeeds or is told no.
///
/// # Errors
/// What the server or the check of it says no to; at shutdown the last failure.
pub(crate) async fn until_answered<T>(
    shutdown: &Shutdown,
    mut attempt: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Refusal> {
    let mut backoff = Backoff::new(WAIT.0, WAIT.1);
    let mut told = None;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
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
pub(crate) fn refusal(error: Error) -> Refusal {
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
    entry.refuse(error)
}

/// Whether a server has the CA that the token names; before anything secret is sent. What it must prove itself by: PEM of the
/// certificates that the hash names, alone of all that it shows.
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
    let named = token.ca_hash.as_ref().map(|wanted| rotation::named(&shown.pem, wanted));
    let named = named
        .transpose()
        .map_err(|e| Error::NotAServer { server: at.clone(), why: e.to_string() })?
        .unwrap_or_default();
    match &token.ca_hash {
        Some(_) if !named.is_empty() => Ok(named.iter().map(rotation::pem).collect()),
        Some(wanted) => Err(Error::WrongCa {
            server: at,
            why: format!(
                "the hash of its CA is {hash}, the token names {wanted}; the token was not sent"
            ),
        }),
        None => {
            tracing::warn!(%server, hash, "the server is believed without proof (--insecure-join)");
            Ok(shown.pem.clone())
        }
    }
}

/// Whether the clocks are near enough to each other.
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
            let shown = FetchedCa { pem: String::new(), date };
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
