//! Compares every line that cel-go recorded in Kubernetes' environment (`tests/cel`): type, value
//! or error, static and runtime cost.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::*;

type Json = serde_json::Value;

const SELF: &str = r#"{
  "name": "web", "text": "hello world", "count": 3, "ratio": 1.5, "flag": true, "port": "http", "when": "2024-02-29T12:30:45.5Z", "day": "2024-02-29", "wait": "1h30m",
  "raw": "aGVsbG8=", "maybe": null, "tags": ["a", "b", "c"], "set": ["x", "y", "z"],
  "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}],
  "labels": {"app": "web", "tier": "front", "a.b/c": "d"}, "nested": {"a": "A", "in": "IN", "x-y": "XY", "namespace": "NS"}, "free": {"known": "k", "other": 1}
}"#;
const OTHER: &str = r#"{"name": "web", "count": 4, "ratio": 2, "port": 80, "tags": ["a"], "set": ["z", "y", "x"], "ports": [{"name": "https", "port": 443}, {"name": "http", "port": 80}], "labels": {}, "nested": {"a": "B"}}"#;
const DYN: &str = r#"{"s": "text", "n": 7, "f": 2.5, "b": false, "z": null, "l": [1, 2.5, "x", true, null], "m": {"k": "v", "deep": {"er": [1, 2]}}}"#;

fn object(name: &str, fields: Vec<(&str, Declared)>) -> Declared {
    let fields = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    Declared::Object(Arc::new(Properties { name: name.into(), fields }))
}

fn declared() -> Declared {
    let string = || Declared::String(Format::Plain);
    let array = |items: Declared, list: ListType| Declared::Array { items: Box::new(items), list };
    let port = object("Self.ports.@idx", vec![("name", string()), ("port", Declared::Integer)]);
    let nested =
        vec![("a", string()), ("in", string()), ("x-y", string()), ("namespace", string())];
    object(
        "Self",
        vec![
            ("name", string()),
            ("text", string()),
            ("count", Declared::Integer),
            ("ratio", Declared::Number),
            ("flag", Declared::Boolean),
            ("port", Declared::IntOrString),
            ("when", Declared::String(Format::DateTime)),
            ("day", Declared::String(Format::Date)),
            ("wait", Declared::String(Format::Duration)),
            ("raw", Declared::String(Format::Byte)),
            ("maybe", Declared::Nullable(Box::new(string()))),
            ("tags", array(string(), ListType::Atomic)),
            ("set", array(string(), ListType::Set)),
            ("ports", array(port, ListType::Map(vec!["name".into()]))),
            ("labels", Declared::Map(Box::new(string()))),
            ("nested", object("Self.nested", nested)),
            ("free", object("Self.free", vec![("known", string())])),
        ],
    )
}

fn env() -> Env {
    let host = |name: &str| Type::object(name, BTreeMap::new());
    Env::new()
        .variable("i", Type::Int)
        .variable("u", Type::Uint)
        .variable("f", Type::Double)
        .variable("b", Type::Bool)
        .variable("s", Type::String)
        .variable("by", Type::Bytes)
        .variable("ls", Type::list(Type::String))
        .variable("li", Type::list(Type::Int))
        .variable("ld", Type::list(Type::Dyn))
        .variable("mss", Type::map(Type::String, Type::String))
        .variable("msi", Type::map(Type::String, Type::Int))
        .variable("d", Type::Dyn)
        .variable("ts", Type::Timestamp)
        .variable("du", Type::Duration)
        .variable("os", Type::optional(Type::String))
        .variable("ns.name", Type::String)
        .variable("missing", Type::String)
        .variable("self", declared().to_type())
        .variable("other", declared().to_type())
        .variable("authorizer", host("kubernetes.authorization.Authorizer"))
        .with_mutation()
}

struct Answers;

