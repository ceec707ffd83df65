//! Validation of label keys and values with upstream's messages.

const KEY_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const KEY_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
/// The maximum length of the name in a label key and of a label value, in bytes.
const MAX_LEN: usize = 63;
/// The maximum length of a DNS subdomain, in bytes.
const MAX_SUBDOMAIN: usize = 253;

fn key_example() -> String {
    format!(
        "{KEY_TEXT} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{KEY_FORMAT}')"
    )
}

fn name_chars(text: &str) -> bool {
    let b = text.as_bytes();
    b.first().is_some_and(u8::is_ascii_alphanumeric)
        && b.last().is_some_and(u8::is_ascii_alphanumeric)
        && b.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

fn subdomain_chars(text: &str) -> bool {
    text.split('.').all(|label| {
        let b = label.as_bytes();
        let edge = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        b.first().is_some_and(edge)
            && b.last().is_some_and(edge)
            && b.iter().all(|c| edge(c) || *c == b'-')
    })
}

/// Returns upstream's messages about an invalid label key.
pub(super) fn label_key(key: &str) -> Vec<String> {
    let mut out = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > MAX_SUBDOMAIN {
                    out.push(format!("prefix part must be no more than {MAX_SUBDOMAIN} bytes"));
                }
                if !subdomain_chars(prefix) {
                    out.push(format!(
                        "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN_FORMAT}')"
                    ));
                }
            }
            *name
        }
        _ => {
            out.push(format!("a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')", key_example()));
            return out;
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LEN {
        out.push(format!("name part must be no more than {MAX_LEN} bytes"));
    }
    if !name_chars(name) {
        out.push(format!("name part {}", key_example()));
    }
    out
}

/// Returns upstream's messages about an invalid label value.
pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > MAX_LEN {
        out.push(format!("must be no more than {MAX_LEN} bytes"));
    }
    if !value.is_empty() && !name_chars(value) {
        out.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({KEY_FORMAT})?')"
        ));
    }
    out
}
