//! The rules of flow schemas, parsed once, and whether they match a request (upstream's `rule.go`).
//! Matching does not allocate.

use api::value::{at, get, items, str_at, str_in};
use serde_json::Value;

use crate::request::RequestInfo;
use crate::request::user::User;

/// The attributes of a request that decide its flow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlowAttributes<'a> {
    /// Whether the path is that of an API resource.
    pub(crate) is_resource: bool,
    /// The verb; for other paths the method in lower case.
    pub(crate) verb: &'a str,
    pub(crate) path: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> FlowAttributes<'a> {
    /// The attributes of a request.
    pub(crate) fn of(info: &'a RequestInfo) -> Self {
        Self {
            is_resource: info.is_resource,
            verb: info.verb,
            path: &info.path,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
        }
    }

    /// Whether the request only reads (upstream's `nonMutatingRequestVerbs`).
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// One element of `spec.rules`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug, PartialEq, Eq)]
enum Subject {
    Everyone,
    User(Box<str>),
    Group(Box<str>),
    /// All service accounts whose user name has this prefix.
    Accounts(Box<str>),
}

/// A list of values, or all values (`*`).
#[derive(Debug, PartialEq, Eq)]
enum Values {
    All,
    Of(Vec<Box<str>>),
}

#[derive(Debug, PartialEq, Eq)]
struct ResourceRule {
    verbs: Values,
    groups: Values,
    resources: Values,
    cluster: bool,
    namespaces: Values,
}

#[derive(Debug, PartialEq, Eq)]
struct PathRule {
    verbs: Values,
    paths: Vec<PathPattern>,
}

#[derive(Debug, PartialEq, Eq)]
enum PathPattern {
    All,
    /// A path and the paths below it.
    Prefix {
        exact: Box<str>,
        below: Box<str>,
    },
}

impl Values {
    fn of(value: &Value, key: &str) -> Self {
        let list: Vec<Box<str>> = texts(value, key).map(Into::into).collect();
        match list.as_slice() {
            [only] if &**only == "*" => Self::All,
            _ => Self::Of(list),
        }
    }

    fn has(&self, matches: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Of(list) => list.iter().any(|text| matches(text)),
        }
    }
}

fn texts<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    items(value, key).iter().filter_map(Value::as_str)
}

impl Rule {
    /// Parses one element of `spec.rules`.
    pub(crate) fn of(rule: &Value) -> Self {
        let resources = items(rule, "resourceRules").iter().map(|of| ResourceRule {
            verbs: Values::of(of, "verbs"),
            groups: Values::of(of, "apiGroups"),
            resources: Values::of(of, "resources"),
            cluster: get(of, "clusterScope").as_bool().unwrap_or_default(),
            namespaces: Values::of(of, "namespaces"),
        });
        let paths = items(rule, "nonResourceRules").iter().map(|of| PathRule {
            verbs: Values::of(of, "verbs"),
            paths: texts(of, "nonResourceURLs").map(PathPattern::of).collect(),
        });
        Self {
            subjects: items(rule, "subjects").iter().filter_map(Subject::of).collect(),
            resources: resources.collect(),
            paths: paths.collect(),
        }
    }

    /// Whether the rule matches this request of this user.
    pub(crate) fn matches(&self, attributes: &FlowAttributes<'_>, user: &User) -> bool {
        if !self.subjects.iter().any(|subject| subject.matches(user)) {
            return false;
        }
        if attributes.is_resource {
            return self.resources.iter().any(|rule| rule.matches(attributes));
        }
        self.paths.iter().any(|rule| {
            rule.verbs.has(|verb| verb == attributes.verb)
                && rule.paths.iter().any(|pattern| pattern.matches(attributes.path))
        })
    }
}

impl Subject {
    fn of(subject: &Value) -> Option<Self> {
        Some(match str_at(subject, "kind") {
            "User" => match at(subject, &["user", "name"]).as_str()? {
                "*" => Self::Everyone,
                name => Self::User(name.into()),
            },
            "Group" => match at(subject, &["group", "name"]).as_str()? {
                "*" => Self::Everyone,
                name => Self::Group(name.into()),
            },
            "ServiceAccount" => {
                let namespace = at(subject, &["serviceAccount", "namespace"]).as_str()?;
                match str_in(subject, &["serviceAccount", "name"]) {
                    "*" => Self::Accounts(format!("system:serviceaccount:{namespace}:").into()),
                    name => Self::User(format!("system:serviceaccount:{namespace}:{name}").into()),
                }
            }
            _ => return None,
        })
    }

    fn matches(&self, user: &User) -> bool {
        match self {
            Self::Everyone => true,
            Self::User(name) => **name == *user.name,
            Self::Group(name) => user.in_group(name),
            Self::Accounts(prefix) => user.name.starts_with(&**prefix),
        }
    }
}

