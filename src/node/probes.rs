//! Probes of running containers: one task for each probe, results by container id, and a wake-up
//! when a result changes.

pub(crate) mod handler;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::{Kind, Shutdown};
use client::events::EventType;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::context::Node;
use crate::events;
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::plan::ProbeResults;
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::probe_metrics::{ProbeKey, ProbeMetrics};
use crate::probes::handler::{HandlerTarget, ProbeResult};
use crate::status;

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Number of attempts for a probe that cannot be run (`maxProbeRetries`).
const PROBE_ATTEMPTS: usize = 3;

/// Returns reason and message of the event about a result, as the kubelet's `prober` does; none for
/// a success.
fn event(type_: ProbeKind, result: &ProbeResult) -> Option<(&'static str, String)> {
    let name = type_.name();
    match result {
        ProbeResult::Success => None,
        ProbeResult::Warning(output) => {
            Some((events::PROBE_WARNING, format!("{name} probe warning: {output}")))
        }
        ProbeResult::Failure(output) => {
            Some((events::UNHEALTHY, format!("{name} probe failed: {output}")))
        }
        ProbeResult::Unknown(error) => {
            let text = format!("{name} probe errored and resulted in unknown state: {error}");
            Some((events::UNHEALTHY, text))
        }
    }
}

type SharedResults = Arc<Mutex<HashMap<String, ProbeResults>>>;

/// The probes of one pod.
#[derive(Debug)]
pub(crate) struct Probes {
    results: SharedResults,
    running: HashMap<(String, ProbeKind), Shutdown>,
    wake: Arc<Notify>,
    /// Notifies the other probes that a container has started.
    started: Arc<Notify>,
    /// Where the results are counted, and the uid of the pod, once a probe has run.
    counted: Option<(Arc<ProbeMetrics>, Arc<str>)>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        for stop in self.running.values() {
            stop.request();
        }
        if let Some((metrics, uid)) = &self.counted {
            metrics.remove(uid);
        }
    }
}

impl Probes {
    pub(crate) fn new(wake: Arc<Notify>) -> Self {
        Self {
            results: SharedResults::default(),
            running: HashMap::new(),
            wake,
            started: Arc::default(),
            counted: None,
        }
    }

    /// Returns the current results, by container id.
    pub(crate) fn results(&self) -> HashMap<String, ProbeResults> {
        self.results.lock().clone()
    }

    /// Restores the results of a container that an earlier process started: its startup probe is
    /// not repeated.
    pub(crate) fn adopt(&self, id: &str, ready: bool) {
        let mut results = self.results.lock();
        results.entry(id.to_owned()).or_insert(ProbeResults {
            startup: Some(true),
            readiness: Some(ready),
            liveness: None,
        });
    }

    /// Starts the probes of running containers and stops those of others. A terminating pod keeps
    /// only its readiness probes; as with upstream, containers that have not started by then count
    /// as started.
    pub(crate) fn sync(
        &mut self,
        node: &Arc<Node>,
        pod: &Arc<Pod>,
        observed: &ObservedPod,
        terminating: bool,
    ) {
        let ips = status::pod::pod_ips(&node.identity.config.node_ips(), pod, observed);
        let mut wanted = HashSet::new();
        for member in pod
            .containers
            .iter()
            .filter(|m| matches!(m.role, ContainerRole::Main | ContainerRole::Sidecar))
        {
            let Some(container) = observed
                .active_container(member.name())
                .filter(|c| c.state == ObservedState::Running)
            else {
                continue;
            };
            let c = &member.container;
            for (type_, probe) in [
                (ProbeKind::Startup, &c.startup_probe),
                (ProbeKind::Readiness, &c.readiness_probe),
                (ProbeKind::Liveness, &c.liveness_probe),
            ] {
                let Some(probe) = probe else { continue };
                if terminating && type_ != ProbeKind::Readiness {
                    if type_ == ProbeKind::Startup {
                        self.count_as_started(&container.id);
                    }
                    continue;
                }
                let key = (container.id.clone(), type_);
                wanted.insert(key.clone());
                if self.running.contains_key(&key) {
                    continue;
                }
                let stop = node.tasks.shutdown().child();
                self.running.insert(key, stop.clone());
                let task = ProbeTask {
                    node: Arc::clone(node),
                    pod: Arc::clone(pod),
                    container: c.clone(),
                    id: container.id.clone(),
                    started_at: container.started_at,
                    ip: ips.first().cloned().unwrap_or_default(),
                    type_,
                    probe: probe.clone(),
                    results: Arc::clone(&self.results),
                    wake: Arc::clone(&self.wake),
                    started: Arc::clone(&self.started),
                };
                self.counted.get_or_insert_with(|| {
                    (Arc::clone(&node.runtime.probes), Arc::clone(&pod.uid))
                });
                node.tasks.spawn(Kind::Request, "probe", task.run(stop));
            }
        }
        self.running.retain(|key, stop| {
            let keep = wanted.contains(key);
            if !keep {
                stop.request();
            }
            keep
        });
        let ids: HashSet<&str> = observed.containers.iter().map(|c| c.id.as_str()).collect();
        self.results.lock().retain(|id, _| ids.contains(id.as_str()));
    }
}

impl Probes {
    fn count_as_started(&self, id: &str) {
        let mut results = self.results.lock();
        let startup = &mut results.entry(id.to_owned()).or_default().startup;
        if startup.replace(true) != Some(true) {
            self.started.notify_waiters();
        }
    }
}

struct ProbeTask {
    node: Arc<Node>,
    pod: Arc<Pod>,
    container: core::Container,
    id: String,
    started_at: i64,
    ip: String,
    type_: ProbeKind,
    probe: core::Probe,
    results: SharedResults,
    wake: Arc<Notify>,
    started: Arc<Notify>,
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(
        value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default),
    )
}

