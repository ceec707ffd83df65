//! `hosts`: addresses of names, as lines of `/etc/hosts` in the block.

use std::collections::HashMap;
use std::net::IpAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::pattern::dotted;
use super::{Fallthrough, Reader, normal, zone_of};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::{plain, response};
use crate::dns::zone::reversed;

/// `ttl` without a line for it.
const TTL: u32 = 3600;
/// Most names of one plugin.
const NAMES_MAX: usize = 20_000;

/// The table of one server block.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    zones: Vec<String>,
    names: HashMap<String, Vec<IpAddr>>,
    /// By the name after `*.`.
    wildcards: HashMap<String, Vec<IpAddr>>,
    pointers: HashMap<IpAddr, Vec<String>>,
    ttl: u32,
    through: Fallthrough,
    through_unsupported: bool,
}

impl Hosts {
    /// Reads the plugin. `zones` are those of the server block, `files` the other keys of the
    /// ConfigMap.
    pub(crate) fn parse(
        reader: Reader<'_>,
        directive: &Directive,
        zones: &[String],
        files: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, CorefileError> {
        let mut table = Self { zones: zones.to_vec(), ttl: TTL, ..Self::default() };
        let mut is_reversed = true;
        let mut lines: Vec<(u32, String)> = Vec::new();
        if let Some((path, zones)) = directive.args.split_first() {
            let text = files(path).ok_or_else(|| {
                let message = format!(
                    "{path}: files are not supported, except keys of the ConfigMap as \
                     /etc/coredns/custom/KEY; write the entries into the block"
                );
                reader.error(directive.line, message)
            })?;
            lines.extend(text.lines().map(|line| (directive.line, line.to_owned())));
            if !zones.is_empty() {
                table.zones = zones.iter().map(|zone| normal(zone)).collect();
            }
        }
        for line in &directive.block {
            let (name, args, at) = reader.split(line);
            match name {
                "fallthrough" => table.through = Fallthrough::of(&args),
                "fallthrough_unsupported" => table.through_unsupported = true,
                "no_reverse" => is_reversed = false,
                "ttl" => {
                    let text = reader.one(name, &args, at)?;
                    table.ttl = reader.number(name, text, 1..=65_535, at)?;
                }
                // The entries are part of the configuration: they change with it.
                "reload" => {}
                _ if name.parse::<IpAddr>().is_ok() => {
                    lines.push((at, format!("{name} {}", args.join(" "))));
                }
                _ => return Err(reader.error(at, format!("unknown property '{name}'"))),
            }
        }
        if table.through_unsupported && !table.through.is_set() {
            let message = "fallthrough_unsupported requires fallthrough";
            return Err(reader.error(directive.line, message));
        }
        for (at, line) in lines {
            table.add(&line, is_reversed);
            if table.names.len() + table.wildcards.len() > NAMES_MAX {
                return Err(reader.error(at, format!("more than {NAMES_MAX} names")));
            }
        }
        Ok(table)
    }

    /// A table of these names; others are left to the next plugin.
    pub(crate) fn of<'n>(entries: impl Iterator<Item = (IpAddr, &'n String)>, ttl: u32) -> Self {
        let through = Fallthrough::of(&[]);
        let mut table = Self { zones: vec![String::new()], ttl, through, ..Self::default() };
        for (address, name) in entries {
            table.add(&format!("{address} {name}"), true);
        }
        table
    }

    fn add(&mut self, line: &str, is_reversed: bool) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            return;
        };
        for name in words.map(normal) {
            if zone_of(&name, &self.zones).is_none() {
                continue;
            }
            if let Some(parent) = name.strip_prefix("*.") {
                self.wildcards.entry(parent.to_owned()).or_default().push(address);
                continue;
            }
            if is_reversed {
                self.pointers.entry(address).or_default().push(name.clone());
            }
            self.names.entry(name).or_default().push(address);
        }
    }

    fn addresses(&self, name: &str, of: fn(&IpAddr) -> bool) -> Vec<IpAddr> {
        let exact = self.names.get(name).filter(|list| list.iter().any(of));
        let parent = || self.wildcards.get(name.split_once('.')?.1);
        exact.or_else(parent).into_iter().flatten().copied().filter(of).collect()
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.values().map(Vec::len).sum::<usize>() + self.pointers.len()
    }

    /// The answer, or none if the next plugin decides.
    pub(crate) fn answer(&self, request: &Message) -> Option<Message> {
        let query = request.queries.first()?;
        let name = plain(query.name());
        let kind = query.query_type();
        if kind != RecordType::PTR {
            zone_of(&name, &self.zones)?;
        }
        let data: Vec<RData> = match kind {
            RecordType::PTR => {
                let names = self.pointers.get(&reversed(&name)?)?;
                let target = |n: &String| Some(RData::PTR(PTR(Name::from_ascii(dotted(n)).ok()?)));
                names.iter().filter_map(target).collect()
            }
            RecordType::A | RecordType::AAAA => {
                let is_wanted: fn(&IpAddr) -> bool =
                    if kind == RecordType::A { IpAddr::is_ipv4 } else { IpAddr::is_ipv6 };
                let address = |address: IpAddr| match address {
                    IpAddr::V4(a) => RData::A(A(a)),
                    IpAddr::V6(a) => RData::AAAA(AAAA(a)),
                };
                self.addresses(&name, is_wanted).into_iter().map(address).collect()
            }
            _ if self.through_unsupported && self.through.applies(&name) => return None,
            _ => Vec::new(),
        };
        if data.is_empty() && self.addresses(&name, |_| true).is_empty() {
            // Without a zone there is no SOA for a "no such name", so CoreDNS fails instead.
            let failed = || response(request, ResponseCode::ServFail);
            return (!self.through.applies(&name)).then(failed);
        }
        let mut out = response(request, ResponseCode::NoError);
        out.metadata.authoritative = true;
        let record = |data| Record::from_rdata(query.name().clone(), self.ttl, data);
        out.insert_answers(data.into_iter().map(record).collect());
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::corefile::{Source, parse_override};
    use hickory_proto::op::Query;

    fn hosts(text: &str) -> Result<Hosts, CorefileError> {
        let source = Source { key: "k", text };
        let directive = parse_override(source)?.remove(0);
        let files = |path: &str| {
            (path == "/etc/coredns/custom/h").then(|| "10.0.0.7 filed.test # x\n\n# y".to_owned())
        };
        Hosts::parse(Reader::new(source, &directive), &directive, &[String::new()], &files)
    }

    fn ask(hosts: &Hosts, name: &str, kind: RecordType) -> String {
        let mut request = Message::query();
        request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let Some(answer) = hosts.answer(&request) else { return "next".into() };
        let mut out = vec![answer.metadata.response_code.to_str().to_owned()];
        out.extend(
            answer.answers.iter().map(|r| format!("{} {} {}", r.ttl, r.record_type(), r.data)),
        );
        out.join(", ")
    }

    #[test]
    fn names_have_their_addresses_and_addresses_their_names() {
        use RecordType::{A, AAAA, PTR, TXT};
        let table = hosts(
            "hosts /etc/coredns/custom/h {\n 10.0.0.1 a.test b.test\n 10.0.0.2 A.test.\n fd00::1 \
             a.test\n 10.0.0.9 *.wild.test\n ttl 60\n fallthrough test\n}",
        )
        .unwrap();
        for (name, kind, want) in [
            ("a.test.", A, "No Error, 60 A 10.0.0.1, 60 A 10.0.0.2"),
            ("A.Test.", AAAA, "No Error, 60 AAAA fd00::1"),
            ("b.test.", AAAA, "No Error"),
            ("a.test.", TXT, "No Error"),
            ("filed.test.", A, "No Error, 60 A 10.0.0.7"),
            ("x.wild.test.", A, "No Error, 60 A 10.0.0.9"),
            ("y.x.wild.test.", A, "next"),
            ("wild.test.", A, "next"),
            ("c.test.", A, "next"),
            ("c.example.", A, "Server Failure"),
            ("1.0.0.10.in-addr.arpa.", PTR, "No Error, 60 PTR a.test., 60 PTR b.test."),
            ("5.0.0.10.in-addr.arpa.", PTR, "next"),
        ] {
            assert_eq!(ask(&table, name, kind), want, "{name} {kind}");
        }
    }

    #[test]
    fn entries_of_other_zones_are_left_out() {
        let table = hosts("hosts /etc/coredns/custom/h a.test {\n 10.0.0.1 x.a.test y.b.test\n}");
        let table = table.unwrap();
        assert_eq!(ask(&table, "x.a.test.", RecordType::A), "No Error, 3600 A 10.0.0.1");
        assert_eq!(ask(&table, "y.b.test.", RecordType::A), "next");
        assert_eq!(ask(&table, "z.a.test.", RecordType::A), "Server Failure");
    }

    #[test]
    fn invalid_blocks_are_refused() {
        for (text, want) in [
            ("hosts /etc/hosts {\n}", "k, line 1: hosts: /etc/hosts: files are not supported"),
            ("hosts {\n ttl 0\n}", "k, line 2: hosts: ttl: \"0\" is not a number from 1 to 65535"),
            ("hosts {\n 10.0.0.300 a\n}", "k, line 2: hosts: unknown property '10.0.0.300'"),
            ("hosts {\n fallthrough_unsupported\n}", "k, line 1: hosts: fallthrough_unsupported"),
        ] {
            let got = hosts(text).unwrap_err().to_string();
            assert!(got.starts_with(want), "{got}");
        }
    }
}
