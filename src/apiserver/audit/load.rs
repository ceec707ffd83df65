//! Parses a policy file strictly, and validates it with upstream's messages
//! (`pkg/apis/audit/validation`).

use api::field::{Error, Path};
use api::validation::names::name_is_subdomain;
use serde_json::{Map, Value};

use component_config::strict_config::{ConfigDocument, Reader};

use super::error::PolicyError;
use super::policy::{GroupResources, Level, Policy, Rule, Stage, Stages};

/// The only supported version of the API.
pub(super) const VERSION: &str = "audit.k8s.io/v1";

/// Parses a policy from YAML or JSON.
///
/// # Errors
/// The field and its error.
pub(crate) fn policy(text: &[u8]) -> Result<Policy, PolicyError> {
    let document = ConfigDocument::decode(text)?;
    document.check_keys()?;
    let map = document.object("apiVersion, kind and rules")?;
    for (field, expected) in [("apiVersion", VERSION), ("kind", "Policy")] {
        match map.get(field).and_then(Value::as_str).unwrap_or_default() {
            "" => return Err(PolicyError::Missing { field, expected }),
            value if value != expected => {
                let value = value.to_owned();
                return Err(PolicyError::Unsupported { field, value, expected });
            }
            _ => {}
        }
    }
    let mut reader = Reader::default();
    let policy = read_policy(&mut reader, map);
    reader.finish()?;
    if policy.rules.is_empty() {
        return Err(PolicyError::NoRules);
    }
    Ok(policy)
}

