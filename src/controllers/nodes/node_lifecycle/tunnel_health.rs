//! Node health from tunnels, sooner than from leases: a node whose tunnel is lost for seconds is
//! lost, unless the server's own network may be the cause.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::framework::context::{FastLoss, Tunnel, Tunnels};

/// A tunnel that comes back within this time was never lost, counted from the last sign of life:
/// longer than the restart of an agent, and than the time until the silence of all tunnels is
/// noticed when it begins at once (5.5 s, and 1 s between beats).
const LOSS: Duration = Duration::from_secs(7);
/// Signs of life this long after a loss contradict it; earlier ones were under way when the node
/// went.
const CONTRADICTS: Duration = Duration::from_secs(3);
/// After the start of this process no node is lost before agents had time to connect.
const STARTED: Duration = Duration::from_secs(10);
/// As long as no tunnel at all is up, pods of unreachable nodes stay for upstream's times: grace
/// and default tolerations.
const DARK: Duration = Duration::from_secs(50 + 300);

/// What is to be done about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Tunnels say nothing: leases decide.
    Leases,
    /// Its pods stay for now, look again after this time.
    Spared(Duration),
    /// It is lost.
    Lost,
}

/// Whether the server's own network works: another tunnel is up, or the only node that ever had a
/// tunnel is lost and this server's network worked then. When several nodes are lost together, the
/// server's side is the likelier cause.
fn ours_works(tunnels: &Tunnels, now: Instant) -> bool {
    let recent = tunnels.values().filter(|t| match t {
        Tunnel::Up => true,
        Tunnel::Lost { since, .. } => now < *since + DARK,
    });
    let recent: Vec<&Tunnel> = recent.collect();
    recent.contains(&&Tunnel::Up)
        || matches!(recent.as_slice(), [Tunnel::Lost { proved: true, .. }])
}

/// The latest state of the tunnels, and from when on it is reliable.
#[derive(Debug)]
pub(super) struct TunnelHealth {
    own_node: Option<String>,
    /// `--node-monitor-grace-period`.
    grace: Duration,
    tunnels: Arc<Tunnels>,
    /// Since when no tunnel at all is up, so that the server's own network may be the cause.
    dark: Option<Instant>,
    /// Before this time no node is lost.
    believed_from: Instant,
}

impl TunnelHealth {
    pub(super) fn new(
        own_node: Option<&str>,
        fast: &FastLoss,
        grace: Duration,
        now: Instant,
    ) -> Self {
        let mut evidence = Self {
            own_node: own_node.map(str::to_owned),
            grace,
            tunnels: Arc::default(),
            dark: Some(now),
            believed_from: now + STARTED,
        };
        evidence.tell(Arc::clone(&fast.tunnels.borrow()), now);
        evidence
    }

    /// Takes news; the nodes to look at because of them.
    pub(super) fn tell(&mut self, tunnels: Arc<Tunnels>, now: Instant) -> Vec<String> {
        let works = ours_works(&tunnels, now);
        let mut turned = false;
        match (self.dark, works) {
            (Some(_), true) => {
                // The others need time to come back, too: what upstream gives after a full
                // disruption.
                if now >= self.believed_from {
                    self.believed_from = now + self.grace;
                }
                (self.dark, turned) = (None, true);
            }
            (None, false) => (self.dark, turned) = (Some(now), true),
            _ => {}
        }
        let before = std::mem::replace(&mut self.tunnels, Arc::clone(&tunnels));
        let changed = |(name, tunnel): &(&String, &Tunnel)| {
            before.get(*name) != Some(*tunnel) || (turned && **tunnel != Tunnel::Up)
        };
        tunnels.iter().filter(changed).map(|(name, _)| name.clone()).collect()
    }

