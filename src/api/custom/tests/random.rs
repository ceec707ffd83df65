//! Random schemas and values: processing never panics, and pruning and defaulting are idempotent.

use serde_json::{Map, Value, json};

use super::super::*;

/// A deterministic generator of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let index = usize::try_from(self.roll(of.len() as u64)).unwrap_or(0);
        of.get(index).copied().unwrap_or_default()
    }

    fn schema(&mut self, depth: u64) -> Value {
        let mut map = Map::new();
        let types = [
            "object", "object", "array", "string", "integer", "number", "boolean", "", "null",
            "odd",
        ];
        map.insert("type".into(), self.one(&types).into());
        for _ in 0..self.roll(4) {
            let key = self.one(&[
                "nullable",
                "default",
                "x-kubernetes-int-or-string",
                "x-kubernetes-preserve-unknown-fields",
                "x-kubernetes-embedded-resource",
                "x-kubernetes-list-type",
                "x-kubernetes-list-map-keys",
                "x-kubernetes-map-type",
                "x-kubernetes-validations",
                "format",
                "maximum",
                "minimum",
                "multipleOf",
                "maxLength",
                "pattern",
                "maxItems",
                "uniqueItems",
                "maxProperties",
                "enum",
                "required",
                "items",
                "properties",
                "additionalProperties",
                "allOf",
                "anyOf",
                "oneOf",
                "not",
            ]);
            let value = self.keyword(key, depth);
            map.insert(key.into(), value);
        }
        Value::Object(map)
    }

    fn keyword(&mut self, key: &str, depth: u64) -> Value {
        let deeper = depth > 0;
        match key {
            "default" => self.value(2),
            "x-kubernetes-list-type" => self.one(&["set", "map", "atomic"]).into(),
            "x-kubernetes-map-type" => "atomic".into(),
            "x-kubernetes-validations" => json!([{
                "rule": self.one(&["self == oldSelf", "size(self) > 1", "has(self.a) && self.a != self.b", "self > 1", "self.all(x, x == x)", "("]),
                "messageExpression": self.one(&["", "'x'", "string(self)"]),
                "fieldPath": self.one(&["", ".a", "['b']", "."]),
                "optionalOldSelf": self.roll(3) == 0,
            }]),
            "x-kubernetes-list-map-keys" | "required" => json!(["a", "b"]),
            "format" => self
                .one(&["date", "date-time", "int32", "float", "duration", "uri", "email", "x"])
                .into(),
            "maximum" | "minimum" | "multipleOf" => json!(self.roll(7) as f64 / 2.0 - 1.0),
            "maxLength" | "maxItems" | "maxProperties" => self.roll(3).into(),
            "pattern" => {
                self.one(&["^a+$", "(", "[\\w-]{2,}", "(?i)b", "a{1000}{9}", "\\pL"]).into()
            }
            "enum" => json!([self.value(1), self.value(1)]),
            "items" | "not" | "additionalProperties" if deeper => self.schema(depth - 1),
            "properties" if deeper => {
                let [a, b, metadata] = [(); 3].map(|()| self.schema(depth - 1));
                json!({"a": a, "b": b, "metadata": metadata})
            }
            "allOf" | "anyOf" | "oneOf" if deeper => {
                json!([self.schema(depth - 1), self.schema(depth - 1)])
            }
            _ => Value::Bool(true),
        }
    }

    fn value(&mut self, depth: u64) -> Value {
        match self.roll(if depth > 0 { 9 } else { 6 }) {
            0 => Value::Null,
            1 => true.into(),
            2 => i64::try_from(self.roll(9)).unwrap_or(0).into(),
            3 => json!(self.roll(99) as f64 / 7.0),
            4 | 5 => self.one(&["", "a", "aa", "2020-01-01", "ä{", "v1"]).into(),
            6 => json!([self.value(depth - 1), self.value(depth - 1)]),
            _ => {
                let mut map = Map::new();
                for _ in 0..self.roll(4) {
                    let name = self.one(&["a", "b", "c", "metadata", "kind", "apiVersion"]);
                    map.insert(name.into(), self.value(depth - 1));
                }
                Value::Object(map)
            }
        }
    }
}

#[test]
fn any_schema_takes_any_value() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    for _ in 0..4000 {
        let source = dice.schema(3);
        let Ok(schema) = Structural::new(&source) else { continue };
        read += 1;
        let (mut new, old) = (dice.value(4), dice.value(4));
        let options = PruneOptions { resource: false, collect: true };
        let removed = schema.prune(&mut new, &options);
        let once = new.clone();
        assert_eq!(schema.prune(&mut new, &options), [""; 0], "{source} {removed:?}");
        assert_eq!(new, once);
        schema.default(&mut new);
        let once = new.clone();
        schema.default(&mut new);
        assert_eq!(new, once, "{source}");
        let _ = schema.coerce(&mut new, true);
        let _ = schema.validate(&new, Some(&old), &Path::default());
        // Unchanged values are no errors, except in parts that are not correlated.
        let _ = schema.validate(&new, Some(&new), &Path::default());
        let _ = crate::custom::validate_defaults(&source, &Path::default(), true);
        let _ = crate::validation::crd::validate(
            &json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": source}}]}}),
        );
    }
    assert!(read > 500, "{read} schemas could be read");
}
