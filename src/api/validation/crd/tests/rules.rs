//! Tests of the rules in schemas, with cases of `TestValidateCustomResourceDefinitionValidation`
//! (`pkg/apis/apiextensions/validation`).

use super::*;

const AT: &str = "spec.validation.openAPIV3Schema";
const HINT: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";

fn definition(properties: Value, rules: Value) -> Value {
    let mut definition = good();
    definition["spec"]["versions"][0]["selectableFields"] = json!([]);
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "properties": properties, "x-kubernetes-validations": rules});
    definition
}

/// The errors of a definition with the given properties, without the path prefix that all have.
fn told(properties: Value) -> Vec<String> {
    let texts = texts_of(&definition(properties, json!([])));
    texts.iter().map(|text| text.strip_prefix(AT).unwrap_or(text).to_owned()).collect()
}

#[test]
fn expressions_are_compiled() {
    let rules = json!([
        {"rule": "self.minReplicas <= self.maxReplicas"},
        {"rule": "self.invalidFieldName > 50", "message": "<why>", "reason": "FieldValueForbidden"},
        {"rule": "self.minReplicas"},
        {"rule": "self.if > 0 && self.__namespace__ > 0 && self.namespace > 0 && self.__if__ > 0"},
        {"rule": "self.metadata.name != '' && has(self.metadata.generateName) && self.kind == 'Foo'"},
    ]);
    let properties = json!({"minReplicas": {"type": "integer"}, "maxReplicas": {"type": "integer"}, "if": {"type": "integer"}, "namespace": {"type": "integer"}});
    assert_eq!(
        texts_of(&definition(properties.clone(), rules)),
        [
            format!(
                "{AT}.x-kubernetes-validations[1].rule: Invalid value: {{\"Rule\":\"self.invalidFieldName \\u003e 50\",\"Message\":\"\\u003cwhy\\u003e\",\"MessageExpression\":\"\",\"Reason\":\"FieldValueForbidden\",\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: compilation failed: ERROR: <input>:1:5: undefined field 'invalidFieldName'\n | self.invalidFieldName > 50\n | ....^"
            ),
            format!(
                "{AT}.x-kubernetes-validations[2].rule: Invalid value: {{\"Rule\":\"self.minReplicas\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: cel expression must evaluate to a bool"
            ),
        ]
    );
    let texts = told(json!({"f": {"type": "string", "x-kubernetes-validations": [
        {"rule": "self == 'string value'", "messageExpression": "self + "},
        {"rule": "self == 'string value'", "messageExpression": "true"},
        {"rule": "self == 'string value'", "messageExpression": "self"}]}}));
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].starts_with(".properties[f].x-kubernetes-validations[0].messageExpression: Invalid value: {\"Rule\":"), "{texts:?}");
    assert!(
        texts[0]
            .contains(": messageExpression compilation failed: ERROR: <input>:1:8: Syntax error"),
        "{texts:?}"
    );
    assert!(texts[1].ends_with(": messageExpression must evaluate to a string"), "{texts:?}");
}

#[test]
fn expressions_are_compiled_wherever_they_stand() {
    let wrong = || json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 1"}]});
    let whole = [json!([]), json!([{"rule": "1 == 1"}])];
    for rules in whole {
        for (properties, place) in [
            (json!({"f": wrong()}), "properties[f]"),
            (json!({"f/2": wrong()}), "properties[f/2]"),
            (json!({"f@2": wrong()}), "properties[f@2]"),
            (json!({"a": {"type": "array", "items": wrong()}}), "properties[a].items"),
            (
                json!({"a": {"type": "object", "additionalProperties": wrong()}}),
                "properties[a].additionalProperties",
            ),
        ] {
            let texts = texts_of(&definition(properties, rules.clone()));
            assert_eq!(texts.len(), 1, "{place}: {texts:?}");
            let start = format!("{AT}.{place}.x-kubernetes-validations[0].rule: Invalid value: ");
            assert!(texts[0].starts_with(&start), "{texts:?}");
            let end = "found no matching overload for '_==_' applied to '(string, int)'\n | self == 1\n | .....^";
            assert!(texts[0].ends_with(end), "{texts:?}");
        }
    }
    // Values without a type have no CEL type.
    let texts = told(
        json!({"x": {"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-validations": [{"rule": "true"}]}}),
    );
    assert_eq!(
        texts,
        [
            ".properties[x].x-kubernetes-validations: Internal error: internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations"
        ]
    );
}

#[test]
fn a_wrong_schema_keeps_its_expressions_unseen() {
    let both = || json!({"type": "object", "properties": {"field": {"type": "integer"}}, "additionalProperties": {"type": "string"}});
    let alone = ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive";
    let rules = json!([{"rule": "self.invalidFieldName > 50"}]);
    assert_eq!(
        texts_of(&definition(json!({"field": both()}), rules.clone())),
        [format!("{AT}.properties[field]{alone}")]
    );
    let apart = json!({"a": both(), "b": {"type": "object", "properties": {"field": {"type": "integer"}}, "x-kubernetes-validations": rules}});
    let texts = told(apart);
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0], format!(".properties[a]{alone}"));
    assert!(
        texts[1].starts_with(".properties[b].x-kubernetes-validations[0].rule: Invalid value:")
    );
}

