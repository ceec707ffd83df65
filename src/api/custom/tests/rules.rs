//! CEL rules: costs, errors and conditions of evaluation. The expectations are those of upstream's
//! tests in `pkg/apiserver/schema/cel`.

use serde_json::json;

use super::*;
use crate::custom::rules::{SELF_TYPE, compile};

/// The estimated cost of a rule.
fn cost(schema: &Value) -> u64 {
    let node = parse(schema).expect("a schema");
    let decl = Decl::of(&node, false, SELF_TYPE).expect("a type");
    let mut rules = compile(&node.rules, &decl);
    let program = rules.pop().expect("a rule").program.expect("it compiles").expect("a program");
    program.estimate(&*decl).max
}

fn with(mut schema: Value, key: &str, value: impl Into<Value>) -> Value {
    schema[key] = value.into();
    schema
}

fn ruled(schema: Value, rule: &str) -> Value {
    with(schema, "x-kubernetes-validations", json!([{"rule": rule}]))
}

fn of_type(name: &str) -> Value {
    match name {
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        "date" | "date-time" | "duration" => json!({"type": "string", "format": name}),
        "objects" => json!({"type": "object", "required": ["required"],
            "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}}),
        "lists" => json!({"type": "array", "items": {"type": "number"}}),
        "maps" => json!({"type": "object", "additionalProperties": {"type": "number"}}),
        name => json!({"type": name}),
    }
}

fn list(of: &str, rule: &str) -> Value {
    ruled(json!({"type": "array", "items": of_type(of)}), rule)
}

fn map(of: &str, rule: &str) -> Value {
    ruled(json!({"type": "object", "additionalProperties": of_type(of)}), rule)
}

#[test]
fn rules_cost_at_most_what_upstream_estimates() {
    for (of, rule, free, limit, bound) in [
        ("number", "self.all(x, true)", 4_718_591, 10, 32),
        ("string", "self.all(x, true)", 3_145_727, 20, 62),
        ("boolean", "self.all(x, true)", 1_887_437, 5, 17),
        ("lists", "self.all(x, true)", 3_145_727, 100, 302),
        ("objects", "self.all(x, true)", 555_128, 50, 152),
        ("number", "self[1] == 0.0", 2, 5000, 2),
        ("string", "self[1] == self[1]", 314_577, 8, 314_577),
        ("number", "self[3] == 0.0", 2, 0, 2),
        ("number", "self.all(x, x == 0.0)", 6_291_454, 3 * 1024 * 2048, 25_165_826),
        ("int-or-string", "self.all(x, true)", 4_718_591, 10, 32),
        ("int-or-string", "self[0] == 5", 3, 10, 3),
        ("boolean", "self[0] == false", 2, 25, 2),
        ("objects", "self[0] == null", 2, 422, 2),
        ("lists", "self[0][0] == -1.0", 3, 51, 3),
        ("maps", "self.all(x, x.y == 25.2)", 6_291_452, 12, 74),
        ("maps", "self[0].x > 2.0", 4, 3000, 4),
        ("duration", "self.all(x, true)", 2_359_295, 5, 17),
        ("duration", "self[0].getHours() == 2", 4, 525, 4),
        ("date", "self.all(x, true)", 725_936, 15, 47),
        ("date", "self[2].getDayOfMonth() == 13", 4, 42, 4),
        ("date-time", "self.all(x, true)", 428_963, 25, 77),
    ] {
        let schema = list(of, rule);
        assert_eq!(cost(&schema), free, "list of {of}: {rule}");
        assert_eq!(cost(&with(schema, "maxItems", limit)), bound, "list of {of}: {rule}");
    }
    for (of, rule, free, limit, bound) in [
        ("number", "self.all(x, true)", 1_348_169, 10, 32),
        ("string", "self.all(x, true)", 1_179_647, 3, 11),
        ("boolean", "self.all(x, true)", 943_718, 100, 302),
        ("number", "self[\"x\"] == 0.0", 2, 0, 2),
        ("int-or-string", "self.all(x, true)", 1_348_169, 15, 47),
        ("objects", "self.all(x, true)", 428_963, 20, 62),
        ("maps", "self.all(x, true)", 1_179_647, 10, 32),
        ("lists", "self.all(x, true)", 1_179_647, 25, 77),
        ("duration", "self.all(x, true)", 1_048_577, 5, 17),
        ("date", "self.all(x, true)", 524_288, 10, 32),
        ("date-time", "self.all(x, true)", 349_526, 25, 77),
    ] {
        let schema = map(of, rule);
        assert_eq!(cost(&schema), free, "map of {of}: {rule}");
        assert_eq!(cost(&with(schema, "maxProperties", limit)), bound, "map of {of}: {rule}");
    }
    for (rule, free, limit, bound) in [
        ("self.contains('test')", 314_574, 10, 5),
        ("self.startsWith('test')", 2, 15, 2),
        ("size(self + \"hello\") > size(\"hello\")", 314_578, 4, 7),
        ("self.matches(\"x\")", 314_574, 50, 22),
        ("\"\".matches(\"(((((((((())))))))))[0-9]\")", 7, 10, 7),
        ("self.matches(\"\")", 1, 100, 1),
        ("self == \"x\"", 2, 0, 1),
    ] {
        let schema = ruled(json!({"type": "string"}), rule);
        assert_eq!(cost(&schema), free, "{rule}");
        assert_eq!(cost(&with(schema, "maxLength", limit)), bound, "{rule}");
    }
    let bytes = ruled(json!({"type": "string", "format": "byte"}), "self == b\"x\"");
    assert_eq!((cost(&bytes), cost(&with(bytes, "maxLength", 0))), (2, 1));
    for nested in ["self.all(x, self.all(y, true))", "self.all(x, self.all(y, self.all(z, true)))"]
    {
        assert!(cost(&list("number", nested)) > 10_000_000);
    }
    assert_eq!(cost(&with(list("number", "self.all(x, self.all(y, true))"), "maxItems", 10)), 352);
}

#[test]
fn names_in_metadata_are_short() {
    for name in ["name", "generateName"] {
        let schema =
            ruled(json!({"type": "object"}), &format!("self.metadata.{name}.contains('x')"));
        let node = parse(&schema).unwrap();
        let decl = Decl::of(&node, true, SELF_TYPE).unwrap();
        let compiled = compile(&node.rules, &decl);
        let program = compiled[0].program.as_ref().unwrap().as_ref().unwrap();
        let cost = program.estimate(&*decl).max;
        assert!((1..=10_000).contains(&cost), "{name} {cost}");
    }
}

/// The errors of a change at `root`, then the warnings, then the remaining budget.
fn run_for(
    schema: &Value,
    (new, old): (&Value, Option<&Value>),
    mut budget: u64,
) -> (Vec<String>, Vec<String>, u64) {
    let node = parse(schema).expect("a schema");
    let rules = Rules::new(&node, false).expect("rules");
    let write = Write { node: &node, new, old, ratchets: true };
    let found = rules.run(write, &Path::new("root"), &mut budget);
    (texts(&found.errors), found.warnings, budget)
}

fn run(schema: &Value, new: Value, old: Option<Value>) -> (Vec<String>, Vec<String>) {
    let (errors, warnings, _) = run_for(schema, (&new, old.as_ref()), 10_000_000);
    (errors, warnings)
}

fn errors_of(schema: &Value, new: Value) -> Vec<String> {
    run(schema, new, None).0
}

#[test]
fn what_cannot_be_evaluated_is_told() {
    let object = json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}},
        "a1": {"type": "object", "properties": {"d2": {"type": "object", "properties": {"e2": {"type": "string"}}}}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}}, "port": {"x-kubernetes-int-or-string": true},
        "any": {"x-kubernetes-preserve-unknown-fields": true}, "f/2": {"type": "string"}, "namespace": {"type": "string"},
    }});
    let value = json!({"n": i64::MAX, "list": [1], "a1": {}, "map": {}, "port": "http", "any": 1, "f/2": "x", "namespace": "y"});
    for (rule, wanted) in [
        ("self.n + 1 == 0", "integer overflow evaluating rule: self.n + 1 == 0"),
        ("self.n / 0 == 1", "division by zero evaluating rule: self.n / 0 == 1"),
        ("self.list[100] == 0", "index out of bounds: 100 evaluating rule: self.list[100] == 0"),
        ("has(self.a1.d2.e2)", "no such key: d2 evaluating rule: has(self.a1.d2.e2)"),
        ("self.map['c'] == 1", "no such key: c evaluating rule: self.map['c'] == 1"),
        (
            "self.port > 1",
            "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: self.port > 1",
        ),
        (
            "self.any == 1",
            "rule compile error: compilation failed: ERROR: <input>:1:5: undefined field 'any'\n | self.any == 1\n | ....^",
        ),
        ("self.f__slash__2 == 'x' && self.namespace == 'y' && self.__namespace__ == 'y'", ""),
        ("self.n", "rule compile error: cel expression must evaluate to a bool"),
        ("false", "failed rule: false"),
        ("  false ", "failed rule: false"),
    ] {
        let told = errors_of(&ruled(object.clone(), rule), value.clone()).join("; ");
        let shown = if rule.trim() == "false" { "" } else { " \"object\":" };
        let wanted = match wanted {
            "" => String::new(),
            text => format!("root: Invalid value:{shown} {text}"),
        };
        assert_eq!(told, wanted, "{rule}");
    }
}

