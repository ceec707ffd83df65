//! What a Job needs next, decided without I/O.

use std::collections::{BTreeMap, HashSet};

use api::k8s::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use sorting::CompactSort as _;

use super::indexes::Indexes;
use super::policy::{self, Verdict};
use crate::framework::pods;
use crate::workloads::job::fields;
use crate::workloads::job::fields::{condition, index_of, is_failed, is_indexed, is_suspended};
use crate::workloads::replicas::deletion_order;

/// An index without a pod, and its failures so far: counted ones, and ones that the failure policy
/// ignores.
type FreeIndex = (i32, (i32, i32));

/// Pods created or deleted in one sync.
const BURST_MAX: usize = 500;

/// Failures since the last success, and when the last was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BackOff {
    pub(super) failures: i32,
    pub(super) last: Option<Timestamp>,
}

/// The next change of a Job's pods.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// Delete all active pods: the Job is over.
    End,
    /// Delete these, which count neither as failed nor as succeeded.
    Delete(Vec<Pod>),
    /// Create so many.
    Create(usize),
    /// Create one for each index, with the earlier failures of the index (counted, ignored).
    CreateIndexes(Vec<(i32, (i32, i32))>),
}

/// Everything that one sync derives from the caches.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) status: &'a JobStatus,
    pub(super) deleting: bool,
    pub(super) pods: Vec<Pod>,
    /// Pods whose finalizer we removed already.
    pub(super) released: HashSet<String>,
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    pub(super) succeeded_before: Indexes,
    pub(super) succeeded_indexes: Indexes,
    pub(super) failed_indexes: Option<Indexes>,
    /// The failed pod of each index whose replacement is due.
    pub(super) delayed: BTreeMap<i32, Pod>,
    pub(super) finished: Option<JobCondition>,
    pub(super) back_off: BackOff,
    /// Seconds until the active deadline.
    pub(super) deadline: Option<i64>,
    pub(super) now: Timestamp,
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

impl<'a> View<'a> {
    /// `status.startTime` is taken from `status`, which may be ahead of the Job's.
    pub(super) fn new(
        job: &Job,
        spec: &'a JobSpec,
        status: &'a JobStatus,
        pods: Vec<Pod>,
        released: HashSet<String>,
        back_off: BackOff,
        now: Timestamp,
    ) -> Self {
        let mut view = Self {
            spec,
            status,
            deleting: job.metadata.deletion_timestamp.is_some(),
            pods,
            released,
            succeeded: 0,
            failed: 0,
            succeeded_before: Indexes::default(),
            succeeded_indexes: Indexes::default(),
            failed_indexes: None,
            delayed: BTreeMap::new(),
            finished: None,
            back_off,
            deadline: None,
            now,
        };
        view.count();
        view.finished = view.judge();
        view
    }

    /// The pod has our finalizer, which we have not removed.
    pub(super) fn is_tracked(&self, pod: &Pod) -> bool {
        fields::is_tracked(pod) && !self.released.contains(uid(pod))
    }

    pub(super) fn active(&self) -> Vec<&Pod> {
        self.pods.iter().filter(|p| pods::is_active(p)).collect()
    }

    pub(super) fn terminating(&self) -> i32 {
        count(self.pods.iter().filter(|p| fields::is_terminating(p)).count())
    }

    fn uncounted(&self, failed: bool) -> &[String] {
        let uncounted = self.status.uncounted_terminated_pods.as_ref();
        let list = uncounted
            .and_then(|u| if failed { u.failed.as_deref() } else { u.succeeded.as_deref() });
        list.unwrap_or_default()
    }

    fn new_pods(&self, failed: bool) -> Vec<&Pod> {
        let known = self.uncounted(failed);
        let right = |p: &&Pod| {
            self.is_tracked(p)
                && !known.iter().any(|u| u == uid(p))
                && (!is_indexed(self.spec) || index_of(self.spec, p).is_some())
                && if failed { is_failed(self.spec, p) } else { pods::phase(p) == "Succeeded" }
        };
        self.pods.iter().filter(right).collect()
    }

    fn count(&mut self) {
        let (succeeded, failed) = (self.new_pods(false), self.new_pods(true));
        let counted = failed.iter().filter(|p| policy::judge(self.spec, p) != Verdict::Ignore);
        let new_failed = count(counted.count()) + count(self.uncounted(true).len());
        let new_succeeded = count(succeeded.len()) + count(self.uncounted(false).len());
        let back_off = next_back_off(self.back_off, &succeeded, &failed);
        self.succeeded = self.status.succeeded.unwrap_or(0) + new_succeeded;
        self.failed = self.status.failed.unwrap_or(0) + new_failed;
        self.back_off = back_off;
        if is_indexed(self.spec) {
            self.count_indexes();
        }
    }

