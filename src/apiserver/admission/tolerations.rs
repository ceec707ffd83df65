//! Merges the tolerations of a runtime class with those of a pod.

use std::collections::{BTreeMap, HashMap, HashSet};

use api::value::{int_at, str_at};
use serde_json::Value;

/// Both lists without the tolerations that another one covers. A pod can have many tolerations, so
/// candidates are looked up by scope.
pub(super) fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<Toleration<'_>> = first.iter().chain(second).map(Toleration::of).collect();
    let mut later = Index::default();
    for toleration in &all {
        later.add(toleration);
    }
    let (mut kept, mut texts) = (Index::default(), HashSet::new());
    let mut merged = Vec::new();
    for toleration in &all {
        later.remove(toleration);
        let is_repeated = texts.contains(&toleration.text);
        if !is_repeated && !kept.covers(toleration) && !later.covers(toleration) {
            kept.add(toleration);
            texts.insert(&toleration.text);
            merged.push(toleration.value.clone());
        }
    }
    merged
}

/// What a toleration matches: the key, the effect, and the value if it is significant.
type Scope<'a> = (&'a str, &'a str, Option<&'a str>);

struct Toleration<'a> {
    value: &'a Value,
    text: String,
    /// `None` for an unknown operator, which covers nothing else.
    scope: Option<Scope<'a>>,
    /// The duration for which it can cover others.
    limit: i64,
}

impl<'a> Toleration<'a> {
    fn of(value: &'a Value) -> Self {
        let effect = str_at(value, "effect");
        let of_value = match str_at(value, "operator") {
            "" | "Equal" => Some(Some(str_at(value, "value"))),
            "Exists" => Some(None),
            _ => None,
        };
        let seconds = int_at(value, "tolerationSeconds").filter(|_| effect == "NoExecute");
        Self {
            value,
            text: value.to_string(),
            scope: of_value.map(|of_value| (str_at(value, "key"), effect, of_value)),
            limit: seconds.unwrap_or(i64::MAX),
        }
    }
}

/// Tolerations by scope, then by limit and text, with their count.
#[derive(Default)]
struct Index<'a>(HashMap<Scope<'a>, BTreeMap<(i64, &'a str), usize>>);

impl<'a> Index<'a> {
    fn add(&mut self, toleration: &'a Toleration<'_>) {
        if let Some(scope) = toleration.scope {
            let bucket = self.0.entry(scope).or_default();
            *bucket.entry((toleration.limit, &toleration.text)).or_default() += 1;
        }
    }

    fn remove(&mut self, toleration: &'a Toleration<'_>) {
        let Some(bucket) = toleration.scope.and_then(|scope| self.0.get_mut(&scope)) else {
            return;
        };
        let key = (toleration.limit, &*toleration.text);
        if let Some(count) = bucket.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                bucket.remove(&key);
            }
        }
    }

    /// Whether another toleration tolerates everything that this one tolerates.
    fn covers(&self, toleration: &Toleration<'_>) -> bool {
        let (key, effect) = (str_at(toleration.value, "key"), str_at(toleration.value, "effect"));
        let value = toleration.scope.and_then(|(_, _, value)| value);
        let seconds = int_at(toleration.value, "tolerationSeconds").unwrap_or(i64::MAX);
        let covers = |scope: Scope<'_>| {
            // Effects other than `NoExecute` have the largest limit, so the last ones cover
            // longest. One of them may be the same toleration.
            let longest = self.0.get(&scope).into_iter().flat_map(|bucket| bucket.keys().rev());
            longest.take(2).any(|(limit, text)| *limit >= seconds && **text != *toleration.text)
        };
        ["", effect].into_iter().any(|effect| {
            covers((key, effect, None))
                || covers(("", effect, None))
                || value.is_some_and(|value| covers((key, effect, Some(value))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::value::items;
    use serde_json::json;

    /// Upstream's merge: compares each toleration with all others.
    fn merged_by_comparison(all: &[Value]) -> Vec<Value> {
        let mut merged: Vec<Value> = Vec::new();
        for (i, t) in all.iter().enumerate() {
            let before = merged.iter().any(|m| m == t || covers(m, t));
            let after = all.iter().skip(i + 1).any(|later| later != t && covers(later, t));
            if !before && !after {
                merged.push(t.clone());
            }
        }
        merged
    }

    fn covers(a: &Value, b: &Value) -> bool {
        let exists = str_at(a, "operator") == "Exists";
        let (key, effect) = (str_at(a, "key"), str_at(a, "effect"));
        let limit = int_at(a, "tolerationSeconds").filter(|_| effect == "NoExecute");
        let is_equal = |t: &Value| matches!(str_at(t, "operator"), "" | "Equal");
        (key == str_at(b, "key") || key.is_empty() && exists)
            && (effect.is_empty() || effect == str_at(b, "effect"))
            && limit.is_none_or(|l| int_at(b, "tolerationSeconds").is_some_and(|other| other <= l))
            && (exists || is_equal(a) && is_equal(b) && str_at(a, "value") == str_at(b, "value"))
    }

    #[test]
    fn merging_equals_pairwise_comparison() {
        let mut kinds = vec![json!({})];
        for key in ["", "a", "b"] {
            for operator in ["", "Equal", "Exists", "Other"] {
                for effect in ["", "NoExecute", "NoSchedule"] {
                    for value in ["", "v"] {
                        for seconds in [json!(null), json!(5), json!(60)] {
                            kinds.push(json!({"key": key, "operator": operator, "effect": effect,
                                "value": value, "tolerationSeconds": seconds}));
                        }
                    }
                }
            }
        }
        let mut state = 7_usize;
        for round in 0..2000 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                kinds[(state >> 33) % kinds.len()].clone()
            };
            let all: Vec<Value> = (0..round % 12).map(|_| next()).collect();
            let (first, second) = all.split_at(all.len() / 2);
            assert_eq!(merge(first, second), merged_by_comparison(&all), "{all:?}");
        }
    }

    #[test]
    fn a_hundred_thousand_tolerations_are_merged_quickly() {
        let one = |n: usize| json!({"key": format!("k{n}"), "operator": "Exists"});
        let own: Vec<Value> = (0..100_000).map(one).collect();
        let class = json!({"tolerations": [one(7), one(100_000)]});
        assert_eq!(merge(&own, items(&class, "tolerations")).len(), 100_001);
    }
}
