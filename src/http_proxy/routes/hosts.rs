//! Values by host name, with wildcards.

use std::collections::HashMap;

/// The hosts that a wildcard `*.example.com` covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WildcardLabels {
    /// One label: `a.example.com`, not `b.a.example.com` (`IngressRule.host`).
    One,
    /// One or more labels (`Hostname` of Gateway API).
    Many,
}

/// Values by host name. The most specific name wins: an exact name, then the longest wildcard,
/// then the value for every host.
#[derive(Debug)]
pub struct HostMap<T> {
    exact: HashMap<Box<str>, T>,
    /// By the part behind `*.`.
    wildcards: HashMap<Box<str>, T>,
    every: Option<T>,
    labels: WildcardLabels,
}

impl<T> HostMap<T> {
    /// An empty map.
    pub fn new(labels: WildcardLabels) -> Self {
        Self { exact: HashMap::new(), wildcards: HashMap::new(), every: None, labels }
    }

    /// The value of a host as objects write it: a name, `*.` and a name, or an empty text for every
    /// host. `make` creates a missing value.
    pub fn entry(&mut self, host: &str, make: impl FnOnce() -> T) -> &mut T {
        let host = host.to_ascii_lowercase();
        match host.strip_prefix("*.") {
            Some(suffix) => self.wildcards.entry(suffix.into()).or_insert_with(make),
            None if host.is_empty() || host == "*" => self.every.get_or_insert_with(make),
            None => self.exact.entry(host.into()).or_insert_with(make),
        }
    }

    /// The value for the host of a request, in lower case and without a port.
    pub fn get(&self, host: &str) -> Option<&T> {
        self.matching(host).next()
    }

    /// All values for the host of a request, the most specific first.
    pub fn matching<'a, 'h>(
        &'a self,
        host: &'h str,
    ) -> impl Iterator<Item = &'a T> + use<'a, 'h, T> {
        let names = match self.labels {
            WildcardLabels::One => 1,
            WildcardLabels::Many if self.wildcards.is_empty() => 0,
            WildcardLabels::Many => usize::MAX,
        };
        let suffixes = std::iter::successors(Some(host), |rest| {
            rest.split_once('.').filter(|(label, _)| !label.is_empty()).map(|(_, suffix)| suffix)
        });
        let wildcards = suffixes.skip(1).take(names);
        let wildcards = wildcards.filter_map(|suffix| self.wildcards.get(suffix));
        self.exact.get(host).into_iter().chain(wildcards).chain(&self.every)
    }

    /// All values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.exact.values_mut().chain(self.wildcards.values_mut()).chain(self.every.as_mut())
    }
}

/// The host of a request without its port and in lower case; a trailing dot is removed. The text is
/// copied only if it changes.
pub fn normalized(authority: &str) -> std::borrow::Cow<'_, str> {
    let host = match authority.strip_prefix('[') {
        // An IPv6 address.
        Some(rest) => rest.split_once(']').map_or(authority, |(address, _)| address),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|b| b.is_ascii_uppercase()) {
        host.to_ascii_lowercase().into()
    } else {
        host.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(labels: WildcardLabels, hosts: &[&'static str]) -> HostMap<&'static str> {
        let mut map = HostMap::new(labels);
        for host in hosts {
            *map.entry(host, || "") = host;
        }
        map
    }

    // The table of "Hostname wildcards" in the documentation of Ingress.
    #[test]
    fn a_wildcard_of_an_ingress_covers_one_label() {
        let hosts = map(WildcardLabels::One, &["*.foo.com", "Exact.foo.com"]);
        for (host, expected) in [
            ("bar.foo.com", Some("*.foo.com")),
            ("baz.bar.foo.com", None),
            ("foo.com", None),
            (".foo.com", None),
            ("exact.foo.com", Some("Exact.foo.com")),
        ] {
            assert_eq!(hosts.get(host).copied(), expected, "{host}");
        }
    }

    // `Hostname` of Gateway API: "*.example.com" matches "test.example.com" and
    // "foo.test.example.com", not "example.com".
    #[test]
    fn a_wildcard_of_gateway_api_covers_many_labels_and_the_longest_wins() {
        let hosts = map(WildcardLabels::Many, &["", "*.com", "*.example.com", "a.example.com"]);
        for (host, expected) in [
            ("test.example.com", "*.example.com"),
            ("foo.test.example.com", "*.example.com"),
            ("example.com", "*.com"),
            ("a.example.com", "a.example.com"),
            ("com", ""),
            ("10.0.0.1", ""),
        ] {
            assert_eq!(hosts.get(host).copied(), Some(expected), "{host}");
        }
    }

    #[test]
    fn less_specific_values_follow() {
        let names = ["", "*.com", "*.example.com", "a.example.com"];
        let all = map(WildcardLabels::Many, &names);
        let found: Vec<_> = all.matching("a.example.com").copied().collect();
        assert_eq!(found, ["a.example.com", "*.example.com", "*.com", ""]);
        let one = map(WildcardLabels::One, &names);
        let found: Vec<_> = one.matching("b.example.com").copied().collect();
        assert_eq!(found, ["*.example.com", ""]);
    }

    #[test]
    fn hosts_lose_port_case_and_trailing_dot() {
        for (authority, host) in [
            ("Example.COM:8080", "example.com"),
            ("example.com.", "example.com"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("10.0.0.1", "10.0.0.1"),
            ("", ""),
        ] {
            assert_eq!(normalized(authority), host, "{authority}");
        }
    }
}
