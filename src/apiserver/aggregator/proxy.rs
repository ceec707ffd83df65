//! Proxies requests to aggregated API servers: the path is unchanged, headers name the user and the
//! front proxy's certificate authenticates them, the client's credentials are removed.

use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use stream::upgrade::{self, is_upgrade};

use super::Remote;
use super::remote::RemoteError;
use crate::connect::headers::{remove_credentials, remove_hop_by_hop_headers};
use crate::request::body::Body;
use crate::request::user::User;
use crate::response::status;

impl Remote {
    /// Proxies a request and returns the response.
    pub(crate) async fn serve(&self, user: &User, request: Request<Body>) -> Response<Body> {
        if !self.is_available() {
            return unavailable();
        }
        match self.carry(user, request).await {
            Ok(response) => response,
            Err(refusal) => refusal,
        }
    }

    async fn carry(
        &self,
        user: &User,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Response<Body>> {
        let address = self.endpoint().await.map_err(|error| {
            tracing::warn!(apiservice = self.name, %error, "the Service has no endpoint");
            unavailable()
        })?;
        let upgrades = is_upgrade(request.headers());
        remove_credentials(request.headers_mut());
        if !upgrades {
            remove_hop_by_hop_headers(request.headers_mut());
        }
        identify(request.headers_mut(), user);
        let failed = |why: &dyn std::fmt::Display| {
            let text = format!("error trying to reach service: {why}");
            status::text(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        if let Ok(host) = HeaderValue::from_str(&address.to_string()) {
            request.headers_mut().insert(HOST, host);
        }
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        *request.uri_mut() = path.parse::<Uri>().map_err(|e| failed(&e))?;
        *request.version_mut() = http::Version::HTTP_11;
        let io = self.open(address).await.map_err(|e| failed(&e))?;
        if upgrades {
            return upgrade::relay(io, request, self.tasks()).await.map_err(|e| failed(&e));
        }
        let response = upgrade::send(io, request, self.tasks()).await.map_err(|e| failed(&e))?;
        if is_redirect(response.status()) {
            // CVE-2022-3172: a redirect from the backend must not appear to come from this server.
            let text = "the backend attempted to redirect this request, which is not permitted";
            return Err(status::text(StatusCode::BAD_GATEWAY, text));
        }
        let mut response = response.map(|body| body.map_err(Into::into).boxed_unsync());
        remove_hop_by_hop_headers(response.headers_mut());
        Ok(response)
    }

    /// Sends a GET by this server itself, and reads up to `bytes_max` bytes of the response.
    ///
    /// # Errors
    /// If there is no response, or one with a status code other than success.
    pub(super) async fn get(
        &self,
        path: &str,
        bytes_max: usize,
    ) -> Result<(u16, Vec<u8>), RemoteError> {
        let address = self.endpoint().await?;
        let url = format!("https://{address}{path}");
        let failed = |why: &dyn std::fmt::Display| RemoteError::Request {
            url: url.clone(),
            reason: why.to_string(),
        };
        let mut request = Request::get(path)
            .header(HOST, address.to_string())
            .header(http::header::ACCEPT, "application/json")
            .body(crate::request::body::empty())
            .map_err(|e| failed(&e))?;
        let own = User {
            name: "system:kube-aggregator".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..User::default()
        };
        identify(request.headers_mut(), &own);
        request.headers_mut().remove(CONTENT_LENGTH);
        let io = self.open(address).await.map_err(|e| failed(&e))?;
        let response = upgrade::send(io, request, self.tasks()).await.map_err(|e| failed(&e))?;
        let code = response.status().as_u16();
        if !(200..300).contains(&code) {
            return Err(RemoteError::Status { url, code });
        }
        let body = http_body_util::Limited::new(response.into_body(), bytes_max).collect().await;
        Ok((code, body.map_err(|e| failed(&e))?.to_bytes().to_vec()))
    }
}

fn unavailable() -> Response<Body> {
    status::text(StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n")
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Sets the headers for the user (client-go's `SetAuthProxyHeaders`); client headers of these names
/// have been removed already.
fn identify(headers: &mut HeaderMap, user: &User) {
    let mut add = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    };
    add("x-remote-user", &user.name);
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid);
    }
    for group in &user.groups {
        add("x-remote-group", group);
    }
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", escaped(key));
        for value in values {
            add(&name, value);
        }
    }
}

/// Percent-encodes a key for a header name, like client-go's `headerKeyEscape`.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        let legal = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        if legal {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_headers_are_those_of_client_go() {
        let mut user = User::authenticated("jane", &["a", "b"]);
        user.uid = "7".into();
        user.extra.insert("example.org/x y".into(), vec!["1".into(), "2".into()]);
        let mut headers = HeaderMap::new();
        identify(&mut headers, &user);
        let all = |name: &str| {
            headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-uid"), ["7"]);
        assert_eq!(all("x-remote-group"), ["a", "b", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-example.org%2fx%20y"), ["1", "2"]);
    }
}
