//! Conversion of values to JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map as Object, Number};

use crate::value::{Error, Value};

type Json = serde_json::Value;

impl Value<'_> {
    /// Converts the value to JSON: bytes to base64, timestamps and durations to text, an empty
    /// optional to null.
    ///
    /// # Errors
    /// Maps with keys that are not strings, numbers that JSON does not have, and values of
    /// libraries.
    pub fn to_json(&self) -> Result<Json, Error> {
        Ok(match self {
            Value::Null | Value::Optional(None) => Json::Null,
            Value::Optional(Some(inner)) => inner.to_json()?,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => {
                let number = Number::from_f64(*value);
                let none = || Error::new(format!("number {value} cannot be written as JSON"));
                Json::Number(number.ok_or_else(none)?)
            }
            Value::String(text) => (**text).into(),
            Value::Bytes(bytes) => STANDARD.encode(bytes).into(),
            Value::Timestamp(_) | Value::Duration(_) => {
                crate::convert::to_string(self)?.as_str().unwrap_or_default().into()
            }
            Value::List(list) => {
                let items = list.iter().map(|item| item?.to_json());
                Json::Array(items.collect::<Result<_, _>>()?)
            }
            Value::Map(map) => {
                let mut object = Object::new();
                for key in map.keys() {
                    let name = key.as_str().ok_or_else(|| {
                        let of = key.type_name();
                        Error::new(format!("map key {key} is of type {of}, not string"))
                    })?;
                    if let Some(value) = map.find(&key)? {
                        object.insert(name.to_owned(), value.to_json()?);
                    }
                }
                Json::Object(object)
            }
            Value::Object(object) => {
                let fields = object.fields.iter();
                let fields = fields.map(|(name, value)| Ok((name.clone(), value.to_json()?)));
                Json::Object(fields.collect::<Result<_, Error>>()?)
            }
            Value::Preserved(json) => (*json).clone(),
            Value::Type(_) | Value::Host(_) => {
                let of = self.type_name();
                return Err(Error::new(format!("type conversion error from '{of}' to JSON")));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Type, Variables};
    use serde_json::json;

    #[test]
    fn values_become_json() {
        let object = json!({"a": [1, 2.5, null], "b": {"c": true}});
        let env = Env::new().variable("object", Type::Dyn).with_mutation();
        let cases = [
            ("object", object.clone()),
            (
                "Object{spec: Object.spec{a: object.a, n: -3}}",
                json!({"spec": {"a": [1, 2.5, null], "n": -3}}),
            ),
            ("{'x': [1u, 2u]}", json!({"x": [1, 2]})),
            ("b'hi'", json!("aGk=")),
            ("timestamp('2024-02-29T12:30:45Z')", json!("2024-02-29T12:30:45Z")),
            ("duration('90s')", json!("90s")),
        ];
        for (text, wanted) in cases {
            let program = env.compile_any(text).unwrap();
            let variables = Variables(vec![("object", crate::Value::json(&object))]);
            let value = program.eval(&variables, &mut 10_000).unwrap();
            assert_eq!(value.to_json().unwrap(), wanted, "{text}");
        }
        let keyed = env.compile_any("{1: 'a'}").unwrap();
        assert!(keyed.eval(&Variables::default(), &mut 10_000).unwrap().to_json().is_err());
    }
}