// `TestMessageExpression`.
#[test]
fn messages_are_made_within_the_budget() {
    let told = |message: &str, expression: &str, budget: u64| {
        let schema = json!({"type": "object", "properties": {"str": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "false", "message": message, "messageExpression": expression}]});
        let (errors, _, left) = run_for(&schema, (&json!({"str": "a string"}), None), budget);
        (errors.join("; "), left)
    };
    let root = |text: &str, left: u64| (format!("root: Invalid value: {text}"), left);
    assert_eq!(told("", "\"static string\"", 300), root("static string", 300));
    assert_eq!(told("invisible", "\"this is it\"", 300), root("this is it", 300));
    assert_eq!(told("", "true", 300), root("failed rule: false", 300));
    assert_eq!(
        told("", "\"string 1\" + \"string 2\" + \"string 3\"", 1),
        root(
            "\"object\": messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run",
            0
        )
    );
    assert_eq!(told("", "\"str1 \" + self.str", 50), root("str1 a string", 46));
    let outside = "\"str1 \" + [\"a\", \"b\", \"c\", \"d\"][4]";
    assert_eq!(told(" own message ", outside, 50), root("own message", 47));
    assert_eq!(told("", outside, 50), root("failed rule: false", 47));
    for unfit in ["\"str with \\na newline\"", "string(\"\")", "string(\"     \")"] {
        assert_eq!(told("own", unfit, 300).0, "root: Invalid value: own");
    }
    let long = format!("\"{}\"", "a".repeat(5121));
    assert_eq!(told("own", &long, 300).0, "root: Invalid value: own");
}

