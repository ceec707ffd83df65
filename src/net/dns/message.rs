//! Converts DNS messages to questions of the zone, and its records to DNS messages.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record as Wire, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};
use std::net::IpAddr;

use crate::dns::zone::{Answer, Data, Directory, Kind, Record, Zone};

/// Seconds that answers may be kept (k3s's and CoreDNS's value for Kubernetes).
pub(crate) const TTL: u32 = 30;
/// Largest UDP answer sent, whatever the client offers: it passes every usual link unfragmented.
pub(crate) const UDP_MAX: u16 = 1232;
const UDP_MIN: u16 = 512;
/// Size of the header of a message.
const HEADER_BYTES: usize = 12;
/// Names that one answer follows (CoreDNS's bound).
const CHAIN_MAX: usize = 8;

/// What to do with a message.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Send this.
    Reply(Box<Message>),
    /// Ask elsewhere.
    Forward(Box<Message>),
    /// An answer that ends in a name outside the cluster: its addresses are asked for elsewhere and
    /// appended.
    Chase { reply: Box<Message>, ask: Box<Message> },
}

fn kind(wire: RecordType) -> Kind {
    match wire {
        RecordType::A => Kind::A,
        RecordType::AAAA => Kind::Aaaa,
        RecordType::SRV => Kind::Srv,
        RecordType::PTR => Kind::Ptr,
        RecordType::CNAME => Kind::Cname,
        RecordType::TXT => Kind::Txt,
        RecordType::SOA => Kind::Soa,
        RecordType::NS => Kind::Ns,
        RecordType::ANY => Kind::Any,
        _ => Kind::Other,
    }
}

/// The name in lower case without the final dot.
pub(crate) fn plain(name: &Name) -> String {
    let mut text = name.to_ascii().to_ascii_lowercase();
    if text.ends_with('.') {
        text.pop();
    }
    text
}

fn absolute(name: &str) -> Option<Name> {
    Name::from_ascii(format!("{name}.")).ok()
}

fn soa(zone: &Zone) -> Option<Wire> {
    let data = SOA::new(
        absolute(&format!("ns.dns.{}", zone.domain))?,
        absolute(&format!("hostmaster.{}", zone.domain))?,
        1,
        7200,
        1800,
        86_400,
        TTL,
    );
    Some(Wire::from_rdata(absolute(&zone.domain)?, TTL, RData::SOA(data)))
}

fn wire(record: &Record, zone: &Zone) -> Option<Wire> {
    let data = match &record.data {
        Data::Address(IpAddr::V4(a)) => RData::A(A(*a)),
        Data::Address(IpAddr::V6(a)) => RData::AAAA(AAAA(*a)),
        Data::Srv { port, weight, target } => {
            RData::SRV(SRV::new(0, *weight, *port, absolute(target)?))
        }
        Data::Ptr(name) => RData::PTR(PTR(absolute(name)?)),
        Data::Cname(name) => RData::CNAME(CNAME(absolute(name)?)),
        Data::Ns(name) => RData::NS(NS(absolute(name)?)),
        Data::Txt(text) => RData::TXT(TXT::new(vec![text.clone()])),
        Data::Soa => return soa(zone),
    };
    Some(Wire::from_rdata(absolute(&record.name)?, TTL, data))
}

/// The frame of an answer to a question.
pub(crate) fn response(request: &Message, code: ResponseCode) -> Message {
    let mut out = Message::response(request.metadata.id, request.metadata.op_code);
    out.metadata.recursion_desired = request.metadata.recursion_desired;
    out.metadata.recursion_available = true;
    out.metadata.response_code = code;
    out.add_queries(request.queries.iter().cloned());
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_MAX);
        out.set_edns(edns);
    }
    out
}

/// Why bytes are no question to answer.
#[derive(Debug)]
pub(crate) enum NoQuestion {
    /// A response, or less than a header: no answer, or two servers would answer each other
    /// forever.
    Ignored,
    /// Answered with a code alone.
    Refused(Box<Message>),
}

/// Reads a request with one question.
///
/// # Errors
/// The reply to anything else, if it gets one.
pub(crate) fn read(bytes: &[u8]) -> Result<Message, NoQuestion> {
    let Ok(request) = Message::from_vec(bytes) else { return Err(malformed(bytes)) };
    if request.metadata.message_type != MessageType::Query {
        return Err(NoQuestion::Ignored);
    }
    match unsupported(&request) {
        None => Ok(request),
        Some(code) => Err(NoQuestion::Refused(Box::new(response(&request, code)))),
    }
}

