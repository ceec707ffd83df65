//! What happens to packets that policies do not allow: each policy has a chain that counts them and
//! logs some of them to NFLOG, and each set of policies that isolate the same pods has a chain that
//! goes through the chains of its policies and drops.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::ObjectKey;
use api::value::{get, str_at};
use base::metrics::Family as MetricFamily;
use parking_lot::Mutex;
use serde_json::Value;

use crate::config::Error;
use crate::netlink::Socket;
use crate::nft::expr::{Rule, Verdict};
use crate::nft::{Batch, dump_counters};
use settings::addr::Family;

/// kube-router's group of NFLOG.
const LOG_GROUP: u16 = 100;
/// The kernel's limit for prefixes without the terminating zero byte.
const PREFIX_MAX: usize = 127;
/// kube-router's annotations of policies.
const LIMIT: &str = "kube-router.io/netpol-nflog-limit";
const LIMIT_BURST: &str = "kube-router.io/netpol-nflog-limit-burst";
/// The largest values of iptables.
const BURST_MAX: u32 = 10_000;
const PER_SECOND_MAX: u64 = 10_000;

/// How many packets of a policy are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LogLimit {
    pub(crate) packets: u64,
    pub(crate) seconds: u64,
    pub(crate) burst: u32,
}

/// kube-router's defaults.
impl Default for LogLimit {
    fn default() -> Self {
        Self { packets: 10, seconds: 60, burst: 10 }
    }
}

impl LogLimit {
    /// Reads the annotations of a policy. Invalid values are logged and leave the default.
    pub(crate) fn read(key: &ObjectKey, metadata: &Value) -> Self {
        let annotations = get(metadata, "annotations");
        let invalid = |annotation: &str| {
            tracing::warn!(
                policy = %key, annotation, value = str_at(annotations, annotation),
                "policy: invalid limit of logged packets, using the default 10/minute, burst 10 \
                 (valid are for example 5/second and 20)"
            );
        };
        let mut out = Self::default();
        if let Some(text) = get(annotations, LIMIT).as_str() {
            match rate(text) {
                Some((packets, seconds)) => (out.packets, out.seconds) = (packets, seconds),
                None => invalid(LIMIT),
            }
        }
        if let Some(text) = get(annotations, LIMIT_BURST).as_str() {
            match text.parse() {
                Ok(burst @ 1..=BURST_MAX) => out.burst = burst,
                _ => invalid(LIMIT_BURST),
            }
        }
        out
    }
}

/// A rate as iptables' `--limit` reads it: a number, then optionally `/` and the start of `second`,
/// `minute`, `hour` or `day`.
fn rate(text: &str) -> Option<(u64, u64)> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "second"));
    let unit = unit.to_ascii_lowercase();
    let units = [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400)];
    let (_, seconds) =
        units.iter().find(|(name, _)| !unit.is_empty() && name.starts_with(&unit))?;
    let packets: u64 = number.parse().ok()?;
    (packets > 0 && packets / seconds <= PER_SECOND_MAX).then_some((packets, *seconds))
}

/// The chains of one table; a number belongs to the same content as long as it is in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    pub(crate) policies: BTreeMap<u32, (ObjectKey, LogLimit)>,
    /// Numbers of policies, by the number of the set.
    pub(crate) groups: BTreeMap<u32, Vec<u32>>,
}

fn policy_chain(number: u32) -> String {
    format!("policy-{number}")
}

/// The chain of a set of policies.
pub(crate) fn group_chain(number: u32) -> String {
    format!("drop-{number}")
}

/// kube-router's prefix of logged packets, as long as the kernel stores it.
fn prefix(key: &ObjectKey) -> String {
    let mut text = format!("DROP by policy {}/{}", key.namespace, key.name);
    text.truncate(text.floor_char_boundary(PREFIX_MAX));
    text
}