// `TestReasonAndFldPath`.
#[test]
fn reasons_and_paths_are_those_of_the_rule() {
    let schema = json!({"type": "object",
    "properties": {"field1": {"type": "string"}, "field2": {"type": "string"}, "field3": {"type": "string"}},
    "x-kubernetes-validations": [
        {"rule": "self.field2 != 'value2'", "reason": "FieldValueDuplicate", "fieldPath": ".field2"},
        {"rule": "self.field3 != 'value3'", "reason": "FieldValueRequired", "fieldPath": ".field3"},
        {"rule": "self.field1 != 'value1'", "reason": "FieldValueForbidden", "fieldPath": "['field1']"},
    ]});
    assert_eq!(
        errors_of(&schema, json!({"field1": "value1", "field2": "value2", "field3": "value3"})),
        [
            "root.field2: Duplicate value",
            "root.field3: Required value: failed rule: self.field3 != 'value3'",
            "root.field1: Forbidden: failed rule: self.field1 != 'value1'",
        ]
    );
}

// `TestOptionalOldSelf`, and rules about changes.
#[test]
fn changes_are_judged_by_what_was_before() {
    let change =
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]});
    assert_eq!(errors_of(&change, json!(1)), [""; 0]);
    assert_eq!(run(&change, json!(1), Some(Value::Null)).0, [""; 0]);
    assert_eq!(run(&change, json!(3), Some(json!(2))).0, [""; 0]);
    assert_eq!(
        run(&change, json!(1), Some(json!(2))).0,
        ["root: Invalid value: 1: failed rule: self >= oldSelf"]
    );
    let rule = "self >= 10 || (oldSelf.hasValue() && oldSelf.value() <= self)";
    let optional = json!({"type": "integer", "x-kubernetes-validations": [{"rule": rule, "optionalOldSelf": true}]});
    for (new, old, good) in [
        (10, None, true),
        (9, None, false),
        (10, Some(5), true),
        (9, Some(5), true),
        (5, Some(5), true),
        (4, Some(5), false),
    ] {
        let errors = run(&optional, json!(new), old.map(|old| json!(old))).0;
        assert_eq!(errors.is_empty(), good, "{new} after {old:?}: {errors:?}");
    }
    let chained = json!({"type": "object", "properties": {"foo": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.foo == 'valid' || oldSelf.foo.orValue('') != 'valid'", "optionalOldSelf": true}]});
    let invalid = || json!({"foo": "invalid"});
    assert_eq!(run(&chained, json!({"foo": "again"}), Some(invalid())).0, [""; 0]);
    assert_eq!(run(&chained, invalid(), Some(json!({"foo": "valid"}))).0.len(), 1);
    // Items of lists of type map are correlated by their keys.
    let items = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer",
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "v is immutable"}]}}}});
    assert_eq!(
        run(
            &items,
            json!([{"k": "b", "v": 2}, {"k": "c", "v": 9}, {"k": "a", "v": 3}]),
            Some(json!([{"k": "a", "v": 1}, {"k": "b", "v": 2}]))
        )
        .0,
        ["root[2].v: Invalid value: 3: v is immutable"]
    );
}

