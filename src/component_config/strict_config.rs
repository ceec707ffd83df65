//! Parses configuration files strictly: collects type errors, unknown fields and validation errors.

use api::codec::{DecodeError, yaml};
use api::field::{Error, Path, go_quote};
use serde_json::{Map, Value};

use crate::aggregate::aggregate_errors;

/// A configuration file that is not an object with distinct keys.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It is neither YAML nor JSON.
    #[error(transparent)]
    Syntax(#[from] DecodeError),
    /// It is not an object; contains the required fields.
    #[error("is no object with {0}")]
    NotObject(&'static str),
    /// A key occurs twice; contains the error of upstream's strict decoder.
    #[error("strict decoding error: {0}")]
    DuplicateKey(String),
}

/// A configuration file, decoded from YAML or JSON.
pub struct ConfigDocument {
    pub value: Value,
    duplicate: Option<String>,
}

impl ConfigDocument {
    /// Decodes a file of any shape.
    ///
    /// # Errors
    /// The file is neither YAML nor JSON.
    pub fn decode(text: &[u8]) -> Result<Self, DocumentError> {
        let (value, duplicate) = yaml::parse_doubled(text)?;
        Ok(Self { value, duplicate })
    }

    /// Returns the object; `fields` are those that the error names as required.
    ///
    /// # Errors
    /// The file is not an object.
    pub fn object(&self, fields: &'static str) -> Result<&Map<String, Value>, DocumentError> {
        self.value.as_object().ok_or(DocumentError::NotObject(fields))
    }

    /// Rejects a file in which a key occurs twice.
    ///
    /// # Errors
    /// The first such key.
    pub fn check_keys(&self) -> Result<(), DocumentError> {
        match &self.duplicate {
            Some(duplicate) => Err(DocumentError::DuplicateKey(duplicate.clone())),
            None => Ok(()),
        }
    }
}

/// The errors of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value of the wrong type: its path and the expected type.
    #[error("{0}")]
    WrongType(String),
    /// Unknown fields, as `unknown field "PATH"`.
    #[error("strict decoding error: {}", .0.join(", "))]
    UnknownFields(Vec<String>),
    /// Upstream's validation errors.
    #[error("{}", aggregate_errors(.0))]
    Invalid(Vec<Error>),
}

/// Collects the errors of a file.
#[derive(Debug, Default)]
pub struct Reader {
    pub unreadable: Vec<String>,
    pub unknown: Vec<String>,
    pub errors: Vec<Error>,
}

impl Reader {
    /// Returns the collected errors.
    ///
    /// # Errors
    /// The first type error, else all unknown fields, else all validation errors.
    pub fn finish(self) -> Result<(), ConfigError> {
        if let Some(first) = self.unreadable.into_iter().next() {
            return Err(ConfigError::WrongType(first));
        }
        if !self.unknown.is_empty() {
            return Err(ConfigError::UnknownFields(self.unknown));
        }
        if self.errors.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(self.errors)) }
    }

    /// Records fields that are not in `known`.
    pub fn known(&mut self, map: &Map<String, Value>, path: &str, known: &[&str]) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            let dot = if path.is_empty() { "" } else { "." };
            self.unknown.push(format!("unknown field {}", go_quote(&format!("{path}{dot}{key}"))));
        }
    }

    /// Records a value of the wrong type.
    pub fn type_of(&mut self, path: &Path, want: &str) {
        self.unreadable.push(format!("{path}: must be {want}"));
    }

    /// A list of strings; empty if absent.
    pub fn strings(&mut self, map: &Map<String, Value>, key: &str, parent: &Path) -> Vec<String> {
        let path = parent.child(key);
        let texts = match map.get(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => {
                items.iter().map(|item| item.as_str().map(str::to_owned)).collect()
            }
            Some(_) => None,
        };
        texts.unwrap_or_else(|| {
            self.type_of(&path, "a list of strings");
            Vec::new()
        })
    }

    /// A string; empty if absent.
    pub fn text(&mut self, map: &Map<String, Value>, key: &str, parent: &Path) -> String {
        match map.get(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(_) => {
                self.type_of(&parent.child(key), "a string");
                String::new()
            }
        }
    }

    /// A boolean; `None` if absent.
    pub fn boolean(&mut self, map: &Map<String, Value>, key: &str, parent: &Path) -> Option<bool> {
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Bool(value)) => Some(*value),
            Some(_) => {
                self.type_of(&parent.child(key), "true or false");
                None
            }
        }
    }

    /// A field that is an object, with its path.
    pub fn object<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
        parent: &Path,
    ) -> Option<(Path, &'a Map<String, Value>)> {
        let path = parent.child(key);
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::Object(map)) => Some((path, map)),
            Some(_) => {
                self.type_of(&path, "an object");
                None
            }
        }
    }

    /// The items of a list of objects, with their paths.
    pub fn objects<'a>(
        &mut self,
        map: &'a Map<String, Value>,
        key: &str,
        parent: &Path,
    ) -> Vec<(Path, &'a Map<String, Value>)> {
        let path = parent.child(key);
        let found = match map.get(key) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(at, item)| item.as_object().map(|object| (path.index(at), object)))
                .collect(),
            Some(_) => None,
        };
        found.unwrap_or_else(|| {
            self.type_of(&path, "a list of objects");
            Vec::new()
        })
    }
}
