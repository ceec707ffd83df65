//! `template`: answers that are made from the question. Of Go's templates, the fields of the
//! question and of the match are supported.

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{DNSClass, RecordType};
use regex::{Captures, Regex};

use super::pattern::{dotted, regex};
use super::records;
use super::{Fallthrough, Reader, normal, zone_of};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::{plain, response};

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Name,
    Zone,
    Class,
    Type,
    /// `{{ index .Match N }}` and `{{ .Group.N }}`.
    Match(usize),
    /// `{{ .Group.NAME }}`.
    Group(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Answer,
    Authority,
    Additional,
}

/// One template.
#[derive(Debug)]
pub(crate) struct Template {
    /// None: any class.
    class: Option<DNSClass>,
    /// None: any type.
    kind: Option<RecordType>,
    zones: Vec<String>,
    /// Empty: any name.
    patterns: Vec<Regex>,
    records: Vec<(Section, Vec<Piece>)>,
    code: ResponseCode,
    through: Fallthrough,
}

/// The code with this name.
pub(crate) fn response_code(text: &str) -> Option<ResponseCode> {
    Some(match text.to_ascii_uppercase().as_str() {
        "NOERROR" | "SUCCESS" => ResponseCode::NoError,
        "FORMERR" => ResponseCode::FormErr,
        "SERVFAIL" => ResponseCode::ServFail,
        "NXDOMAIN" => ResponseCode::NXDomain,
        "NOTIMP" => ResponseCode::NotImp,
        "REFUSED" => ResponseCode::Refused,
        "YXDOMAIN" => ResponseCode::YXDomain,
        "YXRRSET" => ResponseCode::YXRRSet,
        "NXRRSET" => ResponseCode::NXRRSet,
        "NOTAUTH" => ResponseCode::NotAuth,
        "NOTZONE" => ResponseCode::NotZone,
        _ => return None,
    })
}

/// The expression of an action; none if it is not one of the supported forms.
fn action(text: &str) -> Option<Piece> {
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(match words.as_slice() {
        [".Name"] => Piece::Name,
        [".Zone"] => Piece::Zone,
        [".Class"] => Piece::Class,
        [".Type"] => Piece::Type,
        ["index", ".Match", number] => Piece::Match(number.parse().ok()?),
        ["index", ".Group", name] => {
            Piece::Group(name.strip_prefix('"')?.strip_suffix('"')?.to_owned())
        }
        [field] => {
            let name = field.strip_prefix(".Group.")?;
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            (!name.is_empty() && name.chars().all(is_word))
                .then(|| Piece::Group(name.to_owned()))?
        }
        _ => return None,
    })
}

fn pieces(reader: Reader<'_>, text: &str, line: u32) -> Result<Vec<Piece>, CorefileError> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push(Piece::Text(before.to_owned()));
        let (inner, after) = after
            .split_once("}}")
            .ok_or_else(|| reader.error(line, "an action `{{` is not closed"))?;
        out.push(action(inner).ok_or_else(|| {
            let message = format!(
                "the action {{{{{inner}}}}} is not supported; supported are .Name, .Zone, .Class, \
                 .Type, .Group.NAME and index .Match N"
            );
            reader.error(line, message)
        })?);
        rest = after;
    }
    out.push(Piece::Text(rest.to_owned()));
    Ok(out)
}

impl Template {
    /// Reads the plugin; `zones` are those of the server block.
    pub(crate) fn parse(
        reader: Reader<'_>,
        directive: &Directive,
        zones: &[String],
    ) -> Result<Self, CorefileError> {
        let line = directive.line;
        let [class, kind, own @ ..] = directive.args.as_slice() else {
            return Err(reader.error(line, "template needs a class and a type"));
        };
        let class = match class.to_ascii_uppercase().as_str() {
            "ANY" => None,
            "IN" => Some(DNSClass::IN),
            "CH" => Some(DNSClass::CH),
            "HS" => Some(DNSClass::HS),
            _ => return Err(reader.error(line, format!("{class} is no class"))),
        };
        let kind = match kind.to_ascii_uppercase().as_str() {
            "ANY" => None,
            text => Some(
                text.parse()
                    .map_err(|_| reader.error(line, format!("{kind} is no record type")))?,
            ),
        };
        let mut out = Self {
            class,
            kind,
            zones: match own {
                [] => zones.to_vec(),
                own => own.iter().map(|zone| normal(zone)).collect(),
            },
            patterns: Vec::new(),
            records: Vec::new(),
            code: ResponseCode::NoError,
            through: Fallthrough::default(),
        };
        for line in &directive.block {
            let (name, args, at) = reader.split(line);
            out.property(reader, (name, &args), at)?;
        }
        Ok(out)
    }

