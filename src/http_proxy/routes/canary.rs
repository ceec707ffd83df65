//! Canaries: some requests of a rule go to another backend (ingress-nginx, "Canary").

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName};

use super::Forward;
use super::affinity::cookie;
use super::pattern::Pattern;
use crate::backend::{Split, WeightedBackend};

/// The value of a header that sends a request to the canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderValueRule {
    /// `always` sends it there, `never` to the other backend.
    AlwaysOrNever,
    /// This value sends it there.
    Equal(String),
    /// A value in which the expression is found sends it there.
    Matches(Pattern),
}

/// Which requests go to the canary.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CanaryRules {
    /// A header; it comes before the cookie.
    pub header: Option<(HeaderName, HeaderValueRule)>,
    /// A cookie with the values `always` and `never`; it comes before the weight.
    pub cookie: Option<String>,
    /// The share of other requests.
    pub weight: u32,
    /// The sum of all weights; 0 is 100.
    pub total: u32,
}

fn always_or_never(value: &str) -> Option<bool> {
    match value {
        "always" => Some(true),
        "never" => Some(false),
        _ => None,
    }
}

impl CanaryRules {
    /// Whether header or cookie decide about a request.
    fn by_request(&self, headers: &HeaderMap) -> Option<bool> {
        let by_header = self.header.as_ref().and_then(|(name, rule)| {
            let value = headers.get(name)?.to_str().ok()?;
            match rule {
                HeaderValueRule::AlwaysOrNever => always_or_never(value),
                HeaderValueRule::Equal(wanted) => (wanted == value).then_some(true),
                HeaderValueRule::Matches(pattern) => pattern.is_match(value).then_some(true),
            }
        });
        by_header.or_else(|| always_or_never(cookie(headers, self.cookie.as_ref()?)?))
    }
}

/// The canary of a rule.
#[derive(Debug, Default)]
pub struct Canary {
    /// Which requests it gets.
    pub rules: CanaryRules,
    /// Its backend.
    pub split: Split,
    /// Requests so far that the weight decides.
    pub turn: AtomicU64,
}

impl Canary {
    fn takes(&self, headers: &HeaderMap) -> bool {
        if let Some(decided) = self.rules.by_request(headers) {
            return decided;
        }
        let total = if self.rules.total == 0 { 100 } else { self.rules.total };
        if self.rules.weight == 0 {
            return false;
        }
        // Multiples of the golden ratio modulo 1 are spread evenly at each length.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let fraction = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (u128::from(fraction) * u128::from(total)) >> 64 < u128::from(self.rules.weight)
    }
}

impl Forward {
    /// The backend of a request: that of its session, else the canary or the rule's own one;
    /// `None` if there is none with a weight.
    pub fn choose(&self, headers: &HeaderMap) -> Option<&WeightedBackend> {
        let Some(canary) = &self.canary else { return self.split.choose() };
        let session = self.affinity.as_ref().and_then(|affinity| affinity.endpoint(headers));
        if let Some(id) = session {
            for split in [&self.split, &canary.split] {
                let known = split.choose().filter(|chosen| {
                    chosen.backend.as_ref().is_some_and(|b| b.endpoint(id).is_some())
                });
                if known.is_some() {
                    return known;
                }
            }
        }
        if canary.takes(headers) { canary.split.choose() } else { self.split.choose() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn canary(rules: CanaryRules) -> Canary {
        Canary { rules, ..Canary::default() }
    }

    fn takes(canary: &Canary, headers: &[(&'static str, &'static str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        canary.takes(&map)
    }

    // "Canary rules are evaluated in order of precedence: canary-by-header -> canary-by-cookie ->
    // canary-weight."
    #[test]
    fn the_header_comes_before_the_cookie_and_the_cookie_before_the_weight() {
        let name = HeaderName::from_static("x-canary");
        let rules = |weight| CanaryRules {
            header: Some((name.clone(), HeaderValueRule::AlwaysOrNever)),
            cookie: Some("canary".into()),
            weight,
            total: 0,
        };
        for (weight, headers, expected) in [
            (0, vec![("x-canary", "always"), ("cookie", "canary=never")], true),
            (100, vec![("x-canary", "never"), ("cookie", "canary=always")], false),
            (0, vec![("x-canary", "other"), ("cookie", "canary=always")], true),
            (100, vec![("cookie", "canary=never")], false),
            (100, vec![("cookie", "canary=other")], true),
            (0, vec![], false),
            (100, vec![], true),
        ] {
            assert_eq!(takes(&canary(rules(weight)), &headers), expected, "{weight} {headers:?}");
        }
    }

    #[test]
    fn a_header_has_a_value_or_a_pattern() {
        let name = HeaderName::from_static("x-canary");
        let with =
            |rule| canary(CanaryRules { header: Some((name.clone(), rule)), ..Default::default() });
        let equal = with(HeaderValueRule::Equal("beta".into()));
        assert!(takes(&equal, &[("x-canary", "beta")]));
        assert!(!takes(&equal, &[("x-canary", "always")]));
        let pattern = with(HeaderValueRule::Matches(Pattern::new("^(beta|edge)-\\d+$").unwrap()));
        assert!(takes(&pattern, &[("x-canary", "edge-12")]));
        assert!(!takes(&pattern, &[("x-canary", "stable")]));
    }

    #[test]
    fn the_weight_is_a_share_of_its_total() {
        for (weight, total, expected) in [(25, 0, 250), (1, 1000, 1), (100, 100, 1000)] {
            let canary = canary(CanaryRules { weight, total, ..Default::default() });
            let count = (0..1000).filter(|_| takes(&canary, &[])).count();
            assert!(count.abs_diff(expected) <= 1, "{weight} of {total}: {count}");
        }
    }
}
