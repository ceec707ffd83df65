//! The formats of names, labels, keys and numbers, with upstream's texts.

/// Longest DNS-1123 label.
pub const LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS1035_TEXT: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const WILDCARD_TEXT: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The errors of one check; empty if the value is valid.
pub type Messages = Vec<String>;

fn max_len(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// Newer checks of label keys and values count bytes.
fn max_bytes(length: usize) -> String {
    format!("must be no more than {length} bytes")
}

/// `must be between …`.
pub fn range_text(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_label(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.first().copied().is_some_and(lower_alnum)
        && bytes.last().copied().is_some_and(lower_alnum)
        && bytes.iter().all(|b| lower_alnum(*b) || *b == b'-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

/// A DNS-1123 label.
pub fn dns1123_label(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > LABEL_MAX {
        errors.push(max_len(LABEL_MAX));
    }
    if !is_label(value) {
        errors.push(if is_subdomain(value) {
            "must not contain dots".into()
        } else {
            LABEL_TEXT.into()
        });
    }
    errors
}

/// A DNS-1123 subdomain.
pub fn dns1123_subdomain(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(max_len(SUBDOMAIN_MAX));
    }
    if !is_subdomain(value) {
        errors.push(SUBDOMAIN_TEXT.into());
    }
    errors
}

/// Checks a DNS-1123 subdomain with the texts of the newer rules, which count bytes.
pub fn long_name(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(max_bytes(SUBDOMAIN_MAX));
    }
    if !is_subdomain(value) {
        errors.push(SUBDOMAIN_TEXT.into());
    }
    errors
}

/// Checks object names as [`long_name`]. The declarative rule on the field `name` replaces the
/// handwritten one, which also checks `generateName`: its error is not reported, as the generated
/// name is checked.
pub fn name_is_long_name(name: &str, prefix: bool) -> Messages {
    if prefix { Messages::new() } else { long_name(name) }
}

/// Checks a DNS-1123 subdomain whose labels may contain underscores, such as DNS search paths.
pub fn subdomain_with_underscore(value: &str) -> Messages {
    const TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
    let mut errors = Messages::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(max_len(SUBDOMAIN_MAX));
    }
    let label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label).as_bytes();
        label.first().copied().is_some_and(lower_alnum)
            && label.last().copied().is_some_and(lower_alnum)
            && label.iter().all(|b| lower_alnum(*b) || matches!(b, b'-' | b'_'))
    };
    if !value.split('.').all(label) {
        errors.push(TEXT.into());
    }
    errors
}

/// A DNS-1035 label.
pub fn dns1035_label(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > LABEL_MAX {
        errors.push(max_len(LABEL_MAX));
    }
    if !is_label(value) || !value.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        errors.push(DNS1035_TEXT.into());
    }
    errors
}

/// `*.` and a DNS-1123 subdomain.
pub fn wildcard_subdomain(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(max_len(SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(is_subdomain) {
        errors.push(WILDCARD_TEXT.into());
    }
    errors
}

/// A check of object names; with `prefix`, the name is a `generateName`.
pub type NameRule = fn(&str, bool) -> Messages;

/// Most kinds: a DNS-1123 subdomain.
pub fn name_is_subdomain(name: &str, prefix: bool) -> Messages {
    dns1123_subdomain(&masked(name, prefix))
}

/// Namespaces: a DNS-1123 label.
pub fn name_is_label(name: &str, prefix: bool) -> Messages {
    dns1123_label(&masked(name, prefix))
}

/// A DNS-1035 label.
pub fn name_is_dns1035(name: &str, prefix: bool) -> Messages {
    dns1035_label(&masked(name, prefix))
}

/// RBAC and other kinds: any name that is a valid path segment.
pub fn name_is_path_segment(name: &str, prefix: bool) -> Messages {
    let mut errors = Messages::new();
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    for illegal in ['/', '%'] {
        if name.contains(illegal) {
            errors.push(format!("may not contain '{illegal}'"));
        }
    }
    errors
}

/// Removes the dash at the end of a prefix.
fn masked(name: &str, prefix: bool) -> std::borrow::Cow<'_, str> {
    if prefix && name.len() > 1 && name.ends_with('-') && name.is_char_boundary(name.len() - 2) {
        format!("{}a", &name[..name.len() - 2]).into()
    } else {
        name.into()
    }
}

fn alnum_ends(value: &str) -> bool {
    let ok = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    ok(value.as_bytes().first()) && ok(value.as_bytes().last())
}

fn name_chars(value: &str) -> bool {
    alnum_ends(value)
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label key: an optional DNS subdomain, a slash, a name.
pub fn qualified_name(value: &str) -> Messages {
    const TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut errors = Messages::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".into());
            } else {
                errors.extend(
                    dns1123_subdomain(prefix).into_iter().map(|m| {
                        format!("prefix part {}", m.replace("253 characters", "253 bytes"))
                    }),
                );
            }
            *name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                &TEXT
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", max_bytes(LABEL_MAX)));
    }
    if !name_chars(name) {
        errors.push(format!("name part {TEXT}"));
    }
    errors
}

