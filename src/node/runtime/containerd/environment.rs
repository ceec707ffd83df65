//! The environment of containerd: that of this process, with proxies for pulls only.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use sorting::CollectOrdered as _;

/// Prefix of variables that only containerd gets, without the prefix.
const PREFIX: &[u8] = b"CONTAINERD_";
/// The variables that choose a proxy; Go's HTTP client reads both spellings.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Variables of containerd.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) variables: BTreeMap<OsString, OsString>,
    /// The log level of `CONTAINERD_LOG_LEVEL`.
    pub(super) log_level: Option<String>,
}

/// The values may contain passwords of proxies.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.variables.keys()).finish()
    }
}

impl Environment {
    /// Derives it from the variables of this process. With a proxy, `direct` (ranges and domains of
    /// the cluster) is reached without it, as in k3s.
    pub(super) fn new(own: impl Iterator<Item = (OsString, OsString)>, direct: &[String]) -> Self {
        let (prefixed, rest): (Vec<_>, Vec<_>) =
            own.partition(|(name, _)| name.as_bytes().starts_with(PREFIX));
        let mut variables: BTreeMap<OsString, OsString> = rest.into_iter().collect_map();
        // The service manager's socket is that of this process.
        variables.remove(&OsString::from("NOTIFY_SOCKET"));
        let mut log_level = None;
        for (name, value) in prefixed {
            let short = name.as_bytes().get(PREFIX.len()..).unwrap_or_default();
            match short {
                b"" => {}
                b"LOG_LEVEL" => log_level = Some(value.to_string_lossy().into_owned()),
                short => drop(variables.insert(OsString::from_vec(short.to_vec()), value)),
            }
        }
        let is_set =
            |name: &&str| variables.get(&OsString::from(name)).is_some_and(|v| !v.is_empty());
        if PROXIES.iter().any(is_set) {
            let found = NO_PROXY.into_iter().find(is_set).unwrap_or("NO_PROXY");
            let mut value = variables.remove(&OsString::from(found)).unwrap_or_default();
            for part in direct {
                if !value.is_empty() {
                    value.push(",");
                }
                value.push(part);
            }
            variables.insert(found.into(), value);
        }
        Self { variables, log_level }
    }

    /// Digest of the proxies and of the other variables that only containerd gets: if it changes, a
    /// running containerd must be restarted.
    pub(super) fn digest(&self) -> String {
        let mut text = Vec::new();
        for name in PROXIES.iter().chain(&NO_PROXY) {
            let value = self.variables.get(&OsString::from(name));
            text.extend_from_slice(value.map_or(&[][..], |v| v.as_bytes()));
            text.push(0);
        }
        crate::digest::sha256(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(own: &[(&str, &str)]) -> Environment {
        let own = own.iter().map(|(name, value)| (OsString::from(*name), OsString::from(*value)));
        Environment::new(own, &["10.42.0.0/16".to_owned(), ".cluster.local".to_owned()])
    }

    fn of<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.variables.get(&OsString::from(name)).and_then(|v| v.to_str())
    }

    #[test]
    fn prefixed_variables_replace_others_and_the_cluster_needs_no_proxy() {
        let found = environment(&[
            ("PATH", "/bin"),
            ("HTTPS_PROXY", "http://all.example:1"),
            ("CONTAINERD_HTTPS_PROXY", "http://pulls.example:1"),
            ("CONTAINERD_NO_PROXY", "192.0.2.0/24"),
            ("NO_PROXY", "other.example"),
            ("CONTAINERD_LOG_LEVEL", "debug"),
            ("NOTIFY_SOCKET", "/run/notify"),
        ]);
        assert_eq!(of(&found, "PATH"), Some("/bin"));
        assert_eq!(of(&found, "HTTPS_PROXY"), Some("http://pulls.example:1"));
        assert_eq!(of(&found, "NO_PROXY"), Some("192.0.2.0/24,10.42.0.0/16,.cluster.local"));
        assert_eq!(found.log_level.as_deref(), Some("debug"));
        for name in ["CONTAINERD_HTTPS_PROXY", "LOG_LEVEL", "NOTIFY_SOCKET"] {
            assert_eq!(of(&found, name), None, "{name}");
        }
        assert!(!format!("{found:?}").contains("example"), "values are not printed");
    }

    #[test]
    fn without_a_proxy_nothing_is_added() {
        let none = environment(&[("HOME", "/root"), ("HTTP_PROXY", "")]);
        assert_eq!(of(&none, "NO_PROXY"), None);
        let lower = environment(&[("https_proxy", "http://p.example"), ("no_proxy", "a.example")]);
        assert_eq!(of(&lower, "no_proxy"), Some("a.example,10.42.0.0/16,.cluster.local"));
        assert_eq!(of(&lower, "NO_PROXY"), None);
        assert_ne!(none.digest(), lower.digest());
    }
}
