//! The user that sends a request.

use std::collections::BTreeMap;

/// An authenticated or anonymous user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// Name, such as `system:node:a`.
    pub name: String,
    /// Uid; usually empty.
    pub uid: String,
    /// Groups, such as `system:masters`.
    pub groups: Vec<String>,
    /// Extra, such as `authentication.kubernetes.io/pod-name`.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with these groups and `system:authenticated`.
    pub fn authenticated(name: &str, groups: &[&str]) -> Self {
        let mut all: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        all.push("system:authenticated".into());
        Self { name: name.into(), groups: all, ..Self::default() }
    }

    /// The user of the server itself: `system:apiserver` in `system:masters`.
    pub fn apiserver() -> Self {
        Self::authenticated("system:apiserver", &["system:masters"])
    }

    /// `system:anonymous`.
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            ..Self::default()
        }
    }

    /// Whether the user is in this group.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
