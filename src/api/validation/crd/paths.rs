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