fn read_policy(reader: &mut Reader, map: &Map<String, Value>) -> Policy {
    let root = Path::new("");
    let known = ["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
    reader.known(map, "", &known);
    let omit_stages = stages(reader, map, &root);
    let omit_managed_fields = reader.boolean(map, "omitManagedFields", &root).unwrap_or_default();
    let rules = reader.objects(map, "rules", &root);
    let rules = rules.iter().map(|(path, rule)| read_rule(reader, rule, path)).collect();
    Policy { rules, omit_stages, omit_managed_fields }
}

fn read_rule(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Rule {
    let known = [
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ];
    reader.known(map, &path.to_string(), &known);
    let level = level(reader, map, path);
    let urls = reader.strings(map, "nonResourceURLs", path);
    check_urls(reader, &urls, &path.child("nonResourceURLs"));
    let resources = resources(reader, map, path);
    let omit_stages = stages(reader, map, path);
    let namespaces = reader.strings(map, "namespaces", path);
    if !urls.is_empty() && (!resources.is_empty() || !namespaces.is_empty()) {
        let why = "rules cannot apply to both regular resources and non-resource URLs";
        let field = path.child("nonResourceURLs");
        reader.errors.push(Error::invalid(&field, urls.clone(), why));
    }
    Rule {
        level,
        users: reader.strings(map, "users", path),
        user_groups: reader.strings(map, "userGroups", path),
        verbs: reader.strings(map, "verbs", path),
        resources,
        namespaces,
        non_resource_urls: urls,
        omit_stages,
        omit_managed_fields: reader.boolean(map, "omitManagedFields", path),
    }
}

fn level(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Level {
    let given = reader.text(map, "level", path);
    let field = path.child("level");
    let found = Level::ALL.into_iter().find(|level| level.name() == given);
    if found.is_none() {
        reader.errors.push(if given.is_empty() {
            Error::required(&field, "")
        } else {
            Error::not_supported(&field, given, &Level::ALL.map(Level::name))
        });
    }
    found.unwrap_or_default()
}

fn check_urls(reader: &mut Reader, urls: &[String], path: &Path) {
    for (at, url) in urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        let field = path.index(at);
        if !url.starts_with('/') {
            let why = "non-resource URL rules must begin with a '/' character";
            reader.errors.push(Error::invalid(&field, url.clone(), why));
        }
        if url.find('*').is_some_and(|star| star + 1 < url.len()) {
            let why = "non-resource URL wildcards '*' must be the final character of the rule";
            reader.errors.push(Error::invalid(&field, url.clone(), why));
        }
    }
}

fn resources(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Vec<GroupResources> {
    let all = reader.objects(map, "resources", path);
    let mut read = Vec::with_capacity(all.len());
    for (at, entry) in &all {
        reader.known(entry, &at.to_string(), &["group", "resources", "resourceNames"]);
        let found = GroupResources {
            group: reader.text(entry, "group", at),
            resources: reader.strings(entry, "resources", at),
            resource_names: reader.strings(entry, "resourceNames", at),
        };
        // Upstream omits the index of the element in these paths.
        let field = path.child("resources");
        if !found.group.is_empty() && found.group != "*" {
            let why = name_is_subdomain(&found.group, false);
            if !why.is_empty() {
                let given = found.group.clone();
                reader.errors.push(Error::invalid(&field.child("group"), given, why.join(",")));
            }
        }
        if !found.resource_names.is_empty() && found.resources.is_empty() {
            let why = "using resourceNames requires at least one resource";
            let given = found.resource_names.clone();
            reader.errors.push(Error::invalid(&field.child("resourceNames"), given, why));
        }
        read.push(found);
    }
    read
}

fn stages(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> Stages {
    let given = reader.strings(map, "omitStages", path);
    let mut stages = Stages::default();
    for (at, name) in given.into_iter().enumerate() {
        match Stage::ALL.into_iter().find(|stage| stage.name() == name) {
            Some(stage) => stages = stages.with(stage),
            None => {
                let why = format!("allowed stages are {}", Stage::ALL.map(Stage::name).join(","));
                reader.errors.push(Error::invalid(&path.child("omitStages").index(at), name, why));
            }
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(rules: &str) -> String {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
        policy(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn all_fields_of_a_policy_are_parsed() {
        let text = br#"
apiVersion: audit.k8s.io/v1
kind: Policy
metadata: {name: all}
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
- level: None
  nonResourceURLs: ["/healthz*", "*"]
- level: RequestResponse
  users: [a]
  userGroups: [g]
  verbs: [get]
  namespaces: [""]
  resources:
  - group: ""
    resources: ["pods/*"]
    resourceNames: [x]
  - group: "*"
  omitStages: [Panic]
  omitManagedFields: false
"#;
        let read = policy(text).unwrap();
        assert!(read.omit_managed_fields);
        assert!(read.omit_stages.has(Stage::RequestReceived));
        assert_eq!(read.rules[0].non_resource_urls, ["/healthz*", "*"]);
        let rule = &read.rules[1];
        assert_eq!(rule.level, Level::RequestResponse);
        assert_eq!(rule.omit_managed_fields, Some(false));
        assert_eq!((rule.users.join(""), rule.user_groups.join("")), ("a".into(), "g".into()));
        assert_eq!((rule.verbs.join(""), rule.namespaces.join("|")), ("get".into(), String::new()));
        assert_eq!(rule.namespaces.len(), 1);
        assert_eq!(rule.resources[0].resource_names, ["x"]);
        assert_eq!(rule.resources[1].group, "*");
        let json =
            br#"{"kind":"Policy","apiVersion":"audit.k8s.io/v1","rules":[{"level":"Metadata"}]}"#;
        assert_eq!(policy(json).unwrap().rules.len(), 1);
    }

    #[test]
    fn errors_have_upstreams_messages() {
        for (rules, want) in [
            ("rules: []", "loaded illegal policy with 0 rules"),
            ("rules: [{}]", "rules[0].level: Required value"),
            (
                "rules: [{level: Everything}]",
                r#"rules[0].level: Unsupported value: "Everything": supported values: "None", "Metadata", "Request", "RequestResponse""#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: [logs]}]",
                r#"rules[0].nonResourceURLs[0]: Invalid value: "logs": non-resource URL rules must begin with a '/' character"#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: ['/a/*/b']}]",
                r#"rules[0].nonResourceURLs[0]: Invalid value: "/a/*/b": non-resource URL wildcards '*' must be the final character of the rule"#,
            ),
            (
                "rules: [{level: None, nonResourceURLs: [/a], namespaces: [x]}]",
                r#"rules[0].nonResourceURLs: Invalid value: ["/a"]: rules cannot apply to both regular resources and non-resource URLs"#,
            ),
            (
                "rules: [{level: None, resources: [{resourceNames: [x]}]}]",
                r#"rules[0].resources.resourceNames: Invalid value: ["x"]: using resourceNames requires at least one resource"#,
            ),
            (
                "rules: [{level: None, omitStages: [Later]}]",
                r#"rules[0].omitStages[0]: Invalid value: "Later": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic"#,
            ),
            (
                "omitStages: [x]\nrules: [{}]",
                r#"[omitStages[0]: Invalid value: "x": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic, rules[0].level: Required value]"#,
            ),
            (
                "rules: [{level: None, user: x}]",
                r#"strict decoding error: unknown field "rules[0].user""#,
            ),
            ("ruls: []", r#"strict decoding error: unknown field "ruls""#),
            ("rules: [{level: None, users: x}]", "rules[0].users: must be a list of strings"),
            ("rules: none", "rules: must be a list of objects"),
        ] {
            assert_eq!(error_of(rules), want, "{rules}");
        }
        let group = error_of(
            "rules: [{level: None, resources: [{group: rbac.authorization.k8s.io/v1beta1}]}]",
        );
        assert!(
            group.starts_with(r#"rules[0].resources.group: Invalid value: "rbac.authorization.k8s.io/v1beta1": a lowercase RFC 1123 subdomain must consist of"#),
            "{group}"
        );
    }

    #[test]
    fn kind_and_version_are_required() {
        let error = |text: &str| policy(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error("rules: [{level: None}]"),
            "apiVersion: Required value: must be audit.k8s.io/v1"
        );
        assert_eq!(
            error("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]"),
            r#"apiVersion: Unsupported value: "audit.k8s.io/v1beta1": must be audit.k8s.io/v1"#
        );
        assert_eq!(error("- a"), "is no object with apiVersion, kind and rules");
        assert!(error("a: 1\na: 2").contains("already set in map"));
    }
}
