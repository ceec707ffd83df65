//! Counts the answers of servers to one request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::LeaseResponse;

/// What the answers say about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// More than half of the servers grant it.
    Granted,
    /// More than half of the servers say that another machine has it.
    Taken,
    /// Neither: too few answers.
    Open,
}

/// The answers to one request, one per server.
#[derive(Debug)]
pub(super) struct Tally {
    before: usize,
    answers: BTreeMap<String, LeaseResponse>,
}

impl Tally {
    /// No answers; `servers` is the number of servers by earlier ones.
    pub(super) fn new(servers: usize) -> Self {
        Self { before: servers, answers: BTreeMap::new() }
    }

    /// Counts an answer. A server that is reached by two addresses counts once.
    pub(super) fn add(&mut self, answer: LeaseResponse) {
        self.answers.insert(answer.server.clone(), answer);
    }

    /// The number of servers: the largest that a server says, as one may join while they answer.
    pub(super) fn servers(&self) -> usize {
        self.answers.values().map(|answer| answer.servers).max().unwrap_or(self.before)
    }

    fn is_majority(&self, says: impl Fn(&LeaseResponse) -> bool) -> bool {
        let count = self.answers.values().filter(|answer| says(answer)).count();
        count > self.servers() / 2
    }

    pub(super) fn fate(&self, ip: IpAddr) -> Fate {
        if self.is_majority(|answer| answer.granted.contains(&ip)) {
            Fate::Granted
        } else if self.is_majority(|answer| answer.others.contains_key(&ip)) {
            Fate::Taken
        } else {
            Fate::Open
        }
    }

    /// Whether more than half of the servers have answered.
    pub(super) fn has_majority(&self) -> bool {
        self.is_majority(|_| true)
    }

    /// Whether further answers change nothing.
    pub(super) fn decides(&self, claim: &BTreeSet<IpAddr>) -> bool {
        let is_all = self.answers.len() >= self.servers();
        is_all
            || (self.has_majority()
                && !claim.is_empty()
                && claim.iter().all(|ip| self.fate(*ip) != Fate::Open))
    }

    /// How often the address was asked for by machines that had been cut off.
    pub(super) fn returns(&self, ip: IpAddr) -> u64 {
        self.answers
            .values()
            .filter_map(|answer| answer.returns.get(&ip))
            .copied()
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_the_servers_decide() {
        let ip: IpAddr = "192.0.2.10".parse().unwrap();
        let claim = BTreeSet::from([ip]);
        let answer = |server: &str, servers: usize, says: char| LeaseResponse {
            server: server.into(),
            servers,
            granted: if says == 'g' { claim.clone() } else { BTreeSet::new() },
            others: if says == 'o' { [(ip, "x".into())].into() } else { BTreeMap::new() },
            ..LeaseResponse::default()
        };
        for (answers, fate, decides) in [
            (&[][..], Fate::Open, false),
            (&[("a", 1, 'g')], Fate::Granted, true),
            (&[("a", 1, '-')], Fate::Open, true),
            (&[("a", 3, 'g')], Fate::Open, false),
            (&[("a", 3, 'g'), ("a", 3, 'g')], Fate::Open, false),
            (&[("a", 3, 'g'), ("b", 3, 'g')], Fate::Granted, true),
            (&[("a", 3, 'g'), ("b", 3, 'o')], Fate::Open, false),
            (&[("a", 3, 'g'), ("b", 3, 'o'), ("c", 3, 'o')], Fate::Taken, true),
            (&[("a", 1, 'g'), ("b", 2, 'o')], Fate::Open, true),
            (&[("a", 4, 'g'), ("b", 4, 'g')], Fate::Open, false),
        ] {
            let mut tally = Tally::new(3);
            for (server, servers, says) in answers {
                tally.add(answer(server, *servers, *says));
            }
            assert_eq!((tally.fate(ip), tally.decides(&claim)), (fate, decides), "{answers:?}");
        }
    }
}