    fn count_indexes(&mut self) {
        let completions = self.spec.completions.unwrap_or(0);
        let before = self.status.completed_indexes.as_deref().unwrap_or_default();
        self.succeeded_before = Indexes::parse(before, completions);
        let tracked = |test: &dyn Fn(&Pod) -> bool| -> Vec<i32> {
            let chosen = self.pods.iter().filter(|p| fields::is_tracked(p) && test(p));
            chosen.filter_map(|p| index_of(self.spec, p)).collect()
        };
        self.succeeded_indexes =
            self.succeeded_before.with(tracked(&|p| pods::phase(p) == "Succeeded"));
        self.succeeded = self.succeeded_indexes.total();
        let Some(limit) = self.spec.backoff_limit_per_index else { return };
        let before = self.status.failed_indexes.as_deref().unwrap_or_default();
        let failed = tracked(&|p| {
            is_failed(self.spec, p)
                && match policy::judge(self.spec, p) {
                    Verdict::FailIndex => true,
                    Verdict::Ignore => false,
                    Verdict::Count | Verdict::FailJob(_) => fields::failures_of(p).0 >= limit,
                }
        });
        let failed_indexes = Indexes::parse(before, completions).with(failed);
        let active: Vec<i32> =
            self.active().into_iter().filter_map(|p| index_of(self.spec, p)).collect();
        let mut delayed: BTreeMap<i32, Pod> = BTreeMap::new();
        for pod in self.pods.iter().filter(|p| self.is_tracked(p) && is_failed(self.spec, p)) {
            let Some(index) = index_of(self.spec, pod) else { continue };
            if self.succeeded_indexes.has(index)
                || failed_indexes.has(index)
                || active.contains(&index)
            {
                continue;
            }
            let age = |p: &Pod| {
                let (counted, ignored) = fields::failures_of(p);
                (counted + ignored, fields::finished_time(p))
            };
            match delayed.get(&index) {
                Some(last) if age(last) > age(pod) => {}
                _ => drop(delayed.insert(index, pod.clone())),
            }
        }
        self.delayed = delayed;
        self.failed_indexes = Some(failed_indexes);
    }

