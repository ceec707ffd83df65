//! Delays the start of a pod until the rules of its policies are in the kernel: the state shared by
//! the CNI plugin and the policy task.

use std::collections::BTreeSet;
use std::time::Duration;

use api::ObjectKey;
use tokio::sync::watch;

use crate::policy::decide::Local;

/// How long a pod waits for its rules. The plugin is answered within a minute, half of which may be
/// spent waiting for the node's pod block.
const RULES_WAIT: Duration = Duration::from_secs(20);
/// How long it then waits for the API to report the pod. Until then the pod is closed to everything
/// that a policy of its namespace could close.
const KNOWN_WAIT: Duration = Duration::from_secs(5);

/// The pods that have addresses on this node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leases {
    /// Grows with each change.
    pub(crate) generation: u64,
    pub(crate) pods: Vec<Local>,
}

/// The pods whose rules are in the kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Covered {
    /// All pods of this generation of [`Leases`]; 0 before the first.
    pub(crate) generation: u64,
    /// Pods that the API has not reported yet.
    pub(crate) unknown: BTreeSet<ObjectKey>,
}

/// The rules of a pod were not applied within [`RULES_WAIT`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules of network policies for pod {pod} are not in the kernel after {} s: \
     policies and pods have not synced \
     (is a server reachable?), or the kernel refused them (see the log)",
    RULES_WAIT.as_secs()
)]
pub(crate) struct RulesNotApplied {
    pod: ObjectKey,
}

/// Where a pod waits for its rules.
#[derive(Debug, Clone)]
pub(crate) struct Gate(pub(crate) watch::Receiver<Covered>);

impl Gate {
    /// Resolves once the rules of this generation, including those of this pod, are in the kernel.
    ///
    /// # Errors
    /// When they are not in time: the pod must not start.
    pub(crate) async fn pass(
        &self,
        generation: u64,
        pod: &ObjectKey,
    ) -> Result<(), RulesNotApplied> {
        let mut covered = self.0.clone();
        let applied = covered.wait_for(|c| c.generation >= generation);
        if !matches!(tokio::time::timeout(RULES_WAIT, applied).await, Ok(Ok(_))) {
            return Err(RulesNotApplied { pod: pod.clone() });
        }
        let known = covered.wait_for(|c| !c.unknown.contains(pod));
        if tokio::time::timeout(KNOWN_WAIT, known).await.is_err() {
            tracing::warn!(
                %pod,
                "policy: pod starts closed by all policies of its namespace: \
                 the API has not reported it"
            );
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
        let refused = gate.pass(3, &pod).await.unwrap_err().to_string();
        assert!(refused.contains("pod n/p are not in the kernel after 20 s"), "{refused}");
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