    /// The verdict about a node that last reported (status or lease) at `heard`.
    pub(super) fn verdict(&self, name: &str, heard: Instant, now: Instant) -> Verdict {
        if self.own_node.as_deref() == Some(name) {
            return Verdict::Leases;
        }
        let until = |at: Instant| {
            let left = at.saturating_duration_since(now);
            (!left.is_zero()).then(|| Verdict::Spared(left + Duration::from_millis(1)))
        };
        if let Some(since) = self.dark {
            return until(since + DARK).unwrap_or(Verdict::Leases);
        }
        if let Some(spared) = until(self.believed_from) {
            return spared;
        }
        match self.tunnels.get(name) {
            None | Some(Tunnel::Up) => Verdict::Leases,
            Some(Tunnel::Lost { since, .. }) if heard >= *since + CONTRADICTS => Verdict::Leases,
            Some(Tunnel::Lost { since, .. }) => until(*since + LOSS).unwrap_or(Verdict::Lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Verdict = Verdict::Lost;

    struct World {
        evidence: TunnelHealth,
        start: Instant,
    }

    impl World {
        fn new() -> Self {
            let start = Instant::now();
            let (_, tunnels) = tokio::sync::watch::channel(Arc::default());
            let fast = FastLoss { tunnels, toleration: 1 };
            Self {
                evidence: TunnelHealth::new(Some("server"), &fast, Duration::from_secs(50), start),
                start,
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// Names that are lost with the second of their loss, others that are up.
        fn tell(&mut self, second: u64, up: &[&str], lost: &[(&str, u64)]) -> Vec<String> {
            self.tell_proved(second, up, lost, true)
        }

        fn tell_proved(
            &mut self,
            second: u64,
            up: &[&str],
            lost: &[(&str, u64)],
            proved: bool,
        ) -> Vec<String> {
            let mut tunnels: Tunnels =
                up.iter().map(|name| ((*name).to_owned(), Tunnel::Up)).collect();
            tunnels.extend(lost.iter().map(|(name, at)| {
                ((*name).to_owned(), Tunnel::Lost { since: self.at(*at), proved })
            }));
            let now = self.at(second);
            self.evidence.tell(Arc::new(tunnels), now)
        }

        fn verdict(&self, name: &str, heard: u64, second: u64) -> Verdict {
            self.evidence.verdict(name, self.at(heard), self.at(second))
        }

        fn spared(&self, name: &str, second: u64) -> bool {
            matches!(self.verdict(name, 0, second), Verdict::Spared(_))
        }
    }

    #[test]
    fn one_of_several_is_lost_after_seven_seconds_and_one_that_came_back_is_not() {
        let mut world = World::new();
        assert_eq!(world.tell(2, &["a", "b"], &[]), ["a", "b"]);
        assert_eq!(world.tell(100, &["b"], &[("a", 100)]), ["a"]);
        assert!(world.spared("a", 106));
        assert_eq!(world.verdict("a", 99, 107), LOST);
        assert_eq!(world.verdict("b", 99, 107), Verdict::Leases);
        assert_eq!(world.tell(107, &["a", "b"], &[]), ["a"]);
        assert_eq!(world.verdict("a", 99, 200), Verdict::Leases);
    }

    #[test]
    fn a_node_that_is_heard_of_in_another_way_is_not_lost() {
        let mut world = World::new();
        world.tell(2, &["a", "b"], &[]);
        world.tell(100, &["b"], &[("a", 100)]);
        assert_eq!(world.verdict("a", 101, 107), LOST);
        assert_eq!(world.verdict("a", 103, 107), Verdict::Leases);
    }

    #[test]
    fn when_all_are_lost_the_fault_is_ours_and_upstreams_times_hold() {
        let mut world = World::new();
        world.tell(2, &["a", "b"], &[]);
        world.tell(100, &["b"], &[("a", 100)]);
        assert_eq!(world.tell(102, &[], &[("a", 100), ("b", 102)]), ["a", "b"]);
        for second in [107, 110, 451] {
            assert!(world.spared("a", second) && world.spared("b", second));
        }
        assert_eq!(world.verdict("a", 0, 452), Verdict::Leases);
        // The first that is back does not condemn those that are still on their way.
        world.tell(200, &["b"], &[("a", 100)]);
        assert!(world.spared("a", 249));
        assert_eq!(world.verdict("a", 0, 250), LOST);
    }

    #[test]
    fn a_single_agent_is_lost_when_our_own_network_worked() {
        let mut world = World::new();
        world.tell(2, &["a"], &[]);
        assert_eq!(world.tell_proved(100, &[], &[("a", 95)], true), ["a"]);
        assert!(world.spared("a", 101));
        assert_eq!(world.verdict("a", 90, 102), LOST);
        assert_eq!(world.tell(200, &["a"], &[]), ["a"]);
        assert_eq!(world.verdict("a", 90, 200), Verdict::Leases);
        // Our cable was pulled.
        world.tell_proved(300, &[], &[("a", 295)], false);
        assert!(world.spared("a", 310) && world.spared("a", 649));
    }

    #[test]
    fn the_last_of_several_is_single_when_the_others_are_long_gone() {
        let mut world = World::new();
        world.tell(2, &["a", "b"], &[]);
        world.tell(100, &["b"], &[("a", 95)]);
        world.tell(440, &[], &[("a", 95), ("b", 435)]);
        assert!(world.spared("b", 450));
        let mut world = World::new();
        world.tell(2, &["a", "b"], &[]);
        world.tell(100, &["b"], &[("a", 95)]);
        world.tell(450, &[], &[("a", 95), ("b", 445)]);
        assert_eq!(world.verdict("b", 440, 452), LOST);
    }

    #[test]
    fn nobody_is_lost_right_after_a_start_and_a_server_that_starts_cut_off_gives_up_nobody() {
        let mut world = World::new();
        assert!(world.spared("a", 5) && world.spared("a", 349));
        assert_eq!(world.verdict("server", 0, 5), Verdict::Leases);
        world.tell(1, &["a", "b"], &[]);
        world.tell(2, &["b"], &[("a", 2)]);
        assert!(world.spared("a", 9));
        assert_eq!(world.verdict("a", 0, 10), LOST);
        assert_eq!(world.verdict("never-seen", 0, 10), Verdict::Leases);
    }
}