    /// Why the Job is over: `FailureTarget`, `Failed` or `SuccessCriteriaMet`.
    fn judge(&mut self) -> Option<JobCondition> {
        let (spec, now) = (self.spec, self.now);
        if let Some(met) = fields::true_condition(self.status, "SuccessCriteriaMet") {
            return Some(met.clone());
        }
        if let Some(target) = fields::true_condition(self.status, "FailureTarget") {
            return Some(failed_for(target, now));
        }
        let failure =
            |reason, message: &str| Some(condition("FailureTarget", "True", reason, message, now));
        for pod in self.pods.iter().filter(|p| is_failed(spec, p)) {
            if let Verdict::FailJob(message) = policy::judge(spec, pod) {
                return failure("PodFailurePolicy", &message);
            }
        }
        let limit = spec.backoff_limit.unwrap_or(6);
        if self.failed > limit || self.restarts_exceed(limit) {
            return failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let (Some(seconds), Some(Time(start)), false) =
            (spec.active_deadline_seconds, &self.status.start_time, is_suspended(spec))
        {
            let left = start.as_second().saturating_add(seconds) - now.as_second();
            if left <= 0 {
                return failure(
                    "DeadlineExceeded",
                    "Job was active longer than specified deadline",
                );
            }
            self.deadline = Some(left);
        }
        if !is_indexed(spec) {
            return None;
        }
        let completions = spec.completions.unwrap_or(0);
        if let Some(failed) = &self.failed_indexes {
            if spec.max_failed_indexes.is_some_and(|max| failed.total() > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return failure("MaxFailedIndexesExceeded", message);
            }
            if failed.total() > 0 && failed.total() + self.succeeded_indexes.total() >= completions
            {
                return failure("FailedIndexes", "Job has failed indexes");
            }
        }
        let policy = spec.success_policy.as_ref();
        let met = policy::succeeded_early(policy, completions, &self.succeeded_indexes)?;
        Some(condition("SuccessCriteriaMet", "True", "SuccessPolicy", &met, now))
    }

    /// Containers of pods that restart on failure count, too.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let policy = self.spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let running = self.pods.iter().filter(|p| matches!(pods::phase(p), "Running" | "Pending"));
        let restarts: i32 = running
            .filter_map(|p| p.status.as_ref())
            .flat_map(|s| [&s.init_container_statuses, &s.container_statuses])
            .flatten()
            .flatten()
            .map(|c| c.restart_count)
            .sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    /// What to do with the pods, and after how many seconds to look again. `satisfied`: the cache
    /// shows all we wrote.
    pub(super) fn next(&self, satisfied: bool) -> (Next, Option<i64>) {
        if self.finished.is_some() {
            return (Next::End, None);
        }
        if !satisfied || self.deleting {
            return (Next::Nothing, self.deadline);
        }
        let active = self.active();
        if is_suspended(self.spec) {
            return (Next::Delete(active.into_iter().cloned().collect()), None);
        }
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let running = count(active.len());
        let wanted = match self.spec.completions {
            None if self.succeeded > 0 => running,
            None => parallelism,
            Some(completions) => (completions - self.succeeded).clamp(0, parallelism),
        };
        let surplus = self.surplus(&active, usize::try_from(running - wanted).unwrap_or(0));
        if !surplus.is_empty() {
            return (Next::Delete(surplus), self.deadline);
        }
        let leaving = if fields::replaces_only_failed(self.spec) { self.terminating() } else { 0 };
        let missing = usize::try_from(wanted - leaving - running).unwrap_or(0).min(BURST_MAX);
        if missing == 0 {
            return (Next::Nothing, self.deadline);
        }
        let sooner = |wait: i64| Some(self.deadline.map_or(wait, |d| d.min(wait)));
        if self.spec.backoff_limit_per_index.is_none() {
            let last = self.back_off.last.unwrap_or(self.now);
            let wait = fields::back_off(self.back_off.failures, last, self.now);
            if wait > 0 {
                return (Next::Nothing, sooner(wait));
            }
        }
        if !is_indexed(self.spec) {
            return (Next::Create(missing), self.deadline);
        }
        let (indexes, wait) = self.free_indexes(&active, missing);
        if indexes.is_empty() {
            return (Next::Nothing, wait.map_or(self.deadline, sooner));
        }
        (Next::CreateIndexes(indexes), wait.map_or(self.deadline, sooner))
    }

    /// The indexes that get a pod now, and the wait of the first whose back-off is not over.
    fn free_indexes(&self, active: &[&Pod], missing: usize) -> (Vec<FreeIndex>, Option<i64>) {
        let indexes = |pods: &mut dyn Iterator<Item = &Pod>| -> Vec<i32> {
            pods.filter_map(|p| index_of(self.spec, p)).collect()
        };
        let mut taken = self.succeeded_indexes.with(indexes(&mut active.iter().copied()));
        if fields::replaces_only_failed(self.spec) {
            let mut leaving = self.pods.iter().filter(|p| fields::is_terminating(p));
            taken = taken.with(indexes(&mut leaving));
        }
        if let Some(failed) = &self.failed_indexes {
            taken = taken.union(failed);
        }
        let (mut chosen, mut wait) = (Vec::new(), None);
        for index in taken.first_free(missing, self.spec.completions.unwrap_or(0)) {
            let Some(last) = self.delayed.get(&index) else {
                chosen.push((index, (0, 0)));
                continue;
            };
            let (counted, ignored) = fields::failures_of(last);
            let since = fields::finished_time(last);
            let left = fields::back_off(counted + ignored + 1, since, self.now);
            if left > 0 {
                wait = Some(wait.map_or(left, |w: i64| w.min(left)));
            } else if policy::judge(self.spec, last) == Verdict::Ignore {
                chosen.push((index, (counted, ignored + 1)));
            } else {
                chosen.push((index, (counted + 1, ignored)));
            }
        }
        (chosen, wait)
    }

    /// At least `least` active pods, second ones of an index and those without a valid one first.
    fn surplus(&self, active: &[&Pod], least: usize) -> Vec<Pod> {
        let mut order: Vec<&Pod> = active.to_vec();
        order.compact_sort_by(|a, b| deletion_order(a, b, 0, 0, self.now));
        let (mut surplus, mut rest) = (Vec::new(), Vec::new());
        if is_indexed(self.spec) {
            let mut seen = HashSet::new();
            // The best pod of each index stays.
            for pod in order.into_iter().rev() {
                match index_of(self.spec, pod) {
                    Some(index) if seen.insert(index) => rest.push(pod),
                    _ => surplus.push(pod),
                }
            }
            rest.reverse();
        } else {
            rest = order;
        }
        let more = least.saturating_sub(surplus.len());
        surplus.extend(rest.into_iter().take(more));
        surplus.truncate(BURST_MAX);
        surplus.into_iter().cloned().collect()
    }

    /// All completions are there and nothing runs.
    pub(super) fn is_complete(&self, active: i32) -> bool {
        active == 0
            && match self.spec.completions {
                None => self.succeeded > 0,
                Some(completions) => self.succeeded >= completions,
            }
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// `Failed` for the reasons of `FailureTarget`.
pub(super) fn failed_for(target: &JobCondition, now: Timestamp) -> JobCondition {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    condition("Failed", "True", &text(&target.reason), &text(&target.message), now)
}

/// The back-off after these pods ended: a success resets it.
fn next_back_off(before: BackOff, succeeded: &[&Pod], failed: &[&Pod]) -> BackOff {
    let success = succeeded.iter().map(|p| fields::finished_time(p)).max();
    let times = failed.iter().map(|p| fields::finished_time(p));
    let later: Vec<Timestamp> = times.filter(|t| success.is_none_or(|s| *t > s)).collect();
    let start = if success.is_some() { BackOff::default() } else { before };
    BackOff {
        failures: start.failures.saturating_add(count(later.len())),
        last: later.into_iter().max().or(start.last),
    }
}
