//! Whole messages: chains of external names, codes, truncation.

use super::*;
use crate::dns::zone::{EndpointInfo, PortInfo, ServiceInfo};

struct Sample;

impl Directory for Sample {
    fn service(&self, _: &str, name: &str) -> Option<ServiceInfo> {
        let external = |to: &str| Some(ServiceInfo::External(to.to_owned()));
        match name {
            "web" => Some(ServiceInfo::Cluster {
                addresses: vec!["10.43.0.9".parse().unwrap(), "fd00:43::9".parse().unwrap()],
                ports: Vec::new(),
            }),
            "inside" => external("Web.default.svc.cluster.local."),
            "twice" => external("inside.default.svc.cluster.local"),
            "outside" => external("www.example.com"),
            "nowhere" => external("gone.default.svc.cluster.local"),
            "loop" => external("pool.default.svc.cluster.local"),
            "pool" => external("loop.default.svc.cluster.local"),
            "many" => Some(ServiceInfo::Headless),
            _ => None,
        }
    }
    fn endpoints(&self, _: &str, _: &str) -> Vec<EndpointInfo> {
        let one = |n: u8| EndpointInfo {
            address: [10, 42, 0, n].into(),
            hostname: None,
            ports: vec![PortInfo { name: "dns".into(), protocol: "tcp".into(), number: 53 }],
        };
        (1..=200).map(one).collect()
    }
    fn has_namespace(&self, _: &str) -> bool {
        true
    }
    fn services_at(&self, _: IpAddr) -> Vec<(String, String)> {
        Vec::new()
    }
    fn endpoints_at(&self, _: IpAddr) -> Vec<(String, String, Option<String>)> {
        Vec::new()
    }
}

