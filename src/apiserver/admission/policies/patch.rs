//! The mutations of a policy: an apply configuration or a JSON patch from an expression (upstream's
//! `policy/mutating/patch`).

use api::expressions::{Compiler, Fault, Uses, Yields};
use api::value::{at, str_at};
use kcel::limits::RUNTIME_BUDGET;
use kcel::{Map, Object, Value};
use serde_json::{Map as Members, Value as Json};

use crate::admission::expressions::{Expression, ExpressionError, Inputs, OUT_OF_BUDGET};

/// An entry of `mutations`.
#[derive(Debug)]
pub(super) struct Mutation {
    is_patch: bool,
    pub(super) expression: Expression,
}

/// The change that an expression returns.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// An apply configuration to merge.
    Apply(Json),
    /// The operations of a JSON patch.
    Patch(Vec<Json>),
}

/// The expression of a mutation does not return a change. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum MutationError {
    #[error("{0}")]
    Compilation(Fault),
    #[error("{OUT_OF_BUDGET}", OUT_OF_BUDGET = OUT_OF_BUDGET)]
    OutOfBudget,
    #[error("the expression yields nothing")]
    NoValue,
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    /// An item of a list has no value.
    #[error(transparent)]
    Item(#[from] kcel::Error),
    #[error("unsupported return type from ApplyConfiguration expression: {0}")]
    NotObject(String),
    #[error("invalid return type: {0}")]
    ObjectToJson(#[source] kcel::Error),
    #[error("type mismatch: JSONPatchType.expression should evaluate to array")]
    NotList,
    #[error(
        "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got \
         element of {0}"
    )]
    NotPatch(String),
    #[error("unexpected type {actual} for JSONPatchType '{field}' field")]
    FieldType { field: &'static str, actual: String },
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {0}")]
    ValueToJson(#[source] kcel::Error),
    #[error("type mismatch: {}", joined(.0))]
    TypeNames(Vec<TypeNameError>),
}

/// The type name of an object is not the path of its field.
#[derive(Debug, thiserror::Error)]
#[error(
    "unexpected type name {}, expected {}, which matches field name path from root Object type",
    api::field::go_quote(.actual),
    api::field::go_quote(.expected)
)]
pub(super) struct TypeNameError {
    actual: String,
    expected: String,
}

fn joined(errors: &[TypeNameError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

impl Mutation {
    /// Parses a mutation.
    pub(super) fn of(mutation: &Json, compiler: &Compiler, uses: Uses) -> Self {
        let uses = Uses { patches: true, ..uses };
        let is_patch = str_at(mutation, "patchType") == "JSONPatch";
        let (key, yields) = if is_patch {
            ("jsonPatch", Yields::Patches)
        } else {
            ("applyConfiguration", Yields::Object)
        };
        let text = str_at(at(mutation, &[key]), "expression");
        Self { is_patch, expression: Expression::of(compiler, text, uses, yields) }
    }

    /// Evaluates the change for the object in `inputs`.
    ///
    /// # Errors
    /// If the expression does not return a change.
    pub(super) fn change(&self, inputs: &Inputs<'_>) -> Result<Change, MutationError> {
        if let Err(fault) = &self.expression.program {
            return Err(MutationError::Compilation(fault.clone()));
        }
        let yielded = inputs.evaluate([&self.expression], &mut { RUNTIME_BUDGET });
        let yielded = yielded.map_err(|_| MutationError::OutOfBudget)?;
        let value = yielded.into_iter().next().ok_or(MutationError::NoValue)??;
        if self.is_patch { operations(&value).map(Change::Patch) } else { configuration(&value) }
    }
}

fn configuration(value: &Value<'_>) -> Result<Change, MutationError> {
    let Value::Object(object) = value else {
        return Err(MutationError::NotObject(value.type_name().to_string()));
    };
    check_names(object)?;
    value.to_json().map(Change::Apply).map_err(MutationError::ObjectToJson)
}

fn operations(value: &Value<'_>) -> Result<Vec<Json>, MutationError> {
    let Value::List(list) = value else { return Err(MutationError::NotList) };
    list.iter().map(|item| operation(&item?)).collect()
}

fn operation(value: &Value<'_>) -> Result<Json, MutationError> {
    let Value::Object(object) = value else {
        return Err(MutationError::NotPatch(value.type_name().to_string()));
    };
    let mut members = Members::new();
    for key in ["op", "path", "from"] {
        let text = match object.fields.get(key) {
            None => "",
            Some(value) => value.as_str().ok_or_else(|| MutationError::FieldType {
                field: key,
                actual: value.type_name().to_string(),
            })?,
        };
        if key != "from" || !text.is_empty() {
            members.insert(key.to_owned(), text.into());
        }
    }
    if let Some(value) = object.fields.get("value") {
        if let Value::Object(object) = value {
            check_names(object)?;
        }
        let json = value.to_json().map_err(MutationError::ValueToJson)?;
        members.insert("value".to_owned(), json);
    }
    Ok(Json::Object(members))
}

/// Checks that the type name of each nested object matches the path of its field.
fn check_names(object: &Object<'_>) -> Result<(), MutationError> {
    let mut errors = Vec::new();
    check_object_name(object, &object.name, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(MutationError::TypeNames(errors)) }
}

fn check_object_name(object: &Object<'_>, path: &str, errors: &mut Vec<TypeNameError>) {
    if object.name != path {
        let (actual, expected) = (object.name.to_string(), path.to_owned());
        errors.push(TypeNameError { actual, expected });
    }
    for (field, value) in &object.fields {
        check_value_names(value, &format!("{path}.{field}"), errors);
    }
}

fn check_value_names(value: &Value<'_>, path: &str, errors: &mut Vec<TypeNameError>) {
    match value {
        Value::Object(object) => check_object_name(object, path, errors),
        Value::List(list) => {
            list.iter().flatten().for_each(|item| check_value_names(&item, path, errors));
        }
        Value::Map(map @ Map::Owned(_)) => {
            for key in map.keys() {
                if let Ok(Some(value)) = map.find(&key) {
                    check_value_names(&value, path, errors);
                }
            }
        }
        _ => {}
    }
}