/// Whether the class of the question has answers here.
pub(crate) fn has_class(request: &Message) -> bool {
    let class = request.queries.first().map(Query::query_class);
    matches!(class, Some(DNSClass::IN | DNSClass::ANY))
}

/// Answers a question from the zone if it is ours. `turn` rotates several addresses.
pub(crate) fn outcome(
    request: Message,
    zone: &Zone,
    directory: Option<&dyn Directory>,
    turn: usize,
) -> Outcome {
    let reply = |code| Outcome::Reply(Box::new(response(&request, code)));
    let Some(query) = request.queries.first().filter(|_| has_class(&request)) else {
        return reply(ResponseCode::Refused);
    };
    let name = plain(query.name());
    let directory_or_empty = directory.unwrap_or(&EmptyDirectory);
    let answer = zone.answer(&name, kind(query.query_type()), directory_or_empty);
    if answer == Answer::Foreign {
        return Outcome::Forward(Box::new(request));
    }
    let Some(directory) = directory else {
        // The caches have not synced: clients would remember a wrong "no such name".
        return reply(ResponseCode::ServFail);
    };
    let mut out = response(&request, ResponseCode::NoError);
    out.metadata.authoritative = true;
    match answer {
        Answer::Records { answers, additionals } => {
            let target =
                add_records(&mut out, query, (answers, &additionals), zone, directory, turn);
            let Some(target) = target else { return Outcome::Reply(Box::new(out)) };
            let mut ask = Message::query();
            ask.metadata.recursion_desired = true;
            ask.edns.clone_from(&request.edns);
            ask.add_query(Query::query(target, query.query_type()));
            Outcome::Chase { reply: Box::new(out), ask: Box::new(ask) }
        }
        Answer::NoName | Answer::Foreign => {
            out.metadata.response_code = ResponseCode::NXDomain;
            out.insert_authorities(soa(zone).into_iter().collect());
            Outcome::Reply(Box::new(out))
        }
    }
}

/// The reply to bytes that are no message: a format error, unless they claim to be a response.
fn malformed(bytes: &[u8]) -> NoQuestion {
    let (Some(id), Some(flags)) = (bytes.get(..2), bytes.get(2)) else {
        return NoQuestion::Ignored;
    };
    if flags & 0x80 != 0 {
        return NoQuestion::Ignored;
    }
    let id = id.try_into().map_or(0, u16::from_be_bytes);
    NoQuestion::Refused(Box::new(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)))
}

/// The code of the reply to a request that this server does not support.
fn unsupported(request: &Message) -> Option<ResponseCode> {
    if request.metadata.op_code != OpCode::Query {
        return Some(ResponseCode::NotImp);
    }
    if request.queries.len() != 1 {
        return Some(ResponseCode::FormErr);
    }
    let has_other_version = request.edns.as_ref().is_some_and(|e| e.version() != 0);
    has_other_version.then_some(ResponseCode::BADVERS)
}

/// Adds the records of the zone to a reply. Returns the name outside the cluster at which a chain
/// of names ends.
fn add_records(
    out: &mut Message,
    query: &Query,
    (mut answers, additionals): (Vec<Record>, &[Record]),
    zone: &Zone,
    directory: &dyn Directory,
    turn: usize,
) -> Option<Name> {
    let end = follow(&mut answers, kind(query.query_type()), zone, directory);
    let mut list: Vec<Wire> = answers.iter().filter_map(|r| wire(r, zone)).collect();
    let is_chain = list.iter().any(|r| r.record_type() == RecordType::CNAME);
    if !list.is_empty() && !is_chain {
        let shift = turn % list.len();
        list.rotate_left(shift);
    }
    let name = plain(query.name());
    for record in list.iter_mut().filter(|r| plain(&r.name) == name) {
        // The question's own spelling of the name, which also compresses to a pointer.
        record.name = query.name().clone();
    }
    if list.is_empty() || matches!(end, End::NoName) {
        out.insert_authorities(soa(zone).into_iter().collect());
    }
    out.insert_answers(list);
    out.insert_additionals(additionals.iter().filter_map(|r| wire(r, zone)).collect());
    match end {
        End::Here => None,
        End::NoName => {
            // RFC 6604: the code is that of the chain's last name.
            out.metadata.response_code = ResponseCode::NXDomain;
            None
        }
        End::Outside(target) => Some(target),
    }
}