impl Drops {
    /// Adds the chains that `before` does not have. Elements that lead to them come after this.
    pub(super) fn add_chains(&self, batch: &mut Batch, before: &Self) {
        let fresh = self.policies.iter().filter(|(n, _)| !before.policies.contains_key(n));
        for (number, (key, limit)) in fresh {
            let chain = policy_chain(*number);
            batch.add_chain(&chain, None);
            batch.add_rule(&chain, &Rule::new().counter());
            let logged = Rule::new().limit(limit.packets, limit.seconds, limit.burst);
            batch.add_rule(&chain, &logged.log(LOG_GROUP, &prefix(key)));
        }
        for (number, policies) in &self.groups {
            if before.groups.contains_key(number) {
                continue;
            }
            let chain = group_chain(*number);
            batch.add_chain(&chain, None);
            for policy in policies {
                batch.add_rule(&chain, &Rule::new().verdict(Verdict::Jump(&policy_chain(*policy))));
            }
            batch.add_rule(&chain, &Rule::new().verdict(Verdict::Drop));
        }
    }

    /// Deletes the chains that `now` does not have. Elements that lead to them go before this.
    pub(super) fn delete_chains(&self, batch: &mut Batch, now: &Self) {
        for number in self.groups.keys().filter(|n| !now.groups.contains_key(n)) {
            batch.delete_chain(&group_chain(*number));
        }
        for number in self.policies.keys().filter(|n| !now.policies.contains_key(n)) {
            batch.delete_chain(&policy_chain(*number));
        }
    }
}

/// The tables whose counters a scrape reads.
#[derive(Debug, Default)]
struct Counted {
    table: String,
    families: Vec<Family>,
    policies: BTreeMap<String, ObjectKey>,
}

/// Counts of the packets that the policies of this node dropped, read from the kernel on request.
#[derive(Debug, Clone, Default)]
pub struct DroppedPackets(Arc<Mutex<Counted>>);

impl DroppedPackets {
    /// Sets what [`Self::render`] reads.
    pub(super) fn follow(&self, table: &str, families: Vec<Family>, drops: &Drops) {
        let named = |(number, (key, _)): (&u32, &(ObjectKey, LogLimit))| {
            (policy_chain(*number), key.clone())
        };
        let policies = drops.policies.iter().map(named).collect();
        *self.0.lock() = Counted { table: table.to_owned(), families, policies };
    }

    /// The counters in Prometheus' text format; empty if no policy isolates a pod of this node.
    /// Blocks.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn render(&self) -> Result<String, Error> {
        let counted = self.0.lock();
        let mut out = String::new();
        if counted.policies.is_empty() {
            return Ok(out);
        }
        let family = MetricFamily::counter(
            "kube_lite_network_policy_dropped_packets_total",
            "Packets to or from pods of this node that a NetworkPolicy isolates and that no policy \
             allows. A packet of a pod that several policies isolate counts for each of them.",
            &["namespace", "networkpolicy"],
        );
        let mut socket =
            Socket::netfilter().map_err(Error::io("cannot open a netfilter socket"))?;
        let add = |chain: &str, packets: u64| {
            if let Some(key) = counted.policies.get(chain) {
                #[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
                family.add(&[&key.namespace, &key.name], packets as f64);
            }
        };
        for protocol in &counted.families {
            dump_counters(&mut socket, *protocol, &counted.table, add)?;
        }
        family.render(&mut out);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_read_as_iptables_reads_them_and_invalid_ones_are_the_default() {
        for (text, expected) in [
            ("10/minute", Some((10, 60))),
            ("5/sec", Some((5, 1))),
            ("3/H", Some((3, 3600))),
            ("1/d", Some((1, 86_400))),
            ("7", Some((7, 1))),
            ("10000/second", Some((10_000, 1))),
            ("10001/second", None),
            ("0/second", None),
            ("5/", None),
            ("5/week", None),
            ("fast", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
        let key = ObjectKey::new("n", "p");
        let read = |limit: &str, burst: &str| {
            LogLimit::read(&key, &json!({"annotations": {LIMIT: limit, LIMIT_BURST: burst}}))
        };
        assert_eq!(LogLimit::read(&key, &json!({})), LogLimit::default());
        assert_eq!(read("1/second", "20"), LogLimit { packets: 1, seconds: 1, burst: 20 });
        assert_eq!(read("x", "20"), LogLimit { burst: 20, ..LogLimit::default() });
        assert_eq!(read("10/minute", "10001"), LogLimit::default());
    }

    #[test]
    fn a_prefix_names_the_policy_and_fits_into_the_kernels_limit() {
        assert_eq!(prefix(&ObjectKey::new("default", "deny")), "DROP by policy default/deny");
        let long = prefix(&ObjectKey::new(&"n".repeat(63), &"p".repeat(253)));
        assert_eq!(long.len(), PREFIX_MAX);
    }
}
