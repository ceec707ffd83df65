//! Decides which requests are audited and at which level, by the first matching rule of the policy,
//! without I/O (`pkg/audit/policy/checker.go`).

use std::fmt;

use crate::request::RequestInfo;
use crate::request::user::User;

/// The audit level of a request; each level includes the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// User, resource, times and response status.
    Metadata,
    /// Also the object of the request.
    Request,
    /// Also the object of the response.
    RequestResponse,
}

impl Level {
    /// All levels, in the order of upstream's validation.
    pub const ALL: [Self; 4] = [Self::None, Self::Metadata, Self::Request, Self::RequestResponse];

    /// The name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// The stage of a request at which an event is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// After authentication, before any other handling.
    RequestReceived,
    /// The response has started; only for long-running requests.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The handler has panicked.
    Panic,
}

impl Stage {
    /// All stages, in the order of upstream's validation.
    pub const ALL: [Self; 4] =
        [Self::RequestReceived, Self::ResponseStarted, Self::ResponseComplete, Self::Panic];

    /// The name in policies and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages(u8);

impl Stages {
    /// Adds a stage.
    #[must_use]
    pub fn with(self, stage: Stage) -> Self {
        Self(self.0 | 1 << (stage as u8))
    }

    /// The union of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains the stage.
    pub fn has(self, stage: Stage) -> bool {
        self.0 & 1 << (stage as u8) != 0
    }
}

impl FromIterator<Stage> for Stages {
    fn from_iter<I: IntoIterator<Item = Stage>>(stages: I) -> Self {
        stages.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Debug for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Stage::ALL.iter().filter(|stage| self.has(**stage))).finish()
    }
}

/// A validated policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The rules; the first matching one applies.
    pub rules: Vec<Rule>,
    /// Stages without events, in addition to those of the rule.
    pub omit_stages: Stages,
    /// Whether recorded objects omit `managedFields`; the rule takes precedence.
    pub omit_managed_fields: bool,
}

/// Selects requests and sets their level.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The level of matching requests.
    pub level: Level,
    /// Users; empty matches all.
    pub users: Vec<String>,
    /// Groups; empty matches all.
    pub user_groups: Vec<String>,
    /// Verbs; empty matches all.
    pub verbs: Vec<String>,
    /// Resources; empty matches all.
    pub resources: Vec<GroupResources>,
    /// Namespaces, the empty string for cluster-scoped resources; an empty list matches all.
    pub namespaces: Vec<String>,
    /// Non-resource paths.
    pub non_resource_urls: Vec<String>,
    /// Stages without events.
    pub omit_stages: Stages,
    /// Whether recorded objects omit `managedFields`; `None` is the policy's value.
    pub omit_managed_fields: Option<bool>,
}

/// Resources of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupResources {
    /// The name of the group, or `*`.
    pub group: String,
    /// Resources such as `pods`, `pods/log`, `pods/*`, `*/scale` or `*`; empty matches all.
    pub resources: Vec<String>,
    /// Names of objects; empty matches all.
    pub resource_names: Vec<String>,
}

/// The decision of the policy for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Decision {
    /// The level.
    pub level: Level,
    /// Stages without events.
    pub omit_stages: Stages,
    /// Whether recorded objects omit `managedFields`.
    pub omit_managed_fields: bool,
}

impl Policy {
    /// Decides for a request; `user` is `None` if the request was rejected before authentication.
    pub fn decide(&self, user: Option<&User>, info: &RequestInfo) -> Decision {
        match self.rules.iter().find(|rule| rule.matches(user, info)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_stages: self.omit_stages.or(rule.omit_stages),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Decision {
                level: Level::None,
                omit_stages: self.omit_stages,
                omit_managed_fields: self.omit_managed_fields,
            },
        }
    }
}

fn has(list: &[String], value: &str) -> bool {
    list.iter().any(|entry| entry == value)
}

impl Rule {
    fn matches(&self, user: Option<&User>, info: &RequestInfo) -> bool {
        let name = user.map_or("", |user| &user.name);
        if !self.users.is_empty() && (user.is_none() || !has(&self.users, name)) {
            return false;
        }
        let member = || {
            user.is_some_and(|user| user.groups.iter().any(|group| has(&self.user_groups, group)))
        };
        if !self.user_groups.is_empty() && !member() {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, info.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource && self.matches_resource(info);
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource
                && self.non_resource_urls.iter().any(|spec| path_matches(&info.path, spec));
        }
        true
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        if !self.namespaces.is_empty() && !has(&self.namespaces, &info.namespace) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|group| group.matches(info))
    }
}

