//! What a failed pod means for its Job, and when a Job has succeeded early.

use api::k8s::api::batch::v1::{JobSpec, PodFailurePolicyOnExitCodesRequirement, SuccessPolicy};
use api::k8s::api::core::v1::{ContainerStatus, Pod};

use super::indexes::Indexes;

/// What the pod failure policy says about one failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Counts towards the back-off limit (also without a policy or matching rule).
    Count,
    /// Does not count.
    Ignore,
    /// The pod's index has failed.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

impl Verdict {
    /// The action of a rule.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Count => "Count",
            Self::Ignore => "Ignore",
            Self::FailIndex => "FailIndex",
            Self::FailJob(_) => "FailJob",
        }
    }
}

/// Applies the first rule that matches; a pod that matches none counts.
pub(super) fn judge(spec: &JobSpec, pod: &Pod) -> Verdict {
    matching_rule(spec, pod).unwrap_or(Verdict::Count)
}

/// What the first rule that matches says; `None` without one.
pub(super) fn matching_rule(spec: &JobSpec, pod: &Pod) -> Option<Verdict> {
    let rules = spec.pod_failure_policy.as_ref().map(|p| p.rules.as_slice()).unwrap_or_default();
    let (namespace, name) = (
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    );
    for (index, rule) in rules.iter().enumerate() {
        let reason = if let Some(codes) = &rule.on_exit_codes {
            let Some((container, code)) = matching_container(pod, codes) else { continue };
            format!("Container {container} for pod {namespace}/{name} failed with exit code {code}")
        } else {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
            let found = conditions.into_iter().flatten().find(|c| {
                patterns.iter().any(|p| {
                    p.type_ == c.type_ && p.status.as_deref().unwrap_or("True") == c.status
                })
            });
            let Some(condition) = found else { continue };
            format!("Pod {namespace}/{name} has condition {}", condition.type_)
        };
        return Some(match rule.action.as_str() {
            "Ignore" => Verdict::Ignore,
            "FailIndex" => Verdict::FailIndex,
            "FailJob" => {
                Verdict::FailJob(format!("{reason} matching FailJob rule at index {index}"))
            }
            _ => Verdict::Count,
        });
    }
    None
}

fn matching_container(
    pod: &Pod,
    codes: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(String, i32)> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    lists.into_iter().flatten().flatten().find_map(|container: &ContainerStatus| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        let named = codes.container_name.as_ref().is_none_or(|n| *n == container.name);
        let listed = codes.values.contains(&code);
        let holds = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (named && code != 0 && holds).then(|| (container.name.clone(), code))
    })
}

/// The message of the first rule of the success policy that the succeeded indexes fulfil.
pub(super) fn succeeded_early(
    policy: Option<&SuccessPolicy>,
    completions: i32,
    succeeded: &Indexes,
) -> Option<String> {
    let rules = policy.map(|p| p.rules.as_slice()).unwrap_or_default();
    if succeeded.total() == 0 {
        return None;
    }
    let met =
        rules.iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
            (Some(indexes), count) => {
                let wanted = Indexes::parse(indexes, completions);
                let has = wanted.overlap(succeeded);
                wanted.total() > 0 && (has == wanted.total() || count.is_some_and(|c| has >= c))
            }
            (None, Some(count)) => succeeded.total() >= count,
            (None, None) => false,
        })?;
    Some(format!("Matched rules at index {met}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(exit_code: i32, condition: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"},
            "status": {"phase": "Failed",
            "conditions": [{"type": condition, "status": "True"}],
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"terminated": {"exitCode": exit_code}}}]}}))
        .unwrap()
    }

    fn spec(rules: Value) -> JobSpec {
        serde_json::from_value(json!({"template": {}, "podFailurePolicy": {"rules": rules}}))
            .unwrap()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = spec(json!([
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget",
                "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In",
                "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1]}}
        ]));
        assert_eq!(judge(&rules, &pod(42, "DisruptionTarget")), Verdict::Ignore);
        assert_eq!(
            judge(&rules, &pod(42, "Ready")),
            Verdict::FailJob(
                "Container main for pod n/p failed with exit code 42 matching \
                FailJob rule at index 1"
                    .into()
            )
        );
        assert_eq!(judge(&rules, &pod(2, "Ready")), Verdict::FailIndex);
        assert_eq!(judge(&rules, &pod(1, "Ready")), Verdict::Count);
        assert_eq!(judge(&rules, &pod(0, "Ready")), Verdict::Count);
    }

    #[test]
    fn success_policies_need_their_indexes_or_counts() {
        let policy = |rules: Value| -> SuccessPolicy {
            serde_json::from_value(json!({"rules": rules})).unwrap()
        };
        let met = |rules, have: &str| {
            succeeded_early(Some(&policy(rules)), 10, &Indexes::parse(have, 10))
        };
        let leader = json!([{"succeededIndexes": "0"}]);
        assert_eq!(met(leader.clone(), "1-3"), None);
        assert_eq!(met(leader, "0,3").as_deref(), Some("Matched rules at index 0"));
        let two =
            json!([{"succeededIndexes": "9"}, {"succeededIndexes": "0-4", "succeededCount": 2}]);
        assert_eq!(met(two.clone(), "4"), None);
        assert_eq!(met(two, "3,4").as_deref(), Some("Matched rules at index 1"));
        assert_eq!(
            met(json!([{"succeededCount": 1}]), "7").as_deref(),
            Some("Matched rules at index 0")
        );
    }
}
