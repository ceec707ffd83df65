//! `rewrite`: questions are changed before they are answered, and answers back.

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::rdata::{CNAME, NS, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::Reader;
use super::pattern::{Pattern, Substitution, dotted};
use crate::dns::corefile::{CorefileError, Directive};

/// How the name of a question changes.
#[derive(Debug)]
enum NewName {
    /// The matched text becomes this one.
    Text(String),
    Substitution(Substitution),
}

#[derive(Debug)]
enum Change {
    Name {
        pattern: Pattern,
        to: NewName,
        answer: AnswerRules,
    },
    Type(RecordType, RecordType),
    Class(DNSClass, DNSClass),
    /// Seconds from and to.
    Ttl {
        pattern: Pattern,
        range: (u32, u32),
    },
}

/// How answers change back.
#[derive(Debug, Default)]
struct AnswerRules {
    auto: bool,
    names: Vec<Substitution>,
    values: Vec<Substitution>,
}

/// One rule.
#[derive(Debug)]
pub(crate) struct Rewrite {
    change: Change,
    /// Later rules apply, too.
    continues: bool,
}

/// What has to change in an answer.
#[derive(Debug, Clone)]
enum Undo<'r> {
    /// A name, or the end of one, becomes another.
    Names {
        from: String,
        to: String,
        labels: bool,
    },
    Name(&'r Substitution),
    Value(&'r Substitution),
    Ttl(u32, u32),
}

/// A question that was changed, and how to change its answer back.
#[derive(Debug)]
pub(crate) struct Rewritten<'r> {
    original: Query,
    undo: Vec<Undo<'r>>,
}

fn record_type(reader: Reader<'_>, text: &str, line: u32) -> Result<RecordType, CorefileError> {
    text.to_ascii_uppercase()
        .parse()
        .map_err(|_| reader.error(line, format!("{text} is no record type")))
}

fn class(reader: Reader<'_>, text: &str, line: u32) -> Result<DNSClass, CorefileError> {
    match text.to_ascii_uppercase().as_str() {
        "IN" => Ok(DNSClass::IN),
        "CH" => Ok(DNSClass::CH),
        "HS" => Ok(DNSClass::HS),
        _ => Err(reader.error(line, format!("{text} is no class"))),
    }
}

/// `60`, `30-300`, `-30` or `30-`.
fn ttl_range(text: &str) -> Option<(u32, u32)> {
    let Some((from, to)) = text.split_once('-') else {
        let ttl = text.parse().ok()?;
        return Some((ttl, ttl));
    };
    if from.is_empty() && to.is_empty() {
        return None;
    }
    let from = if from.is_empty() { 0 } else { from.parse().ok()? };
    let to = if to.is_empty() { 2_147_483_647 } else { to.parse().ok()? };
    (from <= to).then_some((from, to))
}

impl AnswerRules {
    /// `answer auto`, `answer name FROM TO`, `answer value FROM TO`.
    fn parse(reader: Reader<'_>, words: &[&str], line: u32) -> Result<Self, CorefileError> {
        let mut out = Self::default();
        let mut rest = words;
        while let Some((first, after)) = rest.split_first() {
            if *first != "answer" {
                let message = format!("expected `answer auto|name|value`, not {first}");
                return Err(reader.error(line, message));
            }
            rest = match after {
                ["auto", after @ ..] => {
                    out.auto = true;
                    after
                }
                [kind @ ("name" | "value"), from, to, after @ ..] => {
                    let substitution = Substitution::parse(reader, from, to, line)?;
                    let list = if *kind == "name" { &mut out.names } else { &mut out.values };
                    list.push(substitution);
                    after
                }
                _ => {
                    return Err(
                        reader.error(line, "answer needs auto, name FROM TO or value FROM TO")
                    );
                }
            };
        }
        Ok(out)
    }
}

impl Rewrite {
    /// Reads a rule; the words of a block are arguments, too.
    pub(crate) fn parse(reader: Reader<'_>, directive: &Directive) -> Result<Self, CorefileError> {
        let line = directive.line;
        let inner = directive.block.iter().flatten().map(|word| word.text.as_str());
        let mut words: Vec<&str> = directive.args.iter().map(String::as_str).collect();
        if words.len() < 2 {
            words.extend(inner);
        } else if !directive.block.is_empty() {
            return Err(reader.error(line, "a rule is either on the line or in the block"));
        }
        let mode = words.first().map(|word| word.to_ascii_lowercase());
        let continues = mode.as_deref() == Some("continue");
        if continues || mode.as_deref() == Some("stop") {
            words.remove(0);
        }
        let Some((field, args)) = words.split_first() else {
            return Err(reader.error(line, "a rule needs a field: name, type, class or ttl"));
        };
        let change = match (field.to_ascii_lowercase().as_str(), args) {
            ("name", args) => Self::name(reader, args, line)?,
            ("type", [from, to]) => {
                Change::Type(record_type(reader, from, line)?, record_type(reader, to, line)?)
            }
            ("class", [from, to]) => {
                Change::Class(class(reader, from, line)?, class(reader, to, line)?)
            }
            ("ttl", [kind, name, range]) => Self::ttl(reader, (kind, name, range), line)?,
            ("ttl", [name, range]) => Self::ttl(reader, ("exact", name, range), line)?,
            (field @ ("type" | "class" | "ttl"), _) => {
                return Err(reader.error(line, format!("{field}: wrong number of arguments")));
            }
            (field, _) => {
                let message = format!(
                    "rules for {field} are not supported; supported are name, type, class and ttl"
                );
                return Err(reader.error(line, message));
            }
        };
        Ok(Self { change, continues })
    }

    fn name(reader: Reader<'_>, args: &[&str], line: u32) -> Result<Change, CorefileError> {
        let (kind, from, to, rest) = match args {
            [from, to] => ("exact", *from, *to, &[][..]),
            [kind, from, to, rest @ ..] => (*kind, *from, *to, rest),
            _ => return Err(reader.error(line, "name needs FROM and TO")),
        };
        let pattern = Pattern::parse(reader, kind, from, line)?;
        let answer = AnswerRules::parse(reader, rest, line)?;
        let to = match &pattern {
            Pattern::Regex(_) => {
                NewName::Substitution(Substitution::parse(reader, from, to, line)?)
            }
            _ => NewName::Text(dotted(to)),
        };
        Ok(Change::Name { pattern, to, answer })
    }

    fn ttl(
        reader: Reader<'_>,
        (kind, name, range): (&str, &str, &str),
        line: u32,
    ) -> Result<Change, CorefileError> {
        let pattern = Pattern::parse(reader, kind, name, line)?;
        let range = ttl_range(range)
            .ok_or_else(|| reader.error(line, format!("ttl: {range} is no number or range")))?;
        Ok(Change::Ttl { pattern, range })
    }

    /// The new name, if the rule is for names and matches.
    fn new_name(pattern: &Pattern, to: &NewName, name: &str) -> Option<String> {
        let to = match to {
            NewName::Substitution(substitution) => return substitution.apply(name),
            NewName::Text(to) => to,
        };
        Some(match pattern {
            Pattern::Exact(from) => (name == from).then(|| to.clone())?,
            Pattern::Prefix(from) => format!("{to}{}", name.strip_prefix(from.as_str())?),
            Pattern::Suffix(from) => format!("{}{to}", name.strip_suffix(from.as_str())?),
            Pattern::Substring(from) => {
                name.contains(from.as_str()).then(|| name.replace(from.as_str(), to))?
            }
            Pattern::Regex(_) => return None,
        })
    }

    /// Changes a question. `Ok(false)`: the rule is not for it.
    fn apply<'r>(&'r self, query: &mut Query, undo: &mut Vec<Undo<'r>>) -> Result<bool, Invalid> {
        let before = dotted(&query.name().to_ascii());
        match &self.change {
            Change::Name { pattern, to, answer } => {
                let Some(new) = Self::new_name(pattern, to, &before) else { return Ok(false) };
                query.set_name(Name::from_ascii(&new).map_err(|_| Invalid)?);
                match (pattern, to) {
                    (Pattern::Suffix(suffix), NewName::Text(to)) if answer.auto => {
                        let (from, to) = (to.clone(), suffix.clone());
                        undo.push(Undo::Names { from, to, labels: false });
                    }
                    (Pattern::Suffix(_), _) => {}
                    // The answers of an exact match always get their name back.
                    (Pattern::Exact(_), _) => {
                        undo.push(Undo::Names { from: new, to: before, labels: true });
                    }
                    _ if answer.auto => {
                        undo.push(Undo::Names { from: new, to: before, labels: true });
                    }
                    _ => {}
                }
                undo.extend(answer.names.iter().map(Undo::Name));
                undo.extend(answer.values.iter().map(Undo::Value));
            }
            Change::Type(from, to) if query.query_type() == *from => {
                query.set_query_type(*to);
            }
            Change::Class(from, to) if query.query_class() == *from => {
                query.set_query_class(*to);
            }
            Change::Ttl { pattern, range } if pattern.matches(&before) => {
                undo.push(Undo::Ttl(range.0, range.1));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A rule makes a name that is none.
#[derive(Debug, thiserror::Error)]
#[error("a rewrite rule makes an invalid name")]
pub(crate) struct Invalid;

/// Applies the rules in order to the question of a request. None if none is for it.
///
/// # Errors
/// When a rule makes an invalid name; CoreDNS answers SERVFAIL.
pub(crate) fn rewrite<'r>(
    rules: &'r [Rewrite],
    request: &mut Message,
) -> Result<Option<Rewritten<'r>>, Invalid> {
    if rules.is_empty() {
        return Ok(None);
    }
    let Some(query) = request.queries.first_mut() else { return Ok(None) };
    let (original, mut undo, mut is_changed) = (query.clone(), Vec::new(), false);
    for rule in rules {
        if rule.apply(query, &mut undo)? {
            is_changed = true;
            if !rule.continues {
                break;
            }
        }
    }
    Ok(is_changed.then_some(Rewritten { original, undo }))
}

impl Undo<'_> {
    /// The text in place of a name, if it changes.
    fn text(&self, name: &str) -> Option<String> {
        match self {
            Self::Names { from, to, labels } => {
                let rest = name.strip_suffix(from.as_str())?;
                let fits = !labels || rest.is_empty() || rest.ends_with('.');
                fits.then(|| format!("{rest}{to}"))
            }
            Self::Name(substitution) | Self::Value(substitution) => substitution.apply(name),
            Self::Ttl(..) => None,
        }
    }

    fn name(&self, name: &mut Name) {
        let text = self.text(&dotted(&name.to_ascii()));
        if let Some(new) = text.and_then(|text| Name::from_ascii(text).ok()) {
            *name = new;
        }
    }

    fn record(&self, record: &mut Record) {
        if let Self::Ttl(from, to) = self {
            record.ttl = record.ttl.clamp(*from, *to);
        }
        if matches!(self, Self::Names { .. } | Self::Name(_)) {
            self.name(&mut record.name);
        }
        if matches!(self, Self::Names { .. } | Self::Value(_)) {
            match &mut record.data {
                RData::CNAME(CNAME(name)) | RData::NS(NS(name)) | RData::PTR(PTR(name)) => {
                    self.name(name);
                }
                RData::SRV(data) => self.name(&mut data.target),
                RData::MX(data) => self.name(&mut data.exchange),
                RData::SOA(data) => self.name(&mut data.mname),
                _ => {}
            }
        }
    }
}

impl Rewritten<'_> {
    /// Changes an answer back.
    pub(crate) fn undo(&self, reply: &mut Message) {
        reply.queries = vec![self.original.clone()];
        let lists = [&mut reply.answers, &mut reply.authorities, &mut reply.additionals];
        for record in lists.into_iter().flatten() {
            for undo in self.undo.iter().rev() {
                undo.record(record);
            }
        }
    }
}

#[cfg(test)]
mod tests;