impl Authorize for Answers {
    fn authorize(&self, check: &Check) -> Decision {
        match check.verb.as_str() {
            "get" => {
                let path = check.path.as_deref().unwrap_or_default();
                let reason =
                    format!("allowed to get {} in {}{path}", check.resource, check.namespace);
                Decision { allowed: true, reason, error: None }
            }
            "fail" => {
                Decision { error: Some("the authorizer failed".into()), ..Decision::default() }
            }
            _ => Decision::default(),
        }
    }
}

struct Sizes;

impl SizeEstimator for Sizes {
    fn size(&self, path: &[String]) -> Option<Range> {
        let max = match path.join(".").as_str() {
            "s" => 100,
            "ls" | "li" | "mss" | "msi" => 10,
            "ls.@items" | "mss.@values" => 20,
            "mss.@keys" | "msi.@keys" => 5,
            _ => return None,
        };
        Some(Range { min: 0, max })
    }
}

fn text_map<'a>(entries: &[(&'a str, Value<'a>)]) -> Value<'a> {
    let entries = entries.iter().map(|(key, value)| (Key::String((*key).into()), value.clone()));
    Value::Map(Map::Owned(Arc::new(entries.collect())))
}

fn variables<'a>(json: &'a [Json; 3], declared: &'a Declared) -> Variables<'a> {
    let text = Value::borrowed;
    let [own, other, free] = json;
    Variables(vec![
        ("i", Value::Int(5)),
        ("u", Value::Uint(7)),
        ("f", Value::Double(2.5)),
        ("b", Value::Bool(true)),
        ("s", text("hello")),
        ("by", Value::Bytes(b"bytes".as_slice().into())),
        ("ls", Value::list(["a", "b", "c"].map(text).to_vec())),
        ("li", Value::list([3, 1, 2].map(Value::Int).to_vec())),
        ("ld", Value::list(vec![Value::Int(1), Value::Double(1.0), text("1")])),
        ("mss", text_map(&[("a", text("1")), ("b", text("2"))])),
        ("msi", text_map(&[("x", Value::Int(1)), ("y", Value::Int(2))])),
        ("d", Value::json(free)),
        (
            "ts",
            Value::Timestamp(Timestamp { seconds: 1_683_356_889, nanos: 123_000_000, offset: 0 }),
        ),
        ("du", Value::Duration(5_401_000_000_000)),
        ("os", Value::Optional(Some(Arc::new(text("some"))))),
        ("ns.name", text("qualified")),
        ("self", declared.value(own).unwrap()),
        ("other", declared.value(other).unwrap()),
        ("authorizer", Value::Host(Host::authorizer(Arc::new(Answers)))),
    ])
}

/// Formats a value as the recorder does.
fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Uint(v) => format!("{v}u"),
        Value::Double(v) if v.is_nan() => "NaN".into(),
        Value::Double(v) if v.is_infinite() => if *v > 0.0 { "+Inf" } else { "-Inf" }.into(),
        Value::Double(v) => {
            let text = format!("{v:.17e}");
            let (digits, exponent) = text.split_once('e').unwrap();
            let exponent: i32 = exponent.parse().unwrap();
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        Value::String(text) => serde_json::to_string(&**text)
            .unwrap()
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026"),
        Value::Bytes(bytes) => {
            format!("b{}", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>())
        }
        Value::Timestamp(at) => {
            let shown = Timestamp { nanos: 0, offset: 0, ..*at };
            let text = crate::time::shown(&shown);
            format!("timestamp({}.{:09}Z)", text.trim_end_matches('Z'), at.nanos)
        }
        Value::Duration(nanos) => format!("duration({nanos})"),
        Value::Optional(None) => "none".into(),
        Value::Optional(Some(inner)) => format!("some({})", show(inner)),
        Value::Type(name) => format!("type({name})"),
        Value::List(list) => {
            let items: Vec<String> = list.iter().map(|item| show(&item.unwrap())).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut parts: Vec<String> = map
                .keys()
                .iter()
                .map(|key| format!("{}: {}", show(key), show(&map.find(key).unwrap().unwrap())))
                .collect();
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Host(host) => match host.type_name() {
            name @ ("net.IP" | "net.CIDR" | "kubernetes.Semver") => format!("{name}({host})"),
            name => name.to_owned(),
        },
        other => other.to_string(),
    }
}

