//! Printer of pods: readiness, status and restarts.

use api::Gvk;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{
    age, at, deleted, flag, human_duration, integer, is_true, list, name, text, text_or, time,
};
use super::printer::{AGE, Column, NAME, Printer, printer, text as column, wide};

pub(super) const PRINTERS: &[Printer] = &[printer("", "Pod", COLUMNS, row)];

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready"),
    column("Status"),
    column("Restarts"),
    AGE,
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
];

/// Row conditions: `Completed` for a pod that has finished.
pub(super) fn conditions(gvk: &Gvk, pod: &Value) -> Option<Value> {
    if !gvk.group.is_empty() || &*gvk.kind != "Pod" {
        return None;
    }
    let (reason, message) = match text(pod, &["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type":"Completed","status":"True","reason":reason,"message":message}]))
}

/// Aggregate of the container statuses.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
    /// Restarts of sidecars, which are counted even after initialization.
    sidecar_restarts: i64,
    last_sidecar_restart: Option<Timestamp>,
}

fn restarted_at(status: &Value) -> Option<Timestamp> {
    time(status, &["lastState", "terminated", "finishedAt"])
}

/// The reason of a terminated container: its reason, signal or exit code.
fn ended(terminated: &Value) -> String {
    let signal = integer(terminated, &["signal"]);
    match text(terminated, &["reason"]) {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", integer(terminated, &["exitCode"])),
        reason => reason.to_owned(),
    }
}

impl Summary {
    /// Evaluates the init containers up to the first that has not completed; returns whether the
    /// pod is still initializing.
    fn initialize(&mut self, pod: &Value, is_sidecar: impl Fn(&str) -> bool) -> bool {
        let total = list(pod, &["spec", "initContainers"]).len();
        for (i, status) in list(pod, &["status", "initContainerStatuses"]).iter().enumerate() {
            let sidecar = is_sidecar(text(status, &["name"]));
            let restarts = integer(status, &["restartCount"]);
            self.restarts += restarts;
            self.last_restart = self.last_restart.max(restarted_at(status));
            if sidecar {
                self.sidecar_restarts += restarts;
                self.last_sidecar_restart = self.last_sidecar_restart.max(restarted_at(status));
            }
            let terminated = at(status, &["state", "terminated"]);
            if !terminated.is_null() && integer(terminated, &["exitCode"]) == 0 {
                continue;
            }
            if sidecar && flag(status, &["started"]) {
                self.ready += usize::from(flag(status, &["ready"]));
                continue;
            }
            let waiting = text(status, &["state", "waiting", "reason"]);
            self.reason = if !terminated.is_null() {
                format!("Init:{}", ended(terminated))
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{total}")
            };
            return true;
        }
        false
    }

    fn run(&mut self, pod: &Value) {
        self.restarts = self.sidecar_restarts;
        self.last_restart = self.last_sidecar_restart;
        let (mut running, mut error) = (false, String::new());
        for status in list(pod, &["status", "containerStatuses"]).iter().rev() {
            self.restarts += integer(status, &["restartCount"]);
            self.last_restart = self.last_restart.max(restarted_at(status));
            let waiting = text(status, &["state", "waiting", "reason"]);
            let terminated = at(status, &["state", "terminated"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if !terminated.is_null() {
                self.reason = ended(terminated);
                if integer(terminated, &["exitCode"]) != 0 {
                    error.clone_from(&self.reason);
                }
            } else if flag(status, &["ready"]) && !at(status, &["state", "running"]).is_null() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && is_true(pod, "Ready") {
                self.reason = "Running".into();
            } else if !error.is_empty() {
                self.reason = error;
            } else if running {
                self.reason = "NotReady".into();
            }
        }
    }
}

fn row(pod: &Value, now: Timestamp) -> Vec<Value> {
    let phase = text(pod, &["status", "phase"]);
    let mut sum = Summary {
        reason: text_or(pod, &["status", "reason"], phase).to_owned(),
        ..Summary::default()
    };
    let gated = |c: &Value| {
        text(c, &["type"]) == "PodScheduled" && text(c, &["reason"]) == "SchedulingGated"
    };
    if list(pod, &["status", "conditions"]).iter().any(gated) {
        sum.reason = "SchedulingGated".into();
    }
    let sidecars: Vec<&str> = list(pod, &["spec", "initContainers"])
        .iter()
        .filter(|c| text(c, &["restartPolicy"]) == "Always")
        .map(|c| text(c, &["name"]))
        .collect();
    let initializing = sum.initialize(pod, |name| sidecars.contains(&name));
    if !initializing || is_true(pod, "Initialized") {
        sum.run(pod);
    }
    if deleted(pod) {
        if text(pod, &["status", "reason"]) == "NodeLost" {
            sum.reason = "Unknown".into();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            sum.reason = "Terminating".into();
        }
    }
    let restarts = match sum.last_restart {
        Some(last) if sum.restarts != 0 => {
            format!("{} ({} ago)", sum.restarts, human_duration(now.duration_since(last).as_secs()))
        }
        _ => sum.restarts.to_string(),
    };
    let total = list(pod, &["spec", "containers"]).len() + sidecars.len();
    let ip = list(pod, &["status", "podIPs"]).first().map_or("", |ip| text(ip, &["ip"]));
    vec![
        name(pod),
        format!("{}/{total}", sum.ready).into(),
        sum.reason.into(),
        restarts.into(),
        age(pod, now),
        if ip.is_empty() { "<none>" } else { ip }.into(),
        text_or(pod, &["spec", "nodeName"], "<none>").into(),
        text_or(pod, &["status", "nominatedNodeName"], "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates.iter().filter(|g| is_true(pod, text(g, &["conditionType"]))).count();
    format!("{met}/{}", gates.len())
}
