//! Columns of custom resources: `additionalPrinterColumns` with the simple JSON paths that they may
//! hold.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{human_duration, integer, name, text};

/// The columns of one version of a custom resource, compiled.
#[derive(Debug, Clone, Default)]
pub struct CustomColumns {
    columns: Vec<CustomColumn>,
}

#[derive(Debug, Clone)]
struct CustomColumn {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// Negative counts from the end.
    Index(i64),
    All,
    /// Elements whose field at the path equals the value.
    Filter(Vec<Step>, Value),
}

/// A column whose JSON path is not supported; the text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized column definition {}", api::field::go_quote(.0))]
pub struct UnsupportedColumn(String);

impl CustomColumns {
    /// Compiles `additionalPrinterColumns`; without any the table has the age besides the name.
    ///
    /// # Errors
    /// For a JSON path that is not supported.
    pub fn new(definitions: Option<&Value>) -> Result<Self, UnsupportedColumn> {
        let definitions =
            definitions.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let default = [
            json!({"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since the object was created."}),
        ];
        let definitions = if definitions.is_empty() { &default } else { definitions };
        let mut columns = Vec::with_capacity(definitions.len());
        for definition in definitions {
            let path = text(definition, &["jsonPath"]);
            let steps = parse(path).ok_or_else(|| UnsupportedColumn(path.to_owned()))?;
            let described = match text(definition, &["description"]) {
                "" => format!("Custom resource definition column (in JSONPath format): {path}"),
                own => own.to_owned(),
            };
            columns.push(CustomColumn {
                name: text(definition, &["name"]).to_owned(),
                kind: text(definition, &["type"]).to_owned(),
                format: text(definition, &["format"]).to_owned(),
                description: described,
                priority: integer(definition, &["priority"]),
                path: steps,
            });
        }
        Ok(Self { columns })
    }

    /// Column definitions, the name first.
    pub(super) fn definitions(&self) -> Value {
        let first = json!({"name":"Name","type":"string","format":"name","description":super::describe("Name"),"priority":0});
        let rest = self.columns.iter().map(
            |c| json!({"name":c.name,"type":c.kind,"format":c.format,"description":c.description,"priority":c.priority}),
        );
        std::iter::once(first).chain(rest).collect()
    }

    /// The cells of one object.
    pub(crate) fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let cells = self
            .columns
            .iter()
            .map(|c| evaluate(object, &c.path).map_or(Value::Null, |v| cell(&c.kind, v, now)));
        std::iter::once(name(object)).chain(cells).collect()
    }
}

fn cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("string", Value::Null) => Value::Null,
        ("string", Value::String(text)) => text.clone().into(),
        // Maps and lists as JSON, the rest as it is written.
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(n)) => {
            // A float loses its fraction, as Go's conversion does.
            #[expect(
                clippy::cast_possible_truncation,
                reason = "Go's int64(float64), saturating here"
            )]
            n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => human_duration(now.duration_since(then).as_secs()).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

/// The first value that a path finds.
fn evaluate<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    let Some((step, rest)) = path.split_first() else { return Some(value) };
    match step {
        Step::Field(name) => evaluate(value.get(name)?, rest),
        Step::Index(at) => {
            let list = value.as_array()?;
            let at = match usize::try_from(*at) {
                Ok(at) => at,
                Err(_) => list.len().checked_sub(usize::try_from(at.unsigned_abs()).ok()?)?,
            };
            evaluate(list.get(at)?, rest)
        }
        Step::All => match value {
            Value::Array(list) => list.iter().find_map(|v| evaluate(v, rest)),
            Value::Object(map) => map.values().find_map(|v| evaluate(v, rest)),
            _ => None,
        },
        Step::Filter(field, wanted) => value
            .as_array()?
            .iter()
            .filter(|v| evaluate(v, field) == Some(wanted))
            .find_map(|v| evaluate(v, rest)),
    }
}

