//! The users of an Ingress with `auth-type: basic`.

use std::sync::Arc;

use super::{Compiler, Source};
use crate::objects::annotations::auth::SecretForm;
use crate::objects::ingress::References;
use http_proxy::routes::auth::BasicAuth;

/// Bytes of a Secret that are read.
const SECRET_BYTES_MAX: usize = 1 << 20;

/// Why an Ingress with authentication is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsersError {
    #[error("it must name a Secret of the namespace, and auth-type must be basic")]
    Unnamed,
    #[error("Secret {0} does not exist; requests get 503")]
    MissingSecret(String),
    #[error("Secret {0} has no key auth; requests get 503")]
    MissingKey(String),
}

impl<R: References> Compiler<'_, R> {
    /// The users of an Ingress; `None` without authentication.
    pub(super) fn users(
        &mut self,
        source: &Source<'_>,
    ) -> Result<Option<Arc<BasicAuth>>, UsersError> {
        let settings = &source.settings.auth;
        if !settings.is_on() {
            return Ok(None);
        }
        let name = settings.secret(source.namespace).ok_or(UsersError::Unnamed)?;
        let full = || format!("{}/{name}", source.namespace);
        let secret = self.references.secret(source.namespace, name);
        let data =
            secret.ok_or_else(|| UsersError::MissingSecret(full()))?.data.unwrap_or_default();
        let text = |bytes: &[u8]| {
            let part = bytes.get(..bytes.len().min(SECRET_BYTES_MAX)).unwrap_or_default();
            String::from_utf8_lossy(part).into_owned()
        };
        let (auth, problems) = match settings.form {
            SecretForm::File => {
                let file = data.get("auth").ok_or_else(|| UsersError::MissingKey(full()))?;
                BasicAuth::from_file(&settings.realm, &text(&file.0))
            }
            SecretForm::Map => {
                let users: Vec<(&String, String)> =
                    data.iter().map(|(name, hash)| (name, text(&hash.0))).collect();
                let pairs = users.iter().map(|(name, hash)| (name.as_str(), hash.trim()));
                BasicAuth::from_users(&settings.realm, pairs)
            }
        };
        for problem in problems {
            self.problem(source, format!("Secret {}: {problem}", full()));
        }
        Ok(Some(Arc::new(auth)))
    }
}