    fn property(
        &mut self,
        reader: Reader<'_>,
        (name, args): (&str, &[&str]),
        at: u32,
    ) -> Result<(), CorefileError> {
        let section = match name {
            "answer" => Section::Answer,
            "authority" => Section::Authority,
            "additional" => Section::Additional,
            "match" => {
                for text in args {
                    self.patterns.push(regex(reader, text, at)?);
                }
                return Ok(());
            }
            "rcode" => {
                let text = reader.one(name, args, at)?;
                let code = response_code(text);
                self.code =
                    code.ok_or_else(|| reader.error(at, format!("{text} is no response code")))?;
                return Ok(());
            }
            "fallthrough" => {
                self.through = Fallthrough::of(args);
                return Ok(());
            }
            _ => {
                let message = format!(
                    "{name} is not supported; supported are match, answer, additional, authority, \
                     rcode and fallthrough"
                );
                return Err(reader.error(at, message));
            }
        };
        for text in args {
            // The type of a record that another action makes shows when it is used.
            let kind = records::kind(&without_actions(text));
            if let Some(kind) = kind.filter(|kind| !records::is_supported(*kind)) {
                let message = format!("records of type {kind} are not supported");
                return Err(reader.error(at, message));
            }
            self.records.push((section, pieces(reader, text, at)?));
        }
        Ok(())
    }

    /// The answer of the first template for a question, or none if the next plugin decides.
    pub(crate) fn answer(templates: &[Self], request: &Message) -> Option<Message> {
        let query = request.queries.first()?;
        let name = plain(query.name());
        for template in templates {
            let Some(zone) = zone_of(&name, &template.zones) else { continue };
            let (class, kind) = (query.query_class(), query.query_type());
            let other_class = template.class.is_some_and(|c| c != class && class != DNSClass::ANY);
            let other_kind = template.kind.is_some_and(|k| k != kind && kind != RecordType::ANY);
            if other_class || other_kind {
                continue;
            }
            let full = dotted(&name);
            let found = match template.patterns.as_slice() {
                [] => Some(None),
                list => list.iter().find_map(|p| p.captures(&full)).map(Some),
            };
            match found {
                Some(captures) => return Some(template.reply(request, zone, captures.as_ref())),
                None if template.through.applies(&name) => {}
                None => return Some(response(request, ResponseCode::ServFail)),
            }
        }
        None
    }

    fn reply(&self, request: &Message, zone: &str, captures: Option<&Captures<'_>>) -> Message {
        let mut out = response(request, self.code);
        if self.code == ResponseCode::ServFail {
            return out;
        }
        out.metadata.authoritative = true;
        for (section, pieces) in &self.records {
            let Some(record) = records::parse(&self.text(pieces, request, zone, captures)) else {
                return response(request, ResponseCode::ServFail);
            };
            match section {
                Section::Answer => out.add_answer(record),
                Section::Authority => out.add_authority(record),
                Section::Additional => out.add_additional(record),
            };
        }
        out
    }

    fn text(
        &self,
        pieces: &[Piece],
        request: &Message,
        zone: &str,
        captures: Option<&Captures<'_>>,
    ) -> String {
        let Some(query) = request.queries.first() else { return String::new() };
        let full = dotted(&plain(query.name()));
        let mut out = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Name => out.push_str(&full),
                Piece::Zone => out.push_str(&dotted(zone)),
                Piece::Class => {
                    let class = match query.query_class() {
                        DNSClass::ANY => self.class.unwrap_or(DNSClass::IN),
                        class => class,
                    };
                    out.push_str(&class.to_string());
                }
                Piece::Type => {
                    let kind = match query.query_type() {
                        RecordType::ANY => self.kind.unwrap_or(RecordType::ANY),
                        kind => kind,
                    };
                    out.push_str(&kind.to_string());
                }
                Piece::Match(number) => match captures {
                    Some(captures) => {
                        out.push_str(captures.get(*number).map_or("", |m| m.as_str()));
                    }
                    // Without a pattern the whole name matches.
                    None if *number == 0 => out.push_str(&full),
                    None => {}
                },
                Piece::Group(name) => {
                    let group = match (captures, name.parse::<usize>()) {
                        (Some(captures), Ok(number)) => captures.get(number),
                        (Some(captures), Err(_)) => captures.name(name),
                        (None, _) => None,
                    };
                    out.push_str(group.map_or("", |group| group.as_str()));
                }
            }
        }
        out
    }
}

