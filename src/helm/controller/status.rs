//! Status, annotations and finalizer of a HelmChart.

use client::{Client, Error, Patch};
use serde_json::{Value, json};

use super::{AGENT, gvr};

pub(super) const MANAGED_BY: &str = "helmcharts.cattle.io/managed-by";
pub(super) const UNMANAGED: &str = "helmcharts.helm.cattle.io/unmanaged";
/// The hash of the inputs that were applied last, or that failed for the last time.
pub(super) const HASH: &str = "helmcharts.helm.cattle.io/configHash";
/// k3s's finalizer.
pub(super) const FINALIZER: &str = "wrangler.cattle.io/on-helm-chart-remove";

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Applied; the text says which revision.
    Applied(String),
    /// Failed; the reason and the text.
    Failed(&'static str, String),
}

/// The conditions of k3s: `JobCreated` and `Failed`.
pub(super) fn conditions(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Applied(text) => json!([
            {"type": "JobCreated", "status": "True", "reason": "Job created", "message": text},
            {"type": "Failed", "status": "False"},
        ]),
        Outcome::Failed(reason, text) => {
            let is_created = if *reason == "Job failed" { "True" } else { "False" };
            json!([
                {"type": "JobCreated", "status": is_created},
                {"type": "Failed", "status": "True", "reason": reason, "message": text},
            ])
        }
    }
}

/// Writes to one HelmChart.
pub(super) struct Writer<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Writer<'_> {
    async fn merge(&self, subresource: &str, patch: &Value) -> Result<(), Error> {
        let gvr = gvr("helmcharts");
        let patch = Patch::Merge(patch);
        let patched =
            self.client.patch_value(&gvr, self.namespace, self.name, subresource, &patch).await;
        match patched {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Claims the chart.
    pub(super) async fn claim(&self, chart: &Value) -> Result<(), Error> {
        let finalizers = api::value::at(chart, &["metadata", "finalizers"]).as_array();
        let mut finalizers = finalizers.cloned().unwrap_or_default();
        finalizers.push(FINALIZER.into());
        self.merge(
            "",
            &json!({"metadata": {
                "resourceVersion": api::value::str_in(chart, &["metadata", "resourceVersion"]),
                "annotations": {MANAGED_BY: AGENT},
                "finalizers": finalizers,
            }}),
        )
        .await
    }

    /// Removes the finalizer.
    pub(super) async fn release(&self, chart: &Value) -> Result<(), Error> {
        let finalizers = api::value::at(chart, &["metadata", "finalizers"]).as_array();
        let others = finalizers.into_iter().flatten().filter(|f| f.as_str() != Some(FINALIZER));
        self.merge(
            "",
            &json!({"metadata": {
                "resourceVersion": api::value::str_in(chart, &["metadata", "resourceVersion"]),
                "finalizers": others.collect::<Vec<_>>(),
            }}),
        )
        .await
    }

    /// Records the hash of finished inputs.
    pub(super) async fn finish(&self, hash: &str) -> Result<(), Error> {
        self.merge("", &json!({"metadata": {"annotations": {HASH: hash}}})).await
    }

    /// Records job name and conditions, if they differ from those of `chart`.
    pub(super) async fn status(
        &self,
        chart: &Value,
        job: &str,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        let status = json!({"jobName": job, "conditions": conditions(outcome)});
        if chart.get("status") == Some(&status) {
            return Ok(());
        }
        self.merge("status", &json!({"status": status})).await
    }
}
