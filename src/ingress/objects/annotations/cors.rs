//! Annotations of cross-origin requests: `enable-cors`, `cors-*`.

use super::AnnotationError as Error;
use super::values::{boolean, list, number};
use http_proxy::routes::cors::Cors;

/// ingress-nginx's defaults.
const METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
const HEADERS: &str = "DNT, Keep-Alive, User-Agent, X-Requested-With, If-Modified-Since, \
    Cache-Control, Content-Type, Range, Authorization";
const MAX_AGE: u32 = 1_728_000;

/// The annotations of one Ingress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CorsSettings {
    is_on: bool,
    origins: Option<String>,
    methods: Option<String>,
    headers: Option<String>,
    expose: String,
    credentials: Option<bool>,
    max_age: Option<u32>,
}

impl CorsSettings {
    /// Sets an annotation; `None` if it is another one.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), Error>> {
        let text = || Some(value.to_owned());
        let outcome = match name {
            "enable-cors" => boolean(value).map(|on| self.is_on = on),
            "cors-allow-origin" => {
                self.origins = text();
                Ok(())
            }
            "cors-allow-methods" => {
                self.methods = text();
                Ok(())
            }
            "cors-allow-headers" => {
                self.headers = text();
                Ok(())
            }
            "cors-expose-headers" => {
                self.expose = value.to_owned();
                Ok(())
            }
            "cors-allow-credentials" => boolean(value).map(|on| self.credentials = Some(on)),
            "cors-max-age" => number(value).map(|n| self.max_age = Some(n)),
            _ => return None,
        };
        Some(outcome)
    }

    /// The rules; `None` without `enable-cors`. With every origin, requests with credentials are
    /// not allowed (Fetch: `*` and credentials exclude each other).
    pub(super) fn cors(&self) -> Option<Cors> {
        let all = |text: &str| list(text).into_iter().map(str::to_owned).collect::<Vec<_>>();
        let origins = all(self.origins.as_deref().unwrap_or("*"));
        let is_open = origins.iter().any(|origin| origin == "*");
        self.is_on.then(|| Cors {
            credentials: self.credentials.unwrap_or(true) && !is_open,
            origins,
            methods: all(self.methods.as_deref().unwrap_or(METHODS)),
            headers: all(self.headers.as_deref().unwrap_or(HEADERS)),
            expose: all(&self.expose),
            max_age: self.max_age.unwrap_or(MAX_AGE),
        })
    }
}
