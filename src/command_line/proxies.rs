//! The proxies of the environment, which apply to requests of this process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The values of the proxy variables; empty for those that are not set.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnvironmentProxies {
    /// `HTTP_PROXY`, for requests without TLS.
    pub(crate) http: String,
    /// `HTTPS_PROXY`.
    pub(crate) https: String,
    /// `NO_PROXY`.
    pub(crate) exceptions: String,
}

impl fmt::Debug for EnvironmentProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs may contain passwords.
        f.write_str("***")
    }
}

impl EnvironmentProxies {
    /// Reads the variables; names in capital letters take precedence.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
            set(name).or_else(|| set(&name.to_lowercase())).unwrap_or_default()
        };
        Self { http: get("HTTP_PROXY"), https: get("HTTPS_PROXY"), exceptions: get("NO_PROXY") }
    }

    /// The value of a variable by its name in capital letters.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        match name {
            "HTTP_PROXY" => Some(self.http.clone()),
            "HTTPS_PROXY" => Some(self.https.clone()),
            "NO_PROXY" => Some(self.exceptions.clone()),
            _ => None,
        }
    }
}
