//! The state of one scheduling cycle, which runs the plugins of a profile at each extension point.

use std::sync::Arc;

use base::clock;

use super::{
    Active, Phase, PostFilterOutcome, PostFilterResult, PreBind, Registration, Restriction,
    Snapshot,
};
use crate::metrics::{self, point, status};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::profile::Profile;
use crate::rejection::{FitError, Rejection};

/// The state of one scheduling cycle: the snapshot, and the plugins that filter for this pod.
pub(crate) struct CycleState<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    pub(super) profile: &'a Profile,
    pub(super) filters: Vec<Box<dyn Active>>,
    /// The rejection of all nodes by `pre_filter`.
    rejection: Option<Rejection>,
    restriction: Option<Restriction>,
    /// The plugin whose rejection ended `pre_filter` before all plugins ran.
    ended_by: Option<&'static str>,
    /// The times of the plugins are taken.
    pub(super) sampled: bool,
}

impl Clone for CycleState<'_> {
    fn clone(&self) -> Self {
        Self {
            snapshot: self.snapshot,
            profile: self.profile,
            filters: self.filters.iter().map(|plugin| plugin.boxed_clone()).collect(),
            rejection: self.rejection.clone(),
            restriction: self.restriction.clone(),
            ended_by: self.ended_by,
            sampled: self.sampled,
        }
    }
}

impl<'a> CycleState<'a> {
    /// Runs `pre_filter` of every plugin until one rejects all nodes for good.
    pub(crate) fn new(snapshot: Snapshot<'a>, profile: &'a Profile) -> Self {
        let mut state = Self {
            snapshot,
            profile,
            filters: Vec::new(),
            rejection: None,
            restriction: None,
            ended_by: None,
            sampled: metrics::is_sampled(),
        };
        let began = clock::now();
        for (place, registration) in profile.filters.iter().enumerate() {
            let start = state.plugin_start();
            let plugin = (registration.pre_filter)(&snapshot);
            let verdict = plugin.as_ref().map(|plugin| plugin.verdict());
            if let Some(start) = start.filter(|_| verdict.is_some() || registration.has_filter()) {
                let code = verdict.as_ref().map_or(status::SKIP, Rejection::status_of);
                metrics::plugin(point::PRE_FILTER, registration.name, code, start, 1);
            }
            let (Some(plugin), Some(verdict)) = (plugin, verdict) else { continue };
            profile.evaluations.pre_filter.add(place, 1);
            if let Some(nodes) = plugin.only_nodes().filter(|_| verdict.is_ok()) {
                let all = state.restriction.take();
                state.restriction = Some(Restriction::and(all, registration.name, nodes));
            }
            state.filters.push(plugin);
            let rejected = verdict.err().map(|r| Rejection { plugin: registration.name, ..r });
            let emptied = || state.restriction.as_ref().and_then(Restriction::rejection);
            if let Some(rejected) = rejected.or_else(emptied) {
                let is_final = rejected.unresolvable;
                state.rejection = Some(rejected);
                // Preemption needs the state of all plugins.
                if is_final {
                    state.ended_by = Some(registration.name);
                    break;
                }
            }
        }
        let code = state.rejection.as_ref().map_or(status::SUCCESS, Rejection::status);
        state.observe(point::PRE_FILTER, code, began);
        state
    }

    /// The rejection of all nodes by `pre_filter`, if there is one.
    pub(crate) fn rejection(&self) -> Option<&Rejection> {
        self.rejection.as_ref()
    }

    /// The only nodes that may fit, if `pre_filter` found them.
    pub(crate) fn restriction(&self) -> Option<&Restriction> {
        self.restriction.as_ref()
    }

    /// Whether `pre_filter` of the named plugin ran.
    pub(crate) fn has_prepared(&self, plugin: &str) -> bool {
        let position = |name: &str| self.profile.filters.iter().position(|p| p.name == name);
        match self.ended_by {
            Some(last) => position(plugin) <= position(last),
            None => true,
        }
    }