impl ResourceRule {
    fn matches(&self, attributes: &FlowAttributes<'_>) -> bool {
        self.verbs.has(|verb| verb == attributes.verb)
            && self.resources.has(|resource| {
                let Some(rest) = resource.strip_prefix(attributes.resource) else { return false };
                if attributes.subresource.is_empty() {
                    return rest.is_empty();
                }
                rest.strip_prefix('/').is_some_and(|rest| rest == attributes.subresource)
            })
            && self.groups.has(|group| group == attributes.group)
            && if attributes.namespace.is_empty() {
                self.cluster
            } else {
                self.namespaces.has(|namespace| namespace == attributes.namespace)
            }
    }
}

impl PathPattern {
    fn of(path: &str) -> Self {
        if path == "*" {
            return Self::All;
        }
        let mut below = path.strip_suffix('*').unwrap_or(path).to_owned();
        if !below.ends_with('/') {
            below.push('/');
        }
        Self::Prefix { exact: path.into(), below: below.into() }
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::Prefix { exact, below } => path == &**exact || path.starts_with(&**below),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resource(
        verb: &'static str,
        of: &'static str,
        namespace: &'static str,
    ) -> FlowAttributes<'static> {
        let (resource, subresource) = of.split_once('/').unwrap_or((of, ""));
        FlowAttributes {
            is_resource: true,
            verb,
            resource,
            subresource,
            namespace,
            ..FlowAttributes::default()
        }
    }

    fn everybody() -> Value {
        json!([{"kind": "Group", "group": {"name": "*"}}])
    }

    #[test]
    fn subjects_are_users_groups_and_accounts() {
        let rule = |subject: Value| {
            Rule::of(&json!({"subjects": [subject],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}))
        };
        let attributes = FlowAttributes { verb: "get", path: "/x", ..FlowAttributes::default() };
        let ann = User::authenticated("ann", &["g"]);
        let account = User::authenticated("system:serviceaccount:kube-system:a", &[]);
        for (subject, user, expected) in [
            (json!({"kind": "User", "user": {"name": "ann"}}), &ann, true),
            (json!({"kind": "User", "user": {"name": "*"}}), &ann, true),
            (json!({"kind": "User", "user": {"name": "an"}}), &ann, false),
            (json!({"kind": "User"}), &ann, false),
            (json!({"kind": "Group", "group": {"name": "g"}}), &ann, true),
            (json!({"kind": "Group", "group": {"name": "h"}}), &ann, false),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "*"}}),
                &account,
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "a"}}),
                &account,
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": "b"}}),
                &account,
                false,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube", "name": "*"}}),
                &account,
                false,
            ),
            (json!({"kind": "Other"}), &ann, false),
        ] {
            assert_eq!(rule(subject.clone()).matches(&attributes, user), expected, "{subject}");
        }
    }

    #[test]
    fn resources_match_by_verb_group_subresource_and_namespace() {
        let rule = |of: Value| Rule::of(&json!({"subjects": everybody(), "resourceRules": [of]}));
        let user = User::anonymous();
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/status"], "namespaces": ["n"]});
        for (attributes, expected) in [
            (resource("get", "pods", "n"), true),
            (resource("get", "pods/status", "n"), true),
            (resource("get", "pods/log", "n"), false),
            (resource("get", "podsx", "n"), false),
            (resource("list", "pods", "n"), false),
            (resource("get", "pods", "m"), false),
            (resource("get", "pods", ""), false),
            (FlowAttributes { group: "x", ..resource("get", "pods", "n") }, false),
            (FlowAttributes { verb: "get", path: "/pods", ..FlowAttributes::default() }, false),
        ] {
            assert_eq!(rule(pods.clone()).matches(&attributes, &user), expected, "{attributes:?}");
        }
        let cluster =
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true});
        assert!(rule(cluster.clone()).matches(&resource("list", "pods/x", ""), &user));
        assert!(!rule(cluster).matches(&resource("list", "pods", "n"), &user));
    }

    #[test]
    fn a_path_matches_the_paths_below_it() {
        let user = User::anonymous();
        let holds = |rule: &str, path: &str| {
            let rule = Rule::of(&json!({"subjects": everybody(),
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [rule]}]}));
            rule.matches(&FlowAttributes { verb: "get", path, ..FlowAttributes::default() }, &user)
        };
        for (rule, path, expected) in [
            ("*", "/any", true),
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", true),
            ("/healthz", "/healthzz", false),
            ("/healthz/*", "/healthz/ping", true),
            ("/healthz/*", "/healthz", false),
            ("/", "/any", true),
        ] {
            assert_eq!(holds(rule, path), expected, "{rule} {path}");
        }
    }
}
