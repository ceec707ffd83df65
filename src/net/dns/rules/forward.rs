//! `forward`: reads the plugin; [`crate::dns::forward`] does what it says.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{duration, reverse_zone};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::forward::{Forward, Policy, To, Upstream};
use crate::dns::plugins::template::response_code;
use crate::dns::plugins::{Reader, normal};

/// Most servers; CoreDNS's bound.
const SERVERS_MAX: usize = 15;
/// The file that means the name servers of the node.
const NODE_FILE: &str = "/etc/resolv.conf";

/// `ADDRESS`, `ADDRESS:PORT`, `[ADDRESS]:PORT`.
fn address(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    text.parse().ok()
}

fn to(reader: Reader<'_>, text: &str, line: u32) -> Result<To, CorefileError> {
    if text == NODE_FILE {
        return Ok(To::NodeServers);
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("dns", text));
    let (is_tls, port) = match scheme {
        "dns" => (false, 53),
        "tls" => (true, 853),
        _ => {
            let message = format!("{scheme}:// is not supported; supported are dns:// and tls://");
            return Err(reader.error(line, message));
        }
    };
    let (rest, name) = match rest.split_once('%').filter(|_| is_tls) {
        Some((address, name)) => (address, Some(name.to_owned())),
        None => (rest, None),
    };
    let address = address(rest, port).ok_or_else(|| {
        let message = format!("{text}: an upstream is an IP address or {NODE_FILE}");
        reader.error(line, message)
    })?;
    let tls_name = is_tls.then(|| name.unwrap_or_else(|| address.ip().to_string()));
    Ok(To::Server(Arc::new(Upstream::new(address, tls_name))))
}

impl Forward {
    /// Reads the plugin.
    pub(crate) fn parse(
        reader: Reader<'_>,
        directive: &Directive,
        notices: &mut Vec<String>,
    ) -> Result<Self, CorefileError> {
        let line = directive.line;
        let Some((from, servers)) = directive.args.split_first().filter(|(_, to)| !to.is_empty())
        else {
            return Err(reader.error(line, "forward needs a zone and upstream servers"));
        };
        let mut out = Self::new(zone(reader, from, line)?);
        for server in servers {
            out.to.push(to(reader, server, line)?);
        }
        if out.to.len() > SERVERS_MAX {
            let message = format!("more than {SERVERS_MAX} upstream servers");
            return Err(reader.error(line, message));
        }
        let mut tls_name = None;
        for inner in &directive.block {
            let (name, args, at) = reader.split(inner);
            match name {
                "tls_servername" => tls_name = Some(reader.one(name, &args, at)?.to_owned()),
                "tls" if args.is_empty() => {}
                "tls" => {
                    return Err(reader.error(at, "tls: certificates in files are not supported"));
                }
                _ => out.property(reader, (name, &args), at, notices)?,
            }
        }
        if let Some(tls_name) = tls_name {
            let is_named = |to: &&String| to.starts_with("tls://") && to.contains('%');
            if let Some(named) = servers.iter().find(is_named) {
                let message = format!("{named} has a name, and tls_servername has another");
                return Err(reader.error(line, message));
            }
            out.set_tls_name(&tls_name);
        }
        for to in &out.to {
            if let To::Server(server) = to
                && !server.has_valid_tls_name()
            {
                return Err(reader.error(line, "tls_servername is no DNS name"));
            }
        }
        Ok(out)
    }

    fn property(
        &mut self,
        reader: Reader<'_>,
        (name, args): (&str, &[&str]),
        at: u32,
        notices: &mut Vec<String>,
    ) -> Result<(), CorefileError> {
        let codes = || -> Result<Vec<_>, CorefileError> {
            let code = |text: &&str| {
                let message = || format!("{name}: {text} is no response code");
                response_code(text).ok_or_else(|| reader.error(at, message()))
            };
            args.iter().map(code).collect()
        };
        match name {
            "except" if !args.is_empty() => {
                for zone_text in args {
                    self.except.push(zone(reader, zone_text, at)?);
                }
            }
            "max_fails" => {
                let text = reader.one(name, args, at)?;
                self.max_fails = reader.number(name, text, 0..=u32::MAX, at)?;
            }
            "policy" => {
                self.policy = match reader.one(name, args, at)? {
                    "random" => Policy::Random,
                    "round_robin" => Policy::RoundRobin,
                    "sequential" => Policy::Sequential,
                    other => return Err(reader.error(at, format!("unknown policy '{other}'"))),
                };
            }
            "force_tcp" => self.force_tcp = true,
            "prefer_udp" => self.prefer_udp = true,
            "max_concurrent" => {
                let text = reader.one(name, args, at)?;
                let most = reader.number(name, text, 0..=1_000_000, at)?;
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                self.concurrent = (most > 0).then(|| Semaphore::new(most));
            }
            "next" => self.next = codes()?,
            "failover" => self.failover = codes()?,
            "next_on_nodata" => self.next_on_nodata = true,
            "failfast_all_unhealthy_upstreams" => self.fails_fast = true,
            "health_check" => {
                let text = args.first().copied().unwrap_or_default();
                if duration(text).is_none() {
                    return Err(reader.error(at, format!("health_check: {text} is no duration")));
                }
                notices.push(
                    "forward: health_check: a question is the check of a server that failed".into(),
                );
            }
            "expire" | "max_age" | "max_idle_conns" => {
                reader.one(name, args, at)?;
                notices.push(format!("forward: {name}: connections are not kept"));
            }
            _ => return Err(reader.error(at, format!("{name} is not supported"))),
        }
        Ok(())
    }
}

/// A zone, or a block of addresses for their reverse names.
fn zone(reader: Reader<'_>, text: &str, line: u32) -> Result<String, CorefileError> {
    match reverse_zone(text) {
        Some(Some(zone)) => Ok(zone),
        Some(None) => {
            let message =
                format!("{text}: the prefix length must be a multiple of 8, or of 4 for IPv6");
            Err(reader.error(line, message))
        }
        None => Ok(normal(text)),
    }
}
