//! The mutations of a policy: an apply configuration or a JSON patch from an expression (upstream's
//! `policy/mutating/patch`).

use api::expressions::{Compiler, Uses, Yields};
use api::value::{at, str_at};
use kcel::limits::RUNTIME_BUDGET;
use kcel::{Map, Object, Value};
use serde_json::{Map as Members, Value as Json};

use crate::admission::expressions::{Expression, Inputs, OUT_OF_BUDGET};

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
    /// Upstream's message.
    pub(super) fn change(&self, inputs: &Inputs<'_>) -> Result<Change, String> {
        if let Err(fault) = &self.expression.program {
            return Err(fault.to_string());
        }
        let yielded = inputs.evaluate([&self.expression], &mut { RUNTIME_BUDGET });
        let yielded = yielded.map_err(|_| OUT_OF_BUDGET.to_owned())?;
        let value = yielded.into_iter().next().ok_or("the expression yields nothing")??;
        if self.is_patch { operations(&value).map(Change::Patch) } else { configuration(&value) }
    }
}

fn configuration(value: &Value<'_>) -> Result<Change, String> {
    let Value::Object(object) = value else {
        let of = value.type_name();
        return Err(format!("unsupported return type from ApplyConfiguration expression: {of}"));
    };
    check_names(object)?;
    value.to_json().map(Change::Apply).map_err(|e| format!("invalid return type: {e}"))
}

fn operations(value: &Value<'_>) -> Result<Vec<Json>, String> {
    let Value::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    list.iter().map(|item| operation(&item.map_err(|e| e.to_string())?)).collect()
}

fn operation(value: &Value<'_>) -> Result<Json, String> {
    let Value::Object(object) = value else {
        let of = value.type_name();
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {of}"
        ));
    };
    let mut members = Members::new();
    for key in ["op", "path", "from"] {
        let text = match object.fields.get(key) {
            None => "",
            Some(value) => value.as_str().ok_or_else(|| {
                let of = value.type_name();
                format!("unexpected type {of} for JSONPatchType '{key}' field")
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
        let json = value.to_json().map_err(|e| {
            format!(
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {e}"
            )
        })?;
        members.insert("value".to_owned(), json);
    }
    Ok(Json::Object(members))
}

/// Checks that the type name of each nested object matches the path of its field.
fn check_names(object: &Object<'_>) -> Result<(), String> {
    let mut wrong = Vec::new();
    names(object, &object.name, &mut wrong);
    if wrong.is_empty() { Ok(()) } else { Err(format!("type mismatch: {}", wrong.join("\n"))) }
}

fn names(object: &Object<'_>, path: &str, wrong: &mut Vec<String>) {
    if object.name != path {
        let quote = api::field::go_quote;
        wrong.push(format!(
            "unexpected type name {}, expected {}, which matches field name path from root Object type",
            quote(&object.name),
            quote(path)
        ));
    }
    for (field, value) in &object.fields {
        names_in(value, &format!("{path}.{field}"), wrong);
    }
}

fn names_in(value: &Value<'_>, path: &str, wrong: &mut Vec<String>) {
    match value {
        Value::Object(object) => names(object, path, wrong),
        Value::List(list) => {
            list.iter().flatten().for_each(|item| names_in(&item, path, wrong));
        }
        Value::Map(map @ Map::Owned(_)) => {
            for key in map.keys() {
                if let Ok(Some(value)) = map.find(&key) {
                    names_in(&value, path, wrong);
                }
            }
        }
        _ => {}
    }
}