#[test]
fn old_values_are_known_where_parts_can_be_followed() {
    let item = |rule: Value| {
        json!({"type": "object", "x-kubernetes-map-type": "atomic", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 9}},
        "x-kubernetes-validations": [rule]})
    };
    let list = |kind: Value, rule: Value| {
        let mut list = json!({"type": "array", "maxItems": 9, "items": item(rule)});
        if kind == "map" {
            list["x-kubernetes-list-map-keys"] = json!(["name"]);
        }
        if !kind.is_null() {
            list["x-kubernetes-list-type"] = kind;
        }
        told(json!({"value": list}))
    };
    let plain = || json!({"rule": "self.name == oldSelf.name"});
    let optional =
        || json!({"rule": "self.name == oldSelf.name.orValue('')", "optionalOldSelf": true});
    assert_eq!(list(json!("map"), plain()), [""; 0]);
    assert_eq!(list(json!("map"), optional()), [""; 0]);
    let within = format!(
        "oldSelf cannot be used on the uncorrelatable portion of the schema within {AT}.properties[value]"
    );
    for kind in [Value::Null, json!("atomic"), json!("set")] {
        for rule in [plain(), optional()] {
            let source = rule["rule"].clone();
            assert_eq!(
                list(kind.clone(), rule),
                [format!(
                    ".properties[value].items.x-kubernetes-validations[0].rule: Invalid value: {source}: {within}"
                )]
            );
        }
    }
    // The list itself is always correlatable.
    for kind in ["atomic", "set"] {
        let list = json!({"type": "array", "maxItems": 9, "items": {"type": "string", "maxLength": 9}, "x-kubernetes-list-type": kind,
            "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
        assert_eq!(told(json!({"value": list})), [""; 0]);
    }
    for optional in [true, false] {
        assert_eq!(
            told(
                json!({"value": {"type": "string", "x-kubernetes-validations": [{"rule": "self == 'foo'", "optionalOldSelf": optional}]}})
            ),
            [format!(
                ".properties[value].x-kubernetes-validations[0].optionalOldSelf: Invalid value: {optional}: may not be set if oldSelf is not used in rule"
            )]
        );
    }
}

#[test]
fn costs_are_bounded() {
    let text = || json!({"type": "string", "maxLength": 5000, "x-kubernetes-validations": [{"rule": "self.contains('keyword')"}]});
    let properties = json!({
        "list": {"type": "array", "maxItems": 100_000, "items": text()},
        "map": {"type": "object", "maxProperties": 1000, "additionalProperties": text()},
        "field": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 50 && self < 100"}]},
    });
    let contributed = "Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
    let of_list = ".properties[list].items.x-kubernetes-validations[0].rule";
    let of_map = ".properties[map].additionalProperties.x-kubernetes-validations[0].rule";
    let total = [
        format!("{of_list}: {contributed}"),
        format!("{of_map}: {contributed}"),
        format!(
            ": Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of 2.0x {HINT}"
        ),
    ];
    // 100000 times the cost of `self`, which is 1, plus a tenth of 20000 bytes.
    let own = format!(
        "{of_list}: Forbidden: estimated rule cost exceeds budget by factor of 20.0x {HINT}"
    );
    assert_eq!(told(properties.clone()), [&[own], &total[..]].concat());
    // For an unchanged schema only the limit on the total cost applies.
    let old = definition(properties, json!([]));
    let texts: Vec<String> = validate_change(&old, &old).iter().map(ToString::to_string).collect();
    assert_eq!(texts, total.map(|text| format!("{AT}{text}")));
    let nested = json!({"value": {"type": "array", "items": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "object",
        "required": ["key"], "properties": {"key": {"type": "string"}}}}},
        "x-kubernetes-validations": [{"rule": "self.all(x, x.all(y, x[0] == x[0] && y == y))"}]}});
    let found = told(nested);
    assert_eq!(
        found[0],
        format!(
            ".properties[value].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {HINT}"
        )
    );
    assert_eq!(found.len(), 3);
    let lower = json!({"list": {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 10},
        "x-kubernetes-validations": [{"rule": "self.all(x, self.exists_one(y, x.lowerAscii() == y.lowerAscii()))"}]}});
    assert_eq!(told(lower), [""; 0]);
    let message = json!({"f": {"type": "array", "maxItems": 1_000_000, "items": {"type": "string", "maxLength": 50},
        "x-kubernetes-validations": [{"rule": "true", "messageExpression": "self[0] + (self.all(x, x.matches('^a+$')) ? 'a' : 'b')"}]}});
    let found = told(message);
    assert!(found[0].starts_with(".properties[f].x-kubernetes-validations[0].messageExpression: Forbidden: estimated messageExpression cost exceeds budget by factor of "), "{found:?}");
}
