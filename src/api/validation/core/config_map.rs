//! Validation of config maps, and the rules that secrets share: size and immutable data.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names};
use crate::value::{bool_at, entries, get, semantic_equal, str_in};

/// Maximum size in bytes of the data of a config map or secret (`MaxSecretSize`).
pub(super) const SIZE_MAX: usize = 1024 * 1024;

/// Validates a new config map.
pub fn validate(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let (data, binary) = (Path::new("data"), Path::new("binaryData"));
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        let field = data.key(key);
        errors.extend(each(&field, key.as_str(), names::config_key(key)));
        if get(object, "binaryData").get(key).is_some() {
            errors.push(Error::invalid(
                &field,
                key.as_str(),
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(object, "binaryData") {
        errors.extend(each(&binary.key(key), key.as_str(), names::config_key(key)));
        size += decoded_len(value);
    }
    if size > SIZE_MAX {
        errors.push(Error::too_long(&Path::new("[]"), SIZE_MAX));
    }
    errors
}

/// Validates an update of a config map.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = frozen(object, old, &["data", "binaryData"]);
    errors.extend(prefix(object));
    errors.extend(validate(object));
    errors
}

/// Validates `metadata.generateName` in an update. Upstream runs the metadata rules of a creation
/// for updates of some kinds, too. The name is immutable then, but `generateName` may change.
pub fn prefix(object: &Value) -> ErrorList {
    match str_in(object, &["metadata", "generateName"]) {
        "" => ErrorList::new(),
        prefix => {
            let field = Path::new("metadata").child("generateName");
            each(&field, prefix, names::name_is_subdomain(prefix, true)).collect()
        }
    }
}

/// The number of bytes that a base64 text encodes.
pub(super) fn decoded_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3
        - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

/// Rejects changes of the fields `keys`, and of `immutable`, if the old object is immutable.
pub(super) fn frozen(object: &Value, old: &Value, keys: &[&str]) -> ErrorList {
    const TEXT: &str = "field is immutable when `immutable` is set";
    let mut errors = ErrorList::new();
    if !bool_at(old, "immutable") {
        return errors;
    }
    if !bool_at(object, "immutable") {
        errors.push(Error::forbidden(&Path::new("immutable"), TEXT));
    }
    let changed = keys.iter().filter(|key| !semantic_equal(get(object, key), get(old, key)));
    errors.extend(changed.map(|key| Error::forbidden(&Path::new(key), TEXT)));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_must_be_valid_and_immutable_data_must_not_change() {
        let errors = validate(&json!({"data": {"a b": "x"}, "binaryData": {"..": "AA=="}}));
        assert_eq!(errors.len(), 2);
        assert!(
            errors[0]
                .to_string()
                .starts_with("data[a b]: Invalid value: \"a b\": a valid config key")
        );
        assert_eq!(
            errors[1].to_string(),
            "binaryData[..]: Invalid value: \"..\": must not be '..'"
        );
        let old = json!({"immutable": true, "data": {"a": "1"}});
        let errors = validate_change(&json!({"immutable": true, "data": {"a": "2"}}), &old);
        assert_eq!(
            errors[0].to_string(),
            "data: Forbidden: field is immutable when `immutable` is set"
        );
    }

    /// The expected text is the response of kube-apiserver 1.37.1.
    #[test]
    fn an_update_rejects_a_generate_name_that_is_not_a_valid_prefix() {
        let errors = validate_change(&json!({"metadata": {"generateName": "aB"}}), &json!({}));
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "metadata.generateName: Invalid value: \"aB\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert!(
            validate_change(&json!({"metadata": {"generateName": "a-"}}), &json!({})).is_empty()
        );
    }
}
