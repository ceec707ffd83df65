//! Metrics of admission steps, plugins, webhooks, policies, expressions, and conversion webhooks
//! (`pkg/admission/metrics`, `pkg/admission/plugin/policy/*/metrics`, `pkg/cel/metrics`,
//! apiextensions' `pkg/apiserver/conversion`).

use std::time::Duration;

use api::Status;
use base::metrics::{DEFAULT_BOUNDS, Family};
use tokio::time::Instant;

use super::word;
use crate::request::operation::Operation;
use crate::request::scope;
use crate::request::scope::WaitReason;

const STEPS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOKS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITIONS: [f64; 7] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const CHECKS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const CONVERSIONS: [f64; 15] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

static STEP: Family = Family::histogram(
    "apiserver_admission_step_admission_duration_seconds",
    "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation \
     and API resource and step type (validate or admit).",
    &["operation", "rejected", "type"],
    &STEPS,
);
static STEP_SUMMARY: Family = Family::summary(
    "apiserver_admission_step_admission_duration_seconds_summary",
    "[ALPHA] Admission sub-step latency summary in seconds, broken out for each operation \
     and API resource and step type (validate or admit).",
    &["operation", "rejected", "type"],
);
static PLUGIN: Family = Family::histogram(
    "apiserver_admission_controller_admission_duration_seconds",
    "[STABLE] Admission controller latency histogram in seconds, identified by name and \
     broken out for each operation and API resource and type (validate or admit).",
    &["name", "operation", "rejected", "type"],
    &STEPS,
);
static WEBHOOK: Family = Family::histogram(
    "apiserver_admission_webhook_admission_duration_seconds",
    "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken \
     out for each operation and API resource and type (validate or admit).",
    &["name", "operation", "rejected", "type"],
    &WEBHOOKS,
);
static WEBHOOK_REJECTIONS: Family = Family::counter(
    "apiserver_admission_webhook_rejection_count",
    "[ALPHA] Admission webhook rejection count, identified by name and broken out for each \
     admission type (validating or admit) and operation. Additional labels specify an error \
     type (calling_webhook_error or apiserver_internal_error if an error occurred; no_error \
     otherwise) and optionally a non-zero rejection code if the webhook rejects the request \
     with an HTTP status code (honored by the apiserver when the code is greater or equal to \
     400). Codes greater than 600 are truncated to 600, to keep the metrics cardinality \
     bounded.",
    &["error_type", "name", "operation", "rejection_code", "type"],
);
static WEBHOOK_OPEN: Family = Family::counter(
    "apiserver_admission_webhook_fail_open_count",
    "[ALPHA] Admission webhook fail open count, identified by name and broken out for each \
     admission type (validating or admit).",
    &["name", "type"],
);
static WEBHOOK_REQUESTS: Family = Family::counter(
    "apiserver_admission_webhook_request_total",
    "[ALPHA] Admission webhook request total, identified by name and broken out for each \
     admission type (validating or admit) and operation. Additional labels specify whether \
     the request was rejected or not and an HTTP status code. Codes greater than 600 are \
     truncated to 600, to keep the metrics cardinality bounded.",
    &["code", "name", "operation", "rejected", "type"],
);
static CONDITION_ERRORS: Family = Family::counter(
    "apiserver_admission_match_condition_evaluation_errors_total",
    "[ALPHA] Admission match condition evaluation errors count, identified by name of \
     resource containing the match condition and broken out for each kind containing \
     matchConditions (webhook or policy), operation and admission type (validate or admit).",
    &["kind", "name", "operation", "type"],
);
static CONDITION_EXCLUSIONS: Family = Family::counter(
    "apiserver_admission_match_condition_exclusions_total",
    "[ALPHA] Admission match condition evaluation exclusions count, identified by name of \
     resource containing the match condition and broken out for each kind containing \
     matchConditions (webhook or policy), operation and admission type (validate or admit).",
    &["kind", "name", "operation", "type"],
);
static CONDITION_TIME: Family = Family::histogram(
    "apiserver_admission_match_condition_evaluation_seconds",
    "[ALPHA] Admission match condition evaluation time in seconds, identified by name and \
     broken out for each kind containing matchConditions (webhook or policy), operation and \
     type (validate or admit).",
    &["kind", "name", "operation", "type"],
    &CONDITIONS,
);
static VALIDATING: Family = Family::counter(
    "apiserver_validating_admission_policy_check_total",
    "[BETA] Validation admission policy check total, labeled by policy and further \
     identified by binding and enforcement action taken.",
    &["enforcement_action", "error_type", "policy", "policy_binding"],
);
static VALIDATING_TIME: Family = Family::histogram(
    "apiserver_validating_admission_policy_check_duration_seconds",
    "[BETA] Validation admission latency for individual validation expressions in seconds, \
     labeled by policy and further including binding and enforcement action taken.",
    &["enforcement_action", "error_type", "policy", "policy_binding"],
    &CHECKS,
);
static MUTATING: Family = Family::counter(
    "apiserver_mutating_admission_policy_check_total",
    "[ALPHA] Mutation admission policy check total, labeled by policy and further identified \
     by binding.",
    &["error_type", "policy", "policy_binding"],
);
static MUTATING_TIME: Family = Family::histogram(
    "apiserver_mutating_admission_policy_check_duration_seconds",
    "[ALPHA] Mutation admission latency for individual mutation expressions in seconds, \
     labeled by policy and binding.",
    &["error_type", "policy", "policy_binding"],
    &CHECKS,
);
/// Durations of compiling the CEL rules of a definition's schema.
pub(crate) static COMPILED: Family = Family::histogram(
    "apiserver_cel_compilation_duration_seconds",
    "[BETA] CEL compilation time in seconds.",
    &[],
    &DEFAULT_BOUNDS,
);
/// Durations of evaluating the CEL rules for an object.
pub(crate) static EVALUATED: Family = Family::histogram(
    "apiserver_cel_evaluation_duration_seconds",
    "[BETA] CEL evaluation time in seconds.",
    &[],
    &DEFAULT_BOUNDS,
);
static CONVERSION: Family = Family::histogram(
    "apiserver_conversion_webhook_duration_seconds",
    "[ALPHA] Conversion webhook request latency",
    &["failure_type", "result"],
    &CONVERSIONS,
);
static CONVERSION_REQUESTS: Family = Family::counter(
    "apiserver_conversion_webhook_request_total",
    "[ALPHA] Counter for conversion webhook requests with success/failure and failure error \
     type",
    &["failure_type", "result"],
);
static DEFINITION_CONVERSION: Family = Family::histogram(
    "apiserver_crd_conversion_webhook_duration_seconds",
    "[ALPHA] CRD webhook conversion duration in seconds",
    &["crd_name", "from_version", "succeeded", "to_version"],
    &base::metrics::exponential::<15>(0.001, 2.0),
);

