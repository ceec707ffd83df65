//! Validation of the status of jobs: conditions that exclude each other, and values that an update
//! must not revert.
//!
//! The rules are those of upstream's `validateJobStatus` and `ValidateJobStatusUpdate`
//! (`pkg/apis/batch/validation`). `getStatusValidationOptions` of `pkg/registry/batch/job` selects
//! the rules that apply to a write: most of them apply only if the write changes the fields that
//! they validate.

use std::collections::HashSet;

use serde_json::Value;

use crate::codec::time::{Precision, parse_time};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::texts;
use crate::validation::numbers::all_non_negative;
use crate::value::{bool_at, get, has, int_at, items, semantic_equal, str_at};

/// Reports whether the status has a condition of the type `kind` with the status `said`.
pub(super) fn is_so(status: &Value, kind: &str, said: &str) -> bool {
    let mut conditions = items(status, "conditions").iter();
    conditions.any(|c| str_at(c, "type") == kind && str_at(c, "status") == said)
}

/// The job conditions that are `True` in a status.
#[derive(PartialEq)]
struct ConditionFlags {
    complete: bool,
    failed: bool,
    failing: bool,
    met: bool,
}

impl ConditionFlags {
    fn of(status: &Value) -> Self {
        let is = |kind| is_so(status, kind, "True");
        Self {
            complete: is("Complete"),
            failed: is("Failed"),
            failing: is("FailureTarget"),
            met: is("SuccessCriteriaMet"),
        }
    }

    fn finished(&self) -> bool {
        self.complete || self.failed
    }
}

/// A status update: the spec of the job, the new status and the old status.
struct Write<'a> {
    spec: &'a Value,
    status: &'a Value,
    was: &'a Value,
    said: ConditionFlags,
    before: ConditionFlags,
    path: Path,
}

/// Validates a status update.
pub fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, was) = (get(object, "status"), get(old, "status"));
    let write = Write {
        spec: get(object, "spec"),
        status,
        was,
        said: ConditionFlags::of(status),
        before: ConditionFlags::of(was),
        path: Path::new("status"),
    };
    let mut errors = write.counters();
    errors.extend(write.completion());
    errors.extend(write.reasons());
    errors.extend(write.finished());
    errors.extend(super::indexes::errors(object, old));
    errors.extend(write.pods());
    errors.extend(write.successes());
    errors.extend(write.changes());
    errors
}

