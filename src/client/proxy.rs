//! HTTP proxies of outgoing requests: one that a flag names, or those of the environment by the
//! rules of Go's `golang.org/x/net/http/httpproxy`, which k3s and Helm use.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use url::Url;

/// Maximum size of the head of a proxy's response.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The values of the proxy variables; empty for those that are not set.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentProxies {
    /// `HTTP_PROXY`, for requests without TLS.
    http: String,
    /// `HTTPS_PROXY`.
    https: String,
    /// `NO_PROXY`.
    exceptions: String,
}

impl fmt::Debug for EnvironmentProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs may contain passwords.
        f.write_str("***")
    }
}

impl EnvironmentProxies {
    /// Reads the variables; names in capital letters take precedence.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
            set(name).or_else(|| set(&name.to_lowercase())).unwrap_or_default()
        };
        Self { http: get("HTTP_PROXY"), https: get("HTTPS_PROXY"), exceptions: get("NO_PROXY") }
    }

    /// The same with further entries of `NO_PROXY`, such as the ranges of pods and Services.
    #[must_use]
    pub fn with_exceptions(&self, further: &[String]) -> Self {
        let listed = Some(self.exceptions.clone()).filter(|list| !list.is_empty());
        let exceptions: Vec<String> = listed.into_iter().chain(further.iter().cloned()).collect();
        Self { exceptions: exceptions.join(","), ..self.clone() }
    }
}

/// Why a text is not the URL of a proxy. The text itself may contain a password.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProxyError {
    /// `socks5` and the like.
    #[error("{0} proxies are not supported; use an HTTP proxy (http:// or https://)")]
    Scheme(String),
    /// No URL, or one without a host.
    #[error("the proxy must be a URL with scheme and host, such as http://proxy.example:3128")]
    NotAUrl,
}

/// A variable of the environment is not the URL of a proxy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the proxy of variable {variable} cannot be used: {source}")]
pub struct VariableError {
    variable: &'static str,
    source: ProxyError,
}

/// Why a proxy connects to no server.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The connection to the proxy.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The proxy rejects the request.
    #[error("it answers {line:?}")]
    Refused {
        /// The status; 0 if the answer is not HTTP.
        status: u16,
        /// The first line of the answer.
        line: String,
    },
}

/// The variable with the proxy of a URL, and its value; empty for none.
fn variable_of<'a>(environment: &'a EnvironmentProxies, url: &Url) -> (&'static str, &'a str) {
    let port = url.port_or_known_default().unwrap_or_default();
    if is_exception(&environment.exceptions, host_of(url), port) {
        return ("NO_PROXY", "");
    }
    match url.scheme() {
        "https" => ("HTTPS_PROXY", &environment.https),
        _ => ("HTTP_PROXY", &environment.http),
    }
}

/// The host of a URL, without the brackets of an IPv6 address.
pub fn host_of(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_matches(['[', ']'])
}

/// Whether `NO_PROXY` excludes a host. Loopback addresses never have a proxy.
fn is_exception(exceptions: &str, host: &str, port: u16) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let mut entries = exceptions.split(',').map(|entry| entry.trim().to_lowercase());
    entries.any(|entry| matches(&entry, &host.to_lowercase(), address, port))
}

/// Whether an entry of `NO_PROXY` (a star, an address, a CIDR, a domain, each but the CIDR also
/// with a port) applies to a host.
fn matches(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Ok(range) = entry.parse::<settings::Cidr>() {
        return address.is_some_and(|ip| range.contains(ip));
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        // Not the last group of an IPv6 address.
        Some((name, number)) if entry.parse::<IpAddr>().is_err() => match number.parse() {
            Ok(number) => (name.trim_matches(['[', ']']), Some(number)),
            Err(_) => return false,
        },
        _ => (entry, None),
    };
    if name.is_empty() || wanted.is_some_and(|wanted: u16| wanted != port) {
        return false;
    }
    if address.is_some() || name.parse::<IpAddr>().is_ok() {
        return address.is_some() && address == name.parse().ok();
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    let is_below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    match name.strip_prefix('.') {
        Some(domain) => is_below(domain),
        None => host == name || is_below(name),
    }
}

/// Decodes percent escapes.
fn decoded(text: &str) -> String {
    // The characters that have a meaning in forms but not in URLs.
    let text = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    url::form_urlencoded::parse(text.as_bytes()).map(|(name, _)| name.into_owned()).collect()
}

/// An HTTP proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProxy {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Whether it is reached over TLS.
    pub tls: bool,
    /// The value of `Proxy-Authorization`.
    authorization: Option<Authorization>,
}

