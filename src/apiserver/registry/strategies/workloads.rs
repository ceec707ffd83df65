//! Rules of the kinds of apps, batch, autoscaling and policy.

use api::validation::names::label_value;
use api::validation::scaling;
use api::validation::small_kinds;
use api::validation::warnings;
use api::validation::{apps, batch};
use api::value::{
    at, bool_at, ensure_object, get, int_at, object_mut, remove, restore, semantic_equal, set,
    str_in,
};
use serde_json::{Value, json};

use super::super::rules::Rules;
use super::pod_fields::drop_of_template;
use crate::registry::WriteContext;

/// Drops the fields of `spec.template` that are off by default.
fn template(_: &WriteContext<'_>, object: &mut Value) {
    if let Some(template) = object.pointer_mut("/spec/template") {
        drop_of_template(template, &Value::Null);
    }
}

fn template_change(context: &WriteContext<'_>, object: &mut Value, old: &Value) {
    if context.subresource.is_empty() {
        if let Some(template) = object.pointer_mut("/spec/template") {
            drop_of_template(template, at(old, &["spec", "template"]));
        }
    }
}

pub(super) const DEPLOYMENT: Rules = Rules {
    warnings: warnings::workload,
    status: Some("{}"),
    generation: &["spec", "metadata.annotations"],
    prepare: template,
    prepare_change: |context, object, old| {
        template_change(context, object, old);
        if context.subresource == "status" {
            if let Some(meta) = ensure_object(object, "metadata") {
                restore(meta, get(old, "metadata"), "labels");
            }
        }
    },
    validate: apps::deployment::validate,
    validate_change: apps::deployment::validate_change,
    validate_subresource: apps::deployment::validate_subresource,
    ..Rules::BASE
};