impl GroupResources {
    fn matches(&self, info: &RequestInfo) -> bool {
        if self.group != info.group && self.group != "*" {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !has(&self.resource_names, &info.name) {
            return false;
        }
        self.resources.iter().any(|spec| resource_matches(spec, &info.resource, &info.subresource))
    }
}

fn resource_matches(spec: &str, resource: &str, subresource: &str) -> bool {
    if spec == "*" {
        return true;
    }
    match spec.split_once('/') {
        // `pods/*` also matches requests for `pods` itself (`ruleMatchesResource`).
        Some((of, "*")) if of == resource => true,
        Some(("*", sub)) if !subresource.is_empty() => sub == subresource,
        Some((of, sub)) => of == resource && sub == subresource && !sub.is_empty(),
        None => spec == resource && subresource.is_empty(),
    }
}

/// Whether a path matches; a trailing `*` matches any suffix.
fn path_matches(path: &str, spec: &str) -> bool {
    spec == "*"
        || spec == path
        || (spec.ends_with('*') && path.starts_with(spec.trim_end_matches('*')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Query, parse};

    fn rule(level: Level) -> Rule {
        Rule { level, ..Rule::default() }
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn of(group: &str, resources: &[&str], names: &[&str]) -> Vec<GroupResources> {
        vec![GroupResources {
            group: group.into(),
            resources: texts(resources),
            resource_names: texts(names),
        }]
    }

    fn level(rule: Rule, method: &str, url: &str) -> Level {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let info = parse(&method.parse().unwrap(), path, &Query::parse(query)).unwrap();
        let user = User::authenticated("tim", &["humans"]);
        Policy { rules: vec![rule], ..Policy::default() }.decide(Some(&user), &info).level
    }

    const POD: &str = "/api/v1/namespaces/default/pods/busybox";

    #[test]
    fn users_groups_and_verbs_narrow_a_rule() {
        use Level::{Metadata, None};
        let users = |names: &[&str]| Rule { users: texts(names), ..rule(Metadata) };
        let groups = |names: &[&str]| Rule { user_groups: texts(names), ..rule(Metadata) };
        let verbs = |names: &[&str]| Rule { verbs: texts(names), ..rule(Metadata) };
        assert_eq!(level(rule(Metadata), "GET", POD), Metadata);
        assert_eq!(level(rule(Metadata), "GET", "/logs/kubelet.log"), Metadata);
        assert_eq!(level(users(&["tim"]), "GET", POD), Metadata);
        assert_eq!(level(users(&["sue", "tom"]), "GET", POD), None);
        assert_eq!(level(groups(&["admins", "humans"]), "GET", POD), Metadata);
        assert_eq!(level(groups(&["admins"]), "GET", POD), None);
        assert_eq!(level(groups(&["system:authenticated"]), "GET", "/healthz"), Metadata);
        assert_eq!(level(verbs(&["get"]), "GET", POD), Metadata);
        assert_eq!(level(verbs(&["create", "update"]), "GET", POD), None);
        // A list is not a get; the verb of a non-resource path is its method.
        assert_eq!(level(verbs(&["get"]), "GET", "/api/v1/pods"), None);
        assert_eq!(level(verbs(&["post"]), "POST", "/logs"), Metadata);
    }

    #[test]
    fn unauthenticated_requests_match_no_rule_with_users() {
        let info = parse(&http::Method::GET, POD, &Query::default()).unwrap();
        let decide = |rule: Rule| {
            Policy { rules: vec![rule], ..Policy::default() }.decide(None, &info).level
        };
        assert_eq!(decide(Rule { users: texts(&[""]), ..rule(Level::Metadata) }), Level::None);
        assert_eq!(
            decide(Rule { user_groups: texts(&["x"]), ..rule(Level::Metadata) }),
            Level::None
        );
        assert_eq!(decide(rule(Level::Metadata)), Level::Metadata);
    }

    #[test]
    fn resources_match_by_group_name_and_wildcards() {
        for (group, resources, names, url, want) in [
            ("", &["pods"][..], &[][..], POD, true),
            ("", &["pods"], &["busybox"], POD, true),
            ("", &["pods"], &["other"], POD, false),
            ("", &[], &[], POD, true),
            ("apps", &["pods"], &[], POD, false),
            ("*", &["pods"], &[], POD, true),
            ("", &["*"], &[], POD, true),
            ("", &["pods"], &[], "/api/v1/namespaces/default/pods/busybox/log", false),
            ("", &["pods/log"], &[], "/api/v1/namespaces/default/pods/busybox/log", true),
            ("", &["pods/log"], &[], POD, false),
            ("", &["pods/*"], &[], "/api/v1/namespaces/default/pods/busybox/log", true),
            ("", &["pods/*"], &[], POD, true),
            ("", &["*/log"], &[], "/api/v1/namespaces/default/pods/busybox/log", true),
            ("", &["*/log"], &[], POD, false),
            ("", &["*"], &[], "/api/v1/namespaces/default/pods/busybox/log", true),
            ("*", &["*/scale"], &[], "/apis/apps/v1/namespaces/d/deployments/x/scale", true),
            ("*", &["*/status"], &[], "/apis/apps/v1/namespaces/d/deployments/x/scale", false),
            ("*", &["*"], &[], "/healthz", false),
        ] {
            let rule = Rule { resources: of(group, resources, names), ..rule(Level::Request) };
            let want = if want { Level::Request } else { Level::None };
            assert_eq!(level(rule, "GET", url), want, "{group} {resources:?} {names:?} {url}");
        }
    }

    #[test]
    fn rules_match_by_namespace_or_path() {
        let spaces = |names: &[&str]| Rule { namespaces: texts(names), ..rule(Level::Metadata) };
        assert_eq!(level(spaces(&["default"]), "GET", POD), Level::Metadata);
        assert_eq!(level(spaces(&["kube-system"]), "GET", POD), Level::None);
        assert_eq!(level(spaces(&[""]), "GET", "/api/v1/nodes"), Level::Metadata);
        assert_eq!(level(spaces(&[""]), "GET", "/healthz"), Level::None);
        let urls = |urls: &[&str]| Rule { non_resource_urls: texts(urls), ..rule(Level::Metadata) };
        for (specs, path, want) in [
            (&["/logs*"][..], "/logs/kubelet.log", true),
            (&["/logs/*"], "/logs/kubelet.log", true),
            (&["*"], "/logs/kubelet.log", true),
            (&["/logs"], "/logs/kubelet.log", false),
            (&["/healthz", "/logs/kubelet.log"], "/logs/kubelet.log", true),
            (&["*"], POD, false),
        ] {
            let want = if want { Level::Metadata } else { Level::None };
            assert_eq!(level(urls(specs), "GET", path), want, "{specs:?} {path}");
        }
    }

    #[test]
    fn the_first_matching_rule_decides_and_stages_are_merged() {
        let policy = Policy {
            rules: vec![
                Rule {
                    verbs: texts(&["get"]),
                    omit_stages: Stages::default().with(Stage::Panic),
                    omit_managed_fields: Some(false),
                    ..rule(Level::Request)
                },
                rule(Level::Metadata),
            ],
            omit_stages: Stages::default().with(Stage::RequestReceived),
            omit_managed_fields: true,
        };
        let decide = |method: &str| {
            let info = parse(&method.parse().unwrap(), POD, &Query::default()).unwrap();
            policy.decide(None, &info)
        };
        let first = decide("GET");
        assert_eq!((first.level, first.omit_managed_fields), (Level::Request, false));
        assert_eq!(format!("{:?}", first.omit_stages), "{RequestReceived, Panic}");
        let second = decide("DELETE");
        assert_eq!((second.level, second.omit_managed_fields), (Level::Metadata, true));
        assert_eq!(format!("{:?}", second.omit_stages), "{RequestReceived}");
        let none = Policy { rules: Vec::new(), ..policy.clone() };
        let info = parse(&http::Method::GET, POD, &Query::default()).unwrap();
        assert_eq!(none.decide(None, &info).level, Level::None);
    }
}