/// The text with a word in place of each action.
fn without_actions(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        out.push_str("IN");
        rest = after.split_once("}}").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::corefile::{Source, parse_override};
    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    fn templates(text: &str) -> Result<Vec<Template>, CorefileError> {
        let source = Source { key: "k", text };
        let list = parse_override(source)?;
        let zones = [String::new()];
        list.iter().map(|d| Template::parse(Reader::new(source, d), d, &zones)).collect()
    }

    fn ask(templates: &[Template], name: &str, kind: RecordType) -> String {
        let mut request = Message::query();
        request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let Some(reply) = Template::answer(templates, &request) else { return "next".into() };
        let mut out = vec![reply.metadata.response_code.to_str().to_owned()];
        for record in reply.answers.iter().chain(&reply.authorities) {
            out.push(format!(
                "{} {} {} {}",
                record.name,
                record.ttl,
                record.record_type(),
                record.data
            ));
        }
        out.join(", ")
    }

    // Examples of the documentation of the plugin.
    #[test]
    fn answers_are_made_from_the_question() {
        use RecordType::{A, AAAA, TXT};
        let text = r#"
template IN A ip.test {
  match "^ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]ip[.]test[.]$"
  answer "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}"
  fallthrough
}
template IN AAAA ip.test {
  rcode NOERROR
}
template ANY ANY invalid {
  rcode NXDOMAIN
  authority "invalid. 60 {{ .Class }} SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)"
}
template IN TXT match.test {
  match "(.*)[.]match[.]test[.]$"
  answer "{{ .Name }} 60 IN TXT \"{{ index .Match 1 }}\" {{ .Zone }} {{ .Type }}"
}"#;
        let list = templates(text).unwrap();
        for (name, kind, want) in [
            ("ip-1-2-3-4.ip.test.", A, "No Error, ip-1-2-3-4.ip.test. 60 A 1.2.3.4"),
            ("ip-1-2-3-400.ip.test.", A, "Server Failure"),
            ("x.ip.test.", A, "next"),
            ("x.ip.test.", AAAA, "No Error"),
            ("x.ip.test.", TXT, "next"),
            (
                "a.invalid.",
                A,
                "Non-Existent Domain, invalid. 60 SOA ns.invalid. hostmaster.invalid. 1 60 60 60 60",
            ),
            ("q.match.test.", TXT, "No Error, q.match.test. 60 TXT qmatch.test.TXT"),
            ("match.test.", TXT, "Server Failure"),
        ] {
            assert_eq!(ask(&list, name, kind), want, "{name} {kind}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (text, want) in [
            ("template IN", "k, line 1: template: template needs a class and a type"),
            ("template IN A {\n ederror 21 x\n}", "k, line 2: template: ederror is not supported"),
            (
                "template IN A {\n answer \"{{ .Message }}\"\n}",
                "k, line 2: template: the action {{ .Message }} is not",
            ),
            (
                "template IN A {\n answer \"{{ if .Name }}\"\n}",
                "k, line 2: template: the action {{ if .Name }} is not",
            ),
            (
                "template IN A {\n answer \"{{ .Name\"\n}",
                "k, line 2: template: an action `{{` is not closed",
            ),
            (
                "template IN A {\n answer \"a 1 IN CAA 0 x y\"\n}",
                "k, line 2: template: records of type CAA",
            ),
            ("template IN A {\n match (\n}", "k, line 2: template: invalid regular expression"),
            ("template IN A {\n rcode MAYBE\n}", "k, line 2: template: MAYBE is no response code"),
        ] {
            let got = templates(text).unwrap_err().to_string();
            assert!(got.starts_with(want), "{got}, not {want}");
        }
    }
}
