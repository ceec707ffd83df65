//! Rules of the documentation of CoreDNS's plugin, with its results.

use super::*;
use crate::dns::corefile::{Source, parse_override};
use crate::dns::message::response;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::A;

fn rules(text: &str) -> Result<Vec<Rewrite>, CorefileError> {
    let source = Source { key: "k", text };
    let list = parse_override(source)?;
    list.iter().map(|d| Rewrite::parse(Reader::new(source, d), d)).collect()
}

/// The question after the rules, and the names of an answer to it after it was changed back:
/// an A record of the new name, then a CNAME of it to `target`.
fn run(text: &str, name: &str, target: &str) -> String {
    let rules = rules(text).unwrap();
    let mut request = Message::query();
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let Ok(Some(rewritten)) = rewrite(&rules, &mut request) else { return "unchanged".into() };
    let asked = request.queries[0].clone();
    let mut reply = response(&request, ResponseCode::NoError);
    reply.add_answer(Record::from_rdata(asked.name.clone(), 500, RData::A(A([1, 2, 3, 4].into()))));
    let target = RData::CNAME(CNAME(Name::from_ascii(target).unwrap()));
    reply.add_answer(Record::from_rdata(asked.name.clone(), 5, target));
    rewritten.undo(&mut reply);
    assert_eq!(reply.queries[0].name().to_ascii(), name);
    let shown = |r: &Record| format!("{} {} {}", r.name, r.ttl, r.data);
    let list: Vec<String> = reply.answers.iter().map(shown).collect();
    format!("{} {}: {}", asked.name, asked.query_type, list.join(", "))
}

#[test]
fn questions_change_and_answers_change_back() {
    let regex = r"rewrite name regex (.*)-(us-west-1)\.x\.org {1}.service.{2}.consul";
    for (text, name, want) in [
        ("rewrite name b.org c.org", "a.org.", "unchanged"),
        ("rewrite name A.org b.net.", "a.org.", "b.net. A: a.org. 500 1.2.3.4, a.org. 5 t.a.org."),
        (
            "rewrite name suffix .x.org .b.net",
            "a.x.org.",
            "a.b.net. A: a.b.net. 500 1.2.3.4, a.b.net. 5 t.b.net.",
        ),
        (
            "rewrite stop {\n name suffix .x.org .b.net answer auto\n}",
            "a.x.org.",
            "a.b.net. A: a.x.org. 500 1.2.3.4, a.x.org. 5 t.x.org.",
        ),
        (
            "rewrite name prefix a c answer auto",
            "a.b.net.",
            "c.b.net. A: a.b.net. 500 1.2.3.4, a.b.net. 5 t.b.net.",
        ),
        ("rewrite name prefix a c", "ab.net.", "unchanged"),
        (
            "rewrite name substring x.org b.net",
            "s.x.org.",
            "s.b.net. A: s.b.net. 500 1.2.3.4, s.b.net. 5 t.b.net.",
        ),
        (
            regex,
            "ftp-us-west-1.x.org.",
            "ftp.service.us-west-1.consul. A: ftp.service.us-west-1.consul. 500 1.2.3.4, \
             ftp.service.us-west-1.consul. 5 t.b.net.",
        ),
        (
            &format!(
                "rewrite stop {{\n {}\n answer name (.*)\\.service\\.(us-west-1)\\.consul \
                 {{1}}-{{2}}.x.org\n answer value (.*)\\.b\\.net {{1}}.v.net\n}}",
                regex.trim_start_matches("rewrite ")
            ),
            "ftp-us-west-1.x.org.",
            "ftp.service.us-west-1.consul. A: ftp-us-west-1.x.org. 500 1.2.3.4, \
             ftp-us-west-1.x.org. 5 t.v.net.",
        ),
        (
            "rewrite continue ttl exact a.org 30-300\nrewrite type A AAAA\nrewrite name a.org b.org",
            "a.org.",
            "a.org. AAAA: a.org. 300 1.2.3.4, a.org. 30 t.b.net.",
        ),
        ("rewrite ttl suffix org -60", "a.org.", "a.org. A: a.org. 60 1.2.3.4, a.org. 5 t.b.net."),
    ] {
        let target = "t.b.net.";
        assert_eq!(run(text, name, target), want, "{text}");
    }
}

#[test]
fn invalid_rules_are_refused_by_name() {
    for (text, want) in [
        ("rewrite", "k, line 1: rewrite: a rule needs a field"),
        ("rewrite edns0 local set 1 a", "k, line 1: rewrite: rules for edns0 are not supported"),
        ("\nrewrite name regex ( b", "k, line 2: rewrite: invalid regular expression"),
        ("rewrite name regex (a) {2}", "k, line 1: rewrite: {2} uses more groups than (a) has"),
        ("rewrite name like a b", "k, line 1: rewrite: like: supported are exact"),
        ("rewrite name exact a b auto", "k, line 1: rewrite: expected `answer"),
        ("rewrite type A NONE", "k, line 1: rewrite: NONE is no record type"),
        ("rewrite ttl a.org 9-1", "k, line 1: rewrite: ttl: 9-1 is no number or range"),
        ("rewrite name regex (a{1000}){1000} b", "k, line 1: rewrite: invalid regular expression"),
    ] {
        let got = rules(text).unwrap_err().to_string();
        assert!(got.starts_with(want), "{got}, not {want}");
    }
}

#[test]
fn an_invalid_new_name_is_an_error() {
    let rules = rules("rewrite name regex (.*) {1}{1}{1}{1}{1}{1}").unwrap();
    let mut request = Message::query();
    let name = Name::from_ascii(format!("{}.org.", "a".repeat(50))).unwrap();
    request.add_query(Query::query(name, RecordType::A));
    assert!(rewrite(&rules, &mut request).is_err());
}
