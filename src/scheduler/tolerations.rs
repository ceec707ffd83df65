//! Tolerations of a pod against taints of a node.

use api::k8s::api::core::v1::{Taint, Toleration};

use crate::pod_info::PodInfo;

fn matches(toleration: &Toleration, taint: &Taint) -> bool {
    let unset_or = |wanted: &Option<String>, have: &str| {
        wanted.as_deref().is_none_or(|w| w.is_empty() || w == have)
    };
    if !unset_or(&toleration.effect, &taint.effect) || !unset_or(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
        Some(_) => false,
    }
}

/// The pod tolerates the taint.
pub(crate) fn tolerates(pod: &PodInfo, taint: &Taint) -> bool {
    pod.tolerations.iter().any(|t| matches(t, taint))
}

/// The pod tolerates all taints that keep pods off a node.
pub(crate) fn tolerates_all(pod: &PodInfo, taints: &[Taint]) -> bool {
    let mut hard =
        taints.iter().filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.all(|taint| tolerates(pod, taint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_by_key_operator_value_and_effect() {
        let taint = Taint {
            key: "k".into(),
            value: Some("v".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| {
            let some = |s: &str| (!s.is_empty()).then(|| s.to_owned());
            Toleration {
                key: some(key),
                operator: some(operator),
                value: some(value),
                effect: some(effect),
                toleration_seconds: None,
            }
        };
        for (given, want) in [
            (toleration("k", "", "v", ""), true),
            (toleration("k", "Equal", "x", ""), false),
            (toleration("k", "Exists", "", "NoSchedule"), true),
            (toleration("k", "Exists", "", "NoExecute"), false),
            (toleration("", "Exists", "", ""), true),
        ] {
            assert_eq!(matches(&given, &taint), want, "{given:?}");
        }
    }
}
