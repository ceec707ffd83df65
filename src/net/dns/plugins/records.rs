//! Records as lines of a zone file: `NAME TTL CLASS TYPE DATA`, the types that templates use.

use hickory_proto::rr::rdata::{A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// TTL of a record without one (miekg/dns's default).
const TTL: u32 = 3600;

/// The words of a line; parentheses are left out, and quotes hold white space.
fn words(line: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_whitespace() || c == '(' || c == ')' => {}
            ';' => break,
            '"' => {
                let mut text = String::new();
                loop {
                    match rest.next()? {
                        '"' => break,
                        '\\' => text.push(rest.next()?),
                        c => text.push(c),
                    }
                }
                out.push(text);
            }
            c => {
                let mut text = String::from(c);
                while let Some(c) = rest.next_if(|c| !c.is_whitespace() && *c != ')') {
                    text.push(c);
                }
                out.push(text);
            }
        }
    }
    Some(out)
}

fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// The types of [`parse`].
pub(crate) fn is_supported(kind: RecordType) -> bool {
    use RecordType as R;
    matches!(kind, R::A | R::AAAA | R::CNAME | R::NS | R::PTR | R::MX | R::SRV | R::TXT | R::SOA)
}

/// The type that a line names, wherever its other fields come from.
pub(crate) fn kind(line: &str) -> Option<RecordType> {
    let words = words(line)?;
    let mut fields = words.iter().skip(1).filter(|word| {
        word.parse::<u32>().is_err() && !matches!(word.as_str(), "IN" | "CH" | "HS" | "ANY")
    });
    fields.next()?.to_ascii_uppercase().parse().ok()
}

/// Reads a record of class IN; none if it is no record of a supported type.
pub(crate) fn parse(line: &str) -> Option<Record> {
    let words = words(line)?;
    let (owner, mut rest) = words.split_first()?;
    let mut ttl = TTL;
    while let Some((first, after)) = rest.split_first() {
        if let Ok(number) = first.parse::<u32>() {
            ttl = number;
        } else if first != "IN" {
            break;
        }
        rest = after;
    }
    let (kind, data) = rest.split_first()?;
    let data: Vec<&str> = data.iter().map(String::as_str).collect();
    let data = match (kind.to_ascii_uppercase().as_str(), data.as_slice()) {
        ("A", [address]) => RData::A(A(address.parse().ok()?)),
        ("AAAA", [address]) => RData::AAAA(AAAA(address.parse().ok()?)),
        ("CNAME", [target]) => RData::CNAME(CNAME(name(target)?)),
        ("NS", [target]) => RData::NS(NS(name(target)?)),
        ("PTR", [target]) => RData::PTR(PTR(name(target)?)),
        ("MX", [preference, target]) => RData::MX(MX::new(preference.parse().ok()?, name(target)?)),
        ("SRV", [priority, weight, port, target]) => RData::SRV(SRV::new(
            priority.parse().ok()?,
            weight.parse().ok()?,
            port.parse().ok()?,
            name(target)?,
        )),
        ("TXT", texts) if !texts.is_empty() && texts.iter().all(|t| t.len() <= 255) => {
            RData::TXT(TXT::new(texts.iter().map(ToString::to_string).collect()))
        }
        ("SOA", [primary, mail, serial, refresh, retry, expire, minimum]) => RData::SOA(SOA::new(
            name(primary)?,
            name(mail)?,
            serial.parse().ok()?,
            refresh.parse().ok()?,
            retry.parse().ok()?,
            expire.parse().ok()?,
            minimum.parse().ok()?,
        )),
        _ => return None,
    };
    Some(Record::from_rdata(name(owner)?, ttl, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_records() {
        for (line, want) in [
            ("a.org 60 IN A 1.2.3.4", "a.org. 60 A 1.2.3.4"),
            ("a.org. IN 60 AAAA fd00::1", "a.org. 60 AAAA fd00::1"),
            ("a.org. CNAME b.org", "a.org. 3600 CNAME b.org."),
            ("a. 5 IN SOA ns.a hm.a (1 60 61 62 63)", "a. 5 SOA ns.a. hm.a. 1 60 61 62 63"),
            ("a. 5 IN SRV 1 2 3 b.", "a. 5 SRV 1 2 3 b."),
            ("a. 5 IN MX 10 b.", "a. 5 MX 10 b."),
            ("a. 5 IN TXT \"x y\" z", "a. 5 TXT x yz"),
        ] {
            let got =
                parse(line).map(|r| format!("{} {} {} {}", r.name, r.ttl, r.record_type(), r.data));
            assert_eq!(got.as_deref(), Some(want), "{line}");
        }
        for line in ["", "a.org", "a.org 60 IN A x", "a.org 60 IN A 1.2.3.4 5", "a 1 IN CAA 0 b c"]
        {
            assert!(parse(line).is_none(), "{line}");
        }
        assert_eq!(kind("{{x}} 60 IN caa 1"), Some(RecordType::CAA));
        assert!(!is_supported(RecordType::CAA));
    }
}