/// Parses `.a.b[0]['c.d'][*][?(@.type=="Ready")].e`; `None` for anything else.
fn parse(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path.trim();
    rest = rest.strip_prefix('$').unwrap_or(rest);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let (field, left) = field(after)?;
            match field.as_str() {
                "" if left.starts_with('[') || left.is_empty() => {}
                "" => return None,
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(field)),
            }
            rest = left;
        } else if let Some(after) = rest.strip_prefix('[') {
            let end =
                if after.starts_with('?') { after.find(")]")? + 1 } else { bracket_end(after)? };
            let (inside, left) = after.split_at(end);
            steps.push(bracket(inside.trim())?);
            rest = left.strip_prefix(']')?;
        } else {
            return None;
        }
    }
    Some(steps)
}

/// A field name, with `\.` for a literal dot, and the remaining text.
fn field(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => return Some((name, text.get(i..)?)),
            ' ' | '{' | '}' | '(' | ')' | ']' | '|' | '"' | '\'' => return None,
            _ => name.push(c),
        }
    }
    Some((name, ""))
}

fn bracket_end(text: &str) -> Option<usize> {
    match text.chars().next()? {
        quote @ ('\'' | '"') => Some(text.get(1..)?.find(quote)? + 2),
        _ => text.find(']'),
    }
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquote(inside) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        let (left, right) = filter.split_once("==")?;
        let steps = parse(left.trim().strip_prefix('@')?)?;
        let right = right.trim();
        let wanted =
            unquote(right).map(Value::from).or_else(|| serde_json::from_str(right).ok())?;
        return Some(Step::Filter(steps, wanted));
    }
    inside.parse().ok().map(Step::Index)
}

fn unquote(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_paths_are_evaluated() {
        let object = json!({"metadata":{"name":"a","creationTimestamp":"2026-01-01T00:00:00Z","annotations":{"x.io/y":"z"}},
            "spec":{"n":3,"f":2.7,"l":["p","q"],"on":true},"status":{"conditions":[{"type":"A","status":"False"},{"type":"Ready","status":"True"}]}});
        let definition =
            |name: &str, kind: &str, path: &str| json!({"name":name,"type":kind,"jsonPath":path});
        let columns = json!([
            definition("N", "integer", ".spec.n"),
            definition("F", "integer", ".spec.f"),
            definition("L", "string", ".spec.l[-1]"),
            definition("All", "string", ".spec.l"),
            definition("On", "boolean", ".spec.on"),
            definition("Note", "string", r".metadata.annotations.x\.io/y"),
            definition("Quoted", "string", ".metadata.annotations['x.io/y']"),
            definition("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
            definition("Absent", "string", ".spec.absent.deep"),
            definition("Wrong", "integer", ".spec.on"),
            definition("Age", "date", ".metadata.creationTimestamp"),
        ]);
        let columns = CustomColumns::new(Some(&columns)).unwrap();
        let now = "2026-01-01T00:03:20Z".parse().unwrap();
        let want =
            json!(["a", 3, 2, "q", "[\"p\",\"q\"]", true, "z", "z", "True", null, null, "3m20s"]);
        assert_eq!(Value::Array(columns.row(&object, now)), want);
    }

    #[test]
    fn unsupported_paths_are_rejected() {
        let columns = json!([{"name":"X","type":"string","jsonPath":".a[?(@.b>1)]"}]);
        assert_eq!(
            CustomColumns::new(Some(&columns)).unwrap_err().to_string(),
            "unrecognized column definition \".a[?(@.b>1)]\""
        );
    }

    #[test]
    fn age_is_the_default_column() {
        let columns = CustomColumns::new(None).unwrap();
        let names: Vec<String> = columns
            .definitions()
            .as_array()
            .unwrap()
            .iter()
            .map(|c| format!("{} {}", c["name"], c["type"]))
            .collect();
        assert_eq!(names, ["\"Name\" \"string\"", "\"Age\" \"date\""]);
    }
}
