//! Validation of secrets: keys, size, and the keys and annotations that each well-known type
//! requires.

use base64::Engine;
use serde_json::Value;

use super::config_map::{SIZE_MAX, decoded_len, frozen, prefix};
use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, immutable, names};
use crate::value::{entries, get, str_at, str_in};

const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// Validates a new secret (`ValidateSecret`).
pub fn validate(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("data");
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        errors.extend(each(&path.key(key), key.as_str(), names::config_key(key)));
        size += decoded_len(value);
    }
    if size > SIZE_MAX {
        errors.push(Error::too_long(&path, SIZE_MAX));
    }
    let data = get(object, "data");
    let missing = |keys: &[&str]| -> ErrorList {
        keys.iter()
            .filter(|key| data.get(key).is_none())
            .map(|key| Error::required(&path.key(key), ""))
            .collect()
    };
    match str_at(object, "type") {
        "kubernetes.io/service-account-token"
            if str_in(object, &["metadata", "annotations", ACCOUNT_NAME]).is_empty() =>
        {
            errors.push(Error::required(
                &Path::new("metadata").child("annotations").key(ACCOUNT_NAME),
                "",
            ));
        }
        "kubernetes.io/dockercfg" => errors.extend(docker(data, ".dockercfg", &path)),
        "kubernetes.io/dockerconfigjson" => errors.extend(docker(data, ".dockerconfigjson", &path)),
        "kubernetes.io/basic-auth" => {
            let absent = missing(&["username", "password"]);
            if absent.len() == 2 {
                errors.extend(absent);
            }
        }
        "kubernetes.io/ssh-auth" if str_at(data, "ssh-privatekey").is_empty() => {
            errors.push(Error::required(&path.key("ssh-privatekey"), ""));
        }
        "kubernetes.io/tls" => errors.extend(missing(&["tls.crt", "tls.key"])),
        _ => {}
    }
    errors
}

fn docker(data: &Value, key: &str, path: &Path) -> Option<Error> {
    let field = path.key(key);
    let Some(encoded) = data.get(key) else { return Some(Error::required(&field, "")) };
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded.as_str().unwrap_or_default())
        .unwrap_or_default();
    let text = match crate::codec::json::parse(&bytes) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(other) => format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            go_kind(&other)
        ),
        Err(error) => error.to_string(),
    };
    Some(Error::invalid(&field, "<secret contents redacted>", text))
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        _ => "bool",
    }
}

/// Validates an update of a secret (`ValidateSecretUpdate`).
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = immutable(get(object, "type"), get(old, "type"), &Path::new("type"));
    errors.extend(frozen(object, old, &["data"]));
    errors.extend(prefix(object));
    errors.extend(validate(object));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_say_what_must_be_there() {
        let errors = validate(&json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "AA=="}}));
        assert_eq!(errors[0].to_string(), "data[tls.key]: Required value");
        let errors = validate(
            &json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": ""}}),
        );
        assert_eq!(
            errors[0].to_string(),
            "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": unexpected end of JSON input"
        );
        let errors = validate(
            &json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "None"}}),
        );
        assert!(
            errors[0].to_string().ends_with("invalid character '\\u0089' after top-level value"),
            "{errors:?}"
        );
    }
}
