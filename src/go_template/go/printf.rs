//! `fmt.Sprintf`.

use crate::budget::Budget;
use crate::error::Failure;
use crate::go::print::{self, Out};
use crate::go::{float, quote};
use crate::value::Value;

/// Widths and precisions above this are errors in Go.
const MAX_NUMBER: usize = 1_000_000;

/// A verb with its flags.
#[derive(Default, Clone)]
struct Spec {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

struct Printer<'a, 'b> {
    out: Out<'b>,
    args: &'a [Value],
    next: usize,
    reordered: bool,
    good_index: bool,
}

/// Formats `args` by `format`.
///
/// # Errors
///
/// The text would be larger than the budget allows.
pub(crate) fn sprintf(format: &str, args: &[Value], budget: &mut Budget) -> Result<Value, Failure> {
    let out = Out::new(budget);
    let mut printer = Printer { out, args, next: 0, reordered: false, good_index: true };
    printer.run(format)?;
    Ok(Value::from_bytes(printer.out.finish()?))
}

impl Printer<'_, '_> {
    fn push(&mut self, text: &str) -> Result<(), Failure> {
        self.out.push(text.as_bytes())
    }

    fn run(&mut self, format: &str) -> Result<(), Failure> {
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            let (plain, tail) = rest.split_at(at);
            self.push(plain)?;
            rest = self.verb(tail.get(1..).unwrap_or_default())?;
        }
        self.push(rest)?;
        if !self.reordered && self.next < self.args.len() {
            self.push("%!(EXTRA ")?;
            let extra: Vec<Value> = self.args.iter().skip(self.next).cloned().collect();
            for (at, arg) in extra.iter().enumerate() {
                if at > 0 {
                    self.push(", ")?;
                }
                if arg.is_nil() {
                    self.push("<nil>")?;
                } else {
                    self.push(print::type_of(arg))?;
                    self.push("=")?;
                    print::write(&mut self.out, arg, 0)?;
                }
            }
            self.push(")")?;
        }
        Ok(())
    }

