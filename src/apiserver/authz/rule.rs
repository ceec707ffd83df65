//! RBAC rules: matching, covering and display.

use std::collections::BTreeMap;

use api::field::go_quote;
use serde::{Deserialize, Serialize};

use super::Attributes;

/// `rbac/v1 PolicyRule`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs; `*` matches all.
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// API groups; `*` matches all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// Resources such as `pods`, `pods/log`, `*/scale`, `*`.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Names; empty matches all.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// Non-resource paths; a trailing `*` matches a prefix.
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
}

/// Deserializes `null` as the default.
pub(crate) fn nullable<'de, D: serde::Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

fn has(set: &[String], element: &str) -> bool {
    set.iter().any(|e| e == element)
}

fn has_or_all(set: &[String], element: &str) -> bool {
    set.iter().any(|e| e == "*" || e == element)
}

fn url_covers(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

impl Rule {
    /// Whether the rule allows the request.
    pub fn allows(&self, a: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, a.verb) {
            return false;
        }
        if !a.path.is_empty() {
            return self.non_resource_urls.iter().any(|url| url == "*" || url_covers(url, a.path));
        }
        has_or_all(&self.api_groups, a.group)
            && self.resources.iter().any(|r| resource_matches(r, a.resource, a.subresource))
            && (self.resource_names.is_empty() || has(&self.resource_names, a.name))
    }

    /// Equivalent rules with at most one verb, group, resource and name (or one verb and path)
    /// each.
    pub fn break_down(&self) -> Vec<Rule> {
        let mut out = Vec::new();
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let plain = Rule {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Rule::default()
                    };
                    if self.resource_names.is_empty() {
                        out.push(plain);
                    } else {
                        out.extend(
                            self.resource_names
                                .iter()
                                .map(|n| Rule { resource_names: vec![n.clone()], ..plain.clone() }),
                        );
                    }
                }
            }
        }
        for url in &self.non_resource_urls {
            let paths = vec![url.clone()];
            out.extend(self.verbs.iter().map(|v| Rule {
                verbs: vec![v.clone()],
                non_resource_urls: paths.clone(),
                ..Rule::default()
            }));
        }
        out
    }

    /// Whether this rule includes `sub`, which must come from [`Rule::break_down`].
    pub fn covers(&self, sub: &Rule) -> bool {
        let all = |own: &[String], required: &[String]| {
            has(own, "*") || required.iter().all(|w| has(own, w))
        };
        let resource = |required: &String| {
            has(&self.resources, "*")
                || has(&self.resources, required)
                || required.split_once('/').is_some_and(|(_, subresource)| {
                    has(&self.resources, &format!("*/{subresource}"))
                })
        };
        let names = self.resource_names.is_empty()
            || !sub.resource_names.is_empty()
                && sub.resource_names.iter().all(|n| has(&self.resource_names, n));
        all(&self.verbs, &sub.verbs)
            && all(&self.api_groups, &sub.api_groups)
            && sub.resources.iter().all(resource)
            && names
            && sub
                .non_resource_urls
                .iter()
                .all(|path| self.non_resource_urls.iter().any(|own| url_covers(own, path)))
    }
}

/// Matches `pods`, `pods/log`, `*/log` and `*` against a resource and subresource, without joining
/// them. A review may put both into the resource (`pods/log` without subresource, as the Prometheus
/// operator does): upstream compares the joined text, which is the same.
fn resource_matches(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    let left = rule.strip_suffix(subresource).and_then(|left| left.strip_suffix('/'));
    left.is_some_and(|left| left == "*" || left == resource)
}

/// The parts of `wanted` that `owned` does not cover.
pub fn missing(owned: &[Rule], required: &[Rule]) -> Vec<Rule> {
    required
        .iter()
        .flat_map(Rule::break_down)
        .filter(|sub| !owned.iter().any(|own| own.covers(sub)))
        .collect()
}

