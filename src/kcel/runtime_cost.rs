//! The cost of calls at run time: Kubernetes' estimator first, then cel-go's tracker.

use crate::host::{Host, Kind};
use crate::value::{Error, Value};

pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const STRUCT_COST: u64 = 40;
/// Cost of reading a string once, for each character.
pub(crate) const STRING_FACTOR: f64 = 0.1;
/// Cost of a pattern, for each of its characters.
pub(crate) const REGEX_FACTOR: f64 = 0.25;
/// Cost of an authorizer check: the limit of an expression allows two.
pub(crate) const CHECK_COST: u64 = 350_000;

/// The cost of a call.
pub(crate) enum Cost {
    Known(u64),
    /// A lower bound; the exact cost follows from the size of the result.
    AtLeast(u64, Box<dyn Fn(u64) -> u64>),
}

pub(crate) fn ceil(size: f64) -> u64 {
    size.ceil() as u64
}

fn scaled(size: u64, factor: f64) -> u64 {
    ceil(size as f64 * factor)
}

pub(crate) fn equality(
    function: &str,
    left: &Result<Value<'_>, Error>,
    right: &Result<Value<'_>, Error>,
) -> u64 {
    if function == "_==_" && matches!(left, Ok(Value::Host(_))) {
        return 1;
    }
    let size = |value: &Result<Value<'_>, Error>| value.as_ref().map_or(1, Value::size);
    scaled(size(left).min(size(right)), STRING_FACTOR)
}

/// Returns the cost of traversing a value with all its elements.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * STRING_FACTOR) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * STRING_FACTOR) as u64,
        Value::List(list) => list.iter().map(|item| item.as_ref().map_or(1, traversal)).sum(),
        Value::Map(map) => map
            .keys()
            .iter()
            .map(|key| {
                let value = map.find(key).ok().flatten();
                traversal(key) + value.as_ref().map_or(1, traversal)
            })
            .sum(),
        _ => 1,
    }
}

