//! Functions of lists and sets: cel-go's extensions (lists of version 3) and Kubernetes' own.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use sorting::CompactSort as _;

use super::standard::count;
use super::{exactly, int, list};
use crate::node::Call;
use crate::ops;
use crate::value::{Error, List, Value};

type Result<T> = std::result::Result<T, Error>;

/// Maximum number of elements that `lists.range` creates.
const RANGE_MAX: i64 = 1_000_000;

pub(super) fn call<'a>(call: &Call, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    let name = call.function.as_str();
    Some(match name {
        "first" | "last" => end(name, args),
        "isSorted" => is_sorted(args),
        "sum" => sum(call, args),
        "min" | "max" => extreme(name, args),
        "indexOf" | "lastIndexOf" => place(name, args),
        "includes" => includes(args),
        "slice" => slice(args),
        "flatten" => flatten(args),
        "sort" => match args {
            [Value::List(keys)] => sorted(keys, keys),
            _ => Err(Error::new("no such overload: sort")),
        },
        "@sortByAssociatedKeys" => match args {
            [Value::List(items), Value::List(keys)] => sorted(items, keys),
            _ => Err(Error::new("no such overload: @sortByAssociatedKeys")),
        },
        "lists.range" => range(args),
        "reverse" => reverse(args),
        "distinct" => distinct(args),
        "sets.contains" => pair(args).and_then(|(a, b)| Ok(Value::Bool(contains_all(a, b)?))),
        "sets.equivalent" => pair(args)
            .and_then(|(a, b)| Ok(Value::Bool(contains_all(a, b)? && contains_all(b, a)?))),
        "sets.intersects" => pair(args).and_then(|(a, b)| intersects(a, b)),
        _ => return None,
    })
}

fn pair<'s, 'a>(args: &'s [Value<'a>]) -> Result<(&'s List<'a>, &'s List<'a>)> {
    let [one, other] = exactly::<2>(args)?;
    Ok((list(one)?, list(other)?))
}

fn end<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let items = list(items)?;
    let Some(last) = items.len().checked_sub(1) else { return Ok(Value::Optional(None)) };
    Ok(items.get(if name == "first" { 0 } else { last })?.some())
}

fn is_sorted<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let mut before: Option<Value<'a>> = None;
    for item in list(items)?.iter() {
        let item = item?;
        if !ops::is_comparable(&item) {
            return Err(Error::no_overload());
        }
        // As upstream, elements that cannot be compared count as sorted.
        if let Some(before) = &before
            && ops::order(before, &item) == Ok(Ordering::Greater)
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(call: &Call, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let items = list(items)?;
    let mut sum = match (call.overload, items.get(0)) {
        (Some("list_uint_sum_uint"), _) | (None, Ok(Value::Uint(_))) => Value::Uint(0),
        (Some("list_double_sum_double"), _) | (None, Ok(Value::Double(_))) => Value::Double(0.0),
        (Some("list_duration_sum_duration"), _) | (None, Ok(Value::Duration(_))) => {
            Value::Duration(0)
        }
        _ => Value::Int(0),
    };
    for item in items.iter() {
        sum = ops::add(sum, item?)?;
    }
    Ok(sum)
}

fn extreme<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let better = if name == "min" { Ordering::Greater } else { Ordering::Less };
    let mut best: Option<Value<'a>> = None;
    for item in list(items)?.iter() {
        let item = item?;
        if !ops::is_comparable(&item) {
            return Err(Error::no_overload());
        }
        best = match best {
            Some(best) if ops::order(&best, &item) != Ok(better) => Some(best),
            _ => Some(item),
        };
    }
    best.ok_or_else(|| Error::new(format!("{name} called on empty list")))
}

fn place<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items, wanted] = exactly::<2>(args)?;
    let items = list(items)?;
    let is =
        |at: &usize| items.get(*at).is_ok_and(|item| matches!(ops::equal(&item, wanted), Ok(true)));
    let found =
        if name == "indexOf" { (0..items.len()).find(is) } else { (0..items.len()).rev().find(is) };
    Ok(Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)))
}

fn includes<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [target, wanted] = exactly::<2>(args)?;
    let is = |item: &Value<'a>| matches!(ops::equal(item, wanted), Ok(true));
    Ok(Value::Bool(match target {
        Value::List(items) => items.iter().any(|item| item.is_ok_and(|item| is(&item))),
        other => is(other),
    }))
}