    /// `[n]` before a width, precision or verb.
    fn arg_number<'t>(&mut self, text: &'t str) -> (&'t str, bool) {
        let Some(inner) = text.strip_prefix('[') else {
            return (text, false);
        };
        self.reordered = true;
        let Some((number, rest)) = inner.split_once(']') else {
            self.good_index = false;
            return (inner, false);
        };
        match number.parse::<usize>() {
            Ok(index) if index >= 1 && index <= self.args.len() => {
                self.next = index - 1;
                (rest, true)
            }
            _ => {
                self.good_index = false;
                (rest, true)
            }
        }
    }

    fn star(&mut self) -> Option<i64> {
        let value = self.args.get(self.next)?;
        self.next += 1;
        match value {
            Value::Int(number) | Value::Int64(number) => Some(*number),
            _ => None,
        }
    }

    fn verb<'t>(&mut self, text: &'t str) -> Result<&'t str, Failure> {
        self.good_index = true;
        let mut spec = Spec::default();
        let mut rest = text;
        while let Some(flag) = rest.chars().next() {
            match flag {
                '#' => spec.sharp = true,
                '0' => spec.zero = true,
                '+' => spec.plus = true,
                '-' => spec.minus = true,
                ' ' => spec.space = true,
                _ => break,
            }
            rest = rest.get(1..).unwrap_or_default();
        }
        let (tail, mut after_index) = self.arg_number(rest);
        rest = tail;
        if let Some(tail) = rest.strip_prefix('*') {
            rest = tail;
            match self.star() {
                Some(width) => {
                    spec.minus |= width < 0;
                    spec.width = usize::try_from(width.unsigned_abs()).ok();
                }
                None => self.push("%!(BADWIDTH)")?,
            }
            after_index = false;
        } else {
            let (number, tail) = parse_number(rest);
            if after_index && number.is_some() {
                self.good_index = false;
            }
            spec.width = number;
            rest = tail;
        }
        if let Some(tail) = rest.strip_prefix('.') {
            rest = tail;
            if after_index {
                self.good_index = false;
            }
            let (tail, _) = self.arg_number(rest);
            rest = tail;
            if let Some(tail) = rest.strip_prefix('*') {
                rest = tail;
                match self.star().map(usize::try_from) {
                    Some(Ok(precision)) => spec.precision = Some(precision),
                    Some(Err(_)) => {}
                    None => self.push("%!(BADPREC)")?,
                }
            } else {
                let (number, tail) = parse_number(rest);
                spec.precision = Some(number.unwrap_or(0));
                rest = tail;
            }
        } else {
            let (tail, _) = self.arg_number(rest);
            rest = tail;
        }
        self.finish_verb(&spec, rest)
    }

    fn finish_verb<'t>(&mut self, spec: &Spec, rest: &'t str) -> Result<&'t str, Failure> {
        let mut chars = rest.chars();
        let Some(verb) = chars.next() else {
            self.push("%!(NOVERB)")?;
            return Ok("");
        };
        let rest = chars.as_str();
        let limit = self.out.budget().max_bytes().min(MAX_NUMBER);
        if spec.width.is_some_and(|width| width > limit) {
            self.push("%!(BADWIDTH)")?;
            return Ok(rest);
        }
        if spec.precision.is_some_and(|precision| precision > limit) {
            self.push("%!(BADPREC)")?;
            return Ok(rest);
        }
        if verb == '%' {
            self.push("%")?;
        } else if !self.good_index {
            self.push(&format!("%!{verb}(BADINDEX)"))?;
        } else if let Some(arg) = self.args.get(self.next).cloned() {
            self.next += 1;
            self.arg(spec, verb, &arg, 0)?;
        } else {
            self.push(&format!("%!{verb}(MISSING)"))?;
        }
        Ok(rest)
    }

    fn bad_verb(&mut self, verb: char, arg: &Value) -> Result<(), Failure> {
        self.push(&format!("%!{verb}("))?;
        if arg.is_nil() {
            self.push("<nil>")?;
        } else {
            self.push(print::type_of(arg))?;
            self.push("=")?;
            print::write(&mut self.out, arg, 0)?;
        }
        self.push(")")
    }

    fn pad(&mut self, spec: &Spec, text: &[u8], zeros: bool) -> Result<(), Failure> {
        let count = String::from_utf8_lossy(text).chars().count();
        let missing = spec.width.unwrap_or(0).saturating_sub(count);
        if missing == 0 {
            return self.out.push(text);
        }
        if spec.minus {
            self.out.push(text)?;
            return self.push(&" ".repeat(missing));
        }
        if zeros && spec.zero {
            let sign = text.first().filter(|byte| matches!(byte, b'+' | b'-' | b' '));
            let skip = usize::from(sign.is_some());
            self.out.push(text.get(..skip).unwrap_or_default())?;
            self.push(&"0".repeat(missing))?;
            return self.out.push(text.get(skip..).unwrap_or_default());
        }
        self.push(&" ".repeat(missing))?;
        self.out.push(text)
    }

    fn arg(&mut self, spec: &Spec, verb: char, arg: &Value, depth: usize) -> Result<(), Failure> {
        if depth > crate::budget::MAX_NESTING {
            return Err(Failure::new("a value is nested too deep, or contains itself"));
        }
        match verb {
            'T' => return self.pad(spec, print::type_of(arg).as_bytes(), false),
            'p' => return self.bad_verb(verb, arg),
            _ => {}
        }
        match arg {
            Value::Nil | Value::Invalid if verb == 'v' => self.pad(spec, b"<nil>", false),
            Value::Nil | Value::Invalid => self.bad_verb(verb, arg),
            Value::Bool(value) if matches!(verb, 't' | 'v') => {
                self.pad(spec, value.to_string().as_bytes(), false)
            }
            Value::Int(number) | Value::Int64(number) => {
                self.integer(spec, verb, i128::from(*number), arg)
            }
            Value::Byte(number) => self.integer(spec, verb, i128::from(*number), arg),
            Value::Uint64(number) => self.integer(spec, verb, i128::from(*number), arg),
            Value::Duration(number) if !matches!(verb, 'v' | 's' | 'q' | 'x' | 'X') => {
                self.integer(spec, verb, i128::from(*number), arg)
            }
            Value::Float(number) => self.float(spec, verb, *number, arg),
            Value::String(text) => self.string(spec, verb, text.as_bytes(), arg),
            Value::Binary(bytes) => self.string(spec, verb, bytes, arg),
            Value::Bytes(bytes) if matches!(verb, 's' | 'q' | 'x' | 'X') => {
                self.string(spec, verb, bytes, arg)
            }
            Value::Time(_) | Value::Duration(_) | Value::Object(_) => {
                let text = print::sprint(arg, self.out.budget())?;
                self.string(spec, verb, text.string_bytes().unwrap_or_default(), arg)
            }
            Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
                self.composite(spec, verb, arg, depth)
            }
            Value::Bool(_) => self.bad_verb(verb, arg),
        }
    }

    fn composite(
        &mut self,
        spec: &Spec,
        verb: char,
        arg: &Value,
        depth: usize,
    ) -> Result<(), Failure> {
        if spec.sharp && verb == 'v' {
            return Err(Failure::new("printf: %#v of lists and maps is not supported"));
        }
        if let Value::Map(map) = arg {
            self.push("map[")?;
            for (at, (key, item)) in map.pairs().iter().enumerate() {
                if at > 0 {
                    self.push(" ")?;
                }
                self.arg(spec, verb, &Value::String(key.clone()), depth + 1)?;
                self.push(":")?;
                self.arg(spec, verb, item, depth + 1)?;
            }
            return self.push("]");
        }
        let items = arg.items().unwrap_or_default();
        self.push("[")?;
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.push(" ")?;
            }
            self.arg(spec, verb, item, depth + 1)?;
        }
        self.push("]")
    }

    fn integer(
        &mut self,
        spec: &Spec,
        verb: char,
        number: i128,
        arg: &Value,
    ) -> Result<(), Failure> {
        let size = number.unsigned_abs();
        let digits = match verb {
            'd' | 'v' => size.to_string(),
            'b' => format!("{size:b}"),
            'o' if spec.sharp => format!("0{size:o}"),
            'o' => format!("{size:o}"),
            'O' => format!("0o{size:o}"),
            'x' if spec.sharp => format!("0x{size:x}"),
            'x' => format!("{size:x}"),
            'X' if spec.sharp => format!("0X{size:X}"),
            'X' => format!("{size:X}"),
            'c' | 'q' | 'U' => return self.rune(spec, verb, number),
            _ => return self.bad_verb(verb, arg),
        };
        let digits = match spec.precision {
            Some(precision) => format!("{digits:0>precision$}"),
            None => digits,
        };
        let text = format!("{}{digits}", sign(spec, number < 0));
        self.pad(spec, text.as_bytes(), spec.precision.is_none())
    }

    fn rune(&mut self, spec: &Spec, verb: char, number: i128) -> Result<(), Failure> {
        let character = u32::try_from(number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
        let text = match verb {
            'c' => character.to_string(),
            'q' => quote::quote_rune(character),
            _ => format!("U+{number:04X}"),
        };
        self.pad(spec, text.as_bytes(), false)
    }

    fn float(&mut self, spec: &Spec, verb: char, value: f64, arg: &Value) -> Result<(), Failure> {
        let text = match (verb, spec.precision) {
            ('v' | 'g', None) => float::display(value),
            ('G', None) => float::display(value).to_uppercase(),
            ('v' | 'g', Some(precision)) => float::general_precision(value, precision, 'e'),
            ('G', Some(precision)) => float::general_precision(value, precision, 'E'),
            ('e' | 'E', precision) => float::exponent(value, Some(precision.unwrap_or(6)), verb),
            ('f' | 'F', precision) => float::fixed(value, Some(precision.unwrap_or(6))),
            _ => return self.bad_verb(verb, arg),
        };
        let text = match text.strip_prefix('-').or_else(|| text.strip_prefix('+')) {
            Some(rest) if text.starts_with('-') => format!("-{rest}"),
            Some(rest) => format!("+{rest}"),
            None => format!("{}{text}", sign(spec, false)),
        };
        self.pad(spec, text.as_bytes(), value.is_finite())
    }

    fn string(&mut self, spec: &Spec, verb: char, text: &[u8], arg: &Value) -> Result<(), Failure> {
        let cut = match spec.precision {
            Some(precision) if matches!(verb, 's' | 'v' | 'q') => {
                let lossy = String::from_utf8_lossy(text);
                lossy.chars().take(precision).collect::<String>().into_bytes()
            }
            _ => text.to_vec(),
        };
        match verb {
            's' => self.pad(spec, &cut, true),
            'v' if spec.sharp => {
                let quoted = quote::quote_bytes(&cut);
                self.pad(spec, quoted.as_bytes(), false)
            }
            'v' => self.pad(spec, &cut, true),
            'q' => {
                let raw = std::str::from_utf8(&cut).ok().filter(|text| {
                    spec.sharp
                        && !text.contains(['`', '\r', '\u{feff}', '\u{7f}'])
                        && text.chars().all(|c| c >= ' ' || c == '\t')
                });
                let quoted = match raw {
                    Some(text) => format!("`{text}`"),
                    None => quote::quote_bytes(&cut),
                };
                self.pad(spec, quoted.as_bytes(), false)
            }
            'x' | 'X' => {
                let hex: Vec<String> = cut.iter().map(|byte| format!("{byte:02x}")).collect();
                let hex = hex.join(if spec.space { " " } else { "" });
                let hex = if verb == 'X' { hex.to_uppercase() } else { hex };
                self.pad(spec, hex.as_bytes(), false)
            }
            _ => self.bad_verb(verb, arg),
        }
    }
}

