//! YAML of charts and values, with the types of sigs.k8s.io/yaml.

use serde_json::Value;

/// A text is not YAML.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct YamlError(Box<str>);

impl YamlError {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }
}

/// Parses the first document; the last of duplicate keys applies, as in Helm.
///
/// # Errors
/// The text is not YAML or exceeds the limits on nesting and aliases.
pub fn parse(text: &[u8]) -> Result<Value, YamlError> {
    let parsed = api::codec::yaml::parse_doubled(text);
    parsed.map(|(value, _)| value).map_err(|e| YamlError(e.to_string().into()))
}

/// Parses all documents of a stream.
///
/// # Errors
/// As [`parse`], for one of them.
pub fn documents(text: &[u8]) -> Result<Vec<Value>, YamlError> {
    let mut all = Vec::new();
    let mut document = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"---") && line.get(3).is_none_or(u8::is_ascii_whitespace) {
            all.push(parse(&document)?);
            document.clear();
        } else {
            document.extend_from_slice(line);
        }
    }
    all.push(parse(&document)?);
    Ok(all)
}
