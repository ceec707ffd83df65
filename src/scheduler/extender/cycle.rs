//! Filters and scores of extenders in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::Object;

use super::protocol::{FilterAnswer, answer_max, args, filter_answer, prioritize_answer};
use super::{Extender, ExtenderCall, ExtenderError, MAX_EXTENDER_SCORE, PodExtenders};
use crate::framework::{MAX_NODE_SCORE, Snapshot};
use crate::node_info::NodeInfo;
use crate::rejection::{EXTENDER, FitError, Rejection};

/// What an extender makes of the feasible nodes, by the indexes of the nodes in the snapshot.
struct Filtered {
    passed: Vec<usize>,
    rejections: Vec<(usize, Rejection)>,
}

impl PodExtenders<'_> {
    /// The object of the pod of the cycle.
    pub(super) fn pod(snapshot: &Snapshot<'_>) -> Result<Arc<Object>, ExtenderError> {
        let pod = snapshot.pod;
        let object = snapshot.listers.pod_object(&pod.namespace, &pod.name);
        object
            .filter(|object| *object.uid == *pod.uid)
            .ok_or_else(|| ExtenderError::NoPod(pod.name.clone()))
    }

    /// Sends one call.
    pub(super) fn call_one(&self, call: ExtenderCall<'_>) -> Result<bytes::Bytes, ExtenderError> {
        let url = call.extender.url(call.verb);
        let answer = self.calls.call(vec![call]).pop();
        answer.unwrap_or(Err(ExtenderError::Stopping { url }))
    }

    /// The nodes that pass the filters of all extenders, one extender after the other, as indexes
    /// of the snapshot (`findNodesThatPassExtenders`). The rejections are added to `fit`.
    ///
    /// # Errors
    /// An extender failed that may not be ignored.
    pub(super) fn pass_filters(
        &self,
        snapshot: &Snapshot<'_>,
        mut feasible: Vec<usize>,
        fit: &mut FitError,
    ) -> Result<Vec<usize>, ExtenderError> {
        for extender in self.extenders.iter().filter(|e| !e.filter_verb.is_empty()) {
            if feasible.is_empty() {
                break;
            }
            match self.filter_one(snapshot, extender, &feasible) {
                Ok(Filtered { passed, rejections }) => {
                    fit.is_filtered_by_extender |= passed.len() != feasible.len();
                    // A node that a plugin rejected gets the message of the extender.
                    let replaced: BTreeSet<usize> = rejections.iter().map(|(at, _)| *at).collect();
                    fit.rejections.retain(|(index, _)| !replaced.contains(index));
                    fit.rejections.extend(rejections);
                    feasible = passed;
                }
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
        Ok(feasible)
    }

    fn filter_one(
        &self,
        snapshot: &Snapshot<'_>,
        extender: &Extender,
        feasible: &[usize],
    ) -> Result<Filtered, ExtenderError> {
        let nodes: Vec<&NodeInfo> =
            feasible.iter().filter_map(|index| snapshot.nodes.get(*index)).collect();
        let pod = Self::pod(snapshot)?;
        let call = node_call(snapshot, (extender, &extender.filter_verb), &pod, &nodes);
        let answer = filter_answer(extender, &self.call_one(call)?)?;
        let passed = passed(extender, feasible, &nodes, &answer)?;
        Ok(Filtered { passed, rejections: rejections(snapshot, answer) })
    }

    /// Adds the scores of all extenders to those of the nodes that fit (`prioritizeNodes`). An
    /// extender that fails gives no scores.
    pub(super) fn add_scores(
        &self,
        snapshot: &Snapshot<'_>,
        nodes: &[&NodeInfo],
        scores: &mut [i64],
    ) {
        let extenders = self.extenders.iter().map(|extender| &**extender);
        let prioritizing: Vec<&Extender> =
            extenders.filter(|e| !e.prioritize_verb.is_empty()).collect();
        let Ok(pod) = Self::pod(snapshot) else { return };
        let calls = prioritizing.iter().map(|extender| {
            node_call(snapshot, (extender, &extender.prioritize_verb), &pod, nodes)
        });
        let answers = self.calls.call(calls.collect());
        let places: BTreeMap<&str, usize> =
            nodes.iter().enumerate().map(|(place, node)| (node.name.as_str(), place)).collect();
        for (extender, answer) in prioritizing.into_iter().zip(answers) {
            let given = match answer.and_then(|answer| prioritize_answer(extender, &answer)) {
                Ok(given) => given,
                Err(error) => {
                    tracing::debug!(
                        extender = extender.url_prefix,
                        %error,
                        "an extender gives no scores"
                    );
                    continue;
                }
            };
            for (node, score) in given {
                let Some(total) = places.get(node.as_str()).and_then(|at| scores.get_mut(*at))
                else {
                    continue;
                };
                let scale = MAX_NODE_SCORE / MAX_EXTENDER_SCORE;
                let weighted = score.saturating_mul(extender.weight).saturating_mul(scale);
                *total = total.saturating_add(weighted);
            }
        }
    }
}

/// A call with the pod and the nodes. A node that was deleted meanwhile is left out.
fn node_call<'a>(
    snapshot: &Snapshot<'_>,
    (extender, verb): (&'a Extender, &'a str),
    pod: &Object,
    nodes: &[&NodeInfo],
) -> ExtenderCall<'a> {
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let body = if extender.node_cache_capable {
        args(pod, &names, None)
    } else {
        let objects = names.iter().filter_map(|name| snapshot.listers.node_object(name));
        args(pod, &[], Some(&objects.collect::<Vec<_>>()))
    };
    let answer_max = answer_max(nodes.len(), body.len());
    ExtenderCall { extender, verb, body: body.into(), answer_max }
}

/// The indexes of the nodes that the answer lets pass, in its order. Upstream takes over the Node
/// objects of an answer, without the pods on them; here nodes stay as they are.
fn passed(
    extender: &Extender,
    feasible: &[usize],
    nodes: &[&NodeInfo],
    answer: &FilterAnswer,
) -> Result<Vec<usize>, ExtenderError> {
    let names = nodes.iter().map(|node| node.name.as_str());
    let indexes: BTreeMap<&str, usize> = names.zip(feasible.iter().copied()).collect();
    let mut seen = BTreeSet::new();
    let mut passed = Vec::with_capacity(answer.passed.len().min(feasible.len()));
    for name in &answer.passed {
        let index = indexes.get(name.as_str()).copied().ok_or_else(|| {
            let extender = extender.url_prefix.clone();
            ExtenderError::UnknownNode { extender, node: name.clone() }
        })?;
        if seen.insert(index) {
            passed.push(index);
        }
    }
    Ok(passed)
}

/// The rejections of an answer; the unresolvable ones take precedence.
fn rejections(snapshot: &Snapshot<'_>, answer: FilterAnswer) -> Vec<(usize, Rejection)> {
    let FilterAnswer { failed, unresolvable, .. } = answer;
    let failed = failed.into_iter().filter(|(node, _)| !unresolvable.contains_key(node));
    let failed: Vec<(String, Rejection)> =
        failed.map(|(node, why)| (node, Rejection::new(why))).collect();
    let unresolvable = unresolvable.into_iter();
    let all = unresolvable.map(|(node, why)| (node, Rejection::unresolvable(why))).chain(failed);
    all.filter_map(|(node, rejection)| {
        let index = snapshot.nodes.find(&node)?.index;
        Some((index, Rejection { plugin: EXTENDER, ..rejection }))
    })
    .collect()
}
