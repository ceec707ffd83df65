//! Headers and paths of proxied requests: removes credentials and hop-by-hop headers, rewrites
//! redirects.

use http::Request;
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

/// The prefix of WebSocket subprotocols that carry the bearer token of clients that cannot set
/// headers.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Removes credentials for this server, so that the backend cannot impersonate the client.
pub(crate) fn remove_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    let ours = |name: &HeaderName| {
        name.as_str().starts_with("impersonate-") || name.as_str().starts_with("x-remote-")
    };
    let names: Vec<HeaderName> = headers.keys().filter(|n| ours(n)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    let offered: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|p| p.trim().to_owned())
        .collect();
    if offered.iter().any(|p| p.starts_with(BEARER_PROTOCOL)) {
        let rest: Vec<String> =
            offered.into_iter().filter(|p| !p.starts_with(BEARER_PROTOCOL)).collect();
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
        if let (false, Ok(value)) = (rest.is_empty(), HeaderValue::from_str(&rest.join(","))) {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

/// Removes hop-by-hop headers (RFC 9110, 7.6.1).
pub(crate) fn remove_hop_by_hop_headers(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// HTTP/1.1 requires a Host header: the client's, as in upstream, else the target's.
pub(super) fn set_host<B>(request: &mut Request<B>, target: &str) {
    if request.headers().contains_key(HOST) {
        return;
    }
    let host = request.uri().authority().map_or(target, |a| a.as_str());
    if let Ok(host) = HeaderValue::from_str(host) {
        request.headers_mut().insert(HOST, host);
    }
}

/// Splits the path after its first `segments` segments (the empty one before the first slash
/// counts).
pub(super) fn split_path(path: &str, segments: usize) -> (&str, &str) {
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    match slashes.nth(segments - 1) {
        Some(at) => path.split_at(at),
        None => (path, ""),
    }
}

/// Rewrites a redirect to the same host, so that it leads through the proxy.
pub(super) fn rewrite_location(headers: &mut HeaderMap, prefix: &str, hosts: &[String]) {
    let Some(location) = headers.get(LOCATION).and_then(|v| v.to_str().ok()) else { return };
    let changed = through_proxy(location, prefix, hosts).map(|l| HeaderValue::from_str(&l));
    if let Some(Ok(value)) = changed {
        headers.insert(LOCATION, value);
    }
}

/// The path of a link through the proxy; `None` if the link is relative or leads to another host.
pub(super) fn through_proxy(link: &str, prefix: &str, hosts: &[String]) -> Option<String> {
    let (head, path) = match link.split_once("://") {
        Some((_, rest)) => {
            let at = rest.find('/').unwrap_or(rest.len());
            (rest.get(..at), rest.get(at..).unwrap_or_default())
        }
        None => (None, link),
    };
    let foreign = head.is_some_and(|host| !hosts.iter().any(|h| h == host));
    let local = path.starts_with('/') && !path.starts_with("//");
    (!foreign && local).then(|| format!("{prefix}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v)))
            .collect()
    }

    #[test]
    fn credentials_are_not_forwarded() {
        let mut headers = map(&[
            ("authorization", "Bearer x"),
            ("impersonate-user", "root"),
            ("x-remote-group", "system:masters"),
            (
                "sec-websocket-protocol",
                "base64url.bearer.authorization.k8s.io.dG9r, v5.channel.k8s.io",
            ),
            ("cookie", "a=b"),
        ]);
        remove_credentials(&mut headers);
        assert_eq!(
            headers,
            map(&[("sec-websocket-protocol", "v5.channel.k8s.io"), ("cookie", "a=b")])
        );
    }

    #[test]
    fn paths_are_split_after_proxy() {
        let path = "/api/v1/namespaces/a/pods/https:b:1/proxy/c%2Fd//e";
        assert_eq!(split_path(path, 8), ("/api/v1/namespaces/a/pods/https:b:1/proxy", "/c%2Fd//e"));
        assert_eq!(split_path("/api/v1/nodes/n/proxy", 6), ("/api/v1/nodes/n/proxy", ""));
        assert_eq!(split_path("/api/v1/nodes/n/proxy/", 6), ("/api/v1/nodes/n/proxy", "/"));
    }

    #[test]
    fn redirects_to_the_same_host_are_rewritten_to_the_proxy() {
        let hosts = ["10.0.0.5:80".to_owned(), "api".to_owned()];
        for (location, expected) in [
            ("/login?next=1", "/p/proxy/login?next=1"),
            ("http://10.0.0.5:80/a", "/p/proxy/a"),
            ("http://elsewhere/a", "http://elsewhere/a"),
            ("relative", "relative"),
            ("//elsewhere/a", "//elsewhere/a"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, HeaderValue::from_static(location));
            rewrite_location(&mut headers, "/p/proxy", &hosts);
            assert_eq!(headers[LOCATION], expected);
        }
    }
}