// `TestRatcheting`.
#[test]
fn what_did_not_change_is_a_warning() {
    let baz = || json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 'baz'", "message": "gotta be baz"}]});
    let fields =
        || json!({"type": "object", "properties": {"key": {"type": "string"}, "bar": baz()}});
    let check = |schema: Value, old: Value, new: Value, errors: &[&str], warnings: &[&str]| {
        let found = run(&schema, new, Some(old));
        assert_eq!(found.0, errors, "{schema}");
        assert_eq!(found.1, warnings, "{schema}");
    };
    let same = || json!({"bar": "bar"});
    check(fields(), same(), same(), &[], &["root.bar: Invalid value: \"bar\": gotta be baz"]);
    let atomic = json!({"type": "array", "items": fields()});
    let told = "root[0].bar: Invalid value: \"bar\": gotta be baz";
    check(atomic.clone(), json!([same()]), json!([same()]), &[], &[told]);
    check(atomic.clone(), json!([same()]), json!([same(), {"bar": "baz"}]), &[told], &[]);
    let within = json!({"type": "object", "properties": {"s": {"type": "string"}, "list": atomic}});
    check(
        within,
        json!({"s": "foo", "list": [same()]}),
        json!({"s": "changed", "list": [same()]}),
        &[],
        &["root.list[0].bar: Invalid value: \"bar\": gotta be baz"],
    );
    let keyed = json!({"type": "array", "items": fields(), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]});
    check(
        keyed,
        json!([{"key": "a", "bar": "no"}, {"key": "b", "bar": "no"}]),
        json!([{"key": "b", "bar": "no"}, {"key": "a", "bar": "nor"}]),
        &["root[1].bar: Invalid value: \"nor\": gotta be baz"],
        &["root[0].bar: Invalid value: \"no\": gotta be baz"],
    );
    let change = json!({"type": "object", "properties": {"foo": {"type": "string",
        "x-kubernetes-validations": [{"rule": "oldSelf != 'bar' && self == 'baz'", "message": "gotta be baz"}]}}});
    let told = "root.foo: Invalid value: \"bar\": gotta be baz";
    check(change, json!({"foo": "bar"}), json!({"foo": "bar"}), &[told], &[]);
    let path = json!({"type": "object", "properties": {"bar": {"type": "string"}, "foo": {"type": "string"}},
        "x-kubernetes-validations": [{"rule": "self.foo == 'baz'", "message": "gotta be baz", "fieldPath": ".foo"}]});
    let new = json!({"foo": "bar", "bar": "invalid"});
    check(path, json!({"foo": "bar"}), new, &["root.foo: Invalid value: gotta be baz"], &[]);
    let top = |name: &str| json!({"type": "object", "properties": {name: {"type": "string", "x-kubernetes-validations": [{"rule": "self == 'v1'"}]}}});
    let told = "root.apiVersion: Invalid value: \"v2\": failed rule: self == 'v1'";
    let v2 = || json!({"apiVersion": "v2"});
    check(top("apiVersion"), v2(), v2(), &[told], &[]);
    let nested = json!({"type": "object", "properties": {"sub": top("apiVersion")}});
    let told = "root.sub.apiVersion: Invalid value: \"v2\": failed rule: self == 'v1'";
    check(nested, json!({"sub": v2()}), json!({"sub": v2()}), &[], &[told]);
}

