//! Annotations of canaries.

use super::AnnotationError as Error;
use super::values::{boolean, cookie_name, header_name, number};
use http::HeaderName;
use http_proxy::routes::canary::{CanaryRules, HeaderValueRule};
use http_proxy::routes::pattern::Pattern;

/// The annotations of one Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CanarySettings {
    is_on: bool,
    header: Option<HeaderName>,
    value: Option<String>,
    pattern: Option<Pattern>,
    cookie: Option<String>,
    weight: u32,
    total: u32,
}

impl CanarySettings {
    /// Sets an annotation; `None` if it is another one.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), Error>> {
        let outcome = match name {
            "canary" => boolean(value).map(|on| self.is_on = on),
            "canary-by-header" => header_name(value).map(|name| self.header = Some(name)),
            "canary-by-header-value" => {
                self.value = Some(value.to_owned());
                Ok(())
            }
            "canary-by-header-pattern" => {
                Pattern::new(value).map(|p| self.pattern = Some(p)).map_err(Error::from)
            }
            "canary-by-cookie" => cookie_name(value).map(|name| self.cookie = Some(name)),
            "canary-weight" => number(value).map(|n| self.weight = n),
            "canary-weight-total" => number(value).map(|n| self.total = n),
            _ => return None,
        };
        Some(outcome)
    }

    /// The rules of a canary; `None` without `canary: "true"`. A value excludes a pattern.
    pub fn rules(&self) -> Option<CanaryRules> {
        let rule = match (&self.value, &self.pattern) {
            (Some(value), _) => HeaderValueRule::Equal(value.clone()),
            (None, Some(pattern)) => HeaderValueRule::Matches(pattern.clone()),
            (None, None) => HeaderValueRule::AlwaysOrNever,
        };
        self.is_on.then(|| CanaryRules {
            header: self.header.clone().map(|name| (name, rule)),
            cookie: self.cookie.clone(),
            weight: self.weight,
            total: self.total,
        })
    }
}