    /// The profile of the pod.
    pub(crate) fn profile(&self) -> &'a Profile {
        self.profile
    }

    fn filter_state(&self, name: &str) -> Option<&dyn Active> {
        self.filters.iter().find(|plugin| plugin.name() == name).map(AsRef::as_ref)
    }

    /// Runs `filter` of every plugin; the first rejection decides.
    fn filter(&self, node: &NodeInfo) -> Result<(), Rejection> {
        for plugin in &self.filters {
            plugin
                .filter(&self.snapshot, node)
                .map_err(|rejection| Rejection { plugin: plugin.name(), ..rejection })?;
        }
        Ok(())
    }

    /// Whether the pod fits the node both with and without the pods nominated for it: they may or
    /// may not come (`RunFilterPluginsWithNominatedPods`).
    ///
    /// # Errors
    ///
    /// The first rejection.
    pub(crate) fn filter_with_nominated_pods(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let mut pods = self.snapshot.nominated_for(node).peekable();
        if pods.peek().is_some() {
            let (mut state, mut with_pods) = (self.clone(), node.clone());
            for pod in pods {
                with_pods.add_pod(Arc::clone(pod));
                state.add_pod(pod, &with_pods);
            }
            let result = state.filter(&with_pods);
            state.count_filter(&result);
            result?;
        }
        self.filter(node)
    }

    /// Updates the state of every plugin: preemption puts `pod` on the node.
    pub(crate) fn add_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        for plugin in &mut self.filters {
            plugin.add_pod(&self.snapshot, pod, node);
        }
    }

    /// Updates the state of every plugin: preemption takes `pod` off the node.
    pub(crate) fn remove_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        for plugin in &mut self.filters {
            plugin.remove_pod(&self.snapshot, pod, node);
        }
    }

    /// Makes room for the pod after no node fitted.
    pub(crate) fn post_filter(&self, fit: &FitError) -> PostFilterOutcome {
        let began = clock::now();
        let outcome = self.run_post_filters(fit);
        self.observe(point::POST_FILTER, outcome.status(), began);
        outcome
    }

    fn run_post_filters(&self, fit: &FitError) -> PostFilterOutcome {
        // Without a plugin that may make room, a nomination is of no use (`schedulingAlgorithm`).
        let clears_nomination = self.profile.post_filters.is_empty();
        let mut outcome = PostFilterOutcome { clears_nomination, ..PostFilterOutcome::default() };
        for registration in &self.profile.post_filters {
            let start = self.plugin_start();
            let state = self.filter_state(registration.name);
            let release = state.and_then(|plugin| plugin.release(self.snapshot.pod));
            let result = release.map(PostFilterResult::Release);
            let result = result.or_else(|| (registration.post_filter)(self, fit));
            if let (Some(start), Some(result)) = (start, &result) {
                let (name, code) = (registration.name, result.status());
                metrics::plugin(point::POST_FILTER, name, code, start, 1);
            }
            match result {
                Some(PostFilterResult::Nominated(nomination)) => {
                    outcome.reasons = vec![nomination.text()];
                    outcome.nomination = Some(nomination);
                    outcome.clears_nomination = false;
                    return outcome;
                }
                Some(PostFilterResult::Release(release)) => {
                    outcome.reasons.push(release.text().to_owned());
                    outcome.release = Some(release);
                }
                Some(PostFilterResult::Unschedulable(why)) => outcome.reasons.push(why),
                Some(PostFilterResult::Hopeless(why)) => {
                    outcome.reasons.push(why);
                    outcome.clears_nomination = true;
                }
                Some(PostFilterResult::Failed(why)) => {
                    outcome.reasons = vec![why];
                    outcome.clears_nomination = false;
                    outcome.failed = true;
                    return outcome;
                }
                None => {}
            }
        }
        outcome
    }

    /// Scores of the nodes that fit, in their order: the weighted sum over all plugins. `observe`
    /// is called with the name of each plugin and its weighted scores.
    pub(crate) fn score(
        &self,
        feasible: &[&NodeInfo],
        observe: &mut dyn FnMut(&'static str, &[i64]),
    ) -> Vec<i64> {
        let began = clock::now();
        let plugins = self.pre_score(feasible);
        self.observe(point::PRE_SCORE, status::SUCCESS, began);
        let began = clock::now();
        let mut total = vec![0; feasible.len()];
        let mut scores = Vec::with_capacity(feasible.len());
        for ((place, (registration, weight)), plugin) in
            self.profile.scores.iter().enumerate().zip(&plugins)
        {
            let prepared = plugin.as_deref();
            let Some(plugin) = prepared.or_else(|| self.scores_after_filter(registration)) else {
                continue;
            };
            let start = self.plugin_start();
            plugin.score(&self.snapshot, feasible, &mut scores);
            self.profile.evaluations.score.add(place, feasible.len());
            if let Some(start) = start {
                let (name, nodes) = (registration.name, feasible.len());
                metrics::plugin(point::SCORE, name, status::SUCCESS, start, nodes);
            }
            for (sum, score) in total.iter_mut().zip(&mut scores) {
                *score *= weight;
                *sum += *score;
            }
            observe(registration.name, &scores);
        }
        self.observe(point::SCORE, status::SUCCESS, began);
        total
    }

    /// The state of `filter` of the plugin, if it scores with it.
    fn scores_after_filter(&self, registration: &Registration) -> Option<&dyn Active> {
        self.filter_state(registration.name).filter(|plugin| plugin.scores_after_filter())
    }

    /// Runs `pre_score` of the plugins that give scores.
    fn pre_score(&self, feasible: &[&NodeInfo]) -> Vec<Phase> {
        let run = |(place, (registration, _)): (usize, &(&'static Registration, i64))| {
            if self.scores_after_filter(registration).is_some() {
                return None;
            }
            let start = self.plugin_start();
            let plugin = (registration.pre_score)(&self.snapshot, feasible);
            if registration.has_pre_score() {
                self.profile.evaluations.pre_score.add(place, usize::from(plugin.is_some()));
                if let Some(start) = start {
                    let code = if plugin.is_some() { status::SUCCESS } else { status::SKIP };
                    metrics::plugin(point::PRE_SCORE, registration.name, code, start, 1);
                }
            }
            plugin
        };
        self.profile.scores.iter().enumerate().map(run).collect()
    }

    /// What must be written before the pod is bound to the node.
    ///
    /// # Errors
    ///
    /// The rejection of the plugin that cannot reserve what the pod needs.
    pub(crate) fn reserve(&self, node: &NodeInfo) -> Result<Vec<PreBind>, Rejection> {
        let began = clock::now();
        let mut writes = Vec::new();
        let mut plugins = self.filters.iter();
        let reserved = plugins.try_for_each(|plugin| {
            let reserved = plugin.reserve(node, &mut writes);
            reserved.map_err(|rejection| Rejection { plugin: plugin.name(), ..rejection })
        });
        self.observe(point::RESERVE, status::of(&reserved), began);
        reserved.map(|()| writes)
    }
}
