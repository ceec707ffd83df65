//! Kinds that are not built in, from discovery and OpenAPI v3 documents: those of custom resources
//! and of aggregated API servers (upstream's `cel/openapi/resolver`).

use std::collections::BTreeMap;

use kcel::Type;
use serde_json::{Map, Value, json};

use crate::custom::{Decl, parse};
use crate::object::{Gvk, Gvr};
use crate::value::{at, items, str_at};

/// Maximum number of schemas below one kind after the replacement of references: a document with
/// few references can expand to more schemas than fit into memory.
const SCHEMAS_MAX: usize = 50_000;
/// Deepest nesting of schemas; the parser has the same limit.
const DEPTH_MAX: usize = 199;
/// Keywords that determine a type.
const KEYWORDS: [&str; 4] =
    ["type", "format", "x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"];

/// Kinds and their schemas, by group and version.
#[derive(Debug, Default)]
pub struct Served {
    kinds: BTreeMap<Gvr, Gvk>,
    /// `components.schemas` of the documents.
    documents: Vec<Value>,
}

impl Served {
    /// Adds a group and version with its `APIResourceList` and, if available, its OpenAPI v3
    /// document.
    pub fn add(&mut self, group: &str, version: &str, resources: &Value, document: Option<Value>) {
        for resource in items(resources, "resources") {
            let (name, kind) = (str_at(resource, "name"), str_at(resource, "kind"));
            if name.contains('/') {
                continue;
            }
            let of = |key: &str, default| match str_at(resource, key) {
                "" => default,
                given => given,
            };
            let kind = Gvk::new(of("group", group), of("version", version), kind);
            for name in [name, str_at(resource, "singularName")] {
                if !name.is_empty() {
                    self.kinds.insert(Gvr::new(group, version, name), kind.clone());
                }
            }
        }
        if let Some(mut document) = document {
            let schemas = document.pointer_mut("/components/schemas").map(Value::take);
            self.documents.extend(schemas);
        }
    }

    /// The kind of a resource.
    pub(super) fn kind(&self, gvr: &Gvr) -> Option<&Gvk> {
        self.kinds.get(gvr)
    }

    /// The type of a kind; `None` when no document describes it.
    pub(super) fn of_kind(&self, kind: &Gvk) -> Option<Type> {
        const KINDS: &str = "x-kubernetes-group-version-kind";
        let is = |named: &Value| {
            str_at(named, "group") == &*kind.group
                && str_at(named, "version") == &*kind.version
                && str_at(named, "kind") == &*kind.kind
        };
        self.documents.iter().find_map(|schemas| {
            let all = schemas.as_object()?;
            let (name, schema) =
                all.iter().find(|(_, schema)| items(schema, KINDS).iter().any(is))?;
            let mut resolver = Resolver { all, open: vec![name], left: SCHEMAS_MAX };
            let node = parse(&resolver.resolve(schema, DEPTH_MAX)?).ok()?;
            Some(Decl::of(&node, true, &kind.kind)?.of.clone())
        })
    }
}

/// Replaces references with the referenced schemas.
struct Resolver<'a> {
    all: &'a Map<String, Value>,
    /// Names of the schemas that enclose the current one.
    open: Vec<&'a str>,
    left: usize,
}

impl<'a> Resolver<'a> {
    /// Returns the keywords of a schema that determine its type; `None` when a reference is invalid
    /// or a limit is exceeded.
    fn resolve(&mut self, schema: &'a Value, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.left = self.left.checked_sub(1)?;
        let Some(reference) = reference(schema) else { return self.plain(schema, depth) };
        let name = reference.strip_prefix("#/components/schemas/")?;
        if self.open.contains(&name) {
            // Upstream's placeholder for a schema that contains itself.
            return Some(json!({"type": "object"}));
        }
        self.open.push(name);
        let resolved = self.plain(self.all.get(name)?, depth);
        self.open.pop();
        resolved
    }

