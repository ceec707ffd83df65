//! The ConfigMap `coredns-custom` as k3s imports it: keys `*.override` add plugins to the default
//! server block, keys `*.server` are server blocks of their own.

mod cache;
mod forward;

use std::collections::BTreeMap;

use crate::dns::corefile::{
    CorefileError, Directive, ServerBlock, Source, Word, parse_override, parse_servers,
};
use crate::dns::forward::Forward;
use crate::dns::plugins::hosts::Hosts;
use crate::dns::plugins::rewrite::Rewrite;
use crate::dns::plugins::template::Template;
use crate::dns::plugins::{Reader, normal, zone_of};

pub(crate) use cache::CacheSettings;

/// Where k3s mounts the ConfigMap into the pod of CoreDNS.
const MOUNT: &str = "/etc/coredns/custom/";
/// Most server blocks, and most plugins of one block.
const BLOCKS_MAX: usize = 500;
const DIRECTIVES_MAX: usize = 500;
/// Plugins with an effect here.
const SUPPORTED: &str = "cache, errors, forward, health, hosts, log, loadbalance, loop, \
                         prometheus, ready, reload, rewrite and template";
/// Plugins that change nothing here, and why.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("errors", "failures of upstream servers are logged with --debug"),
    ("health", "the kubelet does not probe cluster DNS: it is part of the node's process"),
    ("ready", "the kubelet does not probe cluster DNS: it is part of the node's process"),
    ("loop", "a server never forwards to its own address"),
    ("reload", "a changed ConfigMap takes effect at once"),
    ("prometheus", "metrics are always served on port 9153"),
];

/// The plugins of one server block.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// Normal names; the root is the empty text.
    pub(crate) zones: Vec<String>,
    /// The block that has the names of the cluster.
    pub(crate) is_default: bool,
    pub(crate) logs: bool,
    pub(crate) rewrites: Vec<Rewrite>,
    pub(crate) templates: Vec<Template>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) cache: Option<CacheSettings>,
}

/// All server blocks.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) blocks: Vec<Block>,
    /// The plugins without effect, each with the reason.
    pub(crate) notices: Vec<String>,
}

impl Default for Rules {
    fn default() -> Self {
        let default = Block {
            zones: vec![String::new()],
            is_default: true,
            forwards: vec![Forward::to_node_servers()],
            cache: Some(CacheSettings::default()),
            ..Block::default()
        };
        Self { blocks: vec![default], notices: Vec::new() }
    }
}

impl Rules {
    /// Compiles the data of the ConfigMap.
    ///
    /// # Errors
    /// The first error, with its key and line.
    pub(crate) fn compile(data: &BTreeMap<String, String>) -> Result<Self, CorefileError> {
        let mut rules = Self::default();
        let files = |path: &str| data.get(path.strip_prefix(MOUNT)?).cloned();
        let mut default = rules.blocks.pop().unwrap_or_default();
        // The forwarder of the default block is behind the imported plugins.
        let last = std::mem::take(&mut default.forwards);
        let mut count = 0;
        for (key, text) in data {
            let source = Source { key, text };
            if key.ends_with(".override") {
                let directives = parse_override(source)?;
                count += directives.len();
                if count > DIRECTIVES_MAX {
                    return Err(source.error(1, format!("more than {DIRECTIVES_MAX} plugins")));
                }
                for directive in &directives {
                    default.add(source, directive, &files, &mut rules.notices)?;
                }
            } else if key.ends_with(".server") {
                for block in parse_servers(source)? {
                    rules.server(source, &block, &files)?;
                }
            }
        }
        default.forwards.extend(last);
        rules.blocks.insert(0, default);
        rules.notices.dedup();
        Ok(rules)
    }

    fn server(
        &mut self,
        source: Source<'_>,
        block: &ServerBlock,
        files: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), CorefileError> {
        let mut out = Block::default();
        for word in &block.zones {
            let zone = zone(source, word)?;
            let known = self.blocks.iter().flat_map(|b| &b.zones).chain(&out.zones);
            if zone.is_empty() || known.into_iter().any(|known| *known == zone) {
                let text = &word.text;
                let message = format!("cannot serve {text}: another server block has this zone");
                return Err(source.error(word.line, message));
            }
            out.zones.push(zone);
        }
        let line = block.zones.first().map_or(1, |word| word.line);
        if self.blocks.len() >= BLOCKS_MAX || block.directives.len() > DIRECTIVES_MAX {
            let message =
                format!("more than {BLOCKS_MAX} server blocks or {DIRECTIVES_MAX} plugins");
            return Err(source.error(line, message));
        }
        for directive in &block.directives {
            out.add(source, directive, files, &mut self.notices)?;
        }
        self.blocks.push(out);
        Ok(())
    }

    /// The index of the block whose zone fits a normal name best; 0 is the default block.
    pub(crate) fn select(&self, name: &str) -> usize {
        let length = |block: &Block| zone_of(name, &block.zones).map(str::len);
        let fitting = self.blocks.iter().enumerate().filter_map(|(i, b)| Some((length(b)?, i)));
        fitting.max().map_or(0, |(_, index)| index)
    }
}

