//! Paths to fields of a schema, as selectable fields and rules use them (`ValidFieldPath` of
//! `pkg/apiserver/schema/cel`).

use serde_json::Value;

use crate::custom::{FieldPathError, Steps};
use crate::value::{get, is_empty};

/// The error of a path that names no field of a schema; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnknownField {
    #[error(transparent)]
    Path(#[from] FieldPathError),
    #[error("does not refer to a valid field")]
    NoSchema,
}

/// Returns the first name of a path such as `.spec.color` or `.spec['x']`, and the schema at its
/// end.
///
/// # Errors
/// Upstream's text.
pub(super) fn find<'a>(
    path: &'a str,
    schema: &'a Value,
    brackets: bool,
) -> Result<(&'a str, &'a Value), UnknownField> {
    let mut schema = schema;
    for step in Steps::new(path, brackets) {
        let name = step?;
        let below = if !is_empty(schema, "properties") {
            get(get(schema, "properties"), &name)
        } else {
            get(schema, "additionalProperties")
        };
        if !below.is_object() {
            return Err(UnknownField::NoSchema);
        }
        schema = below;
    }
    let start = path.trim_start_matches(['.', '[', '\'']);
    let end = start.find(['.', '[', ']', '\'']).unwrap_or(start.len());
    Ok((start.get(..end).unwrap_or(start), schema))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `TestValidateFieldPath` of `pkg/apiserver/schema/cel`.
    #[test]
    fn paths_name_fields_of_the_schema() {
        let scalar = json!({"type": "string"});
        let schema = json!({"type": "object", "properties": {
            "white space": scalar,
            "'foo'bar": scalar,
            "a": {"type": "object", "properties": {
                "bbb": {"type": "object", "properties": {"34": scalar}},
                "bbb.c": scalar,
                "foo's": scalar}},
            "list": {"type": "array", "items": scalar},
            "foo": {"type": "object", "additionalProperties": {"type": "integer"}}}});
        let check = |path: &str, expected: Result<&str, &str>| {
            let found = find(path, &schema, true).map(|(_, below)| below["type"].to_string());
            let found = found.map_err(|why| why.to_string());
            let expected = expected.map(|kind| format!("{kind:?}")).map_err(str::to_owned);
            assert_eq!(found, expected, "{path}");
        };
        const UNKNOWN: Result<&str, &str> = Err("does not refer to a valid field");
        const END: Result<&str, &str> = Err("unexpected end of JSON path");
        check(".a", Ok("object"));
        check(".white space", Ok("string"));
        check("['white space']", Ok("string"));
        check("['\\'foo\\'bar']", Ok("string"));
        check(".a['bbb.c']", Ok("string"));
        check(".a['foo\\'s']", Ok("string"));
        check(".a.bbb['34']", Ok("string"));
        check(".foo.subAdd", Ok("integer"));
        check(".foo['subAdd']", Ok("integer"));
        check(".list", Ok("array"));
        for path in [". a", ".a.bb[b", ".a.foo", ".list. a", ".list['a']", ".c", ".a..b"] {
            check(path, UNKNOWN);
        }
        check(".a['bbb.c'", END);
        check(".", END);
        check("a", Err("expected [ or . but got: a"));
        check(".a.bbb[0]", Err("expected single quoted string but got 0"));
        let without = find(".a['bbb.c']", &schema, false).unwrap_err();
        assert_eq!(without.to_string(), "array notation is not allowed");
        assert_eq!(find(".a.bbb", &schema, false).unwrap().0, "a");
    }
}