#[test]
fn budgets_end_the_run() {
    const OUT: &str = "validation failed due to running out of cost budget, no further validation rules will be run";
    let schema = ruled(json!({"type": "string"}), "self == 'baz'");
    let text = json!("unchanged");
    let (errors, warnings, left) = run_for(&schema, (&text, Some(&text)), 1);
    assert_eq!(errors, [format!("root: Invalid value: \"string\": {OUT}")]);
    assert_eq!((warnings.len(), left), (0, 0));
    assert_eq!(run_for(&schema, (&text, None), 0).0.len(), 1);
    // The cost of one rule is limited to one million; this rule costs four million.
    let expensive = json!({"type": "object", "properties": {
        "a": {"type": "string", "x-kubernetes-validations": [{"rule": "self.contains(self)", "message": "itself"}]},
        "other": {"type": "integer", "x-kubernetes-validations": [{"rule": "false"}]}}});
    assert_eq!(
        errors_of(&expensive, json!({"a": "x".repeat(20_000), "other": 1})),
        [
            "root.a: Invalid value: \"string\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: itself"
        ]
    );
    // At most one thousand errors are reported for an object.
    let cheap = json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "false"}]}});
    assert_eq!(errors_of(&cheap, json!(vec![0; 5000])).len(), 1000);
}

#[test]
fn rules_wait_for_values_of_the_right_types() {
    let schema = Structural::new(&json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.b > 1"}, {"rule": "self.metadata.name.startsWith(self.a)"}]}))
    .unwrap();
    let object = |a: Value, b: i64| json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "x"}, "a": a, "b": b});
    let check = |value: Value| texts(&schema.validate(&value, None, &Path::default()));
    assert_eq!(check(object(json!("x"), 2)), [""; 0]);
    assert_eq!(
        check(object(json!("y"), 1)),
        [
            "<nil>: Invalid value: failed rule: self.b > 1",
            "<nil>: Invalid value: failed rule: self.metadata.name.startsWith(self.a)",
        ]
    );
    assert_eq!(
        check(object(json!(7), 1)),
        [
            "a: Invalid value: \"integer\": a in body must be of type string: \"integer\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ]
    );
    assert!(schema.property("b").unwrap().rules(&json!(1), None, &[]).0.is_empty());
}

