//! The user and password of a repository, registry or proxy.

/// User and password.
#[derive(Clone)]
pub struct Credentials {
    /// User.
    pub username: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// The value of `Authorization`.
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.username, self.password);
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pair);
        format!("Basic {encoded}")
    }
}
