//! The style of scalars, by libyaml's analysis.

use crate::yaml::Dialect;

/// What the characters of a scalar allow.
#[allow(clippy::struct_excessive_bools, reason = "the flags are those of libyaml")]
pub(super) struct Analysis {
    pub multiline: bool,
    pub plain: bool,
    pub single_quoted: bool,
    pub block: bool,
}

/// Whether libyaml writes a character as it is. Characters beyond the basic plane are escaped.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && c != '\u{feff}'
}

pub(super) fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are those of libyaml")]
struct ScalarFeatures {
    block_indicators: bool,
    line_breaks: bool,
    special: bool,
    tabs: bool,
    leading_space: bool,
    leading_break: bool,
    trailing_space: bool,
    trailing_break: bool,
    break_space: bool,
    space_break: bool,
}

/// Analyzes a scalar for block context.
pub(super) fn analyze(text: &str, dialect: Dialect) -> Analysis {
    if text.is_empty() {
        return Analysis { multiline: false, plain: true, single_quoted: true, block: false };
    }
    let mut seen = ScalarFeatures {
        block_indicators: text.starts_with("---") || text.starts_with("..."),
        ..ScalarFeatures::default()
    };
    let (mut before_white, mut before_space, mut before_break) = (true, false, false);
    let mut chars = text.chars().peekable();
    let mut first = true;
    while let Some(c) = chars.next() {
        let next = chars.peek().copied();
        let followed = next.is_none_or(is_blank_or_break);
        let indicator = if first {
            match c {
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"'
                | '%' | '@' | '`' => true,
                '?' | ':' | '-' => followed,
                _ => false,
            }
        } else {
            (c == ':' && followed) || (c == '#' && before_white)
        };
        seen.block_indicators |= indicator;
        if c == '\t' && dialect == Dialect::V3 {
            seen.tabs = true;
        } else if !is_printable(c) {
            seen.special = true;
        }
        if c == ' ' {
            seen.leading_space |= first;
            seen.trailing_space |= next.is_none();
            seen.break_space |= before_break;
            (before_space, before_break) = (true, false);
        } else if is_break(c) {
            seen.line_breaks = true;
            seen.leading_break |= first;
            seen.trailing_break |= next.is_none();
            seen.space_break |= before_space;
            (before_space, before_break) = (false, true);
        } else {
            (before_space, before_break) = (false, false);
        }
        before_white = is_blank_or_break(c) || c == '\0';
        first = false;
    }
    decide(&seen)
}

fn is_blank_or_break(c: char) -> bool {
    is_blank(c)
}

fn decide(seen: &ScalarFeatures) -> Analysis {
    let edges =
        seen.leading_space || seen.leading_break || seen.trailing_space || seen.trailing_break;
    let mixed = seen.space_break || seen.special;
    Analysis {
        multiline: seen.line_breaks,
        plain: !(edges
            || seen.break_space
            || mixed
            || seen.tabs
            || seen.line_breaks
            || seen.block_indicators),
        single_quoted: !(seen.break_space || mixed || seen.tabs),
        block: !(seen.trailing_space || mixed),
    }
}
