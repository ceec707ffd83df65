//! Templates of objects: Go templates with the functions of scheduler_perf.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow};
use go_template::{Call, Entries, Failure, Function, Param, Plain, Prepared, Run, Value, builtin};
use go_template::{fixed, variadic};

/// Makes the objects of one operation.
pub(crate) enum ObjectTemplate {
    /// Each object is the same.
    Fixed(serde_json::Value),
    Rendered {
        name: String,
        template: Prepared,
        params: BTreeMap<String, serde_json::Value>,
    },
}

impl ObjectTemplate {
    /// Reads the template of a file.
    ///
    /// # Errors
    ///
    /// The file is not readable, no template, or without actions no YAML.
    pub(crate) fn read(
        path: &Path,
        params: &BTreeMap<String, serde_json::Value>,
    ) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?;
        if !text.contains("{{") {
            return Ok(Self::Fixed(api::codec::yaml::parse(text.as_bytes()).context(name)?));
        }
        let template = Prepared::parse("object", &text, find).context(name.clone())?;
        Ok(Self::Rendered { name, template, params: params.clone() })
    }

    /// The object number `index` of `count`.
    ///
    /// # Errors
    ///
    /// The template fails, or makes no YAML.
    pub(crate) fn object(&self, index: usize, count: usize) -> anyhow::Result<serde_json::Value> {
        let (name, template, params) = match self {
            Self::Fixed(object) => return Ok(object.clone()),
            Self::Rendered { name, template, params } => (name, template, params),
        };
        let mut entries: Entries = params
            .iter()
            .map(|(key, value)| (key.as_str().into(), Value::from(value.clone())))
            .collect();
        entries.insert("Index".into(), Value::Int(i64::try_from(index)?));
        entries.insert("Count".into(), Value::Int(i64::try_from(count)?));
        let text = template.render(Value::from(entries)).with_context(|| name.clone())?;
        api::codec::yaml::parse(text.as_bytes())
            .with_context(|| format!("{name} with index {index}"))
    }
}

/// Upstream's `getTemplateFuncs`.
static FUNCTIONS: [Function; 11] = [
    variadic("AddFloat", &[Param::Any], |_, args| Ok(Value::Float(sum(args)?))),
    variadic("AddInt", &[Param::Any], |_, args| Ok(int(sum(args)?))),
    fixed("DivideFloat", &[Param::Any, Param::Any], |_, args| Ok(Value::Float(quotient(args)?))),
    fixed("DivideInt", &[Param::Any, Param::Any], |_, args| Ok(int(quotient(args)?))),
    fixed("Int", &[Param::Any], |_, args| Ok(int(number(args, 0, "int")?))),
    fixed("JSON", &[Param::Any], json),
    fixed("Mod", &[Param::Any, Param::Any], |_, args| Ok(Value::Int(remainder(args)?))),
    variadic("MultiplyFloat", &[Param::Any], |_, args| Ok(Value::Float(product(args)?))),
    variadic("MultiplyInt", &[Param::Any], |_, args| Ok(int(product(args)?))),
    fixed("SubtractFloat", &[Param::Any, Param::Any], |_, args| {
        Ok(Value::Float(difference(args)?))
    }),
    fixed("SubtractInt", &[Param::Any, Param::Any], |_, args| Ok(int(difference(args)?))),
];

/// Go's own functions, and those of scheduler_perf; sprig's are none of them.
fn find(name: &str) -> Option<&'static Function> {
    const GO: [&str; 19] = [
        "and", "call", "html", "index", "slice", "js", "len", "not", "or", "print", "printf",
        "println", "urlquery", "eq", "ge", "gt", "le", "lt", "ne",
    ];
    let own = FUNCTIONS.iter().find(|function| function.name == name);
    own.or_else(|| builtin(name).filter(|_| GO.contains(&name)))
}

fn number(args: &[Value], at: usize, kind: &str) -> Result<f64, Failure> {
    let value = args.get(at);
    let number = match value {
        Some(Value::Int(number) | Value::Int64(number)) => Some(*number as f64),
        Some(Value::Uint64(number)) => Some(*number as f64),
        Some(Value::Float(number)) => Some(*number),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    number.ok_or_else(|| {
        let name = value.map_or("<nil>", Value::type_name);
        Failure::new(format!("cannot cast a value of type {name} to {kind}"))
    })
}

fn numbers(args: &[Value]) -> impl Iterator<Item = Result<f64, Failure>> + '_ {
    (0..args.len()).map(|at| number(args, at, "float64"))
}

fn sum(args: &[Value]) -> Result<f64, Failure> {
    numbers(args).sum()
}

fn product(args: &[Value]) -> Result<f64, Failure> {
    numbers(args).product()
}

fn difference(args: &[Value]) -> Result<f64, Failure> {
    Ok(number(args, 0, "float64")? - number(args, 1, "float64")?)
}

fn quotient(args: &[Value]) -> Result<f64, Failure> {
    let divisor = number(args, 1, "float64")?;
    if divisor == 0.0 {
        return Err(Failure::new("division by zero"));
    }
    Ok(number(args, 0, "float64")? / divisor)
}