impl ProbeTask {
    async fn run(self, stop: Shutdown) -> Result<(), std::convert::Infallible> {
        tokio::select! {
            biased;
            () = stop.requested() => {}
            () = self.probe_until_decided() => {}
        }
        Ok(())
    }

    async fn probe_until_decided(&self) {
        let period = seconds(self.probe.period_seconds, 10);
        self.initial_delay().await;
        let mut run = (None, 0_i32);
        loop {
            let begun = base::clock::now();
            let health = self.results.lock().get(&self.id).copied().unwrap_or_default();
            let started = self.container.startup_probe.is_none() || health.startup == Some(true);
            if self.type_ == ProbeKind::Startup && started {
                return;
            }
            if started || self.type_ == ProbeKind::Startup {
                let result = self.run_with_retries().await;
                self.count(&result, begun.elapsed());
                let good = matches!(result, ProbeResult::Success | ProbeResult::Warning(_));
                run = if run.0 == Some(good) {
                    (run.0, run.1.saturating_add(1))
                } else {
                    (Some(good), 1)
                };
                self.report(&result);
                let threshold = if good {
                    self.probe.success_threshold.unwrap_or(1)
                } else {
                    self.probe.failure_threshold.unwrap_or(3)
                };
                if run.1 >= threshold {
                    self.decide(good);
                    let final_ = self.type_ == ProbeKind::Startup
                        || (self.type_ == ProbeKind::Liveness && !good);
                    if final_ {
                        return;
                    }
                }
            }
            if started || self.type_ == ProbeKind::Startup {
                base::clock::sleep(period.saturating_sub(begun.elapsed())).await;
            } else {
                // The startup probe may succeed just before this wait: the next check is then a
                // period away.
                let _ = tokio::time::timeout(period, self.started.notified()).await;
            }
        }
    }

    /// Waits until the container is as old as `initialDelaySeconds`.
    async fn initial_delay(&self) {
        let delay = Duration::from_secs(
            self.probe.initial_delay_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0),
        );
        let started = Duration::from_nanos(u64::try_from(self.started_at).unwrap_or_default());
        let age = base::clock::unix_time().saturating_sub(started);
        base::clock::sleep(delay.saturating_sub(age)).await;
    }

    /// Runs the probe; a probe that could not be run is repeated at once, up to [`PROBE_ATTEMPTS`]
    /// times.
    async fn run_with_retries(&self) -> ProbeResult {
        for _ in 1..PROBE_ATTEMPTS {
            match self.run_handler().await {
                ProbeResult::Unknown(_) => {}
                known => return known,
            }
        }
        self.run_handler().await
    }

    async fn run_handler(&self) -> ProbeResult {
        let limit = seconds(self.probe.timeout_seconds, 1);
        let target = HandlerTarget {
            runtime: &*self.node.runtime.cri,
            container_id: &self.id,
            container: &self.container,
            pod_ip: &self.ip,
            user_agent: "kube-probe/1.37",
        };
        if let Some(action) = &self.probe.exec {
            handler::exec(target, action, limit).await
        } else if let Some(action) = &self.probe.http_get {
            handler::http::probe(target, action, limit).await
        } else if let Some(action) = &self.probe.tcp_socket {
            handler::tcp(target, action, limit).await
        } else if let Some(action) = &self.probe.grpc {
            handler::grpc(target, action, limit).await
        } else {
            ProbeResult::Success
        }
    }

    /// Counts a result; as in the kubelet, a probe that could not be run is not counted.
    fn count(&self, result: &ProbeResult, took: Duration) {
        if matches!(result, ProbeResult::Unknown(_)) {
            return;
        }
        let probe = ProbeKey {
            pod_uid: self.pod.uid.to_string(),
            namespace: self.pod.namespace().to_owned(),
            pod: self.pod.name().to_owned(),
            container: self.container.name.clone(),
            kind: self.type_.name(),
        };
        let is_success = !matches!(result, ProbeResult::Failure(_));
        self.node.runtime.probes.record(probe, is_success, took);
    }

    /// Records the event of a result, if any.
    fn report(&self, result: &ProbeResult) {
        if let Some(member) = self.pod.container(&self.container.name)
            && let Some((reason, message)) = event(self.type_, result)
        {
            self.node.api.events.container_event(
                &self.pod,
                member,
                EventType::Warning,
                reason,
                message,
            );
        }
    }

    fn decide(&self, good: bool) {
        let mut results = self.results.lock();
        let health = results.entry(self.id.clone()).or_default();
        let slot = match self.type_ {
            ProbeKind::Startup => &mut health.startup,
            ProbeKind::Readiness => &mut health.readiness,
            ProbeKind::Liveness => &mut health.liveness,
        };
        let changed = *slot != Some(good);
        *slot = Some(good);
        drop(results);
        if self.type_ == ProbeKind::Startup && good {
            self.started.notify_waiters();
        }
        if changed {
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_results_have_the_events_of_the_kubelet() {
        let of = |result| event(ProbeKind::Readiness, &result);
        let text = |text: &str| text.to_owned();
        assert_eq!(of(ProbeResult::Success), None);
        assert_eq!(
            of(ProbeResult::Warning(text("w"))),
            Some(("ProbeWarning", text("Readiness probe warning: w")))
        );
        assert_eq!(
            of(ProbeResult::Failure(text("f"))),
            Some(("Unhealthy", text("Readiness probe failed: f")))
        );
        assert_eq!(
            of(ProbeResult::Unknown(text("e"))),
            Some(("Unhealthy", text("Readiness probe errored and resulted in unknown state: e")))
        );
    }
}