fn slice<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items, start, end] = exactly::<3>(args)?;
    let items = list(items)?;
    let (from, to) = (int(start)?, int(end)?);
    let refuse = |why: String| Err(Error::new(format!("cannot slice({from}, {to}), {why}")));
    let (Some(start), Some(end)) = (count(start)?, count(end)?) else {
        return refuse("negative indexes not supported".into());
    };
    if start > end {
        return refuse("start index must be less than or equal to end index".into());
    }
    if items.len() < end {
        return refuse(format!("list is length {}", items.len()));
    }
    (start..end).map(|at| items.get(at)).collect::<Result<Vec<_>>>().map(Value::list)
}

fn flatten<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (items, depth) = match args {
        [items] => (list(items)?, 1),
        [items, depth] => (list(items)?, int(depth)?),
        _ => return Err(Error::no_overload()),
    };
    if depth < 0 {
        return Err(Error::new("level must be non-negative"));
    }
    let mut out = Vec::new();
    flatten_into(items, depth, &mut out)?;
    Ok(Value::list(out))
}

fn flatten_into<'a>(items: &List<'a>, depth: i64, out: &mut Vec<Value<'a>>) -> Result<()> {
    for item in items.iter() {
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, out)?,
            other => out.push(other),
        }
    }
    Ok(())
}

fn sorted<'a>(items: &List<'a>, keys: &List<'a>) -> Result<Value<'a>> {
    if items.len() != keys.len() {
        return Err(Error::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            items.len(),
            keys.len()
        )));
    }
    let mut both = Vec::with_capacity(items.len());
    for (key, item) in keys.iter().zip(items.iter()) {
        both.push((key?, item?));
    }
    let Some((first, _)) = both.first() else { return Ok(Value::List(items.clone())) };
    if !ops::is_comparable(first) {
        return Err(Error::new("list elements must be comparable"));
    }
    let name = first.type_name().to_owned();
    if both.len() > 1 && both.iter().any(|(key, _)| key.type_name() != name) {
        return Err(Error::new("list elements must have the same type"));
    }
    both.compact_sort_by(|(one, _), (other, _)| ops::order(one, other).unwrap_or(Ordering::Equal));
    Ok(Value::list(both.into_iter().map(|(_, item)| item).collect()))
}

fn range<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [size] = exactly::<1>(args)?;
    let size = int(size)?;
    if size < 0 {
        let message = format!("lists.range: size must be non-negative, got {size}");
        return Err(Error::new(message));
    }
    if size > RANGE_MAX {
        let message = format!("lists.range: size {size} exceeds maximum allowed ({RANGE_MAX})");
        return Err(Error::new(message));
    }
    Ok(Value::list((0..size).map(Value::Int).collect()))
}

fn reverse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let mut items = list(items)?.iter().collect::<Result<Vec<_>>>()?;
    items.reverse();
    Ok(Value::list(items))
}

fn distinct<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [items] = exactly::<1>(args)?;
    let items = list(items)?.iter().collect::<Result<Vec<_>>>()?;
    let mut index = DistinctIndex::default();
    let is_first: Vec<bool> = items.iter().map(|item| index.is_first(item)).collect();
    let first = items.iter().zip(is_first).filter(|(_, is_first)| *is_first);
    Ok(Value::list(first.map(|(item, _)| item.clone()).collect()))
}

/// The distinct values so far, grouped by a property that equal values share.
#[derive(Default)]
struct DistinctIndex<'v, 'a> {
    texts: HashSet<&'v str>,
    /// By the bits of the number as a double, which are the same for equal numbers of different
    /// types.
    numbers: HashMap<u64, Vec<&'v Value<'a>>>,
    /// Values that are more expensive to compare; the cost of the expression limits their number.
    others: Vec<&'v Value<'a>>,
    /// Undeclared JSON can equal a text or a number, too.
    all: Vec<&'v Value<'a>>,
}