pub(super) static ALL: [&Family; 19] = [
    &STEP,
    &STEP_SUMMARY,
    &PLUGIN,
    &WEBHOOK,
    &WEBHOOK_REJECTIONS,
    &WEBHOOK_OPEN,
    &WEBHOOK_REQUESTS,
    &CONDITION_ERRORS,
    &CONDITION_EXCLUSIONS,
    &CONDITION_TIME,
    &VALIDATING,
    &VALIDATING_TIME,
    &MUTATING,
    &MUTATING_TIME,
    &COMPILED,
    &EVALUATED,
    &CONVERSION,
    &CONVERSION_REQUESTS,
    &DEFINITION_CONVERSION,
];

/// A running admission step, `admit` or `validate`.
pub(crate) struct Step {
    labels: [&'static str; 2],
    operation: Operation,
    begun: Instant,
    last: Instant,
}

impl Step {
    /// Starts a step.
    pub(crate) fn begin(step: &'static str, of: Operation) -> Self {
        let begun = base::clock::now();
        Self { labels: [of.as_str(), step], operation: of, begun, last: begun }
    }

    /// Counts the call of a plugin. Plugins that do not handle the operation in this step are not
    /// counted, because upstream does not call them.
    pub(crate) fn passed(&mut self, name: &str, outcome: &Result<(), Status>) {
        let now = base::clock::now();
        let [operation, step] = self.labels;
        if takes_part(name, step, self.operation) {
            let labels = [name, operation, word(outcome.is_err()), step];
            PLUGIN.took(&labels, now.duration_since(self.last));
        }
        self.last = now;
    }

    /// Counts the step.
    pub(crate) fn end(&self, outcome: &Result<(), Status>) {
        let [operation, step] = self.labels;
        let labels = [operation, word(outcome.is_err()), step];
        let took = self.last.duration_since(self.begun);
        STEP.took(&labels, took);
        STEP_SUMMARY.took(&labels, took);
    }
}

/// Whether a plugin handles an operation in a step: the operations that upstream's plugin passes to
/// `admission.NewHandler`, and its implementation of `MutationInterface` and `ValidationInterface`.
fn takes_part(name: &str, step: &str, of: Operation) -> bool {
    use Operation::{Connect, Create, Delete, Update};
    let (steps, operations): (&[&str], &[Operation]) = match name {
        "NamespaceLifecycle" => (&["admit"], &[Create, Update, Delete]),
        "LimitRanger" | "ServiceAccount" => (&["admit", "validate"], &[Create, Update]),
        "Priority" => (&["admit", "validate"], &[Create, Update, Delete]),
        "RuntimeClass" => (&["admit", "validate"], &[Create]),
        "NodeRestriction" => (&["admit"], &[Create, Update, Delete]),
        "TaintNodesByCondition"
        | "DefaultStorageClass"
        | "StorageObjectInUseProtection"
        | "DefaultIngressClass"
        | "PodTopologyLabels" => (&["admit"], &[Create]),
        "DefaultTolerationSeconds" => (&["admit"], &[Create, Update]),
        "PodSecurity" | "DenyServiceExternalIPs" | "EventRateLimit" | "ResourceQuota" => {
            (&["validate"], &[Create, Update])
        }
        "PersistentVolumeClaimResize" | "CertificateApproval" | "CertificateSigning" => {
            (&["validate"], &[Update])
        }
        "CertificateSubjectRestriction" => (&["validate"], &[Create]),
        "MutatingAdmissionPolicy" => (&["admit"], &[Create, Update, Connect]),
        "MutatingAdmissionWebhook" => (&["admit"], &[Create, Update, Delete, Connect]),
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionWebhook" => {
            (&["validate"], &[Create, Update, Delete, Connect])
        }
        // Upstream has no such plugin.
        _ => return false,
    };
    steps.contains(&step) && operations.contains(&of)
}

