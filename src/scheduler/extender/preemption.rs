//! Extenders choose among the candidates of a preemption (`callExtenders`).

use std::sync::Arc;

use serde_json::{Value, json};

use super::protocol::{MetaVictims, VictimsOfNode, answer_max, preemption_answer, preemption_args};
use super::{Extender, ExtenderCall, ExtenderError, PodExtenders};
use crate::framework::{Candidate, Nomination, Snapshot};
use crate::pod_info::PodInfo;

impl PodExtenders<'_> {
    /// The candidates that all extenders leave, with the victims that they choose.
    ///
    /// # Errors
    /// An extender failed that may not be ignored.
    pub(super) fn choose_victims(
        &self,
        snapshot: &Snapshot<'_>,
        mut candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, ExtenderError> {
        for extender in self.extenders.iter().filter(|e| !e.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            match self.preempt_one(snapshot, extender, &candidates) {
                Ok(chosen) => candidates = with_victims(extender, chosen)?,
                Err(error) if extender.ignorable => {
                    tracing::debug!(
                        extender = extender.url_prefix,
                        %error,
                        "an extender that may be ignored failed"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(candidates)
    }

    fn preempt_one(
        &self,
        snapshot: &Snapshot<'_>,
        extender: &Extender,
        candidates: &[Candidate],
    ) -> Result<Vec<Candidate>, ExtenderError> {
        let pod = Self::pod(snapshot)?;
        let meta = extender.node_cache_capable;
        let victim = |victim: &Arc<PodInfo>| match meta {
            true => json!({"UID": victim.uid}),
            false => full_victim(snapshot, victim),
        };
        let victims: Vec<VictimsOfNode<'_>> = candidates
            .iter()
            .map(|candidate| VictimsOfNode {
                node: &candidate.nomination.node,
                violations: candidate.violations,
                pods: candidate.nomination.victims.iter().map(victim).collect(),
            })
            .collect();
        let body = preemption_args(&pod, &victims, meta);
        let answer_max = answer_max(candidates.len(), body.len());
        let verb = extender.preempt_verb.as_str();
        let answer =
            self.call_one(ExtenderCall { extender, verb, body: body.into(), answer_max })?;
        let chosen = preemption_answer(extender, &answer)?;
        chosen.into_iter().map(|victims| candidate(snapshot, extender, victims)).collect()
    }
}

/// The object of a victim; of one that was deleted meanwhile, its names.
fn full_victim(snapshot: &Snapshot<'_>, victim: &PodInfo) -> Value {
    let object = snapshot.listers.pod_object(&victim.namespace, &victim.name);
    object.filter(|object| *object.uid == *victim.uid).and_then(|o| o.value().ok()).unwrap_or_else(
        || {
            let (name, namespace, uid) = (&victim.name, &victim.namespace, &victim.uid);
            json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}})
        },
    )
}

/// Finds the pods of an answer on their node (`convertToVictims`).
fn candidate(
    snapshot: &Snapshot<'_>,
    extender: &Extender,
    MetaVictims { node, uids, violations }: MetaVictims,
) -> Result<Candidate, ExtenderError> {
    let Some(info) = snapshot.nodes.find(&node) else { return Err(ExtenderError::NoNode(node)) };
    let found = |uid: String| {
        let victim = info.pods.iter().find(|pod| pod.uid == uid).cloned();
        let extender = extender.url_prefix.clone();
        victim.ok_or_else(|| ExtenderError::NoVictim { extender, uid, node: node.clone() })
    };
    let victims = uids.into_iter().map(found).collect::<Result<Vec<_>, _>>()?;
    Ok(Candidate { nomination: Nomination { node, victims }, violations })
}

/// Checks that each candidate has victims; an extender whose failure is ignored may leave nodes
/// without.
fn with_victims(
    extender: &Extender,
    mut candidates: Vec<Candidate>,
) -> Result<Vec<Candidate>, ExtenderError> {
    if extender.ignorable {
        candidates.retain(|candidate| !candidate.nomination.victims.is_empty());
    }
    match candidates.iter().find(|candidate| candidate.nomination.victims.is_empty()) {
        Some(empty) => Err(ExtenderError::WithoutVictims(empty.nomination.node.clone())),
        None => Ok(candidates),
    }
}
