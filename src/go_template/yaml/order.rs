//! The order of keys: letters before digits, and numbers within texts by their value.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::yaml::Dialect;

/// The number at a position: its value, and where it ends.
fn number(text: &[char], from: usize, start: i64) -> (i64, usize) {
    let mut value = start;
    let mut at = from;
    while let Some(digit) = text.get(at).and_then(|c| c.to_digit(10)) {
        value = value.wrapping_mul(10).wrapping_add(i64::from(digit));
        at += 1;
    }
    (value, at)
}

/// Compares two keys.
pub(super) fn compare(a: &str, b: &str, dialect: Dialect) -> Ordering {
    let left: Vec<char> = a.chars().collect();
    let right: Vec<char> = b.chars().collect();
    let mut digits = false;
    for (at, (l, r)) in left.iter().zip(&right).enumerate() {
        if l == r {
            digits = l.is_numeric();
            continue;
        }
        let (left_letter, right_letter) = (l.is_alphabetic(), r.is_alphabetic());
        if left_letter && right_letter {
            return l.cmp(r);
        }
        if left_letter || right_letter {
            // Within a number of version 3, a letter comes before a digit.
            let less = if digits && dialect == Dialect::V3 { left_letter } else { right_letter };
            return if less { Ordering::Less } else { Ordering::Greater };
        }
        let mut start = 0;
        if *l == '0' || *r == '0' {
            let before = left.get(..at).unwrap_or_default().iter().rev();
            let significant = before.take_while(|c| c.is_numeric()).any(|c| *c != '0');
            start = i64::from(significant);
        }
        let (left_number, left_end) = number(&left, at, start);
        let (right_number, right_end) = number(&right, at, start);
        return left_number.cmp(&right_number).then(left_end.cmp(&right_end)).then(l.cmp(r));
    }
    left.len().cmp(&right.len())
}

/// Up to this many elements, Go's sort is an insertion sort.
const INSERTION: usize = 12;

/// Sorts by the keys. The order of mixed numbers and letters has circles, which the sorts of the
/// standard library do not allow.
pub(crate) fn sort<T: Clone>(pairs: &mut Vec<(Arc<str>, T)>, dialect: Dialect) {
    if pairs.len() > INSERTION {
        let mut right = pairs.split_off(pairs.len() / 2);
        sort(pairs, dialect);
        sort(&mut right, dialect);
        let mut merged = Vec::with_capacity(pairs.len() + right.len());
        let (mut left, mut right) = (pairs.drain(..).peekable(), right.into_iter().peekable());
        while let (Some((a, _)), Some((b, _))) = (left.peek(), right.peek()) {
            let takes_right = compare(b, a, dialect).is_lt();
            merged.extend(if takes_right { right.next() } else { left.next() });
        }
        merged.extend(left);
        merged.extend(right);
        *pairs = merged;
        return;
    }
    for at in 1..pairs.len() {
        for slot in (1..=at).rev() {
            let (Some(before), Some(here)) = (pairs.get(slot - 1), pairs.get(slot)) else { break };
            if !compare(&here.0, &before.0, dialect).is_lt() {
                break;
            }
            pairs.swap(slot - 1, slot);
        }
    }
}
