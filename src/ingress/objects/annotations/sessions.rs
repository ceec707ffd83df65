//! Annotations of sessions: `affinity` and `session-cookie-*`.

use super::AnnotationError as Error;
use super::values::{boolean, cookie_name, cookie_text, number};
use http_proxy::routes::affinity::{Affinity, SameSite};

/// ingress-nginx's name of the cookie.
const COOKIE: &str = "INGRESSCOOKIE";

/// The annotations of one Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sessions {
    is_on: bool,
    name: Option<String>,
    path: Option<String>,
    domain: Option<String>,
    max_age: Option<u32>,
    /// `session-cookie-expires`, the form of `Max-Age` for old browsers.
    expires: Option<u32>,
    same_site: Option<SameSite>,
    secure: Option<bool>,
    change_on_failure: bool,
}

impl Sessions {
    /// Sets an annotation; `None` if it is another one.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), Error>> {
        let other = || Error::Value(value.to_owned());
        let outcome = match name {
            "affinity" if value == "cookie" => {
                self.is_on = true;
                Ok(())
            }
            // The default and the only behaviour here.
            "affinity-mode" if value == "balanced" => Ok(()),
            "affinity-canary-behavior" if value == "sticky" => Ok(()),
            "affinity" | "affinity-mode" | "affinity-canary-behavior" => Err(other()),
            "session-cookie-name" => cookie_name(value).map(|text| self.name = Some(text)),
            "session-cookie-path" => cookie_text(value).map(|text| self.path = Some(text)),
            "session-cookie-domain" => cookie_text(value).map(|text| self.domain = Some(text)),
            "session-cookie-max-age" => number(value).map(|n| self.max_age = Some(n)),
            "session-cookie-expires" => number(value).map(|n| self.expires = Some(n)),
            "session-cookie-secure" => boolean(value).map(|on| self.secure = Some(on)),
            "session-cookie-change-on-failure" => {
                boolean(value).map(|on| self.change_on_failure = on)
            }
            "session-cookie-samesite" => match value.to_ascii_lowercase().as_str() {
                "none" => {
                    self.same_site = Some(SameSite::None);
                    Ok(())
                }
                "lax" => {
                    self.same_site = Some(SameSite::Lax);
                    Ok(())
                }
                "strict" => {
                    self.same_site = Some(SameSite::Strict);
                    Ok(())
                }
                _ => Err(other()),
            },
            _ => return None,
        };
        Some(outcome)
    }

    /// The cookie of a rule with this path; `None` without `affinity: cookie`.
    pub fn affinity(&self, path: &str) -> Option<Affinity> {
        let is_plain = !http_proxy::routes::pattern::has_operators(path);
        let path = self.path.clone().or_else(|| cookie_text(path).ok().filter(|_| is_plain));
        self.is_on.then(|| Affinity {
            name: self.name.clone().unwrap_or_else(|| COOKIE.to_owned()),
            path: path.unwrap_or_else(|| "/".to_owned()),
            domain: self.domain.clone(),
            max_age: self.max_age.or(self.expires),
            same_site: self.same_site,
            secure: self.secure,
            change_on_failure: self.change_on_failure,
        })
    }
}