/// A label value.
pub fn label_value(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > LABEL_MAX {
        errors.push(max_bytes(LABEL_MAX));
    }
    if !value.is_empty() && !name_chars(value) {
        errors.push("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')".into());
    }
    errors
}

/// The name of a port.
pub fn port_name(port: &str) -> Messages {
    let mut errors = Messages::new();
    if port.len() > 15 {
        errors.push(max_len(15));
    }
    if port.is_empty() || !port.bytes().all(|b| lower_alnum(b) || b == b'-') {
        errors
            .push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !port.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if port.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if port.starts_with('-') || port.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// A port number.
pub fn port_number(port: i64) -> Messages {
    in_range(port, 1, 65535)
}

/// A number between two bounds.
pub fn in_range(value: i64, low: i64, high: i64) -> Messages {
    if (low..=high).contains(&value) { Messages::new() } else { vec![range_text(low, high)] }
}

/// The name of an environment variable, relaxed form.
pub fn env_name(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.is_empty() {
        errors.push("environment variable name must be non-empty".into());
    }
    if !value.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=') {
        errors.push("a valid environment variable name must consist only of printable ASCII characters other than '='".into());
    }
    errors
}

/// A key of a config map or secret.
pub fn config_key(value: &str) -> Messages {
    let mut errors = Messages::new();
    if value.len() > SUBDOMAIN_MAX {
        errors.push(max_len(SUBDOMAIN_MAX));
    }
    if value.is_empty()
        || !value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
    {
        errors.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".into());
    }
    match value {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        v if v.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => {}
    }
    errors
}

/// The name of an HTTP header.
pub fn http_header(value: &str) -> Messages {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Messages::new();
    }
    vec!["a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')".into()]
}

/// A percentage such as `25%`.
pub fn percent(value: &str) -> Messages {
    let digits = value
        .strip_suffix('%')
        .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
    if digits {
        return Messages::new();
    }
    vec!["a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')".into()]
}

/// A C identifier.
pub fn c_identifier(value: &str) -> Messages {
    let first = value.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if first && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Messages::new();
    }
    vec!["a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')".into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_upstreams() {
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_label("Bad")[0], LABEL_TEXT);
        assert_eq!(
            port_name("--"),
            [
                "must contain at least one letter (a-z)",
                "must not contain consecutive hyphens",
                "must not begin or end with a hyphen"
            ]
        );
        assert_eq!(range_text(1, 65535), "must be between 1 and 65535, inclusive");
        assert!(qualified_name("a.b/c_D.1").is_empty());
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert!(name_is_subdomain("web-", true).is_empty());
        assert!(!name_is_subdomain("web-", false).is_empty());
        assert!(name_is_long_name("Web", true).is_empty());
        assert!(!name_is_long_name("Web", false).is_empty());
    }
}
