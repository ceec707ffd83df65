//! Jobs: runs pods until enough of them have succeeded, and counts each exactly once.

pub(crate) mod fields;
mod indexes;
pub(crate) mod metrics;
mod new_pod;
mod plan;
mod policy;
#[cfg(test)]
mod tests;
mod tracking;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::batch::v1::{Job, JobSpec, JobStatus};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use base::clock;
use client::events::EventType;
use client::{Action, Change, Error, Expectations, Informer, Patch, controller_of, meta};
use parking_lot::Mutex;
use serde_json::json;

use crate::framework::adoption;
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::pod_control::PodControl;
use crate::framework::pods;
use fields::{FINALIZER, condition, is_suspended};
use new_pod::new_pod;
use plan::{BackOff, Next, View};

/// Service account and event source.
const CONTROLLER: &str = "job-controller";
/// `spec.managedBy` of Jobs that this controller manages.
const MANAGED_BY: &str = "kubernetes.io/job-controller";
/// Workers (`--concurrent-job-syncs`).
const WORKERS: usize = 5;
/// Index of pods with our finalizer by `namespace/name` of their Job.
const BY_JOB: &str = "tracked-by-job";
/// Before the name of a pod in a key that is not a Job's: names of objects have no slash.
const ORPHAN: &str = "pod/";

/// What the controller remembers of a Job between syncs.
#[derive(Debug, Default)]
struct JobState {
    /// Newest version that we wrote: an older one in the cache is stale.
    written: u64,
    /// Pods whose finalizer is removed, until the cache shows it.
    released: HashSet<String>,
    back_off: BackOff,
}

struct Controller {
    control: PodControl,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    states: Arc<Mutex<HashMap<String, JobState>>>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let recorder = context.recorder(&client, CONTROLLER);
    let controller = Arc::new(Controller {
        control: PodControl { client, recorder },
        jobs: context.informers.of(),
        pods: context.informers.of(),
        expectations: Arc::new(Expectations::new()),
        states: Arc::default(),
    });
    adoption::index(&controller.pods);
    controller.pods.add_index(BY_JOB, job_of_tracked);
    let mut keyed = Keyed::new();
    keyed.watches_self(&controller.jobs);
    controller.jobs.on_change(metrics::job_changed);
    let (known, expected) = (controller.jobs.clone(), Arc::clone(&controller.expectations));
    let states = Arc::clone(&controller.states);
    keyed.watches(&controller.pods, move |change| {
        metrics::pod_changed(change);
        observe(change, &expected, &states);
        let mut keys = adoption::owners_of(change, &known, |job: &Job, pod| selects(job, pod));
        keys.extend(orphan(change));
        keys
    });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move {
            match name.strip_prefix(ORPHAN) {
                Some(pod) => controller.let_go(&namespace, pod).await,
                None => controller.reconcile(&namespace, &name).await,
            }
        }
    });
}

fn selects(job: &Job, pod: &ObjectMeta) -> bool {
    let selector = job.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| {
        !client::labels::is_empty(s) && client::labels::selects(s, pod.labels.as_ref())
    })
}

fn has_finalizer(meta: &ObjectMeta) -> bool {
    meta.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == FINALIZER))
}

fn job_of_tracked(object: &Object) -> Vec<String> {
    let pod = meta(object).filter(|meta| has_finalizer(meta));
    let owner = pod.as_deref().and_then(controller_of).filter(|o| o.kind == "Job");
    owner.map(|o| format!("{}/{}", object.key.namespace, o.name)).into_iter().collect()
}

/// The key of a pod that has our finalizer and no owner.
fn orphan(change: &Change) -> Option<Key> {
    let object = change.object();
    let pod = meta(object)?;
    let lost = !matches!(change, Change::Deleted(_))
        && controller_of(&pod).is_none()
        && has_finalizer(&pod);
    lost.then(|| (object.key.namespace.to_string(), format!("{ORPHAN}{}", object.key.name)))
}

