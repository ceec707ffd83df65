//! Type checking of a validating policy's expressions against the types of the matched objects. The
//! results are warnings in the policy's status (upstream's `policy/validating/typechecking.go`).

mod served;

use std::collections::{BTreeMap, BTreeSet};

use kcel::Type;
use serde_json::Value;
use sorting::{CollectOrdered as _, CompactSort as _};

use super::{Compiler, Uses};
use crate::object::{Gvk, Gvr};
use crate::schema::{Schema, Shape, TypeId};
use crate::value::{get, items, str_at};

pub use self::served::Served;

/// Number of kinds of one rule after which no further kind of the policy is checked (upstream's
/// `maxTypesToCheck`).
const KINDS_MAX: usize = 10;
/// Types with deeper nesting become `dyn`, since some types contain themselves.
const DEPTH_MAX: usize = 12;

/// One warning: the path of an expression, and its errors for each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path, such as `spec.validations[0].expression`.
    pub field: String,
    /// One line for each kind, with cel-go's error text.
    pub text: String,
}

/// The groups and versions in a policy's rules and `paramKind` for which the table has no kinds:
/// those of custom resources and of aggregated API servers. [`Served`] contains their kinds and
/// types.
pub fn versions_beyond(schema: &Schema, policy: &Value) -> BTreeSet<(String, String)> {
    let spec = get(policy, "spec");
    let mut named = BTreeSet::new();
    for rule in items(get(spec, "matchConstraints"), "resourceRules") {
        for gvr in resources(rule) {
            named.insert((gvr.group.to_string(), gvr.version.to_string()));
        }
    }
    let param = param_kind(spec);
    if !param.version.is_empty() {
        named.insert((param.group.to_string(), param.version.to_string()));
    }
    // No API has another name, and such a name must not become part of a URL path.
    let is_name = |text: &str| crate::validation::names::dns1123_subdomain(text).is_empty();
    named.retain(|(group, version)| {
        if !is_name(version) || !(group.is_empty() || is_name(group)) {
            return false;
        }
        let is_built_in = |kind: &Gvk| *kind.group == **group && *kind.version == **version;
        !schema.kinds().any(|(kind, _)| is_built_in(kind))
    });
    named
}

/// The warnings for a policy. Kinds that are in neither the table nor `served` are skipped, as
/// upstream skips kinds without a schema.
pub fn warnings(schema: &Schema, served: &Served, policy: &Value) -> Vec<Warning> {
    let spec = get(policy, "spec");
    let of = |kind: &Gvk| of_kind(schema, kind).or_else(|| served.of_kind(kind));
    let kinds: Vec<(Gvk, Type)> = kinds(schema, served, spec)
        .into_iter()
        .filter_map(|kind| Some((kind.clone(), of(&kind)?)))
        .collect();
    let uses =
        Uses { params: get(spec, "paramKind").is_object(), authorizer: true, patches: false };
    let param = of(&param_kind(spec)).unwrap_or(Type::Dyn);
    let check = |text: &str| -> String {
        let found = kinds.iter().filter_map(|(kind, of)| {
            let mut compiler = Compiler::typed(of.clone(), param.clone());
            for variable in items(spec, "variables") {
                // Errors of a variable are reported for the expressions that use it.
                let (name, text) = (str_at(variable, "name"), str_at(variable, "expression"));
                let _ = compiler.variable(name, text, uses);
            }
            let error = compiler.env(uses).compile_any(text).err().filter(|e| !e.instantiation)?;
            let Gvk { group, version, kind } = kind;
            Some(format!("{group}/{version}, Kind={kind}: {error}\n"))
        });
        found.collect::<Vec<_>>().join("\n")
    };
    let mut all = Vec::new();
    for (index, validation) in items(spec, "validations").iter().enumerate() {
        for key in ["expression", "messageExpression"] {
            let text = match str_at(validation, key) {
                "" => String::new(),
                text => check(text),
            };
            if !text.is_empty() {
                all.push(Warning { field: format!("spec.validations[{index}].{key}"), text });
            }
        }
    }
    all
}

fn param_kind(spec: &Value) -> Gvk {
    let param = get(spec, "paramKind");
    Gvk::from_api_version(str_at(param, "apiVersion"), str_at(param, "kind"))
}

/// The resources in one rule, in upstream's order; empty when a group or a version is a wildcard.
fn resources(rule: &Value) -> Vec<Gvr> {
    let list = |key: &str| -> Vec<&str> {
        let mut all: Vec<&str> = items(rule, key).iter().filter_map(Value::as_str).collect();
        all.compact_sort();
        all
    };
    let (groups, versions, resources) = (list("apiGroups"), list("apiVersions"), list("resources"));
    if groups.iter().chain(&versions).any(|text| text.contains('*')) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for group in groups {
        for version in &versions {
            let plain = resources.iter().filter(|resource| !resource.contains(['*', '/']));
            all.extend(plain.map(|resource| Gvr::new(group, version, resource)));
        }
    }
    all
}

