//! Annotations of authentication: `auth-type`, `auth-secret`, `auth-secret-type`, `auth-realm`.

use super::AnnotationError as Error;

/// The form of the Secret with the users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretForm {
    /// The key `auth` is a file of htpasswd.
    #[default]
    File,
    /// Each key is a user, its value the hash.
    Map,
}

/// The annotations of one Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthSettings {
    is_on: bool,
    /// A value is refused: requests are, too.
    is_invalid: bool,
    secret: Option<String>,
    /// The form of the Secret.
    pub form: SecretForm,
    /// The realm that browsers show.
    pub realm: String,
}

impl AuthSettings {
    /// Sets an annotation; `None` if it is another one.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), Error>> {
        let outcome = match name {
            "auth-type" if value == "basic" => Ok(()),
            "auth-secret" => {
                self.secret = Some(value.to_owned());
                Ok(())
            }
            "auth-realm" => {
                self.realm = value.to_owned();
                Ok(())
            }
            "auth-secret-type" if value == "auth-file" => {
                self.form = SecretForm::File;
                Ok(())
            }
            "auth-secret-type" if value == "auth-map" => {
                self.form = SecretForm::Map;
                Ok(())
            }
            "auth-type" | "auth-secret-type" => Err(Error::Value(value.to_owned())),
            _ => return None,
        };
        self.is_on |= name == "auth-type";
        self.is_invalid |= outcome.is_err();
        Some(outcome)
    }

    /// Whether requests need a password.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The name of the Secret in the namespace of the Ingress; `None` if an annotation is missing
    /// or invalid, so that no request is served.
    pub fn secret(&self, namespace: &str) -> Option<&str> {
        let name = self.secret.as_deref().filter(|_| !self.is_invalid)?;
        match name.split_once('/') {
            Some((of, name)) => (of == namespace && !name.is_empty()).then_some(name),
            None => (!name.is_empty()).then_some(name),
        }
    }
}
