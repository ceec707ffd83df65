//! Why a plugin rejects a node, and why no node fits a pod.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sorting::CompactSort as _;

use crate::framework::Restriction;
use crate::metrics::status;

/// The name of extenders among the plugins that reject nodes (upstream's `ExtenderName`). No plugin
/// has this name, so every event of the cluster wakes the pods that an extender rejected.
pub(crate) const EXTENDER: &str = "Extender";

/// The reasons why a plugin rejects a node for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Name of the plugin that rejected the node; set by the framework.
    pub(crate) plugin: &'static str,
    /// The texts of kube-scheduler.
    pub(crate) reasons: Vec<Cow<'static, str>>,
    /// Preemption on the node would not make the pod fit (`UnschedulableAndUnresolvable`).
    pub(crate) unresolvable: bool,
    /// The pod cannot be scheduled at all, on whichever node (`Error`): it is tried again after a
    /// back-off, without waiting for an event.
    pub(crate) is_error: bool,
}

impl Rejection {
    /// A rejection that preemption may resolve.
    pub(crate) fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { plugin: "", reasons: vec![reason.into()], unresolvable: false, is_error: false }
    }

    /// A rejection that preemption cannot resolve.
    pub(crate) fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { unresolvable: true, ..Self::new(reason) }
    }

    /// An error, which ends the cycle.
    pub(crate) fn error(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { is_error: true, ..Self::unresolvable(reason) }
    }

    /// The code of upstream's status.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self { is_error: true, .. } => status::ERROR,
            Self { unresolvable: true, .. } => status::UNRESOLVABLE,
            Self { .. } => status::UNSCHEDULABLE,
        }
    }

    /// The code of upstream's status for the result of a plugin.
    pub(crate) fn status_of(result: &Result<(), Self>) -> &'static str {
        result.as_ref().map_or_else(Self::status, |()| status::SUCCESS)
    }

    /// The reasons as one text.
    pub(crate) fn text(&self) -> String {
        self.reasons.join(", ")
    }
}

/// The error of a scheduling cycle in which no node fits the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct FitError {
    /// The rejection of each node, with the index of the node in the snapshot.
    pub(crate) rejections: Vec<(usize, Rejection)>,
    /// Number of nodes in the cluster.
    pub(crate) nodes: usize,
    /// The rejection of all nodes by `pre_filter`; no node was filtered.
    pub(crate) pre_filter: Option<Rejection>,
    /// The only nodes that were filtered, if `pre_filter` found them.
    pub(crate) restriction: Option<Restriction>,
    /// How many nodes were filtered.
    pub(crate) processed: usize,
    /// An extender rejected nodes, with a message or without.
    pub(crate) is_filtered_by_extender: bool,
    /// The error that ended the cycle; the other fields say nothing then.
    pub(crate) error: Option<String>,
}

impl FitError {
    /// Returns the message of the pod's condition, such as
    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub(crate) fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        if let Some(rejection) = &self.pre_filter {
            return format!("0/{} nodes are available: {}.", self.nodes, rejection.text());
        }
        let reasons = self.rejections.iter().flat_map(|(_, r)| &r.reasons);
        let absent = self.restriction.as_ref().map(|restriction| {
            format!("node(s) didn't satisfy plugin(s) {}", restriction.plugin_list())
        });
        let count = self.nodes.saturating_sub(self.rejections.len());
        let absent = absent.iter().flat_map(|text| std::iter::repeat_n(text.as_str(), count));
        available_nodes(self.nodes, reasons.map(AsRef::as_ref).chain(absent))
    }

    /// Names of the plugins that rejected at least one node, sorted.
    pub(crate) fn plugins(&self) -> Vec<&'static str> {
        let rejections = self.rejections.iter().map(|(_, rejection)| rejection);
        let restriction = self.restriction.iter().flat_map(|r| r.plugins.iter().copied());
        let rejecting = rejections.chain(&self.pre_filter).map(|rejection| rejection.plugin);
        let extender = self.is_filtered_by_extender.then_some(EXTENDER);
        let mut all: Vec<&'static str> = rejecting.chain(restriction).chain(extender).collect();
        all.compact_sort();
        all.dedup();
        all
    }
}

/// Formats `0/3 nodes are available: 1 one reason, 2 another.` As upstream, sorts the reasons with
/// their counts as text.
pub(crate) fn available_nodes<'a>(nodes: usize, reasons: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.compact_sort();
    match parts.is_empty() {
        true => format!("0/{nodes} nodes are available:"),
        false => format!("0/{nodes} nodes are available: {}.", parts.join(", ")),
    }
}