    fn plain(&mut self, schema: &'a Value, depth: usize) -> Option<Value> {
        let mut out = Map::new();
        for key in KEYWORDS {
            if let Some(value) = schema.get(key) {
                out.insert(key.to_owned(), value.clone());
            }
        }
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let mut resolved = Map::new();
            for (name, below) in properties {
                resolved.insert(name.clone(), self.resolve(below, depth)?);
            }
            out.insert("properties".to_owned(), resolved.into());
        }
        for key in ["additionalProperties", "items"] {
            if let below @ Value::Object(_) = at(schema, &[key]) {
                out.insert(key.to_owned(), self.resolve(below, depth)?);
            }
        }
        Some(out.into())
    }
}

/// The reference of a schema, either direct or in an `allOf` that adds a description.
fn reference(schema: &Value) -> Option<&str> {
    let own = schema.get("$ref").and_then(Value::as_str);
    own.or_else(|| items(schema, "allOf").iter().find_map(reference))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expressions::checking::{Warning, versions_beyond, warnings};
    use crate::openapi::{self, CustomSchema};
    use crate::schema::Schema;

    /// The CRD of upstream's e2e test "should type check a CRD", extended with fields of less
    /// common schemas.
    fn crontabs() -> Served {
        let text = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "cronSpec": {"type": "string"}, "image": {"type": "string"}, "replicas": {"type": "integer"},
            "port": {"x-kubernetes-int-or-string": true},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        }}}});
        let served = openapi::Served {
            gvk: Gvk::new("stable.example.com", "v1", "CronTab"),
            gvr: Gvr::new("stable.example.com", "v1", "crontabs"),
            namespaced: true,
            verbs: vec!["get".into(), "list".into()],
            subresources: Vec::new(),
            custom: Some(CustomSchema {
                text: Some(text.to_string().into()),
                list_kind: "CronTabList".into(),
                preserve: false,
                selectable: Vec::new(),
            }),
        };
        let document =
            openapi::v3(&Schema::builtin(), &[served], "stable.example.com", "v1", "v1.37.1");
        let resources = json!({"kind": "APIResourceList", "resources": [
            {"name": "crontabs", "singularName": "crontab", "kind": "CronTab"},
            {"name": "crontabs/status", "singularName": "", "kind": "CronTab"}]});
        let mut all = Served::default();
        all.add("stable.example.com", "v1", &resources, document);
        all
    }

    fn policy(expressions: &[&str]) -> Value {
        let validations = expressions.iter().map(|text| json!({"expression": text}));
        json!({"spec": {"validations": validations.collect::<Vec<_>>(), "matchConstraints": {"resourceRules": [
            {"apiGroups": ["stable.example.com"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["crontabs"]}]}}})
    }

    fn check(policy: &Value) -> Vec<Warning> {
        warnings(&Schema::builtin(), &crontabs(), policy)
    }

    /// The expectations of the e2e test.
    #[test]
    fn a_custom_resource_is_checked_against_its_schema() {
        assert_eq!(check(&policy(&["object.spec.replicas > 1"])), []);
        let found = check(&policy(&["object.spec.replicas > '1'", "object.spec.maxRetries < 10"]));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].field, "spec.validations[0].expression");
        assert_eq!(
            found[0].text,
            "stable.example.com/v1, Kind=CronTab: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^\n"
        );
        assert_eq!(found[1].field, "spec.validations[1].expression");
        assert!(found[1].text.contains("undefined field 'maxRetries'"), "{}", found[1].text);
    }

    /// The types are those of upstream's `SchemaDeclType` for the document: metadata is complete,
    /// unions are `dyn`, and unknown fields are not accessible.
    #[test]
    fn types_are_those_of_the_published_document() {
        let fit = [
            "object.metadata.labels['a'] == 'b' && object.apiVersion == 'x'",
            "object.metadata.creationTimestamp < timestamp('2020-01-01T00:00:00Z')",
            "object.metadata.ownerReferences.all(o, o.name != '')",
            "object.spec.port == 1 || object.spec.port == 'http'",
            "object.spec.labels.all(key, object.spec.labels[key].startsWith(key))",
            "object.spec.template.metadata.name == object.spec.image",
        ];
        assert_eq!(check(&policy(&fit)), []);
        for (text, error) in [
            ("object.spec.anything.field == 1", "undefined field 'field'"),
            ("object.spec.template.spec == 1", "undefined field 'spec'"),
            ("object.metadata.name == 1", "found no matching overload"),
        ] {
            let found = check(&policy(&[text]));
            assert!(found.len() == 1 && found[0].text.contains(error), "{text}: {found:?}");
        }
    }

    #[test]
    fn parameters_of_a_custom_resource_have_its_type() {
        let mut policy = policy(&["params.spec.replicas == 'x'", "params.spec.replicas == 1"]);
        policy["spec"]["paramKind"] =
            json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab"});
        let found = check(&policy);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].field, "spec.validations[0].expression");
        // Without a schema, parameters have the type `dyn`.
        policy["spec"]["paramKind"]["kind"] = "Other".into();
        assert_eq!(check(&policy), []);
    }

    #[test]
    fn versions_are_asked_for_that_are_named_and_not_built_in() {
        let schema = Schema::builtin();
        let mut policy = policy(&[]);
        policy["spec"]["paramKind"] =
            json!({"apiVersion": "other.example.com/v2", "kind": "Limit"});
        fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> Value {
            json!({"apiGroups": groups, "apiVersions": versions, "resources": resources})
        }
        policy["spec"]["matchConstraints"]["resourceRules"] = json!([
            rule(&["", "apps"], &["v1"], &["pods", "deployments"]),
            rule(&["stable.example.com"], &["v1"], &["crontabs", "crontabs/status"]),
            rule(&["*"], &["v3"], &["widgets"]),
            rule(&["wild.example.com"], &["v1"], &["*", "widgets/scale"]),
            rule(&["../../api"], &["v1"], &["widgets"]),
        ]);
        let named: Vec<(String, String)> = versions_beyond(&schema, &policy).into_iter().collect();
        let own = |group: &str, version: &str| (group.to_owned(), version.to_owned());
        assert_eq!(named, [own("other.example.com", "v2"), own("stable.example.com", "v1")]);
    }

    #[test]
    fn a_schema_inside_of_itself_ends_and_a_reference_to_nothing_is_no_type() {
        let document = |of: &str| {
            json!({"components": {"schemas": {"Tree": {"type": "object",
                "x-kubernetes-group-version-kind": [{"group": "g.io", "version": "v1", "kind": "Tree"}],
                "properties": {
                    "name": {"type": "string"},
                    "left": {"allOf": [{"$ref": format!("#/components/schemas/{of}")}], "description": "d"}}}}}})
        };
        let tree = Gvk::new("g.io", "v1", "Tree");
        let of = |document| {
            let mut served = Served::default();
            served.add("g.io", "v1", &json!({"resources": []}), Some(document));
            served.of_kind(&tree)
        };
        let Some(Type::Object(found)) = of(document("Tree")) else { panic!("no type") };
        assert!(
            matches!(&found.fields["left"], Type::Object(left) if left.fields.is_empty()),
            "{found:?}"
        );
        assert_eq!(of(document("Nothing")), None);
    }

    #[test]
    fn references_that_multiply_have_a_bound() {
        let mut schemas = Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/components/schemas/L{}", level + 1)});
            let ty = json!({"type": "object", "properties": {"a": next, "b": next}});
            schemas.insert(format!("L{level}"), ty);
        }
        schemas.insert("L40".into(), json!({"type": "string"}));
        schemas["L0"]["x-kubernetes-group-version-kind"] =
            json!([{"group": "g.io", "version": "v1", "kind": "Wide"}]);
        let mut served = Served::default();
        let document = json!({"components": {"schemas": schemas}});
        served.add("g.io", "v1", &json!({"resources": []}), Some(document));
        assert_eq!(served.of_kind(&Gvk::new("g.io", "v1", "Wide")), None);
    }
}