/// The credentials for a proxy.
#[derive(Clone, PartialEq, Eq)]
struct Authorization(String);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl HttpProxy {
    /// The proxy at a URL.
    ///
    /// # Errors
    /// It is no URL, or not one of an HTTP proxy.
    pub fn parse(text: &str) -> Result<Self, ProxyError> {
        let url: Url = text.parse().map_err(|_| ProxyError::NotAUrl)?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            scheme if text.contains("://") => return Err(ProxyError::Scheme(scheme.to_owned())),
            _ => return Err(ProxyError::NotAUrl),
        };
        let host = host_of(&url).to_owned();
        if host.is_empty() {
            return Err(ProxyError::NotAUrl);
        }
        let port = url.port_or_known_default().unwrap_or(80);
        let authorization = (!url.username().is_empty()).then(|| {
            let password = url.password().unwrap_or_default();
            let credentials = format!("{}:{}", decoded(url.username()), decoded(password));
            Authorization(format!("Basic {}", BASE64_STANDARD.encode(credentials)))
        });
        Ok(Self { host, port, tls, authorization })
    }

    /// Its address for messages, without credentials.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The value of `Proxy-Authorization` for a request without TLS.
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_ref().map(|value| value.0.as_str())
    }

    /// Requests a connection to `host:port` on a connection to the proxy.
    ///
    /// # Errors
    /// The connection fails, or the proxy rejects the request.
    pub async fn tunnel(
        &self,
        io: &mut base::io::BoxIo,
        host: &str,
        port: u16,
    ) -> Result<(), TunnelError> {
        let target = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(value) = self.authorization() {
            head.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        head.push_str("\r\n");
        io.write_all(head.as_bytes()).await?;
        io.flush().await?;
        let line = read_status_line(io).await?;
        match status_of(&line) {
            Some(200..=299) => Ok(()),
            status => Err(TunnelError::Refused {
                status: status.unwrap_or_default(),
                line: line.chars().filter(|c| !c.is_control()).take(200).collect(),
            }),
        }
    }
}

