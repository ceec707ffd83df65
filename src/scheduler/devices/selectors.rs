//! CEL selectors of devices: compiled programs, and their evaluation for a device
//! (`k8s.io/dynamic-resource-allocation/cel`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::expressions::devices as expressions;
use api::k8s::api::resource::v1::DeviceAttribute;
use kcel::{Error, Host, Program, Value, Variables};
use parking_lot::Mutex;

use super::evaluation_error::{AttributeError, EvaluationError};
use super::slice::Device;

/// Most compiled expressions that are kept. There are a handful of classes, and requests of the
/// same kind of workload have the same selectors.
const PROGRAMS_MAX: usize = 128;

/// Evaluations of deeper expressions need more stack than the threads of workers have.
const CALLER_STACK_DEPTH_MAX: usize = 40;
/// Stack size, in bytes, of the thread for deep expressions.
const STACK_BYTES: usize = 32 << 20;

/// Appended to errors about missing attributes (`EnhanceRuntimeError`).
const MISSING_KEY_HINT: &str = ". consider using CEL optional chaining (.? followed by orValue()) \
                                or guarding the check with has() for optional fields";

/// Why a selector has no result; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorError {
    #[error("CEL compile error: {0}")]
    Compile(String),
    #[error("CEL runtime error: {0}")]
    Runtime(String),
}

#[derive(Debug, Default)]
struct Programs {
    /// Each program with the number of its last use.
    by_expression: HashMap<String, (Arc<Program>, u64)>,
    uses: u64,
}

/// Compiled selectors; at most [`PROGRAMS_MAX`], of which the least recently used one is dropped.
#[derive(Debug, Default)]
pub(crate) struct Selectors {
    programs: Mutex<Programs>,
}

impl Selectors {
    /// Whether the device satisfies the expression.
    ///
    /// # Errors
    ///
    /// The expression does not compile, or fails for this device.
    pub(crate) fn matches(&self, expression: &str, device: &Device) -> Result<bool, SelectorError> {
        let program = self.program(expression)?;
        evaluate(&program, device).map_err(|error| {
            let text = error.to_string();
            let hint = if text.contains("no such key:") { MISSING_KEY_HINT } else { "" };
            SelectorError::Runtime(format!("{text}{hint}"))
        })
    }

    /// Compiles an expression unless that was done before; errors are not kept.
    fn program(&self, expression: &str) -> Result<Arc<Program>, SelectorError> {
        let mut programs = self.programs.lock();
        programs.uses += 1;
        let now = programs.uses;
        if let Some((program, used)) = programs.by_expression.get_mut(expression) {
            *used = now;
            return Ok(Arc::clone(program));
        }
        let compiled = expressions::selector(expression);
        let program = compiled.map_err(|fault| SelectorError::Compile(fault.to_string()))?;
        if programs.by_expression.len() >= PROGRAMS_MAX {
            let oldest = programs.by_expression.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(expression, _)| expression.clone()) {
                programs.by_expression.remove(&oldest);
            }
        }
        let program = Arc::new(program);
        programs.by_expression.insert(expression.to_owned(), (Arc::clone(&program), now));
        Ok(program)
    }
}

fn evaluate(program: &Program, device: &Device) -> Result<bool, EvaluationError> {
    let value = device.value.get_or_init(|| variable(device)).clone()?;
    let run = || {
        let mut budget = expressions::COST_MAX;
        program.eval(&Variables(vec![("device", value)]), &mut budget)
    };
    let result = if program.depth() <= CALLER_STACK_DEPTH_MAX { run() } else { on_stack(run) };
    let result = result.map_err(|error| EvaluationError::Expression(error.to_string()))?;
    result.as_bool().ok_or_else(|| {
        let (of, reason) = (result.type_name().to_string(), unconverted(&result));
        EvaluationError::NoBool { of, reason }
    })
}

fn on_stack<T: Send>(run: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let failed = || Error::new("the expression could not be evaluated: no thread");
        thread.spawn_scoped(scope, run).map_err(|_| failed())?.join().map_err(|_| failed())?
    })
}

