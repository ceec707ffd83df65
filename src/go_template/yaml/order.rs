//! The order of keys: letters before digits, and numbers within texts by their value.

use std::cmp::Ordering;

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
