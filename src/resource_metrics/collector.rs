//! Measures all nodes each 15 s.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Shutdown;
use futures::StreamExt;

use crate::sample::Sample;
use crate::store::Store;
use crate::usage::RESOLUTION;

/// Time limit for the answer of a node (metrics-server's `--kubelet-request-timeout`).
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Nodes that are measured at the same time.
const CONCURRENCY: usize = 16;
/// Interval of the first measurements after a node appeared: usages exist within 15 s of a start.
const FIRST_INTERVAL: Duration = Duration::from_secs(5);
/// Number of intervals of this length.
const FIRST_ROUNDS: u8 = 2;
/// Least wait between two regular rounds: a shorter window is too imprecise. It is below the rest
/// of the interval after a round in which a node did not answer.
const WAIT_MIN: Duration = Duration::from_secs(3);

/// Why a node was not measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The node did not answer in time.
    #[error("no answer within {} s", ANSWER_MAX.as_secs())]
    Timeout,
    /// The node cannot be reached, or its answer is unusable.
    #[error("{0}")]
    Node(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The nodes, and how they are measured.
#[async_trait]
pub trait Source: Send + Sync {
    /// The nodes that are expected to answer.
    fn nodes(&self) -> BTreeSet<String>;

    /// Resolves once a node may have appeared.
    async fn changed(&self);

    /// Measures a node.
    ///
    /// # Errors
    /// The node cannot be reached, or its answer is unusable.
    async fn measure(&self, node: &str) -> Result<Sample, MeasureError>;
}

/// When the next round begins.
#[derive(Debug, Default)]
struct Schedule {
    known: BTreeSet<String>,
    first_rounds: u8,
}

impl Schedule {
    /// Whether there are new nodes, which are measured at once and then more often.
    fn note(&mut self, nodes: &BTreeSet<String>) -> bool {
        let is_new = nodes.iter().any(|node| !self.known.contains(node));
        if is_new {
            self.first_rounds = FIRST_ROUNDS;
        }
        self.known.clone_from(nodes);
        is_new
    }

    /// The wait after a round. Rounds are at multiples of the resolution since the epoch, so that
    /// several servers wake a node at the same moment.
    fn wait(&mut self, now: Duration) -> Duration {
        if self.first_rounds > 0 {
            self.first_rounds -= 1;
            return FIRST_INTERVAL;
        }
        let resolution = u128::try_from(RESOLUTION).unwrap_or(1);
        let left = resolution - now.as_nanos() % resolution;
        let left = Duration::from_nanos(u64::try_from(left).unwrap_or_default());
        if left < WAIT_MIN { left + Duration::from_nanos(RESOLUTION.unsigned_abs()) } else { left }
    }
}

/// Measures the nodes of `source` until shutdown.
///
/// # Errors
/// None; the signature is that of a task.
pub async fn run(
    store: Arc<Store>,
    source: Arc<dyn Source>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    let mut schedule = Schedule::default();
    let mut failing = BTreeSet::new();
    loop {
        let nodes = source.nodes();
        schedule.note(&nodes);
        tokio::select! {
            () = round(&store, &*source, &nodes, &mut failing) => {}
            () = shutdown.requested() => return Ok(()),
        }
        let wait = schedule.wait(base::clock::unix_time());
        // A server without nodes does not wake up.
        let wait = async {
            match nodes.is_empty() {
                true => std::future::pending().await,
                false => base::clock::sleep(wait).await,
            }
        };
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => break,
                () = source.changed() => {
                    if schedule.note(&source.nodes()) {
                        break;
                    }
                }
                () = shutdown.requested() => return Ok(()),
            }
        }
    }
}

/// Measures all nodes once. The first failure of a node in a row is logged.
async fn round(
    store: &Store,
    source: &dyn Source,
    nodes: &BTreeSet<String>,
    failing: &mut BTreeSet<String>,
) {
    let measure = |node: String| async move {
        let outcome = tokio::time::timeout(ANSWER_MAX, source.measure(&node)).await;
        (node, outcome.unwrap_or(Err(MeasureError::Timeout)))
    };
    let mut results =
        futures::stream::iter(nodes.iter().cloned()).map(measure).buffer_unordered(CONCURRENCY);
    failing.retain(|node| nodes.contains(node));
    while let Some((node, outcome)) = results.next().await {
        match outcome {
            Ok(sample) => {
                store.put(&node, sample);
                failing.remove(&node);
            }
            Err(error) => {
                store.remove(&node);
                if failing.insert(node.clone()) {
                    tracing::warn!(node, %error, "resource metrics: cannot measure a node");
                }
            }
        }
    }
    let now = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or(i64::MAX);
    store.retain(nodes, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Point;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_new_node_is_measured_at_once_and_then_every_five_seconds() {
        let mut schedule = Schedule::default();
        assert!(!schedule.note(&names(&[])));
        assert!(schedule.note(&names(&["a"])));
        let now = Duration::from_millis(1_000_000_007_250);
        let waits: Vec<_> = (0..4).map(|_| schedule.wait(now).as_millis()).collect();
        assert_eq!(waits, [5000, 5000, 12_750, 12_750]);
        assert!(!schedule.note(&names(&["a"])));
        assert!(schedule.note(&names(&["a", "b"])));
        assert!(!schedule.note(&names(&["b"])));
        assert!(schedule.note(&names(&["a", "b"])), "a node that came back");
    }

    #[test]
    fn rounds_are_at_multiples_of_the_resolution() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.wait(Duration::from_secs(1_000_000_005)), Duration::from_secs(15));
        let early = Duration::from_millis(1_000_000_019_999);
        assert_eq!(schedule.wait(early), Duration::from_millis(15_001), "a timer that fired early");
        let after_timeout = Duration::from_millis(1_000_000_015_010);
        assert_eq!(schedule.wait(after_timeout), Duration::from_millis(4990));
    }

    /// A node that answers and one that does not.
    struct Two;

    #[async_trait]
    impl Source for Two {
        fn nodes(&self) -> BTreeSet<String> {
            names(&["away", "here"])
        }

        async fn changed(&self) {
            std::future::pending::<()>().await;
        }

        async fn measure(&self, node: &str) -> Result<Sample, MeasureError> {
            if node == "away" {
                std::future::pending::<()>().await;
            }
            let at = i64::try_from(base::clock::unix_time().as_nanos()).unwrap();
            Ok(Sample::new(Point { started: 0, at, cpu_ns: 1, memory: 1 }, []))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_answer_delays_no_other() {
        let (store, mut failing) = (Store::default(), BTreeSet::new());
        let begun = base::clock::now();
        for _ in 0..2 {
            round(&store, &Two, &Two.nodes(), &mut failing).await;
        }
        assert_eq!(begun.elapsed(), ANSWER_MAX * 2);
        assert!(store.node("here").is_some() && store.node("away").is_none());
        assert_eq!(failing, names(&["away"]));
    }
}
