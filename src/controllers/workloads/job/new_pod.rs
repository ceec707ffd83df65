//! The pods of a Job.

use api::k8s::api::batch::v1::{Job, JobSpec};
use api::k8s::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use client::owner_reference;

use super::fields::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX};
use crate::framework::pod_control::pod_from_template;

/// Longest prefix of a generated name.
const PREFIX_MAX: usize = 58;

/// A pod of the Job; of an index with its earlier failures (counted, ignored).
pub(super) fn new_pod(job: &Job, spec: &JobSpec, index: Option<(i32, (i32, i32))>) -> Pod {
    let meta = &job.metadata;
    let (name, namespace) =
        (meta.name.as_deref().unwrap_or_default(), meta.namespace.as_deref().unwrap_or_default());
    let mut pod = pod_from_template(&spec.template, name, namespace, owner_reference(job));
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let Some((index, (counted, ignored))) = index else { return pod };
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.into(), index.to_string());
    if spec.backoff_limit_per_index.is_some() {
        annotations.insert(FAILURES.into(), counted.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.into(), ignored.to_string());
        }
    }
    pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
    let suffix = format!("-{index}-");
    let mut prefix = name.to_owned();
    prefix.truncate(PREFIX_MAX.saturating_sub(suffix.len()));
    pod.metadata.generate_name = Some(prefix + &suffix);
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(format!("{name}-{index}"));
    pod_spec.init_containers.iter_mut().flatten().for_each(add_index_variable);
    pod_spec.containers.iter_mut().for_each(add_index_variable);
    pod
}

fn add_index_variable(container: &mut Container) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|v| v.name == NAME) {
        return;
    }
    let field = ObjectFieldSelector {
        field_path: format!("metadata.labels['{INDEX}']"),
        ..ObjectFieldSelector::default()
    };
    variables.push(EnvVar {
        name: NAME.into(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
}