/// The result of an expression, under the names of the recorder.
fn record(env: &Env, variables: &Variables<'_>, expr: &str) -> BTreeMap<&'static str, String> {
    let mut out = BTreeMap::new();
    let program = match env.compile_any(expr) {
        Ok(program) => program,
        Err(error) if error.instantiation => {
            out.insert("error", format!("program: {error}"));
            return out;
        }
        Err(error) => {
            out.insert("fault", error.to_string());
            return out;
        }
    };
    out.insert("type", program.output().to_string());
    let range = program.estimate(&Sizes);
    out.insert("min", range.min.to_string());
    out.insert("max", range.max.to_string());
    let mut budget = limits::PER_CALL;
    let result = program.eval(variables, &mut budget);
    out.insert("cost", (limits::PER_CALL - budget).to_string());
    match result {
        Ok(value) => out.insert("value", show(&value)),
        Err(error) => out.insert("error", error.to_string()),
    };
    out
}

#[test]
fn every_recorded_line_of_the_peer_is_ours_too() {
    let json = [SELF, OTHER, DYN].map(|text| serde_json::from_str::<Json>(text).unwrap());
    let declared = declared();
    let (env, variables) = (env(), variables(&json, &declared));
    let (mut faults, mut count) = (Vec::new(), 0);
    for line in include_str!("testdata/recorded.jsonl").lines() {
        let line: BTreeMap<String, String> = serde_json::from_str(line).unwrap();
        let expr = &line["expr"];
        let ours = record(&env, &variables, expr);
        count += 1;
        let cancelled = line.get("error").is_some_and(|e| e.contains("cost limit"));
        let instantiation = line.get("error").is_some_and(|e| e.starts_with("program: "));
        for key in ["fault", "type", "min", "max", "value", "error", "cost"] {
            // The cost of a cancelled evaluation, and estimates of expressions that cannot start,
            // are not specified.
            let skipped = cancelled && key == "cost"
                || instantiation && matches!(key, "type" | "min" | "max" | "cost");
            let mut wanted = line.get(key).map(String::as_str);
            for opaque in ["kubernetes.URL(", "kubernetes.Quantity("] {
                if wanted.is_some_and(|wanted| wanted.starts_with(opaque)) {
                    wanted = Some(opaque.trim_end_matches('('));
                }
            }
            let got = ours.get(key).map(String::as_str);
            if !skipped && wanted != got {
                faults.push(format!("{expr}\n  {key}: {wanted:?}\n  ours: {got:?}"));
            }
        }
    }
    assert!(count > 600, "only {count} lines");
    assert!(faults.is_empty(), "{} differ:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn what_is_too_long_too_deep_or_too_costly_ends_soon() {
    let env = env();
    let fault = |expr: &str| env.compile_any(expr).unwrap_err().to_string();
    assert_eq!(
        fault(&"1".repeat(100_001)),
        "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000"
    );
    let nested = format!("{}1{}", "(".repeat(300), ")".repeat(300));
    assert_eq!(fault(&nested), "ERROR: <input>:-1:0: expression recursion limit exceeded: 250");
    let chain = vec!["1"; 300].join(" + ");
    assert_eq!(fault(&chain), "ERROR: <input>:-1:0: expression recursion limit exceeded: 250");
    let variables = Variables(vec![("s", Value::borrowed("hello"))]);
    let chain = vec!["1"; 240].join(" + ");
    let mut budget = limits::PER_CALL;
    let sum = env.compile_any(&chain).unwrap().eval(&variables, &mut budget);
    assert!(matches!(sum, Ok(Value::Int(240))));
    let mut budget = limits::PER_CALL;
    let doubling = "lists.range(1000).map(x, lists.range(1000).map(y, x)).size()";
    let error = env.compile_any(doubling).unwrap().eval(&variables, &mut budget).unwrap_err();
    assert!(error.limit);
    assert_eq!(budget, 0);
    let wide = "[s, s, s, s].map(a, [a, a, a, a].join('').replace('', s + s + s)).join('')";
    let mut budget = limits::PER_CALL;
    assert!(env.compile_any(wide).unwrap().eval(&variables, &mut budget).is_ok());
}

#[test]
fn a_program_says_which_variables_it_uses() {
    let env = env();
    let program = env.compile("ls.all(s, s != i) || b ? true : ns.name == ''", &Type::Bool);
    let error = program.unwrap_err().to_string();
    assert!(error.contains("found no matching overload for '_!=_'"), "{error}");
    let program = env.compile("ls.all(s, s != '') && ns.name == ''", &Type::Bool).unwrap();
    assert!(program.uses("ls") && program.uses("ns.name"));
    assert!(!program.uses("s") && !program.uses("i"));
    assert_eq!(env.compile("1", &Type::Bool).unwrap_err().to_string(), "must evaluate to bool");
}

/// The value of an expression, as Go prints it, or the text of its error.
fn outcome(expr: &str) -> Result<String, String> {
    let json = [SELF, OTHER, DYN].map(|text| serde_json::from_str::<Json>(text).unwrap());
    let declared = declared();
    let program = env().compile_any(expr).map_err(|error| error.to_string())?;
    let mut budget = limits::PER_CALL;
    let result = program.eval(&variables(&json, &declared), &mut budget);
    result.map(|value| value.to_string()).map_err(|error| error.to_string())
}

fn check(rows: &[(&str, &str)], fits: impl Fn(Result<&str, &str>, &str) -> bool) {
    let mut faults = Vec::new();
    for (expr, expected) in rows {
        let got = outcome(expr);
        if !fits(got.as_deref().map_err(String::as_str), expected) {
            faults.push(format!("{expr}: {expected:?}, but got {got:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Checks the values of expressions, as Go prints them.
pub(crate) fn check_values(rows: &[(&str, &str)]) {
    check(rows, |got, expected| got == Ok(expected));
}

/// Checks that expressions are true.
pub(crate) fn check_true(rows: &[&str]) {
    let rows: Vec<_> = rows.iter().map(|expr| (*expr, "true")).collect();
    check_values(&rows);
}

/// Checks that expressions cannot be compiled or evaluated, with errors that contain these texts.
pub(crate) fn check_errors(rows: &[(&str, &str)]) {
    check(rows, |got, expected| got.is_err_and(|error| error.contains(expected)));
}

/// Texts of unknown origin have up to 12 characters, as for `testCostEstimator` of
/// `pkg/cel/library/cost_test.go` in k8s.io/apiserver.
struct ShortTexts;

impl SizeEstimator for ShortTexts {
    fn size(&self, path: &[String]) -> Option<Range> {
        path.is_empty().then_some(Range { min: 0, max: 12 })
    }
}

/// Checks the estimated costs of expressions: minimum and maximum.
pub(crate) fn check_estimates(rows: &[(&str, u64, u64)]) {
    let mut faults = Vec::new();
    for (expr, min, max) in rows {
        let got = env().compile_any(expr).unwrap().estimate(&ShortTexts);
        if got != (Range { min: *min, max: *max }) {
            faults.push(format!("{expr}: {min}..{max}, but got {got:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Checks the costs of evaluations.
pub(crate) fn check_costs(rows: &[(&str, u64)]) {
    let json = [SELF, OTHER, DYN].map(|text| serde_json::from_str::<Json>(text).unwrap());
    let declared = declared();
    let mut faults = Vec::new();
    for (expr, expected) in rows {
        let mut budget = limits::PER_CALL;
        let program = env().compile_any(expr).unwrap();
        program.eval(&variables(&json, &declared), &mut budget).unwrap();
        let got = limits::PER_CALL - budget;
        if got != *expected {
            faults.push(format!("{expr}: {expected}, but got {got}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
