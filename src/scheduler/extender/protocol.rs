//! The JSON of `k8s.io/kube-scheduler/extender/v1`. As Go's decoder, answers are read without
//! regard to the case of the names of fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Object;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Extender, ExtenderError};
use crate::pod_info::PodInfo;

/// Bytes of an answer that are left for an error and for what surrounds the nodes.
const ANSWER_BASE: usize = 1 << 20;
/// Bytes of an answer for each node: its name, a message why it failed, its score, its victims.
const ANSWER_PER_NODE: usize = 16 << 10;

/// Most bytes of the answer to a call with so many nodes: what the call has, changed by the
/// extender to at most twice its size, and a message for each node.
pub(super) fn answer_max(nodes: usize, call: usize) -> usize {
    let nodes = nodes.saturating_mul(ANSWER_PER_NODE);
    ANSWER_BASE.saturating_add(nodes).saturating_add(call.saturating_mul(2))
}

/// `ExtenderArgs`: the pod with the names of the nodes, or with the nodes.
pub(super) fn args(pod: &Object, names: &[&str], nodes: Option<&[Arc<Object>]>) -> Vec<u8> {
    let mut out = b"{\"Pod\":".to_vec();
    pod.write_json(&mut out);
    match nodes {
        Some(nodes) => {
            out.extend_from_slice(b",\"Nodes\":{\"metadata\":{},\"items\":[");
            for (index, node) in nodes.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                node.write_json(&mut out);
            }
            out.extend_from_slice(b"]},\"NodeNames\":null}");
        }
        None => {
            out.extend_from_slice(b",\"Nodes\":null,\"NodeNames\":");
            out.extend_from_slice(json!(names).to_string().as_bytes());
            out.push(b'}');
        }
    }
    out
}

/// `ExtenderBindingArgs`.
pub(super) fn binding_args(pod: &PodInfo, node: &str) -> Value {
    json!({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node})
}

/// The victims of one node in a call.
pub(super) struct VictimsOfNode<'a> {
    pub(super) node: &'a str,
    pub(super) violations: i64,
    /// Each victim as JSON: the object, or `MetaPod`.
    pub(super) pods: Vec<Value>,
}

/// `ExtenderPreemptionArgs`, with `MetaVictims` for an extender that has its own nodes.
pub(super) fn preemption_args(pod: &Object, victims: &[VictimsOfNode<'_>], meta: bool) -> Vec<u8> {
    let of_node = |v: &VictimsOfNode<'_>| {
        let victims = json!({"Pods": v.pods, "NumPDBViolations": v.violations});
        (v.node.to_owned(), victims)
    };
    let victims: Value = victims.iter().map(of_node).collect::<serde_json::Map<_, _>>().into();
    let (plain, meta) = if meta { (Value::Null, victims) } else { (victims, Value::Null) };
    let mut out = b"{\"Pod\":".to_vec();
    pod.write_json(&mut out);
    out.extend_from_slice(format!(",\"NodeNameToVictims\":{plain}").as_bytes());
    out.extend_from_slice(format!(",\"NodeNameToMetaVictims\":{meta}}}").as_bytes());
    out
}

/// The fields of an object of an answer.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// The value of a field; the default if it is absent or null.
    fn get<T: Deserialize<'a> + Default>(&self, name: &str) -> Result<T, serde_json::Error> {
        let exact = self.0.get(name);
        let fields = || self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        match exact.or_else(|| fields().map(|(_, value)| value)) {
            Some(value) => Option::<T>::deserialize(*value).map(Option::unwrap_or_default),
            None => Ok(T::default()),
        }
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(decoder).map(Self)
    }
}

/// Reads the first value of an answer; what follows is ignored, as in Go.
fn first<'a, T: Deserialize<'a>>(answer: &'a [u8]) -> serde_json::Result<Option<T>> {
    Option::<T>::deserialize(&mut serde_json::Deserializer::from_slice(answer))
}

/// The error of an answer that is no JSON of the protocol.
fn unreadable(extender: &Extender, verb: &str, error: &serde_json::Error) -> ExtenderError {
    let reason = if error.is_eof() { "unexpected EOF".into() } else { error.to_string() };
    ExtenderError::Answer { url: extender.url(verb), reason }
}

fn unless_refused<T>(refused: String, result: T) -> Result<T, ExtenderError> {
    if refused.is_empty() { Ok(result) } else { Err(ExtenderError::Refused(refused)) }
}