/// Reads the head of a response and not a byte more, because the bytes of the target follow.
async fn read_status_line(io: &mut base::io::BoxIo) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(std::io::Error::other("the head of the proxy's response is too long"));
        }
        head.push(io.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The status of `HTTP/1.1 200 Connection established`.
fn status_of(line: &str) -> Option<u16> {
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
}

/// How requests reach their server.
#[derive(Debug, Clone)]
pub enum ProxyRules {
    /// By this proxy, or by none.
    Fixed(Option<HttpProxy>),
    /// By that of the environment.
    Environment(EnvironmentProxies),
}

impl ProxyRules {
    /// The rules of a flag such as `--etcd-s3-proxy`: a URL, `none`, or empty for the environment.
    ///
    /// # Errors
    /// It is not the URL of an HTTP proxy.
    pub fn new(flag: &str, environment: &EnvironmentProxies) -> Result<Self, ProxyError> {
        match flag {
            "" => Ok(Self::Environment(environment.clone())),
            "none" => Ok(Self::Fixed(None)),
            url => Ok(Self::Fixed(Some(HttpProxy::parse(url)?))),
        }
    }

    /// Whether a proxy may be reached over TLS.
    pub fn may_use_tls(&self) -> bool {
        match self {
            Self::Fixed(proxy) => proxy.as_ref().is_some_and(|proxy| proxy.tls),
            Self::Environment(environment) => [&environment.http, &environment.https]
                .iter()
                .any(|url| url.to_lowercase().starts_with("https:")),
        }
    }

    /// The proxy for a URL.
    ///
    /// # Errors
    /// A variable of the environment is not the URL of an HTTP proxy.
    pub fn choose(&self, url: &Url) -> Result<Option<HttpProxy>, VariableError> {
        match self {
            Self::Fixed(proxy) => Ok(proxy.clone()),
            Self::Environment(environment) => {
                let (variable, value) = variable_of(environment, url);
                if value.is_empty() {
                    return Ok(None);
                }
                // As in Go, a value without a scheme is the address of an HTTP proxy.
                let proxy = HttpProxy::parse(value).or_else(|error| match error {
                    ProxyError::NotAUrl => HttpProxy::parse(&format!("http://{value}")),
                    other => Err(other),
                });
                proxy.map(Some).map_err(|source| VariableError { variable, source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(http: &str, https: &str, exceptions: &str) -> ProxyRules {
        let lookup = |name: &str| match name {
            "HTTP_PROXY" => Some(http.to_owned()),
            "https_proxy" => Some(https.to_owned()),
            "NO_PROXY" => Some(exceptions.to_owned()),
            _ => None,
        };
        ProxyRules::new("", &EnvironmentProxies::read(lookup)).unwrap()
    }

    /// The address of the proxy for a URL; empty for none.
    fn chosen(rules: &ProxyRules, url: &str) -> String {
        let proxy = rules.choose(&url.parse().unwrap()).unwrap();
        proxy.map(|proxy| proxy.address()).unwrap_or_default()
    }

    #[test]
    fn variables_choose_by_scheme_and_the_flag_overrides_them() {
        let rules = environment("plain:3128", "http://secure", "");
        assert_eq!(chosen(&rules, "http://minio:9000/b"), "plain:3128");
        assert_eq!(chosen(&rules, "https://minio:9000/b"), "secure:80");
        assert_eq!(chosen(&rules, "https://localhost/b"), "");
        assert_eq!(chosen(&rules, "https://127.0.0.2/b"), "");
        assert_eq!(chosen(&rules, "https://[::1]:9/b"), "");
        let ProxyRules::Environment(held) = &rules else { panic!("not of the environment") };
        let fixed = ProxyRules::new("http://own:1", held).unwrap();
        // As in k3s, exceptions do not apply to a proxy that a flag names.
        assert_eq!(chosen(&fixed, "https://127.0.0.1/b"), "own:1");
        assert_eq!(chosen(&ProxyRules::new("none", held).unwrap(), "https://minio/b"), "");
    }

    // The cases of `TestUseProxy` of golang.org/x/net/http/httpproxy.
    #[test]
    fn exceptions_are_those_of_go() {
        let list = "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, \
                    10.0.0.0/30, 2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, \
                    2002:db8:a::45/64";
        for (host, port, uses) in [
            ("localhost", 80, false),
            ("127.0.0.1", 80, false),
            ("127.0.0.2", 80, false),
            ("::1", 80, false),
            ("::2", 80, true),
            ("barbaz.net", 80, true),
            ("www.barbaz.net", 80, false),
            ("foobar.com", 80, false),
            ("www.foobar.com", 80, false),
            ("foofoobar.com", 80, true),
            ("baz.com", 80, true),
            ("localhost.net", 80, true),
            ("local.localhost", 80, true),
            ("barbarbaz.net", 80, true),
            ("wildcard.io", 80, true),
            ("nested.wildcard.io", 80, false),
            ("awildcard.io", 80, true),
            ("192.168.1.1", 80, false),
            ("192.168.1.2", 80, true),
            ("192.168.1.3", 80, false),
            ("192.168.1.4", 80, true),
            ("10.0.0.2", 80, false),
            ("10.0.0.4", 80, true),
            ("2001:db8::52:0:1", 80, false),
            ("2001:db8::52:0:2", 80, true),
            ("2001:db8::52:0:2", 443, false),
            ("2001:db8::52:0:3", 80, false),
            ("2002:db8:a::123", 80, false),
            ("fe80::424b:c8be:1643:a1b6", 80, true),
        ] {
            assert_eq!(!is_exception(list, host, port), uses, "{host}:{port}");
        }
        let further = ["10.42.0.0/16".to_owned(), ".svc".to_owned(), "custom.io:8080".to_owned()];
        let more = EnvironmentProxies { exceptions: list.into(), ..EnvironmentProxies::default() };
        let more = more.with_exceptions(&further).exceptions;
        for (host, port, uses) in [
            ("192.168.1.1", 80, false),
            ("10.42.3.4", 80, false),
            ("repo.default.svc", 443, false),
            ("custom.io", 8080, false),
            ("custom.io", 80, true),
        ] {
            assert_eq!(!is_exception(&more, host, port), uses, "{host}:{port}");
        }
        assert!(is_exception("*", "any", 1));
        assert!(!is_exception(":1", "example.com", 80) && !is_exception("", "any", 1));
    }

    #[test]
    fn proxies_are_urls_of_http_and_show_no_password() {
        let proxy = HttpProxy::parse("http://me:s%40cret@proxy.example:3128").unwrap();
        assert_eq!((proxy.address().as_str(), proxy.tls), ("proxy.example:3128", false));
        assert_eq!(proxy.authorization(), Some("Basic bWU6c0BjcmV0"));
        assert!(!format!("{proxy:?}").contains("bWU6"), "{proxy:?}");
        assert_eq!(HttpProxy::parse("https://[2001:db8::1]").unwrap().address(), "2001:db8::1:443");
        assert_eq!(
            HttpProxy::parse("socks5://p:1080").unwrap_err().to_string(),
            "socks5 proxies are not supported; use an HTTP proxy (http:// or https://)"
        );
        for text in ["proxy:3128", "proxy", "http://", "://x"] {
            assert_eq!(HttpProxy::parse(text), Err(ProxyError::NotAUrl), "{text}");
        }
        assert_eq!(status_of("HTTP/1.1 407 Proxy Authentication Required"), Some(407));
        assert_eq!(status_of("SSH-2.0-x"), None);
    }

    #[tokio::test]
    async fn a_tunnel_begins_after_the_answer_of_the_proxy() {
        for (answer, want) in [
            ("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nrest", "rest"),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answers \"HTTP/1.1 407 Pro"),
            ("SSH-2.0\r\n\r\n", "it answers \"SSH-2.0\""),
            ("HTTP/1.1 200 OK\r\n", "unexpected end of file"),
        ] {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            theirs.write_all(answer.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            let proxy = HttpProxy::parse("http://u:p@proxy.example:1").unwrap();
            let mut io: base::io::BoxIo = Box::new(ours);
            let text = match proxy.tunnel(&mut io, "a.example", 443).await {
                Err(error) => error.to_string(),
                Ok(()) => {
                    let mut text = String::new();
                    io.read_to_string(&mut text).await.unwrap();
                    text
                }
            };
            assert!(text.starts_with(want), "{answer}: {text}");
        }
    }
}