#[test]
fn embedded_resources_have_names_and_unescapable_properties_rules() {
    let schema = json!({"type": "object", "properties": {
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true,
            "x-kubernetes-validations": [{"rule": "self.kind == 'Pod' && self.metadata.name == 'p'"}]},
        "a b": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]},
        "maybe": {"type": "string", "nullable": true, "x-kubernetes-validations": [{"rule": "self == 'x'"}]}},
        "x-kubernetes-validations": [{"rule": "!has(self.template) || self.template.metadata.name != 'q'"}]});
    let pod = |name: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": {}});
    assert_eq!(errors_of(&schema, json!({"template": pod("p"), "a b": 2, "maybe": null})), [""; 0]);
    assert_eq!(
        errors_of(&schema, json!({"template": pod("q"), "a b": 1})),
        [
            "root: Invalid value: failed rule: !has(self.template) || self.template.metadata.name != 'q'",
            "root.a b: Invalid value: 1: failed rule: self > 1",
            "root.template: Invalid value: failed rule: self.kind == 'Pod' && self.metadata.name == 'p'",
        ]
    );
}

#[test]
fn defaults_keep_the_rules() {
    let schema = |default: &str| {
        json!({"type": "object", "properties": {"value": {"type": "string", "default": default,
        "x-kubernetes-validations": [{"rule": "self.startsWith('kube')"}]}}})
    };
    let check = |default: &str| texts(&validate_defaults(&schema(default), &Path::new("s"), true));
    assert_eq!(check("kubernetes"), [""; 0]);
    assert_eq!(
        check("other"),
        [
            "s.properties[value].default: Invalid value: \"other\": failed rule: self.startsWith('kube')"
        ]
    );
    assert!(has_pruned_defaults(&schema("other")));
}

// `TestValidateFieldPath`.
#[test]
fn paths_of_rules_are_read() {
    let number = || json!({"type": "number"});
    let node = parse(&json!({"type": "object", "properties": {
        "foo": {"type": "object", "additionalProperties": number()}, "white space": number(), "'foo'bar": number(),
        "a": {"type": "object", "properties": {"foo's": number(), "test\u{7}": number(), "bb[b": number(),
            "bbb": {"type": "object", "properties": {"c": number(), "34": number()}}, "bbb.c": {"type": "object"}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": number()}}}}}))
    .unwrap();
    for (path, wanted) in [
        (".a", "a"),
        ("['\\'foo\\'bar']", "'foo'bar"),
        (".white space", "white space"),
        (".a['bbb.c']", "a.bbb.c"),
        (".a['test\\a']", "a.test\u{7}"),
        (".foo.subAdd", "foo[subAdd]"),
        (".foo['subAdd']", "foo[subAdd]"),
        (".a.foo's", "a.foo's"),
        (".a['foo\\'s']", "a.foo's"),
        (".a.bbb['34']", "a.bbb.34"),
        (".list", "list"),
    ] {
        let shown = crate::custom::paths::shown(path, &node);
        assert_eq!(shown, Some(Path::new(wanted)), "{path}");
    }
    for path in [
        ".\\'foo\\'bar",
        ". a",
        ".a.bb[b",
        ".a['bbb.c'",
        ".",
        ".a.foo",
        ".a.bbb[0]",
        ".list[0]",
        ".list. a",
        ".list['a']",
        "a",
        ".c",
        ".a..b",
        ".list.a-b.34",
        ".a['\\x']",
    ] {
        assert_eq!(crate::custom::paths::shown(path, &node), None, "{path}");
    }
}