/// `ExtenderFilterResult`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FilterAnswer {
    /// The names of the nodes that pass.
    pub(super) passed: Vec<String>,
    /// The messages of nodes that fail.
    pub(super) failed: BTreeMap<String, String>,
    /// The messages of nodes that fail even without the pods on them.
    pub(super) unresolvable: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
struct NodeList {
    #[serde(default)]
    items: Option<Vec<NodeItem>>,
}

#[derive(Deserialize)]
struct NodeItem {
    #[serde(default)]
    metadata: NodeMetadata,
}

#[derive(Deserialize, Default)]
struct NodeMetadata {
    #[serde(default)]
    name: String,
}

/// Reads the answer to a filter call.
///
/// # Errors
/// It is an error, or no `ExtenderFilterResult`.
pub(super) fn filter_answer(
    extender: &Extender,
    answer: &[u8],
) -> Result<FilterAnswer, ExtenderError> {
    let read = || -> serde_json::Result<(String, FilterAnswer)> {
        let Some(fields) = first::<Fields<'_>>(answer)? else { return Ok(Default::default()) };
        let names: Option<Vec<String>> = fields.get("NodeNames")?;
        let passed = match names.filter(|_| extender.node_cache_capable) {
            Some(names) => names,
            None => {
                let nodes: NodeList = fields.get("Nodes")?;
                nodes.items.into_iter().flatten().map(|node| node.metadata.name).collect()
            }
        };
        let failed = fields.get("FailedNodes")?;
        let unresolvable = fields.get("FailedAndUnresolvableNodes")?;
        Ok((fields.get("Error")?, FilterAnswer { passed, failed, unresolvable }))
    };
    let (refused, result) = read().map_err(|e| unreadable(extender, &extender.filter_verb, &e))?;
    unless_refused(refused, result)
}

/// Reads the answer to a call for scores, `HostPriorityList`: names of nodes with their scores.
///
/// # Errors
/// It is no such list.
pub(super) fn prioritize_answer(
    extender: &Extender,
    answer: &[u8],
) -> Result<Vec<(String, i64)>, ExtenderError> {
    let read = || -> serde_json::Result<Vec<(String, i64)>> {
        let hosts = first::<Vec<Fields<'_>>>(answer)?.unwrap_or_default();
        hosts.iter().map(|host| Ok((host.get("Host")?, host.get("Score")?))).collect()
    };
    read().map_err(|error| unreadable(extender, &extender.prioritize_verb, &error))
}

/// `MetaVictims`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MetaVictims {
    pub(super) node: String,
    pub(super) uids: Vec<String>,
    pub(super) violations: i64,
}

/// Reads the answer to a preemption call, `ExtenderPreemptionResult`.
///
/// # Errors
/// It is no such object.
pub(super) fn preemption_answer(
    extender: &Extender,
    answer: &[u8],
) -> Result<Vec<MetaVictims>, ExtenderError> {
    let read = || -> serde_json::Result<Vec<MetaVictims>> {
        let Some(fields) = first::<Fields<'_>>(answer)? else { return Ok(Vec::new()) };
        let nodes: BTreeMap<String, Option<Fields<'_>>> = fields.get("NodeNameToMetaVictims")?;
        let mut all = Vec::new();
        for (node, fields) in nodes {
            let mut victims = MetaVictims { node, uids: Vec::new(), violations: 0 };
            if let Some(fields) = fields {
                victims.violations = fields.get("NumPDBViolations")?;
                for pod in fields.get::<Vec<Fields<'_>>>("Pods")? {
                    victims.uids.push(pod.get("UID")?);
                }
            }
            all.push(victims);
        }
        Ok(all)
    };
    read().map_err(|error| unreadable(extender, &extender.preempt_verb, &error))
}

/// Reads the answer to a binding call, `ExtenderBindingResult`.
///
/// # Errors
/// It is an error, or no such object.
pub(super) fn binding_answer(extender: &Extender, answer: &[u8]) -> Result<(), ExtenderError> {
    let read = || -> serde_json::Result<String> {
        let fields = first::<Fields<'_>>(answer)?;
        fields.map_or(Ok(String::new()), |fields| fields.get("Error"))
    };
    let refused = read().map_err(|error| unreadable(extender, &extender.bind_verb, &error))?;
    unless_refused(refused, ())
}