/// Where a chain of names ends.
enum End {
    /// With the records at hand.
    Here,
    /// At a name of the cluster that does not exist.
    NoName,
    /// At a name outside.
    Outside(Name),
}

/// Follows an external name: resolvers of programs do not ask again for the target of a CNAME.
fn follow(answers: &mut Vec<Record>, kind: Kind, zone: &Zone, directory: &dyn Directory) -> End {
    if !matches!(kind, Kind::A | Kind::Aaaa) {
        return End::Here;
    }
    while let Some(Record { data: Data::Cname(target), .. }) = answers.last() {
        let target = target.to_ascii_lowercase();
        if answers.len() >= CHAIN_MAX || answers.iter().any(|r| r.name == target) {
            return End::Here;
        }
        match zone.answer(&target, kind, directory) {
            Answer::Foreign => return absolute(&target).map_or(End::NoName, End::Outside),
            Answer::NoName => return End::NoName,
            Answer::Records { answers: more, .. } if more.is_empty() => return End::Here,
            Answer::Records { answers: more, .. } => answers.extend(more),
        }
    }
    End::Here
}

/// Appends what the end of a chain answered.
pub(crate) fn append(reply: &mut Message, found: Message) {
    reply.metadata.response_code = found.metadata.response_code;
    reply.metadata.truncation = found.metadata.truncation;
    reply.add_answers(found.answers);
    reply.insert_authorities(found.authorities);
}

/// The cluster before the caches have synced.
struct EmptyDirectory;

impl Directory for EmptyDirectory {
    fn service(&self, _: &str, _: &str) -> Option<crate::dns::zone::ServiceInfo> {
        None
    }
    fn endpoints(&self, _: &str, _: &str) -> Vec<crate::dns::zone::EndpointInfo> {
        Vec::new()
    }
    fn has_namespace(&self, _: &str) -> bool {
        false
    }
    fn services_at(&self, _: IpAddr) -> Vec<(String, String)> {
        Vec::new()
    }
    fn endpoints_at(&self, _: IpAddr) -> Vec<(String, String, Option<String>)> {
        Vec::new()
    }
}

/// The largest UDP answer to this request.
pub(crate) fn udp_limit(request: &Message) -> usize {
    let offered = request.edns.as_ref().map(Edns::max_payload);
    usize::from(offered.unwrap_or(UDP_MIN).clamp(UDP_MIN, UDP_MAX))
}

/// The largest UDP answer to a request that cannot be read.
pub(crate) const UDP_SMALLEST: usize = UDP_MIN as usize;

/// The bytes of an answer of at most `limit` bytes. A longer one keeps the records that fit, in the
/// order answers, authorities, additionals, and carries the truncation bit, as CoreDNS sends it:
/// resolvers that never ask again over TCP (musl before 1.2.4) then still have addresses to use.
pub(crate) fn encode(message: &Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = message.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    let (answers, authorities, additionals) = fitting(message, limit)?;
    let mut shorter = message.truncate();
    shorter.add_answers(message.answers.iter().take(answers).cloned());
    shorter.insert_authorities(message.authorities.iter().take(authorities).cloned().collect());
    shorter.insert_additionals(message.additionals.iter().take(additionals).cloned().collect());
    shorter.to_vec().ok()
}

/// The numbers of answers, authorities and additionals that fit into `limit` bytes together with
/// the header, the question and the OPT record.
fn fitting(message: &Message, limit: usize) -> Option<(usize, usize, usize)> {
    let room = match &message.edns {
        Some(edns) => limit.checked_sub(Wire::from(edns).to_bytes().ok()?.len())?,
        None => limit,
    };
    let mut bytes = Vec::with_capacity(limit);
    let mut encoder = BinEncoder::new(&mut bytes);
    for _ in 0..HEADER_BYTES {
        encoder.emit(0).ok()?;
    }
    encoder.emit_all(message.queries.iter()).ok()?;
    // Names shrink to pointers at what is before them, so that a record's size shows after it is
    // written.
    let mut fits = |record: &&Wire| record.emit(&mut encoder).is_ok() && encoder.len() <= room;
    let mut kept = |list: &[Wire]| list.iter().take_while(&mut fits).count();
    let answers = kept(&message.answers);
    if answers < message.answers.len() {
        return Some((answers, 0, 0));
    }
    let authorities = kept(&message.authorities);
    if authorities < message.authorities.len() {
        return Some((answers, authorities, 0));
    }
    Some((answers, authorities, kept(&message.additionals)))
}

#[cfg(test)]
mod tests;