/// The kinds that the rules of a policy specify by name; wildcards are skipped.
fn kinds(schema: &Schema, served: &Served, spec: &Value) -> BTreeSet<Gvk> {
    let mut found = BTreeSet::new();
    for rule in items(get(spec, "matchConstraints"), "resourceRules") {
        let mut count = 0;
        for gvr in resources(rule) {
            let built_in = schema.kinds().map(|(kind, _)| kind).filter(|kind| {
                kind.group == gvr.group
                    && kind.version == gvr.version
                    && *plural(&kind.kind) == *gvr.resource
            });
            for kind in built_in.chain(served.kind(&gvr)) {
                found.insert(kind.clone());
                count += 1;
                if count == KINDS_MAX {
                    return found;
                }
            }
        }
    }
    found
}

/// The resource name of a built-in kind.
fn plural(kind: &str) -> String {
    let name = kind.to_lowercase();
    if name == "endpoints" {
        return name;
    }
    match name.chars().last() {
        Some('s') => format!("{name}es"),
        Some('y') => format!("{}ies", name.strip_suffix('y').unwrap_or_default()),
        _ => format!("{name}s"),
    }
}

fn of_kind(schema: &Schema, kind: &Gvk) -> Option<Type> {
    Some(of_struct(schema, schema.kind(kind)?, &kind.kind, 0))
}

fn of_struct(schema: &Schema, id: TypeId, name: &str, depth: usize) -> Type {
    let fields = schema.get(id).fields.iter().filter_map(|field| {
        let name = format!("{name}.{}", field.json);
        Some((kcel::escape(&field.json)?, of_shape(schema, &field.shape, &name, depth + 1)?))
    });
    Type::object(name, fields.collect_map())
}

/// The type of a value; `None` for values that typed expressions cannot access: JSON of any form,
/// and quantities, which are strings or numbers.
fn of_shape(schema: &Schema, shape: &Shape, name: &str, depth: usize) -> Option<Type> {
    Some(match shape {
        Shape::String | Shape::Duration => Type::String,
        Shape::Bool => Type::Bool,
        Shape::Int32 | Shape::Int64 => Type::Int,
        Shape::Double => Type::Double,
        Shape::Bytes => Type::Bytes,
        Shape::Time | Shape::MicroTime => Type::Timestamp,
        Shape::IntOrString => Type::Dyn,
        Shape::RawExtension | Shape::FieldsV1 => Type::object(name, BTreeMap::new()),
        Shape::Quantity
        | Shape::Any
        | Shape::PropsOrBool(_)
        | Shape::PropsOrList(_)
        | Shape::PropsOrStrings(_) => return None,
        Shape::Struct(_) if depth > DEPTH_MAX => Type::Dyn,
        Shape::Struct(id) => of_struct(schema, *id, name, depth),
        Shape::List(item) => Type::list(of_shape(schema, item, &format!("{name}.@idx"), depth)?),
        Shape::Map(value) => {
            let value = of_shape(schema, value, &format!("{name}.@elem"), depth)?;
            Type::map(Type::String, value)
        }
        Shape::Typed(field) => of_shape(schema, &field.shape, name, depth)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(validations: Value) -> Value {
        json!({"spec": {"validations": validations, "variables": [{"name": "replicas", "expression": "object.spec.replicas"}],
            "matchConstraints": {"resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments", "replicasets/status"]}]}}})
    }

    /// The policy of upstream's test `should type check validation expressions`.
    #[test]
    fn mistakes_that_only_the_schema_shows_are_told() {
        let schema = Schema::builtin();
        let found = warnings(
            &schema,
            &Served::default(),
            &policy(json!([
                {"expression": "object.spec.replicas > '1'", "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas"},
                {"expression": "object.spec.replicas < 100 && variables.replicas > 0"},
                {"expression": "object.spec.maxRetries < 10"},
                {"expression": "variables.replicas == 'x'"},
                {"expression": "object.metadata.creationTimestamp < timestamp('2020-01-01T00:00:00Z') && object.spec.strategy.rollingUpdate.maxSurge == 1"},
            ])),
        );
        let fields: Vec<&str> = found.iter().map(|warning| warning.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.validations[0].expression",
                "spec.validations[0].messageExpression",
                "spec.validations[2].expression",
                "spec.validations[3].expression"
            ]
        );
        assert_eq!(
            found[0].text,
            "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'\n | object.spec.replicas > '1'\n | .....................^\n"
        );
        assert!(found[2].text.contains("undefined field 'maxRetries'"), "{}", found[2].text);
    }

    #[test]
    fn wildcards_are_not_looked_at() {
        let schema = Schema::builtin();
        let mut any = policy(json!([{"expression": "object.spec.none"}]));
        any["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"] = json!(["*"]);
        assert_eq!(warnings(&schema, &Served::default(), &any), []);
    }

    #[test]
    fn resources_of_built_in_kinds_are_known() {
        let rows = [
            ("Pod", "pods"),
            ("Ingress", "ingresses"),
            ("NetworkPolicy", "networkpolicies"),
            ("Endpoints", "endpoints"),
            ("StorageClass", "storageclasses"),
        ];
        for (kind, resource) in rows {
            assert_eq!(plural(kind), resource);
        }
    }
}