impl<'v, 'a> DistinctIndex<'v, 'a> {
    /// Adds a value; returns whether it is distinct from all values so far.
    fn is_first(&mut self, item: &'v Value<'a>) -> bool {
        let is_known =
            |known: &[&Value<'a>]| known.iter().any(|k| matches!(ops::equal(item, k), Ok(true)));
        let number = match item {
            Value::Int(int) => Some(*int as f64),
            Value::Uint(uint) => Some(*uint as f64),
            // Zero has two representations.
            Value::Double(double) => Some(*double + 0.0),
            _ => None,
        };
        let is_first = match (item, number) {
            (Value::String(text), _) => self.texts.insert(text),
            (_, Some(number)) => {
                let bucket = self.numbers.entry(number.to_bits()).or_default();
                let is_first = !is_known(bucket);
                // NaN equals nothing, so its bucket would only grow.
                if is_first && !number.is_nan() {
                    bucket.push(item);
                }
                is_first
            }
            (Value::Preserved(_), _) => !is_known(&self.all),
            _ => !is_known(&self.others),
        };
        if is_first {
            self.all.push(item);
            if number.is_none() && !matches!(item, Value::String(_)) {
                self.others.push(item);
            }
        }
        is_first
    }
}

fn contains_all(items: &List<'_>, wanted: &List<'_>) -> Result<bool> {
    for item in wanted.iter() {
        if !ops::contains(items, &item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(one: &List<'_>, other: &List<'_>) -> Result<Value<'a>> {
    for item in one.iter() {
        if matches!(ops::contains(other, &item?), Ok(true)) {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of cel-go's `ext/lists_test.go`; `dyn` mixes the types of elements, which Kubernetes
    /// forbids in literals.
    #[test]
    fn lists_are_sliced_flattened_sorted_and_reversed() {
        check_true(&[
            "lists.range(4) == [0,1,2,3]",
            "lists.range(0) == []",
            "[5,1,2,3].reverse() == [3,2,1,5]",
            "[1,2,3,4].slice(1, 3) == [2, 3]",
            "[1,2,3,4].slice(4, 4) == []",
            "[dyn(1),dyn([2,3])].flatten() == [1,2,3]",
            "[dyn(1),dyn([dyn(2),dyn([3,4])])].flatten(2) == [1,2,3,4]",
            "['d', 'a', 'b', 'c'].sort() == ['a', 'b', 'c', 'd']",
            "[-3, 1, -5, -2, 4].sortBy(e, -(e * e)) == [-5, 4, -3, -2, 1]",
            "lists.range(3).sortBy(e, -e) == [2, 1, 0]",
            "[-2, 5, -2, 1, 1, 5, -2, 1].distinct() == [-2, 5, 1]",
            "[dyn(1), dyn(1.0), dyn(2)].distinct() == [1, 2]",
            "[[1], [1], [2]].distinct() == [[1], [2]]",
        ]);
        check_errors(&[
            (
                "[1,2,3,4].slice(3, 0)",
                "cannot slice(3, 0), start index must be less than or equal to end index",
            ),
            ("[1,2,3,4].slice(0, 10)", "cannot slice(0, 10), list is length 4"),
            ("[1,2,3,4].slice(-5, 10)", "cannot slice(-5, 10), negative indexes not supported"),
            ("[].flatten(-1)", "level must be non-negative"),
            ("[dyn('d'), dyn(3)].sort()", "list elements must have the same type"),
        ]);
    }

    /// Rows of cel-go's `ext/sets_test.go`.
    #[test]
    fn sets_are_compared_by_value_without_order_and_repetition() {
        check_true(&[
            "sets.contains([], [])",
            "sets.contains([1], [1, 1])",
            "sets.contains([dyn(1), dyn(2u)], [dyn(2), dyn(2.0)])",
            "!sets.contains([1], [1, 2])",
            "sets.equivalent([1, 1], [1])",
            "sets.equivalent([dyn(1), dyn(2), dyn(3)], [dyn(3u), dyn(2.0), dyn(1)])",
            "!sets.equivalent([2, 1], [1])",
            "sets.intersects([1], [1, 2])",
            "!sets.intersects([], [])",
            "!sets.intersects([dyn(1)], [dyn(1.1), dyn(2u)])",
        ]);
    }

    /// The examples of `pkg/cel/library/lists.go` in k8s.io/apiserver.
    #[test]
    fn lists_have_a_sum_extremes_and_positions_of_elements() {
        check_values(&[
            ("[1, 2, 3].isSorted()", "true"),
            ("['a', 'b', 'b', 'c'].isSorted()", "true"),
            ("[2.0, 1.0].isSorted()", "false"),
            ("[].isSorted()", "true"),
            ("[1, 3].sum()", "4"),
            ("[duration('1m'), duration('1s')].sum()", "1m1s"),
            ("[].sum()", "0"),
            ("[1, 3].min()", "1"),
            ("[1, 3].max()", "3"),
            ("[1, 2, 2, 3].indexOf(2)", "1"),
            ("['a', 'b', 'b', 'c'].lastIndexOf('b')", "2"),
            ("[1.0].indexOf(1.1)", "-1"),
            ("[1, 2, 3].includes(2)", "true"),
            ("'model-a'.includes('model-b')", "false"),
        ]);
        check_errors(&[("[].min()", "min called on empty list")]);
    }
}