impl Write<'_> {
    fn changed(&self, key: &str) -> bool {
        !semantic_equal(get(self.status, key), get(self.was, key))
    }

    fn number(&self, key: &str) -> i64 {
        int_at(self.status, key).unwrap_or_default()
    }

    /// Reports whether a number changes. An absent number differs from zero.
    fn pointer_changed(&self, key: &str) -> bool {
        int_at(self.status, key) != int_at(self.was, key)
    }

    fn condition(&self, text: impl Into<String>) -> Error {
        Error::omitted(&self.path.child("conditions"), text)
    }

    fn invalid(&self, key: &str, text: &str) -> Error {
        Error::invalid(&self.path.child(key), get(self.status, key).clone(), text)
    }

    /// Rejects negative counters, and empty or duplicate UIDs in `uncountedTerminatedPods`.
    fn counters(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let keys = ["active", "succeeded", "failed", "ready", "terminating"];
        all_non_negative(self.status, &keys, &self.path, &mut errors);
        let pods = get(self.status, "uncountedTerminatedPods");
        let mut seen = HashSet::new();
        for key in ["succeeded", "failed"] {
            let field = self.path.child("uncountedTerminatedPods").child(key);
            for (index, uid) in texts(pods, key).into_iter().enumerate() {
                let place = field.index(index);
                if uid.is_empty() {
                    errors.push(Error::invalid(&place, uid, "must not be empty"));
                } else if !seen.insert(uid) {
                    errors.push(Error::duplicate(&place, uid));
                }
            }
        }
        errors
    }

    /// Validates `Complete` against the conditions that it excludes, and `completionTime` against
    /// `Complete` and `startTime`.
    fn completion(&self) -> ErrorList {
        let (said, before) = (&self.said, &self.before);
        let completed = said.complete != before.complete;
        let mut errors = ErrorList::new();
        if (completed || said.failed != before.failed) && said.complete && said.failed {
            errors.push(self.condition("cannot set Complete=True and Failed=true conditions"));
        }
        if (completed || said.failing != before.failing) && said.complete && said.failing {
            errors
                .push(self.condition("cannot set Complete=True and FailureTarget=true conditions"));
        }
        let (ended, started) = ("completionTime", "startTime");
        let has_end = has(self.status, ended);
        if completed || self.changed(ended) {
            if has_end && !said.complete {
                let text = "cannot set completionTime when there is no Complete=True condition";
                errors.push(self.invalid(ended, text));
            } else if !has_end && said.complete {
                let text = "completionTime is required for Complete jobs";
                errors.push(Error::required(&self.path.child(ended), text));
            }
        }
        if self.changed(ended) || self.changed(started) {
            let at = |key| parse_time(str_at(self.status, key), Precision::Seconds).ok();
            if let (Some(end), Some(start)) = (at(ended), at(started))
                && end < start
            {
                errors.push(self.invalid(ended, "must be equal to or after `startTime`"));
            }
        }
        errors
    }

    /// Requires `FailureTarget` for `Failed`, and `SuccessCriteriaMet` for `Complete`.
    fn reasons(&self) -> ErrorList {
        let (said, before) = (&self.said, &self.before);
        let mut errors = ErrorList::new();
        let indexes = get(self.status, "failedIndexes") != get(self.was, "failedIndexes");
        if (said.failed != before.failed || indexes) && said.failed && !said.failing {
            let text = "cannot set Failed=True condition without the FailureTarget=true condition";
            errors.push(self.condition(text));
        }
        let asked = said.complete != before.complete || said.met != before.met;
        if asked && said.complete && !said.met {
            let text =
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
            errors.push(self.condition(text));
        }
        errors
    }

    /// Rejects active and uncounted pods of a finished job, and requires its `startTime`.
    fn finished(&self) -> ErrorList {
        let finished = self.said.finished();
        let became = finished != self.before.finished();
        let mut errors = ErrorList::new();
        if !finished {
            return errors;
        }
        if (became || self.number("active") != int_at(self.was, "active").unwrap_or_default())
            && self.number("active") > 0
        {
            errors.push(self.invalid("active", "active>0 is invalid for finished job"));
        }
        let nothing_to_do =
            bool_at(self.spec, "suspend") && int_at(self.spec, "completions") == Some(0);
        let asked = (became || self.changed("startTime")) && !nothing_to_do;
        if asked && !has(self.status, "startTime") {
            let text = "startTime is required for finished job";
            errors.push(Error::required(&self.path.child("startTime"), text));
        }
        let key = "uncountedTerminatedPods";
        let pods = get(self.status, key);
        let some = !items(pods, "succeeded").is_empty() || !items(pods, "failed").is_empty();
        if (became || self.changed(key)) && some {
            let error = self.invalid(key, "must be empty for finished job");
            errors.push(error.printed_as("UncountedTerminatedPods"));
        }
        errors
    }

    fn pods(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let became = self.said.finished() != self.before.finished();
        if (became || self.pointer_changed("terminating"))
            && self.number("terminating") > 0
            && self.said.finished()
        {
            errors.push(self.invalid("terminating", "terminating>0 is invalid for finished job"));
        }
        let active = self.number("active");
        let asked = self.pointer_changed("ready")
            || active != int_at(self.was, "active").unwrap_or_default();
        if asked && int_at(self.status, "ready").is_some_and(|ready| ready > active) {
            errors.push(self.invalid("ready", "cannot set more ready pods than active"));
        }
        errors
    }

    /// Validates `SuccessCriteriaMet` against the conditions that it excludes, and requires it for
    /// `Complete` if the job has a success policy.
    fn successes(&self) -> ErrorList {
        let said = &self.said;
        let mut errors = ErrorList::new();
        if said.met && said.failed {
            let text = "cannot set SuccessCriteriaMet=True and Failed=true conditions";
            errors.push(self.condition(text));
        }
        if said.met && said.failing {
            let text = "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions";
            errors.push(self.condition(text));
        }
        if has(self.spec, "successPolicy") && !said.met && said.complete {
            let text = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
            errors.push(self.condition(text));
        }
        errors
    }

    /// Rejects updates that remove a terminal condition, decrease a counter or change a timestamp.
    fn changes(&self) -> ErrorList {
        let (said, before) = (&self.said, &self.before);
        let mut errors = ErrorList::new();
        for (kind, was, is) in [
            ("Failed", before.failed, said.failed),
            ("Complete", before.complete, said.complete),
            ("FailureTarget", before.failing, said.failing),
        ] {
            if was && !is {
                let text = format!("cannot disable the terminal {kind}=True condition");
                errors.push(self.condition(text));
            }
        }
        let fell = |key: &str| self.number(key) < int_at(self.was, key).unwrap_or_default();
        if fell("failed") {
            let field = self.path.child("failed");
            let text = "cannot decrease the failed counter";
            errors.push(Error::invalid(&field, self.number("failed"), text));
        }
        // An elastic indexed job, of which `completions` equals `parallelism`, may be scaled down.
        let indexed = str_at(self.spec, "completionMode") == "Indexed";
        let elastic = int_at(self.spec, "completions") == int_at(self.spec, "parallelism");
        if (!indexed || !elastic) && fell("succeeded") {
            let field = self.path.child("succeeded");
            let text = "cannot decrease the succeeded counter";
            errors.push(Error::invalid(&field, self.number("succeeded"), text));
        }
        let (ended, started) = ("completionTime", "startTime");
        if has(self.status, ended) && has(self.was, ended) && self.changed(ended) {
            errors.push(self.invalid(ended, crate::validation::IMMUTABLE));
        }
        let resuming =
            is_so(self.was, "Suspended", "True") && is_so(self.status, "Suspended", "False");
        let frozen = !resuming && !bool_at(self.spec, "suspend");
        if frozen && has(self.was, started) && self.changed(started) {
            let text = "field is immutable for unsuspended job once set";
            errors.push(self.invalid(started, text));
        }
        if before.met && !said.met {
            errors.push(self.condition("cannot disable the SuccessCriteriaMet=True condition"));
        }
        if before.complete && !before.met && said.met {
            let text =
                "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            errors.push(self.condition(text));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(spec: Value, status: Value, was: Value) -> Vec<String> {
        let job = json!({"spec": spec, "status": status});
        let old = json!({"spec": spec, "status": was});
        let errors = validate_subresource("status", &job, &old);
        errors.iter().map(ToString::to_string).collect()
    }

    fn conditions(kinds: &[&str]) -> Value {
        kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect()
    }

    const START: &str = "2026-01-01T00:00:10Z";

    /// Cases of upstream's `TestStatusStrategy_ValidateUpdate` and `TestValidateJobUpdateStatus`.
    #[test]
    fn a_finished_job_says_when_and_why() {
        let good = json!({"startTime": START, "completionTime": START,
            "conditions": conditions(&["Complete", "SuccessCriteriaMet"])});
        assert_eq!(said(json!({}), good.clone(), json!({"startTime": START})), [""; 0]);
        assert_eq!(
            said(json!({}), json!({"conditions": conditions(&["Complete"])}), json!({})),
            [
                "status.completionTime: Required value: completionTime is required for Complete jobs",
                "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
                "status.startTime: Required value: startTime is required for finished job",
            ]
        );
        assert_eq!(
            said(
                json!({}),
                json!({"startTime": START, "active": 1, "conditions": conditions(&["Failed"])}),
                json!({"startTime": START})
            ),
            [
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
            ]
        );
        let mut early = good.clone();
        early["completionTime"] = json!("2026-01-01T00:00:09Z");
        assert_eq!(
            said(json!({}), early, json!({"startTime": START})),
            [
                "status.completionTime: Invalid value: \"2026-01-01T00:00:09Z\": must be equal to or after `startTime`"
            ]
        );
        let uncounted = json!({"startTime": START, "completionTime": START, "terminating": 1,
            "uncountedTerminatedPods": {"failed": ["a"]},
            "conditions": conditions(&["Complete", "SuccessCriteriaMet"])});
        assert_eq!(
            said(json!({}), uncounted, json!({"startTime": START})),
            [
                "status.uncountedTerminatedPods: Invalid value: {\"Succeeded\":null,\"Failed\":[\"a\"]}: must be empty for finished job",
                "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job",
            ]
        );
    }

    #[test]
    fn what_does_not_change_is_not_asked_again() {
        let bad = json!({"ready": 2, "conditions": conditions(&["Complete"])});
        assert_eq!(said(json!({}), bad.clone(), bad), [""; 0]);
    }

    #[test]
    fn what_was_said_stands() {
        let was = json!({"failed": 2, "succeeded": 2, "startTime": START, "completionTime": START,
            "conditions": conditions(&["Complete", "SuccessCriteriaMet"])});
        let now = json!({"failed": 1, "succeeded": 1, "startTime": START, "conditions": []});
        assert_eq!(
            said(json!({"completions": 3, "parallelism": 2}), now, was),
            [
                "status.conditions: Invalid value: cannot disable the terminal Complete=True condition",
                "status.failed: Invalid value: 1: cannot decrease the failed counter",
                "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
                "status.conditions: Invalid value: cannot disable the SuccessCriteriaMet=True condition",
            ]
        );
        let elastic = json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2});
        assert_eq!(said(elastic, json!({"succeeded": 1}), json!({"succeeded": 2})), [""; 0]);
        let later = json!({"startTime": "2026-01-01T00:00:11Z"});
        assert_eq!(
            said(json!({}), later.clone(), json!({"startTime": START})),
            [
                "status.startTime: Invalid value: \"2026-01-01T00:00:11Z\": field is immutable for unsuspended job once set"
            ]
        );
        assert_eq!(said(json!({"suspend": true}), later, json!({"startTime": START})), [""; 0]);
    }

    #[test]
    fn pods_are_counted_once() {
        let now = json!({"active": 1, "ready": 2,
            "uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a"]}});
        assert_eq!(
            said(json!({}), now, json!({})),
            [
                "status.uncountedTerminatedPods.succeeded[1]: Invalid value: \"\": must not be empty",
                "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
                "status.ready: Invalid value: 2: cannot set more ready pods than active",
            ]
        );
    }
}
