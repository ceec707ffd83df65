//! A pod starts when the rules of its policies stand: what the CNI plugin and the policies tell each other.

use std::collections::BTreeSet;
use std::time::Duration;

use api::ObjectKey;
use tokio::sync::watch;

use crate::policy::decide::Local;

/// How long a pod waits for its rules. The plugin is answered within a minute, of which half may go into waiting for the
/// node's addresses.
const RULES_WAIT: Duration = Duration::from_secs(20);
/// How long it then waits until the API has told of it. Without that all is closed to it that a policy of its namespace
/// could close.
const KNOWN_WAIT: Duration = Duration::from_secs(5);

/// The pods that have addresses on this node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leases {
    /// Grows with each change.
    pub(crate) generation: u64,
    pub(crate) pods: Vec<Local>,
}

/// For which pods the rules stand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Covered {
    /// All of this generation of [`Leases`]; 0 before the first.
    pub(crate) generation: u64,
    /// Those of whom the API has not told.
    pub(crate) unknown: BTreeSet<ObjectKey>,
}

/// Where a pod waits.
#[derive(Debug, Clone)]
pub(crate) struct Gate(pub(crate) watch::Receiver<Covered>);

impl Gate {
    /// Resolves once the rules of this generation stand, and with them those of this pod.
    ///
    /// # Errors
    /// Why the pod may not start.
    pub(crate) async fn pass(&self, generation: u64, pod: &ObjectKey) -> Result<(), String> {
        let mut covered = self.0.clone();
        let stands = covered.wait_for(|c| c.generation >= generation);
        if !matches!(tokio::time::timeout(RULES_WAIT, stands).await, Ok(Ok(_))) {
            return Err(format!(
                "the rules of network policies for pod {pod} do not stand after {} s: policies and pods are not known yet \
                 (is a server reachable?), or the kernel refused them (see the log)",
                RULES_WAIT.as_secs()
            ));
        }
        let known = covered.wait_for(|c| !c.unknown.contains(pod));
        if tokio::time::timeout(KNOWN_WAIT, known).await.is_err() {
            tracing::warn!(%pod, "starts closed to all that policies of its namespace can close: the API has not told of it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_waits_for_its_rules_and_a_little_for_its_labels() {
        let (tell, told) = watch::channel(Covered::default());
        let gate = Gate(told);
        let pod = ObjectKey::new("n", "p");
        let refused = gate.pass(3, &pod).await.unwrap_err();
        assert!(refused.contains("pod n/p do not stand after 20 s"), "{refused}");
        let begin = tokio::time::Instant::now();
        tell.send_replace(Covered { generation: 3, unknown: [pod.clone()].into() });
        assert_eq!(gate.pass(3, &pod).await, Ok(()));
        assert_eq!(begin.elapsed(), KNOWN_WAIT);
        tell.send_replace(Covered { generation: 4, unknown: BTreeSet::new() });
        assert_eq!(gate.pass(3, &pod).await, Ok(()));
        assert_eq!(begin.elapsed(), KNOWN_WAIT);
        let waits = gate.pass(5, &pod);
        tell.send_replace(Covered { generation: 5, unknown: BTreeSet::new() });
        assert_eq!(waits.await, Ok(()));
    }
}