fn sign(spec: &Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn parse_number(text: &str) -> (Option<usize>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return (None, rest);
    }
    (Some(digits.parse().unwrap_or(usize::MAX)), rest)
}

/// `fmt.Sprint` of several values: a space between two that are no strings.
///
/// # Errors
///
/// The text would be larger than the budget allows.
pub(crate) fn sprint_all(
    args: &[Value],
    newline: bool,
    budget: &mut Budget,
) -> Result<Value, Failure> {
    let mut out = Out::new(budget);
    let is_string = |value: &Value| value.string_bytes().is_some();
    for (at, arg) in args.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| args.get(before));
        let both_other = before.is_some_and(|before| !is_string(before) && !is_string(arg));
        if at > 0 && (newline || both_other) {
            out.push(b" ")?;
        }
        print::write(&mut out, arg, 0)?;
    }
    if newline {
        out.push(b"\n")?;
    }
    Ok(Value::from_bytes(out.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: &str, args: &[Value], expected: &str) {
        let mut budget = Budget::new(1 << 20, 1 << 20, 10);
        let text = sprintf(format, args, &mut budget).unwrap();
        let text = text.string_bytes().map(String::from_utf8_lossy).unwrap();
        assert_eq!(text, expected, "{format}");
    }

    #[test]
    fn verbs_print_as_in_go() {
        let (int, float, text) = (Value::Int(42), Value::Float(3.0), Value::from("a\"b"));
        check("%d|%5d|%-5d|%05d|%x|%+d", &vec![int.clone(); 6], "42|   42|42   |00042|2a|+42");
        check("%d", std::slice::from_ref(&float), "%!d(float64=3)");
        check("%s", std::slice::from_ref(&int), "%!s(int=42)");
        check("%v %g %.2f %6.1f %e", &vec![float; 5], "3 3 3.00    3.0 3.000000e+00");
        check(
            "%q %s %10s|%-6s|%.1s",
            &vec![text.clone(); 5],
            "\"a\\\"b\" a\"b        a\"b|a\"b   |a",
        );
        check("%d%%", std::slice::from_ref(&int), "42%");
        check("%s", &[], "%!s(MISSING)");
        check("x", std::slice::from_ref(&int), "x%!(EXTRA int=42)");
        check("%[2]s %[1]s", &[Value::from("a"), Value::from("b")], "b a");
        check("%*d", &[Value::Int(4), int], "  42");
        check("%v", &[Value::list(vec![Value::Int(1), text, Value::Nil])], "[1 a\"b <nil>]");
        check("%v %t", &[Value::Nil, Value::Bool(true)], "<nil> true");
        check("%", &[], "%!(NOVERB)");
    }
}
