//! Paths to fields of a schema, as selectable fields and rules name them (`ValidFieldPath` of `pkg/apiserver/schema/cel`).

use serde_json::Value;

use crate::value::{get, is_empty};

/// The schema at the end of a path such as `.spec.color` or `.spec['x']`, and the first name of the path.
///
/// # Errors
/// Upstream's text.
pub(super) fn find<'a>(
    path: &'a str,
    schema: &'a Value,
    brackets: bool,
) -> Result<(&'a str, &'a Value), String> {
    const END: &str = "unexpected end of JSON path";
    let mut tokens = Tokens(path);
    let mut schema = schema;
    while let Some(token) = tokens.next() {
        let name = match token {
            "." => tokens.next().ok_or(END)?.to_owned(),
            "[" if !brackets => return Err("array notation is not allowed".into()),
            "[" => {
                let quoted = tokens.next().ok_or(END)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let Some(inner) = inner.filter(|_| quoted.len() >= 2) else {
                    return Err(format!("expected single quoted string but got {quoted}"));
                };
                match tokens.next().ok_or(END)? {
                    "]" => unescaped(inner),
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let below = if !is_empty(schema, "properties") {
            get(get(schema, "properties"), &name)
        } else {
            get(schema, "additionalProperties")
        };
        if !below.is_object() {
            return Err("does not refer to a valid field".into());
        }
        schema = below;
    }
    let start = path.trim_start_matches(['.', '[', '\'']);
    let end = start.find(['.', '[', ']', '\'']).unwrap_or(start.len());
    Ok((start.get(..end).unwrap_or(start), schema))
}

fn unescaped(text: &str) -> String {
    text.replace("\\'", "'").replace("\\\\", "\\")
}

/// Delimiters, quoted texts, and what stands between delimiters.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0;
        let end = match text.bytes().next()? {
            b'.' | b'[' | b']' => 1,
            b'\'' => {
                let bytes = text.as_bytes();
                let close = (1..bytes.len()).find(|i| {
                    bytes.get(*i) == Some(&b'\'') && bytes.get(i.wrapping_sub(1)) != Some(&b'\\')
                });
                close.map_or(text.len(), |i| i + 1)
            }
            _ => text.find(['.', '[', ']']).unwrap_or(text.len()),
        };
        self.0 = text.get(end..).unwrap_or_default();
        text.get(..end)
    }
}