/// The text of cel-go for a value that is converted to Go's `bool`.
fn unconverted(value: &Value<'_>) -> String {
    match value {
        Value::Int(_) => "unsupported type conversion from 'int' to bool".into(),
        Value::Uint(_) => "unsupported type conversion from 'uint' to bool".into(),
        Value::String(_) => "unsupported native conversion from string to 'bool'".into(),
        Value::Double(_) => "type conversion error from Double to 'bool'".into(),
        Value::Bytes(_) => "type conversion error from Bytes to 'bool'".into(),
        Value::List(_) => "type conversion error from list to 'bool'".into(),
        Value::Map(_) => "type conversion error from map to 'bool'".into(),
        Value::Host(_) => {
            let name = value.type_name();
            let name = name.rsplit('.').next().unwrap_or(name);
            format!("type conversion error from '{name}' to 'bool'")
        }
        other => format!("type conversion error from '{}' to 'bool'", other.type_name()),
    }
}

/// Domain and identifier of a qualified name; names without domain have the driver as domain.
fn split<'a>(name: &'a str, driver: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((driver, name))
}

type ByDomain = BTreeMap<Arc<str>, Vec<(Arc<str>, Value<'static>)>>;

fn by_domain(all: ByDomain) -> Value<'static> {
    let domains = all.into_iter().map(|(domain, entries)| (domain, Value::map(entries)));
    // An unknown domain is an empty map.
    Value::map_with_default(domains, Value::map([]))
}

/// The variable `device`.
fn variable(device: &Device) -> Result<Value<'static>, EvaluationError> {
    let driver = &device.id.pool.driver;
    let mut attributes = ByDomain::new();
    for (name, attribute) in &device.attributes {
        let value = value(attribute).map_err(|source| {
            let name = name.to_string();
            EvaluationError::Attribute { name, source }
        })?;
        let (domain, id) = split(name, driver);
        attributes.entry(domain.into()).or_default().push((id.into(), value));
    }
    let mut capacity = ByDomain::new();
    for (name, entry) in &device.capacity {
        let quantity = Host::quantity(&entry.text);
        let quantity = quantity.map_err(|error| EvaluationError::Capacity(error.to_string()))?;
        let (domain, id) = split(name, driver);
        capacity.entry(domain.into()).or_default().push((id.into(), Value::Host(quantity)));
    }
    Ok(Value::map([
        ("driver".into(), Value::text(Arc::clone(driver))),
        ("allowMultipleAllocations".into(), Value::Bool(device.is_shareable)),
        ("attributes".into(), by_domain(attributes)),
        ("capacity".into(), by_domain(capacity)),
    ]))
}

