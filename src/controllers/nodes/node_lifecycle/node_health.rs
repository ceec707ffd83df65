//! When each node last reported, the state of the zones, and the rate of evictions: what the
//! decisions need, without I/O.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::Instant;

use super::decide::{self, Member, Zone};
use super::metrics;
use crate::framework::nodes;
use crate::nodes::node_lifecycle::tunnel_health::{TunnelHealth, Verdict};

/// When a node last reported, by this process's clock, and what it reported.
#[derive(Debug)]
struct NodeReport {
    uid: Option<String>,
    at: Instant,
    /// `lastHeartbeatTime` of `Ready`.
    heartbeat: Option<Time>,
    reported: bool,
}

#[derive(Debug)]
pub(super) struct NodeHealth {
    /// `--node-monitor-grace-period`.
    grace: Duration,
    reports: HashMap<String, NodeReport>,
    /// When a node's lease was last renewed.
    renewed: HashMap<String, Instant>,
    /// All nodes that count, as last reconciled; `None` before the first reconcile.
    members: Option<HashMap<String, Member>>,
    zones: BTreeMap<String, (Zone, usize)>,
    /// When the next node of a zone may be given up.
    next: HashMap<String, Instant>,
    /// What tunnels tell; `None` when leases alone decide.
    pub(super) evidence: Option<TunnelHealth>,
}

impl NodeHealth {
    /// No node has reported yet.
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            reports: HashMap::new(),
            renewed: HashMap::new(),
            members: None,
            zones: BTreeMap::new(),
            next: HashMap::new(),
            evidence: None,
        }
    }

    /// A node's lease was renewed.
    pub(super) fn renewed(&mut self, name: &str, now: Instant) {
        self.renewed.insert(name.to_owned(), now);
    }

    /// A node's lease is gone.
    pub(super) fn lease_gone(&mut self, name: &str) {
        self.renewed.remove(name);
    }

    /// Whether this very node was listened to before.
    pub(super) fn knows(&self, name: &str, uid: Option<&str>) -> bool {
        self.reports.get(name).is_some_and(|h| h.uid.as_deref() == uid)
    }

    /// Forgets a node that is gone; its uid when it was known.
    pub(super) fn forget(&mut self, name: &str) -> Option<Option<String>> {
        self.reports.remove(name).map(|h| h.uid)
    }

    /// Records signs of life and returns the time of the last one. What was written before the
    /// start of this process counts as of the start, so that a restart loses no node; a node that
    /// never reported is as old as its object (`age`).
    pub(super) fn listen(
        &mut self,
        name: &str,
        node: &Node,
        age: Duration,
        now: Instant,
    ) -> Instant {
        let ready = nodes::condition(node, "Ready");
        let heartbeat = ready.and_then(|c| c.last_heartbeat_time.clone());
        let reported = ready.is_some();
        let since = if reported { now } else { now.checked_sub(age).unwrap_or(now) };
        let fresh = || NodeReport {
            uid: node.metadata.uid.clone(),
            at: since,
            heartbeat: heartbeat.clone(),
            reported,
        };
        let heard = self.reports.entry(name.to_owned()).or_insert_with(fresh);
        let differs = heard.uid != node.metadata.uid || heard.reported != reported;
        if differs || heard.heartbeat != heartbeat {
            *heard = fresh();
        }
        if let Some(at) = self.renewed.get(name) {
            heard.at = heard.at.max(*at);
        }
        heard.at
    }

    /// What tunnels tell of a node.
    pub(super) fn verdict(&self, name: &str, heard: Instant, now: Instant) -> Verdict {
        self.evidence.as_ref().map_or(Verdict::Leases, |e| e.verdict(name, heard, now))
    }

    /// Puts this node as it is now (`None`: deleted) into its zone; returns the nodes to check
    /// again because the state of a zone changed. `all` is called once, for the nodes that were
    /// there before.
    pub(super) fn judge(
        &mut self,
        name: &str,
        node: Option<&Node>,
        all: impl FnOnce() -> Vec<Node>,
        now: Instant,
    ) -> Vec<String> {
        let before = self.members.is_some();
        let members = self.members.get_or_insert_with(|| {
            let member = |n: Node| Some((n.metadata.name.clone()?, decide::member(&n)?));
            all().into_iter().filter_map(member).collect()
        });
        let (is, was) = match node.and_then(decide::member) {
            Some(member) => (Some(member.clone()), members.insert(name.to_owned(), member)),
            None => (None, members.remove(name)),
        };
        if before && is == was {
            return Vec::new();
        }
        let zones = decide::zones(members.values());
        let (was, is) = (all_disrupted(&self.zones), all_disrupted(&zones));
        if was && !is && before {
            for heard in self.reports.values_mut() {
                heard.at = now;
            }
        }
        let state = |zones: &BTreeMap<String, (Zone, usize)>| {
            zones.iter().map(|(name, (zone, _))| (name.clone(), *zone)).collect::<Vec<_>>()
        };
        metrics::set_zones(self.zones.keys().chain(zones.keys()), members);
        let changed = state(&self.zones) != state(&zones);
        self.zones = zones;
        if changed { self.reports.keys().cloned().collect() } else { Vec::new() }
    }

    /// Which `NoExecute` taint of this controller the node should have now, and when to check again
    /// if that has to wait.
    pub(super) fn no_execute(
        &mut self,
        node: &Node,
        verdict: Verdict,
        now: Instant,
    ) -> (Option<&'static str>, Option<Duration>) {
        let has = decide::executed(node);
        // Before a node reported it neither gets nor loses such a taint.
        if nodes::ready(node).is_none() {
            return (has, None);
        }
        let Some(wanted) = decide::no_execute(node) else { return (None, None) };
        if all_disrupted(&self.zones) {
            return (None, None);
        }
        if has.is_some() {
            return (Some(wanted), None);
        }
        if let (decide::UNREACHABLE, Verdict::Spared(left)) = (wanted, verdict) {
            return (None, Some(left));
        }
        let zone = nodes::zone(node);
        let (kind, size) = self.zones.get(&zone).copied().unwrap_or((Zone::Normal, 1));
        let rate = decide::rate(kind, size);
        if rate <= 0.0 {
            // A change of the zone's state wakes all its nodes.
            return (None, Some(self.grace));
        }
        match self.next.get(&zone) {
            Some(next) if *next > now => (None, Some(*next - now)),
            Some(_) | None => {
                metrics::EVICTIONS.inc(&[&zone]);
                self.next.insert(zone, now + Duration::from_secs_f64(1.0 / rate));
                (Some(wanted), None)
            }
        }
    }
}

