//! Defaults of Jobs and CronJobs.

use serde_json::Value;

use super::pod::pod_template;
use crate::value::{
    default_str, default_to, ensure_object, has, is_empty, items_mut, object_mut, set,
};

pub(super) fn job(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    if !has(spec, "completions") && !has(spec, "parallelism") {
        set(spec, "completions", 1);
    }
    default_to(spec, "parallelism", 1);
    let unlimited = has(spec, "backoffLimitPerIndex");
    default_to(spec, "backoffLimit", if unlimited { i32::MAX } else { 6 });
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    let replacement = if has(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default_to(spec, "podReplacementPolicy", replacement);
    default_to(spec, "manualSelector", false);
    let labels = spec.pointer("/template/metadata/labels").filter(|l| l.is_object()).cloned();
    job_template(spec);
    if let (Some(labels), Some(meta)) = (labels, ensure_object(object, "metadata")) {
        if is_empty(meta, "labels") {
            set(meta, "labels", labels);
        }
    }
}

/// Sets the defaults of a job spec that also apply in the template of a CronJob.
fn job_template(spec: &mut Value) {
    if let Some(policy) = object_mut(spec, "podFailurePolicy") {
        for rule in items_mut(policy, "rules") {
            for pattern in items_mut(rule, "onPodConditions") {
                default_str(pattern, "status", "True");
            }
        }
    }
    if let Some(template) = ensure_object(spec, "template") {
        pod_template(template);
    }
}

pub(super) fn cron_job(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_str(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_to(spec, "successfulJobsHistoryLimit", 3);
    default_to(spec, "failedJobsHistoryLimit", 1);
    if let Some(job) =
        ensure_object(spec, "jobTemplate").and_then(|template| ensure_object(template, "spec"))
    {
        job_template(job);
    }
}