fn observe(
    change: &Change,
    expectations: &Expectations,
    states: &Mutex<HashMap<String, JobState>>,
) {
    let object = change.object();
    let Some(pod) = meta(object) else { return };
    let Some(owner) = controller_of(&pod).filter(|o| o.kind == "Job") else { return };
    let key = format!("{}/{}", object.key.namespace, owner.name);
    pods::observed(change, &pod, &key, expectations);
    if (!has_finalizer(&pod) || matches!(change, Change::Deleted(_)))
        && let Some(state) = states.lock().get_mut(&key)
    {
        state.released.remove(&*object.uid);
    }
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let key = format!("{namespace}/{name}");
        let job = self.jobs.get(namespace, name);
        let uid = job.as_ref().and_then(|j| j.metadata.uid.as_deref()).unwrap_or_default();
        for pod in self.pods.by_index(BY_JOB, &key) {
            // The pod of an earlier Job of this name is not counted by any.
            if controller_of(&pod.metadata).is_some_and(|o| o.uid != uid) {
                self.release(&pod).await?;
            }
        }
        let Some(job) = job else {
            self.expectations.forget(&key);
            self.states.lock().remove(&key);
            return Ok(Action::Done);
        };
        let Some(spec) = job.spec.as_ref() else { return Ok(Action::Done) };
        if spec.managed_by.as_deref().is_some_and(|m| m != MANAGED_BY) || fields::is_finished(&job)
        {
            return Ok(Action::Done);
        }
        if self.is_stale(&key, &job) {
            metrics::stale_sync_skipped();
            return Ok(Action::Done);
        }
        // Before the pods are read from the cache: a finalizer that the cache loses in between
        // would make a released pod look like one that is not counted yet.
        let satisfied = self.expectations.satisfied(&key);
        let released = self.released(&key);
        let claimed = adoption::claim_all(
            &self.control.client,
            &job,
            &self.pods,
            |pod| selects(&job, pod),
            pods::is_active,
        );
        let pods = self.track(&job, claimed.await?).await?;
        self.sync(&key, (&job, spec), pods, (satisfied, released)).await
    }

    /// Pods whose finalizer is removed although the cache may not show it yet.
    fn released(&self, key: &str) -> HashSet<String> {
        self.states.lock().get(key).map(|state| state.released.clone()).unwrap_or_default()
    }

    /// The cache shows a version from before our last write; the newer one will wake us.
    fn is_stale(&self, key: &str, job: &Job) -> bool {
        let seen = job.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
        let states = self.states.lock();
        states.get(key).is_some_and(|m| seen.is_some_and(|seen| seen < m.written))
    }

    /// Gives pods that were adopted without it our finalizer.
    async fn track(&self, job: &Job, mut pods: Vec<Pod>) -> Result<Vec<Pod>, Error> {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let labelled = job.metadata.deletion_timestamp.is_none();
        for pod in
            pods.iter_mut().filter(|p| labelled && pods::is_active(p) && !fields::is_tracked(p))
        {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let patch = json!({"metadata": {"finalizers": [FINALIZER], "uid": pod.metadata.uid}});
            match self.control.client.patch(namespace, name, "", &Patch::Strategic(&patch)).await {
                Ok(changed) => *pod = changed,
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pods)
    }

    async fn sync(
        &self,
        key: &str,
        (job, spec): (&Job, &JobSpec),
        pods: Vec<Pod>,
        (satisfied, released): (bool, HashSet<String>),
    ) -> Result<Action, Error> {
        let (began, now) = (clock::now(), Timestamp::now());
        let mut status = job.status.clone().unwrap_or_default();
        status.uncounted_terminated_pods.get_or_insert_default();
        if status.start_time.is_none() && !is_suspended(spec) {
            status.start_time = Some(Time(now));
        }
        let back_off = self.states.lock().entry(key.to_owned()).or_default().back_off;
        let before = status.clone();
        let view = View::new(job, spec, &before, pods, released, back_off, now);
        let (next, again) = view.next(satisfied);
        let managed = satisfied && !view.deleting && next != Next::End;
        let ending = next == Next::End;
        let was_active = i32::try_from(view.active().len()).unwrap_or(i32::MAX);
        let reason = metrics::creation_reason(spec, view.failed, view.terminating());
        let (created, deleted, outcome) = self.apply(key, job, spec, next, reason).await;
        let active = was_active + created - i32::try_from(deleted.len()).unwrap_or(0);
        let mut finished = view.finished.clone().filter(|_| ending && active == 0 && satisfied);
        if !ending && view.is_complete(active) {
            let message = "Reached expected number of succeeded pods";
            let reason = "CompletionsReached";
            finished = Some(condition("SuccessCriteriaMet", "True", reason, message, now));
        } else if managed {
            self.note_suspension(job, spec, &mut status, now);
        }
        let gone = |p: &Pod| deleted.contains(p.metadata.uid.as_deref().unwrap_or_default());
        let ready = view.active().into_iter().filter(|p| pods::is_ready(p) && !gone(p)).count();
        status.active = Some(active).filter(|n| *n != 0);
        status.ready = i32::try_from(ready).ok();
        status.terminating = Some(view.terminating() + i32::try_from(deleted.len()).unwrap_or(0));
        let outcome = self.count(key, job, &view, status, finished).await.and(outcome);
        let action = metrics::action(satisfied, created > 0, !deleted.is_empty());
        metrics::synced(job, action, began, outcome.is_ok());
        outcome?;
        Ok(again.map_or(Action::Done, |seconds| {
            Action::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(0).max(1)))
        }))
    }

    fn note_suspension(&self, job: &Job, spec: &JobSpec, status: &mut JobStatus, now: Timestamp) {
        let (value, reason, message, event) = if is_suspended(spec) {
            ("True", "JobSuspended", "Job suspended", "Suspended")
        } else {
            ("False", "JobResumed", "Job resumed", "Resumed")
        };
        if fields::ensure(status, condition("Suspended", value, reason, message, now)) {
            status.start_time = (!is_suspended(spec)).then_some(Time(now));
            self.control.recorder.event(job, EventType::Normal, event, message);
        }
    }

    /// Writes what is to be counted, then removes finalizers, then writes the counters.
    async fn count(
        &self,
        key: &str,
        job: &Job,
        view: &View<'_>,
        mut status: JobStatus,
        finished: Option<api::k8s::api::batch::v1::JobCondition>,
    ) -> Result<(), Error> {
        let accounted = tracking::track_finished(view, &mut status, finished);
        let mut job = job.clone();
        if job.status.as_ref() != Some(&status) {
            self.write(key, &mut job, &status).await?;
            self.remember(key, |m| m.back_off = view.back_off);
        }
        metrics::policy_applied(&accounted.policy_actions);
        let mut tracked = tracking::tracked_uids(view);
        let mut outcome = Ok(());
        for pod in &accounted.release {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            self.remember(key, |m| {
                m.released.insert(uid.clone());
            });
            match self.release(pod).await {
                Ok(()) => {
                    tracked.remove(&uid);
                }
                Err(error) => {
                    self.remember(key, |m| {
                        m.released.remove(&uid);
                    });
                    outcome = Err(error);
                }
            }
        }
        tracking::remove_counted(&mut status, &tracked);
        let ended = outcome.is_ok() && tracking::finish(&mut status, &accounted);
        if job.status.as_ref() != Some(&status) {
            self.write(key, &mut job, &status).await?;
        }
        if let (true, Some(last)) = (ended, accounted.finished) {
            self.tell_end(&job, &last);
        }
        outcome
    }

    fn tell_end(&self, job: &Job, last: &api::k8s::api::batch::v1::JobCondition) {
        metrics::finished(job, last);
        let recorder = &self.control.recorder;
        if last.type_ != "Complete" {
            let reason = last.reason.as_deref().unwrap_or_default();
            let message = last.message.clone().unwrap_or_default();
            recorder.event(job, EventType::Warning, reason, message);
            return;
        }
        let wanted = job.spec.as_ref().and_then(|s| s.completions);
        let succeeded = job.status.as_ref().and_then(|s| s.succeeded).unwrap_or(0);
        if wanted.is_some_and(|w| succeeded > w) {
            let message = "Too many succeeded pods running after completion count reached";
            recorder.event(job, EventType::Warning, "TooManySucceededPods", message);
        }
        recorder.event(job, EventType::Normal, "Completed", "Job completed");
    }

    fn remember(&self, key: &str, change: impl FnOnce(&mut JobState)) {
        change(self.states.lock().entry(key.to_owned()).or_default());
    }

    async fn write(&self, key: &str, job: &mut Job, status: &JobStatus) -> Result<(), Error> {
        let new = Job { status: Some(status.clone()), ..job.clone() };
        let written = self.control.client.update_status(&new).await?;
        metrics::pods_counted(job, status);
        job.status = new.status;
        job.metadata = written.metadata;
        let version = job.metadata.resource_version.as_deref().and_then(|v| v.parse().ok());
        self.remember(key, |m| m.written = version.unwrap_or(0));
        Ok(())
    }

    /// Removes our finalizer.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        if !fields::is_tracked(pod) {
            return Ok(());
        }
        let meta = &pod.metadata;
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER],
            "uid": meta.uid}});
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let patch = Patch::Strategic(&patch);
        settled(self.control.client.patch::<Pod>(namespace, name, "", &patch).await)
    }

    /// A pod without an owner, which no Job will adopt, must not be kept by our finalizer.
    async fn let_go(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        if let Some(pod) = self.pods.get(namespace, name)
            && controller_of(&pod.metadata).is_none()
            && !self.jobs.list(namespace).iter().any(|j| {
                j.metadata.deletion_timestamp.is_none()
                    && !fields::is_finished(j)
                    && selects(j, &pod.metadata)
            })
        {
            self.release(&pod).await?;
        }
        Ok(Action::Done)
    }

    /// How many pods were created, the uids of those deleted, and the first failure.
    async fn apply(
        &self,
        key: &str,
        job: &Job,
        spec: &JobSpec,
        next: Next,
        reason: &str,
    ) -> (i32, HashSet<String>, Result<(), Error>) {
        match next {
            Next::Nothing => (0, HashSet::new(), Ok(())),
            Next::End => {
                let uid = job.metadata.uid.as_deref().unwrap_or_default();
                let active: Vec<Pod> =
                    self.pods.by_index(crate::framework::adoption::BY_CONTROLLER, uid);
                let active = active.into_iter().filter(pods::is_active).collect();
                let (deleted, outcome) = self.delete(key, job, active, false).await;
                (0, deleted, outcome)
            }
            Next::Delete(pods) => {
                let (deleted, outcome) = self.delete(key, job, pods, true).await;
                (0, deleted, outcome)
            }
            Next::Create(number) => {
                let pod = new_pod(job, spec, None);
                let (created, outcome) = self.create(key, job, vec![pod; number], reason).await;
                (created, HashSet::new(), outcome)
            }
            Next::CreateIndexes(indexes) => {
                let pods = indexes.into_iter().map(|index| new_pod(job, spec, Some(index)));
                let (created, outcome) = self.create(key, job, pods.collect(), reason).await;
                (created, HashSet::new(), outcome)
            }
        }
    }

    /// Deletes pods. `uncounted`: their finalizer goes first, so that they count as nothing.
    async fn delete(
        &self,
        key: &str,
        job: &Job,
        pods: Vec<Pod>,
        uncounted: bool,
    ) -> (HashSet<String>, Result<(), Error>) {
        let uid = |p: &Pod| p.metadata.uid.clone().unwrap_or_default();
        self.expectations.expect_deletions(key, pods.iter().map(uid));
        let tries = pods.iter().map(|pod| async move {
            if uncounted {
                self.release(pod).await?;
            }
            self.control.delete(job, pod).await
        });
        let mut outcome = Ok(());
        let mut deleted = HashSet::new();
        for (result, pod) in futures::future::join_all(tries).await.into_iter().zip(&pods) {
            match result {
                Ok(()) => {
                    deleted.insert(uid(pod));
                }
                Err(error) => {
                    self.expectations.deletion_observed(key, &uid(pod));
                    outcome = Err(error);
                }
            }
        }
        (deleted, outcome)
    }

    /// Creates in batches of 1, 2, 4 …. `reason` is that of the metrics.
    async fn create(
        &self,
        key: &str,
        job: &Job,
        pods: Vec<Pod>,
        reason: &str,
    ) -> (i32, Result<(), Error>) {
        self.expectations.expect_creations(key, pods.len());
        let (mut done, mut batch, mut created, mut failed) = (0, 1, 0, 0);
        let mut outcome = Ok(());
        while done < pods.len() && outcome.is_ok() {
            let tries = pods.iter().skip(done).take(batch).map(|p| self.control.create(job, p));
            for result in futures::future::join_all(tries).await {
                done += 1;
                match result {
                    Ok(_) => created += 1,
                    Err(error) => {
                        self.expectations.creation_observed(key);
                        failed += 1;
                        outcome = Err(error);
                    }
                }
            }
            batch *= 2;
        }
        metrics::pods_created(reason, created, failed);
        for _ in done..pods.len() {
            self.expectations.creation_observed(key);
        }
        (created, outcome)
    }
}
