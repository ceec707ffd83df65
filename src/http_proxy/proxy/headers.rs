//! Headers between client, proxy and endpoint.

use http::header::{CONNECTION, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Number of headers that [`set_forwarded`] sets.
const FORWARDED: usize = 5;
/// Headers that concern the next hop alone.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Whether a field is a list that has an option (RFC 9110, 5.6.1).
pub(super) fn has_option(headers: &HeaderMap, name: &HeaderName, option: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|o| o.trim().eq_ignore_ascii_case(option))
}

/// Removes the headers of one hop (RFC 9110, 7.6.1), and those that `Connection` names. `TE:
/// trailers` stays, which gRPC requires.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none or say that the connection is kept; to compare names is cheaper than
    // to look each of them up.
    let mut found = headers.iter().filter(|(name, _)| HOP_BY_HOP.contains(name));
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    match (found.next(), found.next()) {
        (None, _) => return,
        (Some((name, value)), None) if *name == CONNECTION && is_plain(value) => {
            headers.remove(CONNECTION);
            return;
        }
        _ => {}
    }
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // A client must not make the proxy drop what it adds, or the host.
    let removable = |name: &HeaderName| *name != HOST && !is_forwarded(name);
    let takes_trailers = has_option(headers, &TE, "trailers");
    for name in named.iter().filter(|name| removable(name)) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

fn is_forwarded(name: &HeaderName) -> bool {
    [FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PROTO, REAL_IP].contains(name)
}

/// What the proxy adds about the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress<'a> {
    /// The address of the client, as the value of a header.
    pub(super) value: &'a HeaderValue,
    /// Whether it is a proxy whose own headers are believed.
    pub(super) trusted: bool,
    /// Whether the connection has TLS.
    pub(super) secure: bool,
    /// The port of the listener as clients see it.
    pub(super) port: u16,
}

/// Sets the headers `X-Forwarded-*` and `X-Real-Ip`. Headers of clients that are no trusted proxy
/// are replaced, so that an endpoint can rely on them.
pub(super) fn set_forwarded(
    headers: &mut HeaderMap,
    host: Option<&HeaderValue>,
    client: ClientAddress<'_>,
) {
    headers.reserve(FORWARDED);
    let value = client.value;
    if client.trusted {
        let known = headers.get_all(FORWARDED_FOR).iter().chain([value]);
        let known: Vec<&str> = known.filter_map(|value| value.to_str().ok()).collect();
        let all = match known.len() {
            0 | 1 => Some(value.clone()),
            _ => HeaderValue::from_str(&known.join(", ")).ok(),
        };
        if let Some(all) = all {
            headers.insert(FORWARDED_FOR, all);
        }
    } else {
        headers.insert(FORWARDED_FOR, value.clone());
    }
    let mut set = |name: HeaderName, value: Option<HeaderValue>| {
        let Some(value) = value else { return };
        if !client.trusted || !headers.contains_key(&name) {
            headers.insert(name, value);
        }
    };
    set(REAL_IP, Some(value.clone()));
    set(FORWARDED_HOST, host.cloned());
    set(FORWARDED_PORT, Some(port_value(client.port)));
    let proto = if client.secure { "https" } else { "http" };
    set(FORWARDED_PROTO, Some(HeaderValue::from_static(proto)));
}

/// A port as the value of a header.
fn port_value(port: u16) -> HeaderValue {
    match port {
        80 => HeaderValue::from_static("80"),
        443 => HeaderValue::from_static("443"),
        port => HeaderValue::from(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn headers_of_one_hop_stay_behind() {
        let mut headers = map(&[
            ("host", "a"),
            ("connection", "close, X-Own, host, x-forwarded-for"),
            ("x-own", "1"),
            ("x-forwarded-for", "10.0.0.1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "gzip, trailers"),
            ("proxy-authorization", "Basic eA=="),
        ]);
        remove_hop_by_hop(&mut headers);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "proxy-authorization", "te", "x-forwarded-for"]);
        assert_eq!(headers.get("te").unwrap(), "trailers");
    }

    #[test]
    fn clients_cannot_forge_their_address_and_trusted_proxies_extend_it() {
        let value = HeaderValue::from_static("192.0.2.7");
        let client = |trusted| ClientAddress { value: &value, trusted, secure: true, port: 443 };
        let sent = [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-proto", "http")];
        for (trusted, addresses, proto) in
            [(false, "192.0.2.7", "https"), (true, "198.51.100.1, 192.0.2.7", "http")]
        {
            let mut headers = map(&sent);
            let host = HeaderValue::from_static("a.example");
            set_forwarded(&mut headers, Some(&host), client(trusted));
            let get = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
            assert_eq!(get("x-forwarded-for"), Some(addresses));
            assert_eq!(get("x-forwarded-proto"), Some(proto));
            assert_eq!(get("x-forwarded-host"), Some("a.example"));
            assert_eq!(get("x-forwarded-port"), Some("443"));
            assert_eq!(get("x-real-ip"), Some("192.0.2.7"));
        }
    }
}
