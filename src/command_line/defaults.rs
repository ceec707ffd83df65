//! Default directories: system directories for root, XDG directories for other users.

use std::path::PathBuf;

/// Default locations for this user.
#[derive(Debug, Clone)]
pub struct Locations {
    /// `/var/lib/kube-lite`, or `$XDG_DATA_HOME/kube-lite`.
    pub data: PathBuf,
    /// `/etc/kube-lite`, or `$XDG_CONFIG_HOME/kube-lite`.
    pub config: PathBuf,
    /// `PATH`, for finding a container runtime.
    pub path: String,
}

impl Locations {
    /// The default locations; `lookup` reads an environment variable.
    pub fn new(root: bool, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let path = lookup("PATH").unwrap_or_default();
        if root {
            return Self {
                data: "/var/lib/kube-lite".into(),
                config: "/etc/kube-lite".into(),
                path,
            };
        }
        let home = lookup("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let xdg = |name: &str, rest: &str| {
            lookup(name)
                .filter(|v| v.starts_with('/'))
                .map_or_else(|| home.join(rest), PathBuf::from)
        };
        Self {
            data: xdg("XDG_DATA_HOME", ".local/share").join("kube-lite"),
            config: xdg("XDG_CONFIG_HOME", ".config").join("kube-lite"),
            path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_user_gets_the_xdg_directories() {
        let lookup = |name: &str| match name {
            "HOME" => Some("/home/u".to_owned()),
            "XDG_CONFIG_HOME" => Some("/c".to_owned()),
            _ => None,
        };
        let locations = Locations::new(false, &lookup);
        assert_eq!(
            (locations.data, locations.config),
            ("/home/u/.local/share/kube-lite".into(), "/c/kube-lite".into())
        );
        assert_eq!(Locations::new(true, &lookup).data, PathBuf::from("/var/lib/kube-lite"));
    }
}
