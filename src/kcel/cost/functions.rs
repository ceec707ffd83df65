//! Estimated costs of functions by the sizes of their arguments.

use super::{Argument, CallCost, Coster, Range, UNKNOWN};
use crate::ast::{Kind, Literal};
use crate::runtime_cost::{CHECK_COST, LIST_COST, REGEX_FACTOR, STRING_FACTOR, STRUCT_COST};
use crate::types::Type;

/// Maximum length of the pattern of a named format (`MaxNameFormatRegexSize`).
const FORMAT_PATTERN_MAX: f64 = 128.0;
/// Maximum length of the name of a format (`MaxFormatSize`).
const FORMAT_NAME_MAX: u64 = 64;

fn only(cost: Range) -> CallCost {
    CallCost { cost, size: None }
}

fn sized(cost: Range, size: Range) -> CallCost {
    CallCost { cost, size: Some(size) }
}

fn known(argument: &Argument<'_>) -> Range {
    argument.size.unwrap_or(UNKNOWN)
}

/// Returns the value of an argument that is an integer literal.
fn written_int(argument: &Argument<'_>, otherwise: u64) -> u64 {
    match &argument.expr.kind {
        Kind::Literal(Literal::Int(value)) => u64::try_from(*value).unwrap_or(0),
        _ => otherwise,
    }
}

/// Estimates a match: the product of pattern and string; an empty string counts as one character.
fn regex(text: Range, pattern: Range) -> Range {
    text.add(Range::fixed(1)).scale(STRING_FACTOR).multiply(pattern.scale(REGEX_FACTOR))
}

fn list_call(factor: f64, size: Range) -> CallCost {
    sized(size.scale(factor).add(Range::fixed(1 + LIST_COST)), size)
}