/// Merges rules of one group and resource that differ in their verbs only.
pub fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut out = Vec::new();
    let mut simple: BTreeMap<(String, String, Option<String>), Rule> = BTreeMap::new();
    for rule in rules {
        let (Rule { api_groups, resources, resource_names, non_resource_urls, .. }, 0..=1) =
            (&rule, rule.resource_names.len())
        else {
            out.push(rule);
            continue;
        };
        let ([group], [resource], []) =
            (api_groups.as_slice(), resources.as_slice(), non_resource_urls.as_slice())
        else {
            out.push(rule);
            continue;
        };
        let key = (group.clone(), resource.clone(), resource_names.first().cloned());
        match simple.get_mut(&key) {
            Some(same) => same.verbs.extend(rule.verbs),
            None => {
                simple.insert(key, rule);
            }
        }
    }
    out.extend(simple.into_values());
    out
}

/// A rule in the format of denials: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
pub fn display(rule: &Rule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let display: Vec<String> = parts
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", go_list(list)))
        .collect();
    format!("{{{}}}", display.join(", "))
}

/// Strings in the format of Go's `%q` for a slice: `["a" "b"]`.
pub fn go_list<S: AsRef<str>>(list: &[S]) -> String {
    let quoted: Vec<String> = list.iter().map(|s| go_quote(s.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let own = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect();
        Rule {
            verbs: own(verbs),
            api_groups: own(groups),
            resources: own(resources),
            resource_names: own(names),
            ..Rule::default()
        }
    }

    fn ask<'a>(
        verb: &'a str,
        resource: &'a str,
        subresource: &'a str,
        name: &'a str,
    ) -> Attributes<'a> {
        Attributes { verb, version: "v1", resource, subresource, name, ..Attributes::default() }
    }

    #[test]
    fn a_resource_does_not_imply_its_subresources() {
        let pods = rule(&["get"], &[""], &["pods"], &[]);
        assert!(pods.allows(&ask("get", "pods", "", "a")));
        assert!(!pods.allows(&ask("get", "pods", "log", "a")));
        assert!(!pods.allows(&ask("list", "pods", "", "")));
        let scale = rule(&["get"], &[""], &["*/scale", "pods/log"], &[]);
        assert!(scale.allows(&ask("get", "deployments", "scale", "a")));
        assert!(scale.allows(&ask("get", "pods", "log", "a")));
        assert!(!scale.allows(&ask("get", "scale", "", "a")));
        assert!(scale.allows(&ask("get", "pods/log", "", "a")), "a review that joins them itself");
        assert!(!scale.allows(&ask("get", "deployments/scale", "", "a")));
        assert!(!pods.allows(&ask("get", "pods/log", "", "a")));
        assert!(rule(&["get"], &[""], &["*"], &[]).allows(&ask("get", "pods", "log", "a")));
    }

    #[test]
    fn resource_names_do_not_match_collection_requests() {
        let one = rule(&["get", "list", "create"], &[""], &["secrets"], &["a"]);
        assert!(one.allows(&ask("get", "secrets", "", "a")));
        assert!(!one.allows(&ask("list", "secrets", "", "")));
        assert!(!one.allows(&ask("create", "secrets", "", "")));
    }

    #[test]
    fn a_path_pattern_is_exact_or_a_prefix() {
        let urls = Rule {
            verbs: vec!["get".into()],
            non_resource_urls: vec!["/livez".into(), "/api/*".into()],
            ..Rule::default()
        };
        let path = |path| Attributes { verb: "get", path, ..Attributes::default() };
        assert!(urls.allows(&path("/livez")));
        assert!(!urls.allows(&path("/livez/ping")));
        assert!(urls.allows(&path("/api/v1")));
        assert!(!urls.allows(&path("/apis")));
    }

    #[test]
    fn missing_permissions_are_listed_compactly() {
        let owned = [rule(&["get"], &[""], &["pods"], &[])];
        let required = [
            rule(&["get", "list", "watch"], &[""], &["pods"], &[]),
            rule(&["get"], &["apps"], &["*/scale"], &["x"]),
        ];
        let texts: Vec<String> = compact(missing(&owned, &required)).iter().map(display).collect();
        assert_eq!(
            texts,
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
                r#"{APIGroups:["apps"], Resources:["*/scale"], ResourceNames:["x"], Verbs:["get"]}"#
            ]
        );
        assert!(missing(&[rule(&["*"], &["*"], &["*"], &[])], &required).is_empty());
    }
}