/// Returns the cost of a call with these arguments.
pub(crate) fn call(function: &str, overload: Option<&str>, args: &[Value<'_>]) -> Cost {
    if let Some(cost) = overload.and_then(|overload| tracked(overload, args)) {
        return cost;
    }
    let size = |at: usize| args.get(at).map_or(1, Value::size);
    let kubernetes = match function {
        "check" => Some(CHECK_COST),
        "fieldSelector" | "labelSelector" => Some(
            LIST_COST
                + scaled(size(1), STRING_FACTOR)
                + scaled(scaled(size(1), 0.5), (LIST_COST + STRUCT_COST) as f64),
        ),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
            Some(args.first().map_or(0, traversal))
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => Some(scaled(size(0), STRING_FACTOR)),
        "replace" | "split" | "ip.isCanonical" => Some(scaled(size(0), 2.0 * STRING_FACTOR)),
        "join" => {
            return Cost::AtLeast(0, Box::new(|result| scaled(result, 2.0 * STRING_FACTOR)));
        }
        "find" | "findAll" => Some(regex(size(0), size(1))),
        "validate" => match args {
            [Value::Host(Host(Kind::Format(format))), text] => {
                Some(regex(text.size(), format.pattern))
            }
            _ => None,
        },
        "ip" if overload == Some("cidr_ip") => Some(1),
        "ip" => Some(scaled(size(0), STRING_FACTOR)),
        "containsIP" | "containsCIDR" => Some(contains(function, overload, size(0), size(1))),
        _ if costs_one(function) => Some(1),
        _ => None,
    };
    Cost::Known(kubernetes.unwrap_or_else(|| standard(overload, args)))
}

/// Functions of Kubernetes whose calls cost one, whatever their arguments
/// (`apiserver/pkg/cel/library/cost.go`).
pub(crate) fn costs_one(function: &str) -> bool {
    matches!(
        function,
        "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery"
    )
}

/// The cost of a match: the product of the costs of pattern and string.
fn regex(text: u64, pattern: u64) -> u64 {
    let text = ceil((1.0 + text as f64) * STRING_FACTOR);
    text.saturating_mul(scaled(pattern, REGEX_FACTOR))
}

fn contains(function: &str, overload: Option<&str>, cidr: u64, other: u64) -> u64 {
    let mut cost = scaled(cidr + cidr, STRING_FACTOR);
    if function == "containsCIDR" {
        cost += scaled(cidr, STRING_FACTOR) + 1;
    }
    if matches!(overload, Some("cidr_contains_ip_string" | "cidr_contains_cidr_string")) {
        cost += scaled(other, STRING_FACTOR);
    }
    cost
}

/// Returns the cost of an overload of cel-go; 1 for unknown overloads.
fn standard(overload: Option<&str>, args: &[Value<'_>]) -> u64 {
    let size = |at: usize| args.get(at).map_or(1, Value::size);
    match overload.unwrap_or_default() {
        "starts_with_string" | "ends_with_string" => scaled(size(1), STRING_FACTOR),
        "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => {
            scaled(size(0), STRING_FACTOR)
        }
        "in_list" => size(1),
        "less_string"
        | "greater_string"
        | "less_equals_string"
        | "greater_equals_string"
        | "less_bytes"
        | "greater_bytes"
        | "less_equals_bytes"
        | "greater_equals_bytes" => scaled(size(0).min(size(1)), STRING_FACTOR),
        "add_string" | "add_bytes" => scaled(size(0) + size(1), STRING_FACTOR),
        "matches" | "matches_string" => regex(size(0), size(1)),
        "contains_string" => {
            scaled(size(0), STRING_FACTOR).saturating_mul(scaled(size(1), STRING_FACTOR))
        }
        _ => 1,
    }
}

/// Overloads of libraries with their own cost tracker.
fn tracked(overload: &str, args: &[Value<'_>]) -> Option<Cost> {
    let size = |at: usize| args.get(at).map_or(1, Value::size);
    let by_result = |least| {
        Some(Cost::AtLeast(least, Box::new(|result: u64| result.saturating_add(1 + LIST_COST))))
    };
    match overload {
        "list_slice" | "list_reverse" => return by_result(0),
        "lists_range" => {
            let count = match args.first() {
                Some(Value::Int(count)) => {
                    u64::try_from(*count).ok().filter(|n| *n <= 1_000_000).unwrap_or(0)
                }
                _ => 0,
            };
            return by_result(count);
        }
        _ => {}
    }
    let known = match overload {
        "list_flatten" => allocating(1.0, size(0)),
        "list_flatten_int" => match args.get(1) {
            Some(Value::Int(depth)) => allocating(*depth as f64, size(0)),
            _ => allocating(1.0, size(0)),
        },
        "list_distinct" => self_compare(args.first()),
        "list_sets_contains_list" | "list_sets_intersects_list" => {
            1u64.saturating_add(size(0).saturating_mul(size(1)))
        }
        "list_sets_equivalent_list" => {
            1u64.saturating_add(size(0).saturating_mul(size(1)).saturating_mul(2))
        }
        other if other.ends_with("_sortByAssociatedKeys") => self_compare(args.get(1)),
        other if other.starts_with("list_") && other.ends_with("_sort") => {
            self_compare(args.first())
        }
        _ => return None,
    };
    Some(Cost::Known(known))
}

/// Returns the cost of comparing every element with every other.
fn self_compare(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else { return allocating(2.0, 0) };
    let size = list.len() as u64;
    let strings = matches!(list.get(0), Ok(Value::String(_) | Value::Bytes(_)));
    allocating(if strings { 2.0 + STRING_FACTOR } else { 2.0 }, size.saturating_mul(size))
}

fn allocating(factor: f64, size: u64) -> u64 {
    let factor = if factor < 0.0 { 1.0 } else { factor };
    let cost = (size as f64 * factor) as u64;
    cost.saturating_add(1 + LIST_COST)
}

#[cfg(test)]
mod tests {
    use crate::tests::check_costs;

    /// Rows of cel-go's `interpreter/runtimecost_test.go`.
    #[test]
    fn operators_cost_one_and_texts_by_their_size() {
        check_costs(&[
            ("\"Hello World!\"", 0),
            ("i", 1),
            ("mss['a']", 2),
            ("ls[0]", 2),
            ("mss['a' + '']", 3),
            ("li[3-3]", 3),
            ("1 < 2", 1),
            ("size(\"123\")", 1),
            ("'12345678901234567890' == '123456789012345678901234567890'", 2),
            ("'123'.matches('[0-9]')", 2),
            ("true ? false : 1 > 3", 0),
            ("false ? false : 1 > 3", 1),
            ("(1 > 2 ? 5 : 3) > 1", 2),
            ("(1 > 2 || 2 > 1) == true", 3),
        ]);
    }

    /// Rows of `pkg/cel/library/cost_test.go` in k8s.io/apiserver.
    #[test]
    fn functions_of_kubernetes_have_their_own_costs() {
        check_costs(&[
            ("'ABCDEFGHIJ abcdefghij'.lowerAscii()", 3),
            ("'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 9),
            ("'abc 123 def 123'.replace('123', '456', 1)", 3),
            ("'abc 123 def 123'.split(' ')", 3),
            ("'  abc 123 def 123  '.trim()", 2),
            ("'abc 123 def 123'.find('123')", 2),
            ("url('https:://kubernetes.io/').getScheme()", 4),
            ("url('https:://kubernetes.io/') == url('https:://kubernetes.io/')", 7),
            ("ip('2001:db8:3333:4444:5555:6666:7777:8888').family()", 5),
            ("ip('192.168.0.1') == ip('192.168.0.1')", 5),
            ("cidr('192.168.0.0/16').containsCIDR(cidr('192.0.0.0/30'))", 7),
            ("cidr('192.168.0.0/16').containsIP(ip('192.0.0.1'))", 4),
            ("cidr('2001:db8::/32').containsIP('2001:db8::1')", 5),
            ("quantity('12Mi')", 1),
            ("authorizer.path('/healthz').check('get').allowed()", 350_003),
        ]);
    }
}
