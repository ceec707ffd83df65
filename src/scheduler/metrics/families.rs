//! The families of the scheduler, with kube-scheduler's names, labels, buckets and texts.

use base::metrics::{Family, exponential};

/// Upper bounds in seconds: 1 ms to 16.4 s.
const ATTEMPT_BOUNDS: [f64; 15] = exponential(0.001, 2.0);
/// Upper bounds in seconds: 0.1 ms to 204.8 ms.
const EVENT_BOUNDS: [f64; 12] = exponential(0.0001, 2.0);
/// Upper bounds in seconds: 10 µs to 22 ms.
const PLUGIN_BOUNDS: [f64; 20] = exponential(0.000_01, 1.5);
/// Upper bounds in seconds: 10 ms to 87 minutes.
const SLI_BOUNDS: [f64; 20] = exponential(0.01, 2.0);
const ATTEMPTS_BOUNDS: [f64; 5] = exponential(1.0, 2.0);
const VICTIMS_BOUNDS: [f64; 7] = exponential(1.0, 2.0);
/// Upper bounds in seconds: 0.1 s to 819.2 s.
const BINDING_CONDITIONS_BOUNDS: [f64; 14] = exponential(0.1, 2.0);

/// Sizes of the cache.
pub(super) fn cache_size() -> Family {
    Family::gauge(
        "scheduler_cache_size",
        "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
        &["type"],
    )
}

/// Allocations of devices with binding conditions.
pub(crate) static BINDING_CONDITIONS_ALLOCATIONS: Family = Family::counter(
    "scheduler_dra_bindingconditions_allocations_total",
    "[ALPHA] Number of allocations using devices with BindingConditions, counted per driver per \
     scheduling attempt",
    &["driver", "profile", "status"],
);

/// Time until devices with binding conditions are ready.
pub(crate) static BINDING_CONDITIONS_WAITS: Family = Family::histogram(
    "scheduler_dra_bindingconditions_wait_duration_seconds",
    "[ALPHA] Time in seconds spent waiting for BindingConditions to be satisfied during PreBind.",
    &["driver", "profile", "status"],
    &BINDING_CONDITIONS_BOUNDS,
);

pub(super) static EVENT_HANDLING: Family = Family::histogram(
    "scheduler_event_handling_duration_seconds",
    "[ALPHA] Event handling latency in seconds.",
    &["event"],
    &EVENT_BOUNDS,
);

pub(super) static EXTENSION_POINTS: Family = Family::histogram(
    "scheduler_framework_extension_point_duration_seconds",
    "[STABLE] Latency for running all plugins of a specific extension point.",
    &["extension_point", "profile", "status"],
    &EVENT_BOUNDS,
);

/// Sizes of the queues.
pub(super) fn pending_pods() -> Family {
    Family::gauge(
        "scheduler_pending_pods",
        "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in \
         activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in \
         unschedulableEntities that the scheduler attempted to schedule and failed; 'gated' is the \
         number of unschedulable pods that the scheduler never attempted to schedule because they are \
         gated; 'incomplete' means number of pods in incompletePodGroupPods; 'pending' means number of \
         pods in pendingPodGroupPods.",
        &["queue"],
    )
}

/// Runs of plugins.
pub(super) fn evaluations() -> Family {
    Family::counter(
        "scheduler_plugin_evaluation_total",
        "[BETA] Number of attempts to schedule pods by each plugin and the extension point (available \
         only in PreFilter, Filter, PreScore, and Score).",
        &["extension_point", "plugin", "profile"],
    )
}

pub(super) static PLUGINS: Family = Family::histogram(
    "scheduler_plugin_execution_duration_seconds",
    "[BETA] Duration for running a plugin at a specific extension point.",
    &["extension_point", "plugin", "status"],
    &PLUGIN_BOUNDS,
);

pub(super) static SCHEDULED_AFTER_FLUSH: Family = Family::counter(
    "scheduler_pod_scheduled_after_flush_total",
    "[ALPHA] Number of pods that were successfully scheduled after being flushed from \
     unschedulableEntities due to timeout. This metric helps detect potential queueing hint \
     misconfigurations or event handling issues.",
    &[],
);

pub(super) static POD_ATTEMPTS: Family = Family::histogram(
    "scheduler_pod_scheduling_attempts",
    "[STABLE] Number of attempts to successfully schedule a pod.",
    &[],
    &ATTEMPTS_BOUNDS,
);

pub(super) static SLI: Family = Family::histogram(
    "scheduler_pod_scheduling_sli_duration_seconds",
    "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling \
     queue and might involve multiple scheduling attempts.",
    &["attempts"],
    &SLI_BOUNDS,
);

/// Runs of the plugin DefaultPreemption.
pub(crate) static PREEMPTION_ATTEMPTS: Family = Family::counter(
    "scheduler_preemption_attempts_total",
    "[STABLE] Total preemption attempts in the cluster till now",
    &[],
);

/// Evictions of all victims of a preemption.
pub(crate) static PREEMPTIONS: Family = Family::counter(
    "scheduler_preemption_goroutines_execution_total",
    "[ALPHA] Number of preemption goroutines executed.",
    &["result"],
);

/// Victims of a preemption.
pub(crate) static PREEMPTION_VICTIMS: Family = Family::histogram(
    "scheduler_preemption_victims",
    "[STABLE] Number of selected preemption victims for preemption initiated by a single pod",
    &[],
    &VICTIMS_BOUNDS,
);

pub(super) static INCOMING_PODS: Family = Family::counter(
    "scheduler_queue_incoming_pods_total",
    "[STABLE] Number of pods added to scheduling queues by event and queue type.",
    &["event", "queue"],
);

pub(super) static ATTEMPTS: Family = Family::counter(
    "scheduler_schedule_attempts_total",
    "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod \
     could not be scheduled, while 'error' means an internal scheduler problem.",
    &["profile", "result"],
);

/// Time of a cycle without `Reserve`.
pub(crate) static ALGORITHM: Family = Family::histogram(
    "scheduler_scheduling_algorithm_duration_seconds",
    "[BETA] Scheduling algorithm latency in seconds",
    &[],
    &ATTEMPT_BOUNDS,
);

pub(super) static ATTEMPT_DURATIONS: Family = Family::histogram(
    "scheduler_scheduling_attempt_duration_seconds",
    "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
    &["profile", "result"],
    &ATTEMPT_BOUNDS,
);

/// Pods by the plugins that rejected them.
pub(super) fn unschedulable_pods() -> Family {
    Family::gauge(
        "scheduler_unschedulable_pods",
        "[BETA] The number of unschedulable pods broken down by plugin name. A pod will increment the \
         gauge for all plugins that caused it to not schedule and so this metric have meaning only \
         when broken down by plugin.",
        &["plugin", "profile"],
    )
}

/// Errors of the plugin VolumeBinding.
pub(crate) static VOLUME_ERRORS: Family = Family::counter(
    "scheduler_volume_scheduling_stage_error_total",
    "[ALPHA] Volume scheduling stage error count",
    &["operation"],
);
