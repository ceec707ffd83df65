//! The proxy of a request, by the variables that Go's HTTP client reads
//! (`golang.org/x/net/http/httpproxy`).

use std::net::IpAddr;
use std::sync::Arc;

use settings::Cidr;
use url::Url;

use super::credentials::Credentials;

/// A variable cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the proxy of variable {variable} cannot be used: {reason}")]
pub struct ProxyError {
    variable: &'static str,
    reason: &'static str,
}

/// The proxies of this process and what is reached without them.
#[derive(Debug, Clone, Default)]
pub struct Proxies(Arc<Settings>);

#[derive(Debug, Default)]
struct Settings {
    http: Option<Setting>,
    https: Option<Setting>,
    direct: Vec<Direct>,
}

/// A variable with its proxy, or why it has none.
type Setting = Result<Proxy, ProxyError>;

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Whether the connection to the proxy itself uses TLS.
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// The value of `Proxy-Authorization`.
    pub(super) authorization: Option<String>,
}

/// The value may contain a password.
impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({}:{})", self.host, self.port)
    }
}

/// An entry of `NO_PROXY`.
#[derive(Debug, PartialEq, Eq)]
enum Direct {
    All,
    Block(Cidr),
    Address(IpAddr, Option<u16>),
    /// A suffix that begins with a period, and whether the name without the period matches too.
    Domain(String, bool, Option<u16>),
}

