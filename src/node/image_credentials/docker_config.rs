//! The formats `.dockerconfigjson` (`config.json` of docker) and `.dockercfg`.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;

use super::keyring::RegistryLogin;

/// The logins of a file by the address of their registry.
pub(super) type DockerConfig = BTreeMap<String, RegistryLogin>;

/// Why a text is none of the formats.
#[derive(Debug, thiserror::Error)]
pub(super) enum DockerConfigError {
    #[error("error occurred while trying to unmarshal json")]
    Json(#[from] serde_json::Error),
    #[error("illegal base64 data in the field auth")]
    Base64(#[from] base64::DecodeError),
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LoginFields {
    username: Option<String>,
    password: Option<String>,
    email: Option<String>,
    auth: Option<String>,
    identitytoken: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConfigJson {
    auths: Option<BTreeMap<String, Option<LoginFields>>>,
}

/// Parses a `.dockerconfigjson`.
///
/// # Errors
/// It is no JSON of this form, or a field `auth` is invalid.
pub(super) fn config_json(text: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    let config: ConfigJson = serde_json::from_slice(text)?;
    logins(config.auths.unwrap_or_default())
}

/// Parses a `.dockercfg`.
///
/// # Errors
/// As [`config_json`].
pub(super) fn dockercfg(text: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    logins(serde_json::from_slice(text)?)
}

fn logins(
    entries: BTreeMap<String, Option<LoginFields>>,
) -> Result<DockerConfig, DockerConfigError> {
    let login = |(address, fields): (String, Option<LoginFields>)| {
        Ok((address, fields.unwrap_or_default().login()?))
    };
    entries.into_iter().map(login).collect()
}

impl LoginFields {
    /// The login; `auth` takes precedence over user name and password.
    fn login(self) -> Result<RegistryLogin, DockerConfigError> {
        let mut login = RegistryLogin {
            username: self.username.unwrap_or_default(),
            password: self.password.unwrap_or_default(),
            email: self.email.unwrap_or_default(),
            identity_token: self.identitytoken.unwrap_or_default(),
        };
        if let Some(auth) = self.auth.filter(|auth| !auth.is_empty()) {
            (login.username, login.password) = user_and_password(&auth)?;
        }
        Ok(login)
    }
}

/// Decodes the base64 of `user:password`, with or without padding; newlines are ignored.
fn user_and_password(auth: &str) -> Result<(String, String), DockerConfigError> {
    let text: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let is_padded = auth.trim().ends_with('=');
    let decoded = if is_padded { STANDARD.decode(&text) } else { STANDARD_NO_PAD.decode(&text) };
    let decoded = String::from_utf8(decoded?).map_err(|_| DockerConfigError::Auth)?;
    let (user, password) = decoded.split_once(':').ok_or(DockerConfigError::Auth)?;
    Ok((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_is_base64_of_user_and_password() {
        for auth in ["Zm9vOmJhcg==", "Zm9vOmJhcg", "Zm9vOm\nJhcg==\n", "Zm9v\r\nOmJhcg"] {
            let (user, password) = user_and_password(auth).unwrap();
            assert_eq!((user.as_str(), password.as_str()), ("foo", "bar"), "{auth:?}");
        }
        let error = user_and_password("cGFudHM=").unwrap_err().to_string();
        assert!(error.contains("must be formatted as base64(username:password)"), "{error}");
        for auth in ["Zm9vOmJhcg== ", "pants"] {
            assert!(user_and_password(auth).is_err(), "{auth:?}");
        }
    }

    #[test]
    fn auth_takes_precedence_over_user_and_password() {
        let one = |text: &str| {
            let all = dockercfg(format!("{{\"r.io\": {text}}}").as_bytes())?;
            Ok::<_, DockerConfigError>(all["r.io"].clone())
        };
        let login = one(r#"{"username": "u", "password": "p", "email": "e"}"#).unwrap();
        assert_eq!((login.username.as_str(), login.email.as_str()), ("u", "e"));
        let login = one(r#"{"username": "u", "auth": "Zm9vOmJhcg==", "other": 1}"#).unwrap();
        assert_eq!((login.username.as_str(), login.password.as_str()), ("foo", "bar"));
        assert!(one(r#"{"auth": "pants"}"#).is_err());
        assert!(one(r#"{"email": false}"#).is_err());
    }

    #[test]
    fn both_formats_are_read() {
        let entry = r#"{"r.io": {"auth": "Zm9vOmJhcg=="}}"#;
        assert_eq!(dockercfg(entry.as_bytes()).unwrap().len(), 1);
        let config = format!("{{\"auths\": {entry}, \"credsStore\": \"x\"}}");
        assert_eq!(config_json(config.as_bytes()).unwrap().len(), 1);
        assert!(config_json(b"{}").unwrap().is_empty());
        assert!(config_json(b"{").is_err());
    }
}