/// The outcome of a webhook call.
pub(crate) enum Called {
    Allowed,
    /// The webhook has rejected the request with this code.
    Refused(u16),
    /// The call has failed with this code; with `open` the request is admitted nevertheless.
    Failed {
        code: u16,
        open: bool,
    },
    /// This server has failed.
    Internal,
}

/// Counts a webhook call; `of` is `admit` or `validating`.
pub(crate) fn called(name: &str, of: &str, operation: Operation, took: Duration, how: &Called) {
    let operation = operation.as_str();
    let (code, rejected, error) = match how {
        Called::Allowed => (200, false, None),
        Called::Refused(code) => ((*code).min(600), true, Some("no_error")),
        Called::Failed { code, open } => {
            ((*code).min(600), !open, (!open).then_some("calling_webhook_error"))
        }
        Called::Internal => (0, true, Some("apiserver_internal_error")),
    };
    let code = code.to_string();
    let rejected = word(rejected);
    if let Some(error) = error {
        WEBHOOK_REJECTIONS.inc(&[error, name, operation, &code, of]);
    }
    WEBHOOK_REQUESTS.inc(&[&code, name, operation, rejected, of]);
    WEBHOOK.took(&[name, operation, rejected, of], took);
    scope::add_wait(
        if of == "admit" { WaitReason::Mutating } else { WaitReason::Validating },
        took,
    );
    if matches!(how, Called::Failed { open: true, .. }) {
        WEBHOOK_OPEN.inc(&[name, of]);
    }
}

/// The evaluation of match conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConditionsEvaluated {
    /// The number of conditions that could not be evaluated.
    pub(crate) errors: usize,
    /// Whether any condition is not true.
    pub(crate) is_decided: bool,
    pub(crate) took: Duration,
}

/// Counts an evaluation of the match conditions of a `webhook` or `policy`. As in upstream, the
/// duration is not counted if all are true.
pub(crate) fn matched(
    kind: &str,
    name: &str,
    of: &str,
    operation: Operation,
    counted: &ConditionsEvaluated,
) {
    let labels = [kind, name, operation.as_str(), of];
    if counted.errors > 0 {
        CONDITION_ERRORS.add(&labels, counted.errors as f64);
    }
    if counted.is_decided {
        CONDITION_TIME.took(&labels, counted.took);
    }
}

/// Counts a webhook that is not called because of its match conditions.
pub(crate) fn excluded(name: &str, of: &str, operation: Operation) {
    // Upstream uses another name of the type here than for durations and errors.
    let of = if of == "validating" { "validate" } else { of };
    CONDITION_EXCLUSIONS.inc(&["webhook", name, operation.as_str(), of]);
}

/// Upstream's error type of an error message.
fn error_type(why: Option<&str>) -> &'static str {
    match why {
        None => "no_error",
        Some(why) if why.starts_with("compilation") => "compile_error",
        Some(why) if why.contains("running out of cost budget") => "out_of_budget",
        Some(_) => "invalid_error",
    }
}

/// Counts a validation of a policy: `action` is `allow`, `deny`, `audit` or `warn`, `why` the
/// error.
pub(crate) fn validated(
    (policy, binding): (&str, &str),
    action: &str,
    why: Option<&str>,
    took: Duration,
) {
    let labels = [action, error_type(why), policy, binding];
    VALIDATING.inc(&labels);
    VALIDATING_TIME.took(&labels, took);
}

/// Counts a mutation of a policy; `why` is the error.
pub(crate) fn mutated((policy, binding): (&str, &str), why: Option<&str>, took: Duration) {
    let labels = [error_type(why), policy, binding];
    MUTATING.inc(&labels);
    MUTATING_TIME.took(&labels, took);
}

/// Counts a call of a conversion webhook; `failure` is empty on success.
pub(crate) fn converted(failure: &str, took: Duration) {
    let result = if failure.is_empty() { "success" } else { "failure" };
    CONVERSION_REQUESTS.inc(&[failure, result]);
    CONVERSION.took(&[failure, result], took);
}

/// Counts a conversion of objects of a definition by its webhook.
pub(crate) fn definition_converted(
    name: &str,
    (from, to): (&str, &str),
    succeeded: bool,
    took: Duration,
) {
    DEFINITION_CONVERSION.took(&[name, from, word(succeeded), to], took);
}