impl Proxies {
    /// Reads variables. `direct` has further entries of `NO_PROXY`, such as the ranges of pods and
    /// Services.
    pub fn new(variable: impl Fn(&str) -> Option<String>, direct: &[String]) -> Self {
        let first = |names: [&'static str; 2]| {
            let mut set = names.into_iter().filter_map(|name| Some((name, variable(name)?)));
            set.find(|(_, value)| !value.is_empty())
        };
        let proxy = |names| first(names).map(|(name, value)| parse_proxy(name, &value));
        let listed = first(["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default();
        let entries = listed.split(',').chain(direct.iter().map(String::as_str));
        Self(Arc::new(Settings {
            http: proxy(["HTTP_PROXY", "http_proxy"]),
            https: proxy(["HTTPS_PROXY", "https_proxy"]),
            direct: entries.filter_map(parse_direct).collect(),
        }))
    }

    /// The proxy for an address; `None` if it is reached directly.
    ///
    /// # Errors
    /// The variable has no URL of an HTTP proxy.
    pub(super) fn of(&self, url: &Url) -> Result<Option<Proxy>, ProxyError> {
        let setting = if url.scheme() == "https" { &self.0.https } else { &self.0.http };
        let Some(setting) = setting else { return Ok(None) };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or_default();
        if self.is_direct(&host.to_ascii_lowercase(), port) {
            return Ok(None);
        }
        setting.clone().map(Some)
    }

    fn is_direct(&self, host: &str, port: u16) -> bool {
        let address = host.parse::<IpAddr>().ok();
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        let is_port = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        self.0.direct.iter().any(|entry| match entry {
            Direct::All => true,
            Direct::Block(block) => address.is_some_and(|address| block.contains(address)),
            Direct::Address(known, wanted) => address == Some(*known) && is_port(wanted),
            Direct::Domain(suffix, with_itself, wanted) => {
                let is_itself = *with_itself && suffix.strip_prefix('.') == Some(host);
                (is_itself || host.ends_with(suffix)) && is_port(wanted)
            }
        })
    }
}

/// Go takes a text without a scheme as the address of an HTTP proxy.
fn parse_proxy(variable: &'static str, value: &str) -> Setting {
    let error = |reason| ProxyError { variable, reason };
    let parsed = Url::parse(value).ok().filter(Url::has_host);
    let parsed = parsed.or_else(|| Url::parse(&format!("http://{value}")).ok());
    let url = parsed.ok_or_else(|| error("it is not a URL; write http://HOST:PORT"))?;
    let is_tls = match url.scheme() {
        "http" => false,
        "https" => true,
        _ => return Err(error("only http and https proxies are supported")),
    };
    let decoded = |text: &str| {
        let pairs = format!("x={}", text.replace('+', "%2B").replace('&', "%26"));
        url::form_urlencoded::parse(pairs.as_bytes())
            .next()
            .map(|(_, text)| text.into_owned())
            .unwrap_or_default()
    };
    let credentials = (!url.username().is_empty()).then(|| Credentials {
        username: decoded(url.username()),
        password: decoded(url.password().unwrap_or_default()),
    });
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    if host.is_empty() {
        return Err(error("it has no host; write http://HOST:PORT"));
    }
    Ok(Proxy {
        is_tls,
        host,
        port: url.port_or_known_default().unwrap_or(80),
        authorization: credentials.as_ref().map(Credentials::basic),
    })
}

fn parse_direct(text: &str) -> Option<Direct> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" {
        return Some(Direct::All);
    }
    if let Ok(block) = text.parse::<Cidr>()
        && text.contains('/')
    {
        return Some(Direct::Block(block));
    }
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address with a port is in brackets.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        _ => (text.as_str(), ""),
    };
    let host = host.trim_matches(['[', ']']);
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Direct::Address(address, port));
    }
    let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
    match host {
        "" => None,
        _ if host.starts_with('.') => Some(Direct::Domain(host.to_owned(), false, port)),
        _ => Some(Direct::Domain(format!(".{host}"), true, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Proxies::new(get, &["10.42.0.0/16".to_owned(), ".cluster.local".to_owned()])
    }

    fn of(proxies: &Proxies, url: &str) -> String {
        match proxies.of(&Url::parse(url).unwrap()) {
            Ok(None) => "direct".into(),
            Ok(Some(proxy)) => format!("{}:{}", proxy.host, proxy.port),
            Err(error) => error.to_string(),
        }
    }

    /// From `TestUseProxy` and `TestProxyForURL` of httpproxy.
    #[test]
    fn hosts_in_no_proxy_are_reached_directly() {
        let no_proxy = "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, \
            192.168.1.3:80, 10.0.0.0/30, 2001:db8::52:0:1, [2001:db8::52:0:2]:443, \
            [2001:db8::52:0:3]:80, 2002:db8:a::45/64, custom.io:8080";
        let proxies = proxies(&[("http_proxy", "proxy:3128"), ("NO_PROXY", no_proxy)]);
        for (host, is_proxied) in [
            ("localhost", false),
            ("127.0.0.1", false),
            ("127.0.0.2", false),
            ("[::1]", false),
            ("[::2]", true),
            ("192.168.1.1", false),
            ("192.168.1.2", true),
            ("192.168.1.3", false),
            ("192.168.1.4", true),
            ("10.0.0.2", false),
            ("10.0.0.4", true),
            ("[2001:db8::52:0:1]", false),
            ("[2001:db8::52:0:2]", true),
            ("[2001:db8::52:0:3]", false),
            ("[2002:db8:a::123]", false),
            ("[fe80::424b:c8be:1643:a1b6]", true),
            ("barbaz.net", true),
            ("www.barbaz.net", false),
            ("foobar.com", false),
            ("www.foobar.com", false),
            ("foofoobar.com", true),
            ("baz.com", true),
            ("wildcard.io", true),
            ("nested.wildcard.io", false),
            ("custom.io", true),
            ("custom.io:8080", false),
            ("10.42.3.4", false),
            ("repo.default.svc.cluster.local", false),
        ] {
            let found = of(&proxies, &format!("http://{host}/test"));
            assert_eq!(found == "proxy:3128", is_proxied, "{host}: {found}");
        }
        assert_eq!(of(&proxies, "https://baz.com"), "direct");
        let all = self::proxies(&[("HTTPS_PROXY", "p:1"), ("no_proxy", "*")]);
        assert_eq!(of(&all, "https://a.example"), "direct");
    }

    #[test]
    fn proxies_are_urls_or_addresses() {
        for (value, want) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://127.0.0.1:8080/path", "127.0.0.1:8080"),
            ("https://cache.corp.example.com", "cache.corp.example.com:443"),
            ("cache.corp.example.com", "cache.corp.example.com:80"),
            ("http://[2001:db8::1]:1", "2001:db8::1:1"),
            (
                "socks5://p:1",
                "the proxy of variable HTTPS_PROXY cannot be used: only http and https proxies are \
                 supported",
            ),
        ] {
            let proxies = proxies(&[("HTTPS_PROXY", value), ("https_proxy", "ignored")]);
            assert_eq!(of(&proxies, "https://example.com/"), want, "{value}");
        }
        let proxies = proxies(&[("HTTP_PROXY", ""), ("http_proxy", "http://a%40b:p+w&x@p:3")]);
        let proxy = proxies.of(&Url::parse("http://x").unwrap()).unwrap().unwrap();
        let pair = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, "a@b:p+w&x");
        assert_eq!(proxy.authorization, Some(format!("Basic {pair}")));
    }
}