pub(super) const REPLICA_SET: Rules = Rules {
    warnings: warnings::workload,
    status: Some(r#"{"replicas":0}"#),
    generation: &["spec"],
    prepare: template,
    prepare_change: template_change,
    validate: apps::replica_set::validate,
    validate_change: apps::replica_set::validate_change,
    validate_subresource: apps::replica_set::validate_subresource,
    ..Rules::BASE
};

pub(super) const STATEFUL_SET: Rules = Rules {
    name: api::validation::names::name_is_label,
    warnings: warnings::stateful_set,
    status: Some(r#"{"availableReplicas":0,"replicas":0}"#),
    generation: &["spec"],
    prepare: template,
    prepare_change: template_change,
    validate: apps::stateful_set::validate,
    validate_change: apps::stateful_set::validate_change,
    validate_subresource: apps::stateful_set::validate_subresource,
    ..Rules::BASE
};

pub(super) const DAEMON_SET: Rules = Rules {
    warnings: warnings::daemon_set,
    status: Some(
        r#"{"currentNumberScheduled":0,"desiredNumberScheduled":0,"numberMisscheduled":0,"numberReady":0}"#,
    ),
    generation: &["spec"],
    prepare: |context, object| {
        template(context, object);
        let stated = template_generation(object).filter(|g| *g >= 1);
        annotate(object, stated.unwrap_or(1));
    },
    prepare_change: |context, object, old| {
        template_change(context, object, old);
        if context.subresource.is_empty() {
            let path = ["spec", "template"];
            let changed = !semantic_equal(at(object, &path), at(old, &path));
            annotate(object, template_generation(old).unwrap_or_default() + i64::from(changed));
        }
    },
    validate: apps::daemon_set::validate,
    validate_change: apps::daemon_set::validate_change,
    validate_subresource: apps::daemon_set::validate_subresource,
    ..Rules::BASE
};

pub(super) const CONTROLLER_REVISION: Rules = Rules {
    validate: small_kinds::controller_revision,
    validate_change: small_kinds::controller_revision_change,
    ..Rules::BASE
};

/// The annotation in which `apps/v1` keeps the former field `spec.templateGeneration`.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Value) -> Option<i64> {
    str_in(object, &["metadata", "annotations", TEMPLATE_GENERATION]).parse().ok()
}

fn annotate(object: &mut Value, generation: i64) {
    if let Some(annotations) =
        ensure_object(object, "metadata").and_then(|meta| ensure_object(meta, "annotations"))
    {
        set(annotations, TEMPLATE_GENERATION, generation.to_string());
    }
}

pub(super) const CRON_JOB: Rules = Rules {
    warnings: warnings::cron_job,
    status: Some("{}"),
    generation: &["spec"],
    prepare: |_, object| {
        drop_scheduling(object.pointer_mut("/spec/jobTemplate/spec"), &Value::Null)
    },
    prepare_change: |_, object, old| {
        let old = at(old, &["spec", "jobTemplate", "spec"]);
        drop_scheduling(object.pointer_mut("/spec/jobTemplate/spec"), old);
    },
    validate: batch::cron_job::validate_new,
    validate_change: |new, old| batch::cron_job::validate(new, Some(old)),
    ..Rules::BASE
};

pub(super) const JOB: Rules = Rules {
    warnings: warnings::job,
    status: Some("{}"),
    generation: &["spec"],
    prepare: |context, object| {
        template(context, object);
        drop_scheduling(object.get_mut("spec"), &Value::Null);
        if !bool_at(get(object, "spec"), "manualSelector") {
            job_selector(object);
        }
    },
    prepare_change: |context, object, old| {
        template_change(context, object, old);
        drop_scheduling(object.get_mut("spec"), get(old, "spec"));
    },
    selectable: |object| {
        vec![(
            "status.successful",
            int_at(get(object, "status"), "succeeded").unwrap_or_default().to_string(),
        )]
    },
    validate: batch::job::validate,
    validate_change: batch::job::validate_change,
    validate_subresource: batch::job::validate_subresource,
    ..Rules::BASE
};

/// Drops the scheduling of Jobs, because upstream's feature `WorkloadWithJob` is off by default.
fn drop_scheduling(spec: Option<&mut Value>, old: &Value) {
    if let Some(spec) = spec.filter(|_| get(old, "scheduling").is_null()) {
        remove(spec, "scheduling");
    }
}

/// Selects the pods of a Job without a manual selector by the uid of the Job.
fn job_selector(object: &mut Value) {
    let template_labels = at(object, &["spec", "template", "metadata", "labels"]);
    let labels = at(object, &["metadata", "labels"]);
    // Labels that were copied from the template follow its changes.
    let follows = semantic_equal(labels, template_labels);
    // The Job gets the generated labels of its template only after validation: an invalid name is
    // reported for the template only.
    let named = template_labels.as_object().is_some_and(|labels| !labels.is_empty())
        || label_value(str_in(object, &["metadata", "name"])).is_empty();
    let follows = follows && named;
    generated_labels(object);
    if follows {
        let labels = at(object, &["spec", "template", "metadata", "labels"]).clone();
        if let Some(meta) = ensure_object(object, "metadata") {
            set(meta, "labels", labels);
        }
    }
}

fn generated_labels(object: &mut Value) {
    let name = str_in(object, &["metadata", "name"]).to_owned();
    let uid = str_in(object, &["metadata", "uid"]).to_owned();
    let Some(spec) = object_mut(object, "spec") else { return };
    if let Some(template) = ensure_object(spec, "template") {
        if let Some(labels) =
            ensure_object(template, "metadata").and_then(|meta| ensure_object(meta, "labels"))
        {
            for (keys, value) in [
                (["job-name", "batch.kubernetes.io/job-name"], &name),
                (["controller-uid", "batch.kubernetes.io/controller-uid"], &uid),
            ] {
                for key in keys {
                    if labels.get(key).is_none() {
                        set(labels, key, value.as_str());
                    }
                }
            }
        }
    }
    if let Some(labels) =
        ensure_object(spec, "selector").and_then(|selector| ensure_object(selector, "matchLabels"))
    {
        if labels.get("batch.kubernetes.io/controller-uid").is_none() {
            set(labels, "batch.kubernetes.io/controller-uid", uid);
        }
    }
}

pub(super) const AUTOSCALER_V1: Rules = Rules {
    status: Some(r#"{"currentReplicas":0,"desiredReplicas":0}"#),
    generation: &["spec"],
    validate: scaling::autoscaler,
    validate_change: scaling::autoscaler_change,
    validate_subresource: scaling::autoscaler_status,
    ..Rules::BASE
};

pub(super) const AUTOSCALER_V2: Rules = Rules {
    status: Some(r#"{"currentMetrics":null,"desiredReplicas":0}"#),
    generation: &["spec"],
    validate: scaling::autoscaler_v2,
    validate_change: scaling::autoscaler_v2_change,
    validate_subresource: scaling::autoscaler_status,
    ..Rules::BASE
};

pub(super) const POD_DISRUPTION_BUDGET: Rules = Rules {
    status: Some(
        r#"{"currentHealthy":0,"desiredHealthy":0,"disruptionsAllowed":0,"expectedPods":0}"#,
    ),
    generation: &["spec", "spec.selector?"],
    unconditional_update: false,
    name: api::validation::names::name_is_path_segment,
    validate: scaling::disruption_budget,
    validate_change: |new, _| scaling::disruption_budget(new),
    validate_subresource: scaling::disruption_budget_status,
    ..Rules::BASE
};

pub(super) const CERTIFICATE_SIGNING_REQUEST: Rules = Rules {
    status: Some("{}"),
    prepare: |context, object| {
        let Some(spec) = ensure_object(object, "spec") else { return };
        for key in ["username", "uid", "groups", "extra"] {
            remove(spec, key);
        }
        let user = context.user;
        if !user.name.is_empty() {
            set(spec, "username", user.name.as_str());
        }
        if !user.uid.is_empty() {
            set(spec, "uid", user.uid.as_str());
        }
        if !user.groups.is_empty() {
            set(spec, "groups", user.groups.clone());
        }
        if !user.extra.is_empty() {
            set(spec, "extra", json!(user.extra));
        }
    },
    prepare_change: super::certificates::prepare_change,
    name: |_, _| Vec::new(),
    validate: super::certificate_request::validate,
    validate_change: super::certificate_request::validate_change,
    validate_subresource: super::certificate_request::validate_subresource,
    selectable: |object| {
        vec![("spec.signerName", str_in(object, &["spec", "signerName"]).to_owned())]
    },
    ..Rules::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of kube-apiserver 1.37.1, where the feature is off.
    #[test]
    fn scheduling_of_jobs_is_dropped() {
        let user = crate::request::user::User::default();
        let context = WriteContext::of(&user, "a", "");
        let gang = json!({"schedulingPolicy": {"gang": {"minCount": 1}}});
        let mut job = json!({"metadata": {"name": "j"}, "spec": {"scheduling": gang}});
        (JOB.prepare_change)(&context, &mut job, &json!({"spec": {}}));
        assert_eq!(job["spec"], json!({}));
        let mut cron = json!({"spec": {"jobTemplate": {"spec": {"scheduling": gang}}}});
        (CRON_JOB.prepare)(&context, &mut cron);
        assert_eq!(cron["spec"]["jobTemplate"]["spec"], json!({}));
    }
}