/// Estimates functions of cel-go; 1 for unknown functions.
pub(super) fn standard(
    overload: &str,
    target: Option<&Argument<'_>>,
    args: &[Argument<'_>],
) -> CallCost {
    match (overload, target, args) {
        ("string_format", Some(target), _) => only(known(target).scale(STRING_FACTOR)),
        ("string_to_bytes", _, [arg]) => {
            let size = known(arg);
            let result = Range { min: size.min, max: size.max.wrapping_mul(4) };
            sized(size.scale(STRING_FACTOR), result)
        }
        ("bytes_to_string", _, [arg]) => {
            let size = known(arg);
            sized(size.scale(STRING_FACTOR), Range { min: size.min / 4, max: size.max })
        }
        ("strings_quote", _, [arg]) => {
            let size = known(arg);
            let max = size.max.wrapping_mul(2).wrapping_add(2);
            sized(size.scale(STRING_FACTOR), Range { min: size.min.wrapping_add(2), max })
        }
        ("starts_with_string" | "ends_with_string", _, [arg]) => {
            only(known(arg).scale(STRING_FACTOR))
        }
        ("in_list", _, [_, list]) => only(known(list).scale(1.0)),
        ("matches_string", Some(target), [pattern]) => only(regex(known(target), known(pattern))),
        ("matches", None, [text, pattern]) => only(regex(known(text), known(pattern))),
        ("contains_string", Some(target), [piece]) => {
            only(known(target).scale(STRING_FACTOR).multiply(known(piece).scale(STRING_FACTOR)))
        }
        (
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals",
            _,
            [left, right],
        ) => {
            let max = known(left).max.min(known(right).max);
            only(Range { min: u64::from(max > 0), max }.scale(STRING_FACTOR))
        }
        _ => only(Range::fixed(1)),
    }
}

impl<'e> Coster<'e> {
    /// Returns the size of an argument; asks the estimator again where upstream's library does.
    fn asked(&self, argument: &Argument<'_>) -> Range {
        argument.size.or_else(|| self.sizes.size(&argument.path)).unwrap_or(UNKNOWN)
    }

    /// Estimates a call of a Kubernetes library.
    pub(super) fn library(
        &self,
        function: &str,
        overload: &str,
        target: Option<&Argument<'e>>,
        args: &[Argument<'e>],
    ) -> Option<CallCost> {
        self.extension(overload, target, args)
            .or_else(|| self.kubernetes(function, overload, target, args))
    }

    /// Estimates cel-go's extensions with their own estimator: lists and sets.
    fn extension(
        &self,
        overload: &str,
        target: Option<&Argument<'e>>,
        args: &[Argument<'e>],
    ) -> Option<CallCost> {
        let square = |argument: &Argument<'e>, strings: bool| {
            let size = self.asked(argument);
            list_call(if strings { 2.0 + STRING_FACTOR } else { 2.0 }, size.multiply(size))
        };
        let strings = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
        Some(match (overload, target, args) {
            ("list_slice", Some(target), [start, end]) => {
                let size = self.asked(target);
                let (start, end) = (written_int(start, 0), written_int(end, size.max));
                list_call(1.0, Range::fixed(end.wrapping_sub(start)))
            }
            ("lists_range", None, [count]) => {
                list_call(1.0, Range::fixed(written_int(count, u64::MAX)))
            }
            ("list_reverse", Some(target), []) => list_call(1.0, self.asked(target)),
            ("list_flatten", Some(target), []) => list_call(1.0, self.asked(target)),
            ("list_flatten_int", Some(target), [depth]) => {
                list_call(written_int(depth, u64::MAX) as f64, self.asked(target))
            }
            ("list_distinct", Some(target), []) => square(target, false),
            (sort, Some(target), []) if sort.starts_with("list_") && sort.ends_with("_sort") => {
                square(target, strings)
            }
            (sort, Some(_), [keys]) if sort.ends_with("_sortByAssociatedKeys") => {
                square(keys, strings)
            }
            (
                "list_sets_contains_list"
                | "list_sets_intersects_list"
                | "list_sets_equivalent_list",
                _,
                [one, other],
            ) => {
                let factor = if overload == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                let size = self.asked(one).multiply(self.asked(other));
                only(size.scale(factor).add(Range::fixed(1)))
            }
            _ => return None,
        })
    }

    fn kubernetes(
        &self,
        function: &str,
        overload: &str,
        target: Option<&Argument<'e>>,
        args: &[Argument<'e>],
    ) -> Option<CallCost> {
        let scan = |argument: &Argument<'e>| self.asked(argument).scale(STRING_FACTOR);
        let twice = |argument: &Argument<'e>| self.asked(argument).scale(2.0 * STRING_FACTOR);
        Some(match (function, target, args) {
            ("check", ..) => only(Range::fixed(CHECK_COST)),
            _ if crate::runtime_cost::costs_one(function) => only(Range::fixed(1)),
            ("fieldSelector" | "labelSelector", _, [selector]) => {
                let requirements = self.asked(selector).scale(0.5);
                let each = (LIST_COST + STRUCT_COST) as f64;
                let cost = Range::fixed(LIST_COST).add(scan(selector));
                only(cost.add(requirements.scale(each)))
            }
            (
                "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes",
                Some(target),
                _,
            ) => self.each(function, target),
            ("url" | "jsonpatch.escapeKey", _, [arg]) => sized(scan(arg), self.asked(arg)),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
                sized(scan(target), self.asked(target))
            }
            ("replace", Some(target), [old, new, ..]) => {
                let size = replaced(self.asked(target), self.asked(old), self.asked(new));
                sized(twice(target), size)
            }
            ("split", Some(target), _) => {
                let max = args.get(1).and_then(|count| match count.expr.kind {
                    Kind::Literal(Literal::Int(count)) => Some(count as u64),
                    _ => None,
                });
                let max = max.unwrap_or(self.asked(target).max);
                sized(twice(target), Range { min: 0, max })
            }
            ("join", Some(target), _) => {
                let size = self.joined(target, args.first());
                sized(size.scale(STRING_FACTOR), size)
            }
            ("find" | "findAll", Some(target), [pattern, ..]) => {
                let size = self.asked(target);
                sized(regex(size, self.asked(pattern)), Range { min: 0, max: size.max })
            }
            ("ip", ..) if overload == "cidr_ip" => only(Range::fixed(1)),
            (
                "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver"
                | "isSemver",
                _,
                [arg, ..],
            ) => only(scan(arg)),
            ("ip.isCanonical", _, [arg, ..]) => only(twice(arg)),
            ("containsIP" | "containsCIDR", _, [other, ..]) => {
                let bytes = Range { min: 4, max: 16 };
                let mut cost = bytes.add(bytes).scale(STRING_FACTOR);
                if function == "containsCIDR" {
                    cost = cost.add(bytes.scale(STRING_FACTOR)).add(Range::fixed(1));
                }
                if matches!(overload, "cidr_contains_ip_string" | "cidr_contains_cidr_string") {
                    cost = cost.add(scan(other));
                }
                only(cost)
            }
            ("validate", _, [text, ..]) => {
                only(scan(text).scale(FORMAT_PATTERN_MAX * REGEX_FACTOR))
            }
            ("_==_", _, [left, right]) if left.of == right.of => return same(&left.of),
            _ => return None,
        })
    }

    /// Estimates one comparison for each element of a list, or one traversal of a string.
    fn each(&self, function: &str, target: &Argument<'e>) -> CallCost {
        let size = self.asked(target);
        let Type::List(of) = &target.of else {
            return only(if function == "includes" { size } else { size.scale(STRING_FACTOR) });
        };
        let mut each = Range::fixed(1);
        if matches!(**of, Type::String | Type::Bytes) {
            each = each.add(self.element(target).scale(STRING_FACTOR));
        }
        only(size.multiply(each))
    }

    /// Returns the size of a list's elements, if its path is known.
    fn element(&self, list: &Argument<'e>) -> Range {
        let mut path = list.path.clone();
        if !path.is_empty() {
            path.push("@items".into());
        }
        self.sizes.size(&path).unwrap_or(UNKNOWN)
    }

    fn joined(&self, list: &Argument<'e>, separator: Option<&Argument<'e>>) -> Range {
        let count = self.asked(list);
        let mut size = Range::fixed(0);
        if matches!(list.of, Type::List(_)) {
            size = count.multiply(self.element(list));
        }
        if let Some(separator) = separator {
            let between =
                Range { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
            size = size.add(self.asked(separator).multiply(between));
        }
        size
    }
}

/// Estimates the equality of values of libraries; `None` for other values.
fn same(of: &Type) -> Option<CallCost> {
    match of {
        Type::Opaque(name, _) if matches!(&**name, "net.IP" | "net.CIDR") => {
            Some(only(Range::fixed(1)))
        }
        Type::Object(object) => match &*object.name {
            "kubernetes.NamedFormat" => {
                Some(only(Range { min: 1, max: FORMAT_NAME_MAX }.scale(STRING_FACTOR)))
            }
            "kubernetes.URL" => Some(only(Range::fixed(1).scale(STRING_FACTOR))),
            name if name == "kubernetes.Quantity"
                || name == "kubernetes.Semver"
                || name.starts_with("kubernetes.authorization.") =>
            {
                Some(only(Range::fixed(1)))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Estimates the size of a string after replacements.
fn replaced(text: Range, old: Range, new: Range) -> Range {
    let ratio = |size: u64, by: u64| crate::runtime_cost::ceil(size as f64 / by as f64);
    let (mut count, mut kept) = (Range::fixed(0), Range::fixed(0));
    if old.min == 0 {
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = ratio(text.max, old.min);
    }
    if old.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = ratio(text.min, old.max);
    }
    count.multiply(new).add(kept)
}

#[cfg(test)]
mod tests {
    use crate::tests::check_estimates;

    /// Rows of `pkg/cel/library/cost_test.go` in k8s.io/apiserver.
    #[test]
    fn functions_of_lists_cost_a_comparison_for_each_element() {
        let strings = "['012345678901', '012345678901', '012345678901', '012345678901', \
                       '012345678901']";
        let uints = "[uint(1), uint(2), uint(3), uint(4), uint(5)]";
        check_estimates(&[
            ("[1, 2, 3, 4, 5].sum()", 15, 15),
            (&format!("{uints}.sum()"), 20, 20),
            ("[1.0, 2.0, 3.0, 4.0, 5.0].isSorted()", 15, 15),
            (&format!("{strings}.max()"), 15, 25),
            ("[1, 2, 3, 4, 5].indexOf(3)", 15, 15),
            (&format!("{uints}.lastIndexOf(uint(3))"), 21, 21),
            (&format!("{strings}.includes('x')"), 15, 25),
            ("'01234567890123456789012345678901234567890123456789'.indexOf('123')", 5, 5),
            ("'01234567890123456789012345678901234567890123456789'.includes('123')", 50, 50),
        ]);
    }

    /// Rows of `pkg/cel/library/cost_test.go` in k8s.io/apiserver.
    #[test]
    fn functions_of_strings_cost_a_traversal() {
        check_estimates(&[
            ("'ABCDEFGHIJ abcdefghij'.lowerAscii()", 3, 3),
            ("'ABCDEFGHIJ abcdefghij'.lowerAscii() == 'abcdefghij ABCDEFGHIJ'.lowerAscii()", 7, 9),
            ("strings.quote('ABCDEFGHIJ abcdefghij')", 3, 3),
            (
                "strings.quote('ABCDEFGHIJ abcdefghij') == strings.quote('ABCDEFGHIJ abcdefghij')",
                7,
                11,
            ),
            ("'abc 123 def 123'.replace('', 'x')", 3, 3),
            ("'abc 123 def 123'.split(' ', 1)", 3, 3),
            ("'abc 123 def 123'.substring(5, 8)", 2, 2),
            ("['aa', 'bb', 'cc', 'd', 'e', 'f', 'g', 'h', 'i', 'j'].join(' ')", 11, 23),
            ("'abc 123 def 123'.findAll('123', 1)", 2, 2),
            ("jsonpatch.escapeKey('abc/def~ abc/def~')", 2, 2),
        ]);
    }

    /// Rows of `pkg/cel/library/cost_test.go` in k8s.io/apiserver.
    #[test]
    fn functions_of_libraries_cost_by_the_text_they_parse() {
        check_estimates(&[
            ("url('https:://kubernetes.io/').getScheme()", 4, 4),
            ("url('https:://kubernetes.io/') == url('http://x.b')", 5, 5),
            ("ip('192.168.0.1').family()", 3, 3),
            ("ip('2001:db8:3333:4444:5555:6666:7777:8888')", 4, 4),
            ("ip.isCanonical('2001:db8::abcd')", 3, 3),
            ("cidr('192.168.0.0/16').containsCIDR(cidr('192.0.0.0/30'))", 7, 11),
            ("cidr('192.168.0.0/16').containsIP('192.169.0.1')", 5, 8),
            ("cidr('2001:db8::/32') == cidr('2001:db8::/32')", 5, 5),
            ("quantity('12Mi')", 1, 1),
            ("authorizer.path('/healthz')", 2, 2),
            ("authorizer.path('/healthz').check('get').allowed()", 350_003, 350_003),
        ]);
    }
}
