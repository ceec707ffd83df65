//! `$(NAME)` references in commands, arguments and variables, by the rules of Kubernetes.

/// Replaces each `$(NAME)` for which `lookup` returns a value, and `$$` by a dollar sign; keeps
/// everything else.
pub(crate) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match rest.as_bytes().first() {
            Some(b'$') => {
                out.push('$');
                rest = &rest[1..];
            }
            Some(b'(') => match rest.find(')') {
                Some(end) => {
                    let name = &rest[1..end];
                    match lookup(name) {
                        Some(value) => out.push_str(&value),
                        None => out.push_str(&format!("$({name})")),
                    }
                    rest = &rest[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = &rest[1..];
                }
            },
            _ => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn only_known_references_are_replaced() {
        let lookup = |name: &str| (name == "A").then(|| "a".to_owned());
        for (text, want) in [
            ("$(A)-$(B)", "a-$(B)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("echo $(id -u)", "echo $(id -u)"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
        ] {
            assert_eq!(expand(text, lookup), want);
        }
    }
}
