//! Taints that a node's flags ask for: nodes may not change their own, so they say it in an
//! annotation and it is done here.

use api::k8s::api::core::v1::{Node, Taint};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use serde::Deserialize;

use crate::framework::nodes;

/// What flags say, written by the node.
const WANTED: &str = "kube-lite.io/flag-taints";
/// The text of it that was applied, written here; nodes may not touch it.
pub(super) const APPLIED: &str = "kube-lite.io/applied-flag-taints";
/// Taints that one node's flags may ask for.
const TAINTS_MAX: usize = 64;

#[derive(Deserialize, Default)]
struct FlagTaints {
    #[serde(default)]
    taints: Vec<Taint>,
}

fn same(a: &Taint, b: &Taint) -> bool {
    (&a.key, &a.effect) == (&b.key, &b.effect)
}

/// The node's taints as the flags require, with the text to record as applied; `None` if they are
/// applied already. Taints that flags no longer set are removed, unless their value was changed.
pub(super) fn taints(node: &Node, now: Timestamp) -> Option<(Vec<Taint>, String)> {
    let note = |name: &str| node.metadata.annotations.as_ref()?.get(name);
    let wanted = note(WANTED)?;
    if note(APPLIED) == Some(wanted) {
        return None;
    }
    let parse = |text: &String| serde_json::from_str::<FlagTaints>(text).unwrap_or_default().taints;
    let said = note(APPLIED).map(parse).unwrap_or_default();
    let mut wants = parse(wanted);
    wants.truncate(TAINTS_MAX);
    let value = |t: &Taint| t.value.clone().unwrap_or_default();
    let given_up = |have: &Taint| {
        !wants.iter().any(|w| same(w, have))
            && said.iter().any(|s| same(s, have) && value(s) == value(have))
    };
    let mut all: Vec<Taint> =
        nodes::taints(node).iter().filter(|t| !given_up(t)).cloned().collect();
    for want in wants {
        let new = Taint { time_added: Some(Time(now)), ..want };
        match all.iter_mut().find(|t| same(t, &new)) {
            Some(have) if value(have) == value(&new) => {}
            Some(have) => *have = new,
            None => all.push(new),
        }
    }
    Some((all, wanted.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(wanted: &str, applied: Option<&str>, have: serde_json::Value) -> Option<Vec<String>> {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"annotations": {WANTED: wanted, APPLIED: applied}},
            "spec": {"taints": have},
        }))
        .unwrap();
        let (taints, note) = taints(&node, Timestamp::UNIX_EPOCH)?;
        assert_eq!(note, wanted);
        let text = |t: Taint| format!("{}={}:{}", t.key, t.value.unwrap_or_default(), t.effect);
        Some(taints.into_iter().map(text).collect())
    }

    #[test]
    fn what_flags_no_longer_say_goes_and_what_users_added_stays() {
        let old = r#"{"taints":[{"key":"a","value":"1","effect":"NoSchedule"},
            {"key":"b","effect":"NoExecute"}]}"#;
        let new = r#"{"taints":[{"key":"b","value":"2","effect":"NoExecute"},
            {"key":"c","effect":"NoSchedule"}]}"#;
        let have = json!([
            {"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"},
            {"key": "user", "effect": "NoSchedule"},
        ]);
        assert_eq!(
            told(new, Some(old), have.clone()).unwrap(),
            ["b=2:NoExecute", "user=:NoSchedule", "c=:NoSchedule"]
        );
        assert_eq!(told(old, Some(old), have), None);
    }

    #[test]
    fn a_taint_whose_value_somebody_changed_is_theirs_and_nonsense_removes_nothing_of_others() {
        let old = r#"{"taints":[{"key":"a","value":"1","effect":"NoSchedule"}]}"#;
        let have = json!([{"key": "a", "value": "9", "effect": "NoSchedule"}]);
        assert_eq!(told(r#"{"taints":[]}"#, Some(old), have.clone()).unwrap(), ["a=9:NoSchedule"]);
        assert_eq!(told("nonsense", Some(""), have).unwrap(), ["a=9:NoSchedule"]);
    }
}