fn zone() -> Zone {
    Zone { domain: "cluster.local".into(), reverse: Vec::new(), servers: Vec::new() }
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn text(message: &Message) -> String {
    let mut out = vec![message.metadata.response_code.to_str().to_owned()];
    out.extend(message.answers.iter().map(|r| format!("{} {}", r.record_type(), r.data)));
    out.join(", ")
}

fn ask(name: &str, kind: RecordType) -> String {
    let request = question(&format!("{name}.default.svc.cluster.local."), kind);
    match outcome(request, &zone(), Some(&Sample), 1) {
        Outcome::Reply(reply) => text(&reply),
        Outcome::Chase { reply, ask } => format!("{}, then {}", text(&reply), ask.queries[0]),
        other => format!("{other:?}"),
    }
}

#[test]
fn external_names_are_followed_to_their_addresses() {
    use RecordType::{A, AAAA, CNAME};
    assert_eq!(ask("inside", A), "No Error, CNAME Web.default.svc.cluster.local., A 10.43.0.9");
    assert_eq!(
        ask("twice", AAAA),
        "No Error, CNAME inside.default.svc.cluster.local., CNAME Web.default.svc.cluster.local., AAAA fd00:43::9"
    );
    assert_eq!(ask("inside", CNAME), "No Error, CNAME Web.default.svc.cluster.local.");
    assert_eq!(ask("outside", A), "No Error, CNAME www.example.com., then www.example.com. IN A");
    assert_eq!(ask("nowhere", A), "Non-Existent Domain, CNAME gone.default.svc.cluster.local.");
    let circle = ask("loop", A);
    assert!(circle.starts_with("No Error, CNAME pool") && circle.matches("CNAME").count() <= 8);
}

#[test]
fn the_end_of_a_chain_decides_the_code() {
    let mut reply = response(&question("a.", RecordType::A), ResponseCode::NoError);
    let found = response(&question("b.", RecordType::A), ResponseCode::ServFail);
    append(&mut reply, found);
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
}

/// The reply to a question about `name`, for a client that offers `payload` bytes by EDNS.
fn large(name: &str, kind: RecordType, payload: Option<u16>) -> (Box<Message>, usize) {
    let mut request = question(&format!("{name}.default.svc.cluster.local."), kind);
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        request.set_edns(edns);
    }
    let limit = udp_limit(&request);
    match outcome(request, &zone(), Some(&Sample), 0) {
        Outcome::Reply(reply) => (reply, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn large_udp_answer_keeps_the_records_that_fit() {
    // Header 12, question 32 + 4; a record of a compressed name takes 16 bytes, OPT 11.
    for (payload, limit, kept) in [
        (None, 512, 29),
        (Some(100), 512, 28),
        (Some(512), 512, 28),
        (Some(1000), 1000, 58),
        (Some(4096), 1232, 73),
    ] {
        let (reply, given) = large("many", RecordType::A, payload);
        assert_eq!(given, limit, "{payload:?}");
        let bytes = encode(&reply, given).unwrap();
        assert!(bytes.len() <= limit && bytes.len() + 16 > limit, "{payload:?}: {}", bytes.len());
        let udp = Message::from_vec(&bytes).unwrap();
        assert!(udp.metadata.truncation && udp.metadata.authoritative, "{payload:?}");
        assert_eq!(udp.answers.len(), kept, "{payload:?}");
        assert_eq!(udp.answers[..], reply.answers[..kept]);
        assert_eq!(udp.edns.is_some(), payload.is_some(), "{payload:?}");
    }
}

#[test]
fn large_srv_answer_keeps_the_records_that_fit() {
    let (reply, limit) = large("_dns._tcp.many", RecordType::SRV, None);
    assert_eq!((reply.answers.len(), reply.additionals.len()), (200, 200));
    let udp = Message::from_vec(&encode(&reply, limit).unwrap()).unwrap();
    assert!(udp.metadata.truncation && (3..200).contains(&udp.answers.len()), "{udp}");
    // No additional record before the answers are complete.
    assert!(udp.additionals.is_empty());
}

#[test]
fn answer_whose_additionals_do_not_fit_is_truncated() {
    // As miekg/dns's Truncate, which CoreDNS answers with.
    let (mut reply, _) = large("_dns._tcp.many", RecordType::SRV, Some(1232));
    reply.answers.truncate(4);
    let udp = Message::from_vec(&encode(&reply, 1232).unwrap()).unwrap();
    assert_eq!(udp.answers.len(), 4);
    assert!(udp.metadata.truncation && (1..200).contains(&udp.additionals.len()));
}

#[test]
fn forwarded_answer_keeps_the_records_that_fit_and_its_code() {
    let request = question("www.example.com.", RecordType::TXT);
    let mut reply = response(&request, ResponseCode::NoError);
    let name = || Name::from_ascii("www.example.com.").unwrap();
    let txt = |n: u8| RData::TXT(TXT::new(vec![format!("{n}").repeat(20)]));
    reply.insert_answers((10..40).map(|n| Wire::from_rdata(name(), 60, txt(n))).collect());
    let udp = Message::from_vec(&encode(&reply, 512).unwrap()).unwrap();
    assert!(udp.metadata.truncation && udp.answers.len() > 5, "{udp}");
    assert_eq!(udp.answers[..], reply.answers[..udp.answers.len()]);
}

#[test]
fn large_tcp_answer_is_whole() {
    let (reply, _) = large("many", RecordType::A, None);
    let tcp = Message::from_vec(&encode(&reply, usize::from(u16::MAX)).unwrap()).unwrap();
    assert!(!tcp.metadata.truncation);
    assert_eq!(tcp.answers.len(), 200);
    assert!(tcp.answers.iter().all(|r| r.ttl == 30));
}

#[test]
fn what_is_no_question_is_refused_by_its_code_or_ignored() {
    let code = |bytes: &[u8]| match read(bytes) {
        Err(NoQuestion::Refused(reply)) => reply.metadata.response_code.to_str(),
        Err(NoQuestion::Ignored) => "ignored",
        Ok(_) => "a question",
    };
    assert_eq!(code(&[7]), "ignored");
    assert_eq!(code(&[0, 7, 0, 0]), "Form Error");
    assert_eq!(code(&[0, 7, 0x80, 0]), "ignored", "an answer is not answered");
    let mut update = question("cluster.local.", RecordType::A);
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update.to_vec().unwrap()), "Not Implemented");
    let foreign = question("example.com.", RecordType::A);
    assert_eq!(code(&foreign.to_vec().unwrap()), "a question");
    assert!(matches!(outcome(foreign, &zone(), Some(&Sample), 0), Outcome::Forward(_)));
    let mut chaos = question("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let Outcome::Reply(chaos) = outcome(chaos, &zone(), Some(&Sample), 0) else { panic!() };
    assert_eq!(chaos.metadata.response_code, ResponseCode::Refused);
    let early = question("web.default.svc.cluster.local.", RecordType::A);
    let Outcome::Reply(early) = outcome(early, &zone(), None, 0) else { panic!() };
    // Before the cluster was seen, "no such name" would be remembered.
    assert_eq!(early.metadata.response_code, ResponseCode::ServFail);
}