/// No zone has a ready node: then no node is lost, because the server's own network is the likelier
/// cause.
fn all_disrupted(zones: &BTreeMap<String, (Zone, usize)>) -> bool {
    !zones.is_empty() && zones.values().all(|(zone, _)| *zone == Zone::Full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Duration = Duration::ZERO;

    fn node(name: &str, ready: Option<&str>) -> Node {
        let conditions = ready.map(|status| {
            json!([{"type": "Ready", "status": status,
                "lastHeartbeatTime": "2026-01-01T00:00:00Z"}])
        });
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    struct Zoned {
        ledger: NodeHealth,
        start: Instant,
    }

    impl Zoned {
        /// Nodes `0..` of one zone with these states.
        fn new(states: &[&str]) -> Self {
            let mut zoned =
                Self { ledger: NodeHealth::new(Duration::from_secs(50)), start: Instant::now() };
            for (n, state) in states.iter().enumerate() {
                zoned.set(n, state, 0);
            }
            zoned
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn set(&mut self, n: usize, state: &str, second: u64) -> usize {
            let (name, now) = (n.to_string(), self.at(second));
            let node = node(&name, Some(state));
            self.ledger.listen(&name, &node, NOW, now);
            self.ledger.judge(&name, Some(&node), Vec::new, now).len()
        }

        /// Whether the node may be given up at this second; else when to ask again.
        fn ask(&mut self, n: usize, state: &str, second: u64) -> Result<&'static str, u64> {
            let (node, now) = (node(&n.to_string(), Some(state)), self.at(second));
            let (taint, wait) = self.ledger.no_execute(&node, Verdict::Leases, now);
            taint.ok_or_else(|| wait.unwrap_or_default().as_secs())
        }
    }

    #[test]
    fn a_zone_gives_up_one_node_in_ten_seconds() {
        let mut zone = Zoned::new(&["True", "True", "True", "Unknown", "False"]);
        assert_eq!(zone.ask(3, "Unknown", 0), Ok(decide::UNREACHABLE));
        assert_eq!(zone.ask(4, "False", 4), Err(6));
        assert_eq!(zone.ask(4, "False", 10), Ok(decide::NOT_READY));
    }

    #[test]
    fn a_small_zone_that_is_partially_disrupted_gives_up_nobody_and_a_large_one_one_in_100_seconds()
    {
        let mut zone = Zoned::new(&["True", "True", "Unknown", "Unknown", "Unknown"]);
        assert_eq!(zone.ask(2, "Unknown", 0), Err(50));
        let mut states = vec!["Unknown"; 40];
        states.resize(60, "True");
        let mut zone = Zoned::new(&states);
        assert_eq!(zone.ask(0, "Unknown", 0), Ok(decide::UNREACHABLE));
        assert_eq!(zone.ask(1, "Unknown", 1), Err(99));
    }

    #[test]
    fn a_change_of_the_zones_state_wakes_all_its_nodes() {
        let mut zone = Zoned::new(&["True", "True", "Unknown", "Unknown", "True"]);
        assert_eq!(zone.set(4, "Unknown", 1), 5);
        assert_eq!(zone.set(4, "Unknown", 2), 0);
        assert_eq!(zone.set(4, "True", 3), 5);
    }

    #[test]
    fn when_no_node_is_ready_nobody_is_given_up_and_afterwards_all_have_the_whole_grace() {
        let mut zone = Zoned::new(&["True", "Unknown"]);
        assert_eq!(zone.ask(1, "Unknown", 0), Ok(decide::UNREACHABLE));
        zone.set(0, "Unknown", 5);
        assert_eq!(zone.ask(1, "Unknown", 100), Err(0));
        zone.set(0, "True", 200);
        let heard = zone.ledger.listen("1", &node("1", Some("Unknown")), NOW, zone.at(201));
        assert_eq!(heard, zone.at(200));
    }

    #[test]
    fn leases_and_heartbeats_are_signs_of_life_and_a_silent_node_is_as_old_as_its_object() {
        let start = Instant::now() + Duration::from_secs(1000);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ledger = NodeHealth::new(Duration::from_secs(50));
        assert_eq!(
            ledger.listen("a", &node("a", Some("True")), Duration::from_secs(900), at(0)),
            at(0)
        );
        assert_eq!(ledger.listen("a", &node("a", Some("True")), NOW, at(40)), at(0));
        ledger.renewed("a", at(30));
        assert_eq!(ledger.listen("a", &node("a", Some("True")), NOW, at(41)), at(30));
        let mut beat = node("a", Some("True"));
        let status = beat.status.as_mut().and_then(|s| s.conditions.as_mut()).unwrap();
        status[0].last_heartbeat_time = None;
        assert_eq!(ledger.listen("a", &beat, NOW, at(42)), at(42));
        let made_before = Duration::from_secs(59);
        assert_eq!(ledger.listen("b", &node("b", None), made_before, at(100)), at(41));
        assert_eq!(ledger.listen("b", &node("b", Some("True")), made_before, at(101)), at(101));
    }

    #[test]
    fn an_unreachable_node_is_spared_while_tunnels_say_so_and_a_taint_stays_as_it_is() {
        let mut zone = Zoned::new(&["True", "True", "Unknown"]);
        let spared = Verdict::Spared(Duration::from_secs(7));
        let now = zone.at(0);
        let mut lost = node("2", Some("Unknown"));
        assert_eq!(
            zone.ledger.no_execute(&lost, spared, now),
            (None, Some(Duration::from_secs(7)))
        );
        let unready = node("2", Some("False"));
        assert_eq!(zone.ledger.no_execute(&unready, spared, now).0, Some(decide::NOT_READY));
        lost.spec = serde_json::from_value(
            json!({"taints": [{"key": decide::NOT_READY, "effect": "NoExecute"}]}),
        )
        .unwrap();
        assert_eq!(zone.ledger.no_execute(&lost, spared, now), (Some(decide::UNREACHABLE), None));
    }
}
