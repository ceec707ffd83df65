//! The package net/url, as far as templates show it.

/// A part of a URL, which decides about the characters that stay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Query,
    Path,
    Userinfo,
    Fragment,
    Host,
}

fn stays(byte: u8, part: Part) -> bool {
    if byte.is_ascii_alphanumeric() {
        return true;
    }
    match byte {
        b'-' | b'_' | b'.' | b'~' => true,
        b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' => match part {
            Part::Path => byte != b'?',
            Part::Userinfo => !matches!(byte, b'@' | b'/' | b'?' | b':'),
            Part::Query => false,
            Part::Fragment => true,
            Part::Host => matches!(byte, b'$' | b'&' | b'+' | b',' | b';' | b'=' | b':'),
        },
        b'!' | b'(' | b')' | b'*' => matches!(part, Part::Fragment | Part::Host),
        b'\'' | b'[' | b']' | b'<' | b'>' | b'"' => part == Part::Host,
        _ => false,
    }
}

fn escape(text: &str, part: Part) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if stays(byte, part) {
            out.push(char::from(byte));
        } else if byte == b' ' && part == Part::Query {
            out.push('+');
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// `url.QueryEscape`.
pub(crate) fn query_escape(text: &str) -> String {
    escape(text, Part::Query)
}

/// The text is not a URL.
#[derive(Debug, thiserror::Error)]
#[error("parse {url}: {reason}")]
pub(crate) struct UrlError {
    url: String,
    #[source]
    reason: UrlFault,
}

/// What is wrong with a URL; quoted parts are already in Go's form.
#[derive(Debug, thiserror::Error)]
enum UrlFault {
    #[error("invalid URL escape {0}")]
    Escape(String),
    #[error("invalid character {0} in host name")]
    HostCharacter(String),
    #[error("missing protocol scheme")]
    NoScheme,
    #[error("invalid port {0} after host")]
    Port(String),
    #[error("net/url: invalid control character in URL")]
    Control,
    #[error("first path segment in URL cannot contain colon")]
    Colon,
    #[error("missing ']' in host")]
    Bracket,
}

fn unescape(text: &str, host: bool) -> Result<String, UrlFault> {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'%' {
            let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            let Some(value) = hex else {
                let part: String = text.get(at..).unwrap_or("%").chars().take(3).collect();
                return Err(UrlFault::Escape(super::quote::quote(&part)));
            };
            out.push(value);
            at += 3;
            continue;
        }
        if host && *byte < 0x80 && !stays(*byte, Part::Host) {
            let text = super::quote::quote(&char::from(*byte).to_string());
            return Err(UrlFault::HostCharacter(text));
        }
        out.push(*byte);
        at += 1;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// A URL in its parts.
#[derive(Default, Debug)]
pub(crate) struct Url {
    pub scheme: String,
    pub opaque: String,
    /// The user and password as they are written in a URL.
    pub userinfo: Option<String>,
    pub host: String,
    pub path: String,
    pub raw_query: String,
    pub fragment: String,
    pub raw_path: String,
}

fn split_scheme(text: &str) -> Result<(&str, &str), UrlFault> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err(UrlFault::NoScheme),
            ':' => {
                let (scheme, rest) = text.split_at(at);
                return Ok((scheme, rest.get(1..).unwrap_or_default()));
            }
            _ => break,
        }
    }
    Ok(("", text))
}

fn parse_userinfo(text: &str) -> Result<String, UrlFault> {
    let (name, password) = match text.split_once(':') {
        Some((name, password)) => (name, Some(password)),
        None => (text, None),
    };
    let name = escape(&unescape(name, false)?, Part::Userinfo);
    Ok(match password {
        Some(password) => {
            format!("{name}:{}", escape(&unescape(password, false)?, Part::Userinfo))
        }
        None => name,
    })
}

fn check_port(host: &str) -> Result<(), UrlFault> {
    let after = host.rsplit(']').next().unwrap_or(host);
    if let Some((_, port)) = after.rsplit_once(':') {
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = super::quote::quote(&format!(":{port}"));
            return Err(UrlFault::Port(port));
        }
    }
    Ok(())
}

impl Url {
    /// `url.Parse`.
    ///
    /// # Errors
    ///
    /// Go's text about what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, UrlError> {
        let whole = text.split('#').next().unwrap_or(text);
        Self::parse_parts(text).map_err(|reason| {
            let url = super::quote::quote(whole);
            UrlError { url, reason }
        })
    }

    fn parse_parts(text: &str) -> Result<Self, UrlFault> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err(UrlFault::Control);
        }
        let mut url = Self::default();
        let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
        url.fragment = unescape(fragment, false)?;
        if text == "*" {
            url.path = "*".into();
            return Ok(url);
        }
        let (scheme, rest) = split_scheme(text)?;
        url.scheme = scheme.to_lowercase();
        let (mut rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.raw_query = query.into();
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                url.opaque = rest.into();
                return Ok(url);
            }
            let first = rest.split('/').next().unwrap_or_default();
            if first.contains(':') {
                return Err(UrlFault::Colon);
            }
        }
        if let Some(tail) = rest.strip_prefix("//") {
            if !(url.scheme.is_empty() && tail.starts_with('/')) {
                let (authority, path) = tail.split_at(tail.find('/').unwrap_or(tail.len()));
                let (user, host) = match authority.rsplit_once('@') {
                    Some((user, host)) => (Some(user), host),
                    None => (None, authority),
                };
                url.userinfo = user.map(parse_userinfo).transpose()?;
                if host.starts_with('[') && !host.contains(']') {
                    return Err(UrlFault::Bracket);
                }
                check_port(host)?;
                url.host = unescape(host, true)?;
                rest = path;
            }
        }
        url.path = unescape(rest, false)?;
        if escape(&url.path, Part::Path) != rest {
            url.raw_path = rest.into();
        }
        Ok(url)
    }

    /// The host without its port.
    pub(crate) fn hostname(&self) -> String {
        if let Some(inner) = self.host.strip_prefix('[') {
            return inner.split(']').next().unwrap_or(inner).into();
        }
        match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.into(),
            _ => self.host.clone(),
        }
    }
}

impl std::fmt::Display for Url {
    /// `URL.String`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.scheme.is_empty() {
            write!(f, "{}:", self.scheme)?;
        }
        if !self.opaque.is_empty() {
            f.write_str(&self.opaque)?;
        } else {
            let has_authority = !self.host.is_empty() || self.userinfo.is_some();
            if !self.scheme.is_empty() || has_authority {
                if !self.host.is_empty() || !self.path.is_empty() || self.userinfo.is_some() {
                    f.write_str("//")?;
                }
                if let Some(user) = &self.userinfo {
                    write!(f, "{user}@")?;
                }
                f.write_str(&escape(&self.host, Part::Host))?;
            }
            let path = if self.raw_path.is_empty() {
                escape(&self.path, Part::Path)
            } else {
                self.raw_path.clone()
            };
            if !path.is_empty() && !path.starts_with('/') && !self.host.is_empty() {
                f.write_str("/")?;
            }
            let first = path.split('/').next().unwrap_or_default();
            if self.scheme.is_empty() && !has_authority && first.contains(':') {
                f.write_str("./")?;
            }
            f.write_str(&path)?;
        }
        if !self.raw_query.is_empty() {
            write!(f, "?{}", self.raw_query)?;
        }
        if !self.fragment.is_empty() {
            write!(f, "#{}", escape(&self.fragment, Part::Fragment))?;
        }
        Ok(())
    }
}