fn remainder(args: &[Value]) -> Result<i64, Failure> {
    let (a, b) = (number(args, 0, "float64")?, number(args, 1, "float64")?);
    whole(a).checked_rem(whole(b)).ok_or_else(|| Failure::new("integer divide by zero"))
}

/// Go's conversion of a `float64` to an `int`, which cuts off the fraction.
#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
fn whole(number: f64) -> i64 {
    number as i64
}

fn int(number: f64) -> Value {
    Value::Int(whole(number))
}

fn json(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let encode: Plain = match builtin("mustToRawJson").map(|function| function.run) {
        Some(Run::Plain(encode)) => encode,
        _ => return Err(Failure::new("no function encodes JSON")),
    };
    encode(call, args)
}

/// Sets a field of an object, and makes the maps on the way to it.
///
/// # Errors
///
/// A value on the way is not a map.
pub(crate) fn set(
    object: &mut serde_json::Value,
    path: &[&str],
    value: serde_json::Value,
) -> anyhow::Result<()> {
    let Some((last, way)) = path.split_last() else { return Ok(()) };
    let mut at = object;
    for key in way {
        if at.is_null() {
            *at = serde_json::json!({});
        }
        let map = at.as_object_mut();
        let map = map.with_context(|| format!("{key} cannot be set in a value that is no map"))?;
        at = map.entry(*key).or_insert(serde_json::Value::Null);
    }
    if at.is_null() {
        *at = serde_json::json!({});
    }
    let map = at.as_object_mut().ok_or_else(|| anyhow!("{last} cannot be set: not a map"))?;
    map.insert((*last).to_owned(), value);
    Ok(())
}

/// The name of an object; empty if it has none.
pub(crate) fn name(object: &serde_json::Value) -> &str {
    object.pointer("/metadata/name").and_then(serde_json::Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(text: &str, params: serde_json::Value, index: usize) -> String {
        let params: BTreeMap<String, serde_json::Value> = serde_json::from_value(params).unwrap();
        let template = Prepared::parse("object", text, find).unwrap();
        let mut entries: Entries =
            params.into_iter().map(|(k, v)| (k.into(), Value::from(v))).collect();
        entries.insert("Index".into(), Value::Int(i64::try_from(index).unwrap()));
        entries.insert("Count".into(), Value::Int(100));
        template.render(Value::from(entries)).unwrap()
    }

    #[test]
    fn functions_compute_as_upstreams_do() {
        let params = json!({"classes": 25, "text": "7"});
        for (text, want) in [
            ("{{.Index}} {{ .Count }}", "57 100"),
            ("{{Mod .Index .classes}}", "7"),
            ("{{DivideInt .Index 10}} {{DivideFloat 7 2}}", "5 3.5"),
            ("{{AddInt 8000 (Mod .Index (DivideInt .Count 20))}}", "8002"),
            ("{{MultiplyInt 2 .text 3}} {{SubtractInt 5 7}}", "42 -2"),
            ("{{AddFloat 1 0.5}} {{.classes}}", "1.5 25"),
            ("{{range (.text | Int)}}{{.}}{{end}}", "0123456"),
        ] {
            assert_eq!(render(text, params.clone(), 57), want, "{text}");
        }
    }

    #[test]
    fn values_are_written_as_json_and_missing_ones_as_null() {
        let text = "{{$s := (or .selectors nil) | JSON}}{{$s}} {{(or .none nil) | JSON}}";
        let params = json!({"selectors": [{"cel": {"expression": "a >= 1 && b"}}]});
        assert_eq!(render(text, params, 0), r#"[{"cel":{"expression":"a >= 1 && b"}}] null"#);
    }

    #[test]
    fn ranges_conditions_and_defaults_are_gos() {
        let text =
            "{{$n := or .n 3}}{{range $i := ($n | Int)}}{{if ge $i 1}}[{{$i}}]{{end}}{{end}}";
        assert_eq!(render(text, json!({}), 0), "[1][2]");
        assert_eq!(render(text, json!({"n": 4}), 0), "[1][2][3]");
    }

    #[test]
    fn functions_refuse_what_is_no_number_and_division_by_zero() {
        for (text, want) in [
            ("{{Mod .Index 0}}", "integer divide by zero"),
            ("{{DivideInt 1 0}}", "division by zero"),
            ("{{AddInt 1 \"x\"}}", "cannot cast a value of type string to float64"),
        ] {
            let template = Prepared::parse("object", text, find).unwrap();
            let dot: Value = [("Index", Value::Int(1))].into_iter().collect();
            let error = template.render(dot).err().unwrap().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert!(Prepared::parse("object", "{{upper .x}}", find).is_err());
    }

    #[test]
    fn fields_are_set_with_the_maps_on_their_way() {
        let mut object = json!({"metadata": {"name": "n"}});
        set(&mut object, &["metadata", "labels", "a.b/c"], json!("v")).unwrap();
        assert_eq!(object, json!({"metadata": {"name": "n", "labels": {"a.b/c": "v"}}}));
        assert!(set(&mut object, &["metadata", "name", "x"], json!(1)).is_err());
    }
}