fn value(attribute: &DeviceAttribute) -> Result<Value<'static>, AttributeError> {
    let version = |text: &String| match Host::version(text) {
        Ok(version) => Ok(Value::Host(version)),
        Err(error) => Err(AttributeError::Version(error.to_string())),
    };
    if let Some(ints) = &attribute.ints {
        return Ok(Value::list(ints.iter().copied().map(Value::Int).collect()));
    }
    if let Some(bools) = &attribute.bools {
        return Ok(Value::list(bools.iter().copied().map(Value::Bool).collect()));
    }
    if let Some(strings) = &attribute.strings {
        return Ok(Value::list(strings.iter().map(|s| Value::text(s.as_str())).collect()));
    }
    if let Some(versions) = &attribute.versions {
        return Ok(Value::list(versions.iter().map(version).collect::<Result<_, _>>()?));
    }
    if let Some(int) = attribute.int {
        return Ok(Value::Int(int));
    }
    if let Some(bool) = attribute.bool {
        return Ok(Value::Bool(bool));
    }
    if let Some(string) = &attribute.string {
        return Ok(Value::text(string.as_str()));
    }
    attribute.version.as_ref().map(version).unwrap_or(Err(AttributeError::Unsupported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::slice::Slice;
    use serde_json::json;

    fn device(is_shareable: bool) -> Device {
        let attributes = json!({
            "name": {"string": "fish"}, "dra.example.com/count": {"int": 2}, "ok": {"bool": true},
            "version": {"version": "1.0.0"}, "services": {"string": "example.com,example.org"},
        });
        let slice = json!({"spec": {
            "driver": "dra.example.com", "pool": {"name": "p", "generation": 1,
                "resourceSliceCount": 1},
            "devices": [{"name": "d", "attributes": attributes,
                "capacity": {"memory": {"value": "1Mi"}},
                "allowMultipleAllocations": is_shareable}],
        }});
        let slice = Slice::new(&serde_json::from_value(slice).unwrap()).unwrap();
        slice.devices.into_iter().next().unwrap()
    }

    /// Rows of upstream's `compile_test.go`.
    #[test]
    fn selectors_see_the_attributes_and_capacities_of_a_device() {
        let selectors = Selectors::default();
        let long = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x, ";
        let deep = format!("{}true{}", long.repeat(7), ")".repeat(7));
        for (expression, expected) in [
            ("true", Ok(true)),
            ("?!", Err("compilation failed: ")),
            ("1", Err("must evaluate to bool or the unknown type, not int")),
            (r#"device.attributes["other"].x > 0"#, Err("no such key: x. consider using CEL")),
            (r#"device.attributes["dra.example.com"].x"#, Err("no such key: x. consider using")),
            (r#""other" in device.attributes"#, Ok(false)),
            (r#""dra.example.com" in device.attributes"#, Ok(true)),
            (r#"device.driver == "dra.example.com""#, Ok(true)),
            (r#"device.attributes["dra.example.com"].name == "fish""#, Ok(true)),
            (r#"device.attributes["dra.example.com"]["count"] > 2"#, Ok(false)),
            (r#"device.attributes["dra.example.com"].ok"#, Ok(true)),
            (
                r#"device.attributes["dra.example.com"].version.isGreaterThan(semver("v0.0.1", true))"#,
                Ok(true),
            ),
            (
                r#"device.capacity["dra.example.com"].memory.isGreaterThan(quantity("1Ki"))"#,
                Ok(true),
            ),
            (
                r#"!("size" in device.capacity["dra.example.com"]) || device.capacity["dra.example.com"].size.isGreaterThan(quantity("1Ki"))"#,
                Ok(true),
            ),
            (r#"cel.bind(dra, device.attributes["dra.example.com"], dra.count == 2)"#, Ok(true)),
            (r#"device.attributes["dra.example.com"].exists_one(x, x == "services")"#, Ok(true)),
            (r#"device.attributes["dra.example.com"].services.split(",").size() == 2"#, Ok(true)),
            (r#"device.attributes["dra.example.com"].services.matches("[^a]?org")"#, Ok(true)),
            ("device.allowMultipleAllocations", Ok(true)),
            (
                r#"device.attributes["dra.example.com"].name"#,
                Err("CEL result of type string could not be converted to bool: unsupported"),
            ),
            (deep.as_str(), Err("actual cost limit exceeded")),
        ] {
            match (selectors.matches(expression, &device(true)), expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{expression}"),
                (Err(error), Err(text)) => {
                    assert!(error.to_string().contains(text), "{expression}: {error}");
                }
                (got, _) => panic!("{expression}: {got:?}"),
            }
        }
        assert_eq!(selectors.matches("device.allowMultipleAllocations", &device(false)), Ok(false));
    }

    #[test]
    fn attributes_without_a_known_value_are_errors() {
        for (attribute, expected) in [
            (json!({}), "CEL runtime error: attribute a: unsupported attribute value"),
            (
                json!({"version": "1"}),
                "CEL runtime error: attribute a: parse semantic version: No Major.Minor.Patch \
                 elements found",
            ),
        ] {
            let mut device = device(false);
            let attribute = serde_json::from_value(attribute).unwrap();
            device.attributes = [("a".to_owned(), attribute)].into();
            let error = Selectors::default().matches("true", &device).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn the_least_recently_used_program_is_dropped() {
        let (selectors, device) = (Selectors::default(), device(false));
        for number in 0..PROGRAMS_MAX + 10 {
            assert_eq!(selectors.matches(&format!("{number} == 0"), &device), Ok(number == 0));
            assert_eq!(selectors.matches("true", &device), Ok(true));
        }
        let programs = selectors.programs.lock();
        assert_eq!(programs.by_expression.len(), PROGRAMS_MAX);
        assert!(programs.by_expression.contains_key("true"));
        assert!(!programs.by_expression.contains_key("0 == 0"));
    }
}
