//! CEL expressions of device selectors: their variables and their cost limit
//! (`k8s.io/dynamic-resource-allocation/cel`, with the features that 1.37 enables by default).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kcel::{Env, Program, Range, SizeEstimator, Type};

use super::{Fault, go_name};

/// Maximum length of an expression in bytes.
pub const LENGTH_MAX: usize = 10 * 1024;
/// Maximum estimated cost of an expression (`CELSelectorExpressionMaxCost`).
pub const COST_MAX: u64 = 1_000_000;

/// Maximum length of the domain and the identifier in an attribute's name; the first is also the
/// maximum length of a driver's name.
const DOMAIN_MAX: u64 = 63;
const IDENTIFIER_MAX: u64 = 32;
/// Maximum number of attributes and capacities of a device, and maximum length of an attribute's
/// value.
const ENTRIES_MAX: u64 = 32;
const VALUE_MAX: u64 = 64;

/// The variable `device`. The values of its attributes have the type `any`, which macros cannot
/// iterate over.
static ENV: LazyLock<Env> = LazyLock::new(|| {
    let by_name = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let fields = [
        ("driver", Type::String),
        ("allowMultipleAllocations", Type::Bool),
        ("attributes", by_name(Type::Any)),
        ("capacity", by_name(Type::object("kubernetes.Quantity", BTreeMap::new()))),
    ];
    let fields = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    Env::new().with_bindings().variable("device", Type::object("kubernetes.DRADevice", fields))
});

/// Compiles a selector.
///
/// # Errors
/// Upstream's error text.
pub fn selector(text: &str) -> Result<Program, Fault> {
    let program = ENV.compile_any(text)?;
    match program.output() {
        Type::Bool | Type::Any => Ok(program),
        other => {
            let got = go_name(other);
            Err(Fault::Invalid(format!("must evaluate to bool or the unknown type, not {got}")))
        }
    }
}

/// The maximum estimated cost of a selector.
pub fn cost(program: &Program) -> u64 {
    program.estimate(&Sizes).max
}

/// The maximum sizes of a device's fields.
struct Sizes;

impl SizeEstimator for Sizes {
    fn size(&self, path: &[String]) -> Option<Range> {
        let (root, steps) = path.split_first()?;
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let each = |step: &str| matches!(step, "@items" | "@values");
        let max = match (root.as_str(), steps.as_slice()) {
            ("device", []) => 0,
            ("device", ["driver"]) => DOMAIN_MAX,
            ("device", ["allowMultipleAllocations"]) => 1,
            ("device", ["attributes" | "capacity"]) => ENTRIES_MAX,
            ("device", ["attributes" | "capacity", "@keys"]) => DOMAIN_MAX,
            ("device", ["attributes" | "capacity", domain]) if each(domain) => ENTRIES_MAX,
            ("device", ["attributes" | "capacity", domain, "@keys"]) if each(domain) => {
                IDENTIFIER_MAX
            }
            ("device", ["attributes", domain, _]) if each(domain) => VALUE_MAX,
            ("device", ["capacity", domain, value]) if each(domain) && each(value) => 0,
            _ => return None,
        };
        Some(Range { min: 0, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cost estimates of upstream's `compile_test.go`.
    #[test]
    fn selectors_cost_what_upstream_estimates() {
        let all = r#"
device.capacity["dra.example.com"].quantity.isGreaterThan(quantity("1Ki")) &&
device.attributes["dra.example.com"].bool &&
device.attributes["dra.example.com"].int > 0 &&
device.attributes["dra.example.com"].string == "fish" &&
device.attributes["dra.example.com"].version.isGreaterThan(semver("0.0.1")) &&
device.capacity["dra.example.com"]["quantity"].isGreaterThan(quantity("1Ki")) &&
device.attributes["dra.example.com"]["bool"] &&
device.attributes["dra.example.com"]["int"] > 0 &&
device.attributes["dra.example.com"]["string"] == "fish" &&
device.attributes["dra.example.com"]["version"].isGreaterThan(semver("0.0.1"))
"#;
        let rows = [
            (r#"device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))"#, 6),
            (r#""no-such-domain" in device.attributes"#, 3),
            (r#"device.driver == """#, 2),
            (r#"device.driver == "dra.example.com""#, 4),
            (r#"device.attributes["dra.example.com"].name"#, 4),
            (r#"device.attributes["dra.example.com"]["name"]"#, 4),
            (r#"cel.bind(dra, device.attributes["dra.example.com"], dra.name)"#, 15),
            (r#"device.attributes["dra.example.com"].name > 0"#, 5),
            (r#"device.attributes["dra.example.com"].name == "fish""#, 5),
            (r#"device.attributes["dra.example.com"].names.size() == 2"#, 6),
            (
                r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)"#,
                7,
            ),
            (r#"device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#, 6),
            (
                r#""name" in device.capacity["dra.example.com"] && device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
                10,
            ),
            (
                r#"!("name" in device.capacity["dra.example.com"]) || device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
                11,
            ),
            (all, 52),
            (r#"device.attributes.exists_one(x, x == "dra.example.com")"#, 164),
            (r#"device.attributes["dra.example.com"].exists_one(x, x == "services")"#, 133),
            (r#"device.attributes["dra.example.com"].services.split("example").size() >= 2"#, 19),
            (r#"device.attributes["dra.example.com"].services.matches("[^a]?sym")"#, 18),
            (r#"device.capacity.exists_one(x, x == "dra.example.com")"#, 164),
            (r#"device.capacity["dra.example.com"].exists_one(x, x == "memory")"#, 133),
            (
                r#"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(y, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(z, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(z2, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(z3, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(z4, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(z5, int('1'.find('[0-9]*')) < 100)))))))"#,
                85_555_551,
            ),
            ("device.allowMultipleAllocations == true", 3),
        ];
        for (text, wanted) in rows {
            let program = selector(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!(cost(&program), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_said() {
        let fault = |text: &str| selector(text).unwrap_err().to_string();
        assert_eq!(fault("1"), "must evaluate to bool or the unknown type, not int");
        assert_eq!(
            fault(r#"dyn(device.driver)"#),
            "must evaluate to bool or the unknown type, not dyn"
        );
        assert!(fault("?!").contains("Syntax error"));
        assert!(fault("device.name == 'x'").contains("undefined field 'name'"));
        assert!(fault("object.x").contains("undeclared reference to 'object'"));
        assert_eq!(
            fault(r#"device.attributes["dra.example.com"].ids.exists(id, id == 1)"#),
            "compilation failed: ERROR: <input>:1:37: expression of type 'any' cannot be range of a comprehension (must be list, map, or dynamic)\n | device.attributes[\"dra.example.com\"].ids.exists(id, id == 1)\n | ....................................^"
        );
        assert!(
            fault("cel.bind(1, 2, 3)")
                .contains("cel.bind() variable names must be simple identifiers")
        );
    }
}
