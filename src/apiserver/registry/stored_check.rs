//! Reports how values that another API server has stored will be read, before a server uses its
//! datastore.

use std::collections::HashMap;
use std::sync::Arc;

use api::Object;
use api::schema::Schema;
use bytes::Bytes;

use super::{Registry, Resource};
use crate::registry::convert;

/// The result of reading a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// The object as it is stored.
    Complete,
    /// The object with fields that its writer did not set; the resource.
    Filled(String),
    /// The value is not an object, so that every list of the resource fails; the reason.
    Unreadable(String),
}

/// Reads values of built-in kinds.
pub struct StoredCheck {
    rows: HashMap<Arc<str>, Arc<Resource>>,
}

impl Default for StoredCheck {
    fn default() -> Self {
        let registry = Registry::builtin(Schema::builtin());
        let stored = registry.rows().filter(|row| !row.spec.prefix.is_empty());
        Self { rows: stored.map(|row| (Arc::clone(&row.spec.prefix), Arc::clone(row))).collect() }
    }
}

impl std::fmt::Debug for StoredCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredCheck").field("rows", &self.rows.len()).finish()
    }
}

impl StoredCheck {
    /// The row of a key, whose prefix has one or two segments.
    fn row(&self, key: &str) -> Option<&Resource> {
        let path = key.strip_prefix("/registry/")?;
        let mut ends = path.match_indices('/').map(|(at, _)| at);
        let (first, second) = (ends.next()?, ends.next());
        let of = |end: usize| self.rows.get(path.get(..end)?).map(|row| &**row);
        second.and_then(of).or_else(|| of(first))
    }

    /// Reads the value of a key; `None` when the key is not that of a built-in kind.
    pub fn read(&self, key: &[u8], value: &Bytes) -> Option<Reading> {
        let row = self.row(std::str::from_utf8(key).ok()?)?;
        let enveloped = api::codec::protobuf::is_enveloped(value);
        let json = match convert::stored_json(row, value.clone(), "IPv4") {
            Ok(json) => json,
            Err(error) => return Some(Reading::Unreadable(error.to_string())),
        };
        if let Err(error) = Object::from_stored(json.clone(), 0) {
            return Some(Reading::Unreadable(error.to_string()));
        }
        // Any object in protobuf becomes JSON; the comparison separates what the decorators add.
        let plain = if enveloped { convert::undecorated(row, value).ok()? } else { value.clone() };
        Some(if plain == json { Reading::Complete } else { Reading::Filled(row.qualified()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(key: &str, value: impl Into<Bytes>) -> Option<Reading> {
        StoredCheck::default().read(key.as_bytes(), &value.into())
    }

    fn encoded(object: &Value) -> [Bytes; 2] {
        let protobuf = api::codec::protobuf::encode_object(&Schema::builtin(), object).unwrap();
        [serde_json::to_vec(object).unwrap().into(), protobuf.to_vec().into()]
    }

    #[test]
    fn values_are_complete_filled_or_unreadable() {
        let service = json!({"kind": "Service", "apiVersion": "v1",
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {"clusterIP": "10.43.0.9", "ports": [{"port": 80}]}});
        for value in encoded(&service) {
            let found = read("/registry/services/specs/n/s", value);
            assert_eq!(found, Some(Reading::Filled("services".into())));
        }
        let map = json!({"kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "c", "namespace": "n"}, "data": {"a": "b"}});
        for value in encoded(&map) {
            assert_eq!(read("/registry/configmaps/n/c", value), Some(Reading::Complete));
        }
        assert!(matches!(read("/registry/configmaps/n/c", "x"), Some(Reading::Unreadable(_))));
        let foreign = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
        let [_, protobuf] = encoded(&foreign);
        assert!(matches!(read("/registry/configmaps/n/c", protobuf), Some(Reading::Unreadable(_))));
        assert_eq!(read("/registry/example.com/foos/n/c", "{}"), None);
        assert_eq!(read("/elsewhere", "x"), None);
    }
}
