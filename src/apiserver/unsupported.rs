//! Fields that are stored but not acted on yet: every write that sets one is told so by a warning.

use api::Gvk;
use serde_json::Value;

/// Kind and the paths below it, `*` for every element of a list or map.
const PATHS: &[(&str, &str, &[&str])] = &[];

/// The paths of `value` that nothing acts on.
pub(crate) fn fields(kind: &Gvk, value: &Value) -> Vec<&'static str> {
    let known =
        PATHS.iter().find(|(group, name, _)| *group == &*kind.group && *name == &*kind.kind);
    let paths = known.map_or(&[][..], |(_, _, paths)| *paths);
    paths
        .iter()
        .filter(|path| is_set(value, &path.split('.').collect::<Vec<_>>()))
        .copied()
        .collect()
}

fn is_set(value: &Value, path: &[&str]) -> bool {
    match (path.split_first(), value) {
        (None, value) => !value.is_null(),
        (Some((&"*", rest)), Value::Array(items)) => items.iter().any(|item| is_set(item, rest)),
        (Some((&"*", rest)), Value::Object(map)) => map.values().any(|item| is_set(item, rest)),
        (Some((key, rest)), value) => value.get(key).is_some_and(|item| is_set(item, rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_reach_through_lists() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"stdin": true}]}});
        assert!(is_set(&pod, &["spec", "containers", "*", "stdin"]));
        assert!(!is_set(&pod, &["spec", "containers", "*", "tty"]));
    }
}
