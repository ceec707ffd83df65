//! Patterns of `.Files.Glob`, as the package github.com/gobwas/glob reads them with `/` as the
//! separator.

use regex::Regex;

/// A compiled pattern.
pub(crate) struct Glob(Option<Regex>);

impl Glob {
    pub(crate) fn is_match(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|pattern| pattern.is_match(name))
    }
}

/// Compiles a pattern; one that is wrong matches everything, as in Helm.
pub(crate) fn compile(pattern: &str) -> Glob {
    Glob(translate(pattern).and_then(|text| Regex::new(&text).ok()))
}

fn translate(pattern: &str) -> Option<String> {
    let mut out = String::from("(?s)^");
    let mut chars = pattern.chars().peekable();
    let mut depth = 0_usize;
    while let Some(c) = chars.next() {
        match c {
            '*' if chars.peek() == Some(&'*') => {
                while chars.peek() == Some(&'*') {
                    chars.next();
                }
                out.push_str(".*");
            }
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            '\\' => out.push_str(&regex::escape(&chars.next()?.to_string())),
            '{' => {
                depth += 1;
                out.push_str("(?:");
            }
            '}' if depth > 0 => {
                depth -= 1;
                out.push(')');
            }
            ',' if depth > 0 => out.push('|'),
            '[' => {
                out.push('[');
                if chars.peek() == Some(&'!') {
                    chars.next();
                    out.push('^');
                }
                loop {
                    match chars.next()? {
                        ']' => break,
                        '-' => out.push('-'),
                        inner => out.push_str(&regex::escape(&inner.to_string())),
                    }
                }
                out.push(']');
            }
            c => out.push_str(&regex::escape(&c.to_string())),
        }
    }
    out.push('$');
    (depth == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        let table = [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", "d/a.yaml", false),
            ("**.yaml", "d/a.yaml", true),
            ("d/*", "d/a", true),
            ("d/**", "d/e/f", true),
            ("{a,b}.txt", "b.txt", true),
            ("[a-c].txt", "b.txt", true),
            ("[!a].txt", "a.txt", false),
            ("a?c", "abc", true),
            ("a.c", "abc", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(compile(pattern).is_match(name), expected, "{pattern} {name}");
        }
    }
}