impl Block {
    fn add(
        &mut self,
        source: Source<'_>,
        directive: &Directive,
        files: &dyn Fn(&str) -> Option<String>,
        notices: &mut Vec<String>,
    ) -> Result<(), CorefileError> {
        let reader = Reader::new(source, directive);
        let line = directive.line;
        let zones = if self.zones.is_empty() { vec![String::new()] } else { self.zones.clone() };
        match directive.name.as_str() {
            "rewrite" => self.rewrites.push(Rewrite::parse(reader, directive)?),
            "template" => self.templates.push(Template::parse(reader, directive, &zones)?),
            "forward" => {
                let forward = Forward::parse(reader, directive, notices)?;
                self.forwards.push(forward);
            }
            "hosts" | "cache"
                if (directive.name == "hosts" && self.hosts.is_some())
                    || self.cache.as_ref().is_some_and(|c| c.is_explicit)
                        && directive.name == "cache" =>
            {
                return Err(
                    reader.error(line, "this plugin can only be used once per server block")
                );
            }
            "hosts" => self.hosts = Some(Hosts::parse(reader, directive, &zones, files)?),
            "cache" => self.cache = Some(CacheSettings::parse(reader, directive, notices)?),
            "log" => {
                check_log(reader, directive)?;
                self.logs = true;
            }
            "loadbalance" => match directive.args.as_slice() {
                [] => {}
                [policy] if policy == "round_robin" => {}
                _ => return Err(reader.error(line, "the only supported policy is round_robin")),
            },
            "prometheus" => match directive.args.as_slice() {
                [] => without_effect(directive, notices),
                [address] if address.ends_with(":9153") => without_effect(directive, notices),
                _ => return Err(reader.error(line, "metrics are served on port 9153 only")),
            },
            name if WITHOUT_EFFECT.iter().any(|(known, _)| *known == name) => {
                without_effect(directive, notices);
            }
            name => {
                let message =
                    format!("the plugin {name} is not supported; supported are {SUPPORTED}");
                return Err(source.error(line, message));
            }
        }
        Ok(())
    }
}

fn without_effect(directive: &Directive, notices: &mut Vec<String>) {
    let reason = WITHOUT_EFFECT.iter().find(|(name, _)| *name == directive.name);
    if let Some((name, why)) = reason {
        notices.push(format!("{name}: {why}"));
    }
}

/// `log`, `log .` and classes; formats are refused, as the log of the process has one format.
fn check_log(reader: Reader<'_>, directive: &Directive) -> Result<(), CorefileError> {
    if let [_, format, ..] = directive.args.as_slice() {
        let message = format!("the format {format} is not supported");
        return Err(reader.error(directive.line, message));
    }
    if directive.args.iter().any(|name| !normal(name).is_empty()) {
        return Err(
            reader.error(directive.line, "only the zones of the server block are supported")
        );
    }
    match directive.block.first() {
        None => Ok(()),
        Some(line) if matches!(reader.split(line), ("class", args, _) if args == ["all"]) => Ok(()),
        Some(line) => {
            let (name, _, at) = reader.split(line);
            Err(reader.error(at, format!("{name} is not supported, except `class all`")))
        }
    }
}

/// The zone of a server block: a name, or a block of addresses for their reverse names.
fn zone(source: Source<'_>, word: &Word) -> Result<String, CorefileError> {
    let error = |message: String| source.error(word.line, message);
    let text = word.text.as_str();
    let text = match text.split_once("://") {
        None => text,
        Some(("dns", rest)) => rest,
        Some((scheme, _)) => {
            return Err(error(format!(
                "{scheme}:// is not supported: cluster DNS serves UDP and TCP"
            )));
        }
    };
    if let Some(zone) = reverse_zone(text) {
        return zone.ok_or_else(|| {
            error(format!("{text}: the prefix length must be a multiple of 8, or of 4 for IPv6"))
        });
    }
    let (name, port) = text.rsplit_once(':').unwrap_or((text, "53"));
    if port != "53" {
        return Err(error(format!("{text}: port {port} is not supported, only 53")));
    }
    let is_name = hickory_proto::rr::Name::from_ascii(name).is_ok();
    if name.is_empty() || !is_name || name.starts_with('(') {
        return Err(error(format!("{text} is no zone")));
    }
    Ok(normal(name))
}

/// The zone of the reverse names of a block such as `10.1.0.0/16`; the inner value is none for
/// blocks that are no zone of their own.
pub(super) fn reverse_zone(text: &str) -> Option<Option<String>> {
    let block: settings::Cidr = text.contains('/').then(|| text.parse().ok())??;
    let prefix = usize::from(block.prefix());
    Some(match block.first() {
        std::net::IpAddr::V4(address) if prefix % 8 == 0 => {
            let octets: Vec<String> =
                address.octets().iter().take(prefix / 8).rev().map(u8::to_string).collect();
            Some([octets.as_slice(), &["in-addr.arpa".to_owned()]].concat().join("."))
        }
        std::net::IpAddr::V6(address) if prefix % 4 == 0 => {
            let digits = format!("{:032x}", u128::from(address));
            let mut labels: Vec<String> =
                digits.chars().take(prefix / 4).map(String::from).collect();
            labels.reverse();
            Some([labels.as_slice(), &["ip6.arpa".to_owned()]].concat().join("."))
        }
        _ => None,
    })
}

/// A duration in Go's form, such as `1h30m` or `500ms`; none for negative ones.
pub(super) fn duration(text: &str) -> Option<std::time::Duration> {
    let nanos = api::codec::time::parse_duration(text).ok()?;
    u64::try_from(nanos).ok().map(std::time::Duration::from_nanos)
}

#[cfg(test)]
mod tests;
