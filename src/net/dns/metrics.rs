//! The metrics of cluster DNS under CoreDNS's names.

use std::time::Duration;

use base::metrics::{Family, exponential};
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

/// CoreDNS's name of the server, as Corefiles have it.
const SERVER: &str = "dns://:53";
/// Labels of the cache: server, zones and view.
pub(crate) const CACHE_LABELS: [&str; 3] = [SERVER, ".", ""];

static SECONDS: [f64; 16] = exponential(0.000_25, 2.0);
static BYTES: [f64; 14] = [
    0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3,
];

static REQUESTS: Family = Family::counter(
    "coredns_dns_requests_total",
    "Counter of DNS requests made per zone, protocol and family.",
    &["server", "zone", "view", "proto", "family", "type"],
);
static DO_REQUESTS: Family = Family::counter(
    "coredns_dns_do_requests_total",
    "Counter of DNS requests with DO bit set per zone.",
    &["server", "zone", "view"],
);
static TIME: Family = Family::histogram(
    "coredns_dns_request_duration_seconds",
    "Histogram of the time (in seconds) each request took per zone.",
    &["server", "zone", "view"],
    &SECONDS,
);
static REQUEST_BYTES: Family = Family::histogram(
    "coredns_dns_request_size_bytes",
    "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
    &["server", "zone", "view", "proto"],
    &BYTES,
);
static RESPONSE_BYTES: Family = Family::histogram(
    "coredns_dns_response_size_bytes",
    "Size of the returned response in bytes.",
    &["server", "zone", "view", "proto"],
    &BYTES,
);
static RESPONSES: Family = Family::counter(
    "coredns_dns_responses_total",
    "Counter of response status codes.",
    &["server", "zone", "view", "rcode", "plugin"],
);
static CACHE_ENTRIES: Family = Family::gauge(
    "coredns_cache_entries",
    "The number of elements in the cache.",
    &["server", "type", "zones", "view"],
);
pub(crate) static CACHE_REQUESTS: Family = Family::counter(
    "coredns_cache_requests_total",
    "The count of cache requests.",
    &["server", "zones", "view"],
);
static CACHE_HITS: Family = Family::counter(
    "coredns_cache_hits_total",
    "The count of cache hits.",
    &["server", "type", "zones", "view"],
);
pub(crate) static CACHE_MISSES: Family = Family::counter(
    "coredns_cache_misses_total",
    "The count of cache misses. Deprecated, derive misses from cache hits/requests counters.",
    &["server", "zones", "view"],
);
pub(crate) static CACHE_STALE: Family = Family::counter(
    "coredns_cache_served_stale_total",
    "The number of requests served from stale cache entries.",
    &["server", "zones", "view"],
);
pub(crate) static CACHE_EVICTIONS: Family = Family::counter(
    "coredns_cache_evictions_total",
    "The count of cache evictions.",
    &["server", "type", "zones", "view"],
);
pub(crate) static PROXY_TIME: Family = Family::histogram(
    "coredns_proxy_request_duration_seconds",
    "Histogram of the time each request took.",
    &["proxy_name", "to", "rcode"],
    &SECONDS,
);
pub(crate) static FORWARD_BROKEN: Family = Family::counter(
    "coredns_forward_healthcheck_broken_total",
    "Counter of the number of complete failures of the healthchecks.",
    &[],
);
pub(crate) static FORWARD_REJECTED: Family = Family::counter(
    "coredns_forward_max_concurrent_rejects_total",
    "Counter of the number of queries rejected because the concurrent queries were at maximum.",
    &[],
);
static HOSTS_ENTRIES: Family = Family::gauge(
    "coredns_hosts_entries",
    "The combined number of entries in hosts and Corefile.",
    &["hostsfile"],
);
pub(crate) static RELOAD_FAILED: Family = Family::counter(
    "coredns_reload_failed_total",
    "Counter of the number of failed reload attempts.",
    &[],
);

static ALL: [&Family; 17] = [
    &CACHE_ENTRIES,
    &CACHE_EVICTIONS,
    &CACHE_HITS,
    &CACHE_MISSES,
    &CACHE_REQUESTS,
    &CACHE_STALE,
    &DO_REQUESTS,
    &TIME,
    &REQUEST_BYTES,
    &REQUESTS,
    &RESPONSE_BYTES,
    &RESPONSES,
    &FORWARD_BROKEN,
    &FORWARD_REJECTED,
    &HOSTS_ENTRIES,
    &PROXY_TIME,
    &RELOAD_FAILED,
];

/// All families in the text format. Counters without labels are there from the start, as in
/// CoreDNS.
pub(crate) fn text() -> String {
    for family in [&FORWARD_BROKEN, &FORWARD_REJECTED, &RELOAD_FAILED] {
        family.add(&[], 0.0);
    }
    let mut out = String::new();
    ALL.iter().for_each(|family| family.render(&mut out));
    out
}

/// The name of a code in miekg/dns.
pub(crate) fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::YXDomain => "YXDOMAIN",
        ResponseCode::YXRRSet => "YXRRSET",
        ResponseCode::NXRRSet => "NXRRSET",
        ResponseCode::NotAuth => "NOTAUTH",
        ResponseCode::NotZone => "NOTZONE",
        ResponseCode::BADVERS => "BADVERS",
        _ => "RESERVED",
    }
}

/// The type of a question; CoreDNS has labels for these, so that clients cannot make more.
fn type_name(kind: RecordType) -> &'static str {
    match kind {
        RecordType::A => "A",
        RecordType::AAAA => "AAAA",
        RecordType::MX => "MX",
        RecordType::SOA => "SOA",
        RecordType::CNAME => "CNAME",
        RecordType::PTR => "PTR",
        RecordType::TXT => "TXT",
        RecordType::NS => "NS",
        RecordType::SRV => "SRV",
        RecordType::DS => "DS",
        RecordType::DNSKEY => "DNSKEY",
        RecordType::RRSIG => "RRSIG",
        RecordType::NSEC => "NSEC",
        RecordType::NSEC3 => "NSEC3",
        RecordType::HTTPS => "HTTPS",
        RecordType::SVCB => "SVCB",
        RecordType::ANY => "ANY",
        _ => "other",
    }
}

/// A question as metrics count it.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The zone of the server block, `.` or with the final dot.
    pub(crate) zone: String,
    pub(crate) kind: RecordType,
    pub(crate) secure: bool,
    pub(crate) bytes: usize,
    pub(crate) is_tcp: bool,
    pub(crate) is_ipv4: bool,
}

/// Counts an answer: the plugin that gave it, its size and the time it took.
pub(crate) fn record(
    question: &Question,
    reply: &Message,
    plugin: &str,
    bytes: usize,
    time: Duration,
) {
    let proto = if question.is_tcp { "tcp" } else { "udp" };
    let family = if question.is_ipv4 { "1" } else { "2" };
    let zone = [SERVER, question.zone.as_str(), ""];
    let by_proto = [SERVER, question.zone.as_str(), "", proto];
    let kind = type_name(question.kind);
    REQUESTS.inc(&[SERVER, &question.zone, "", proto, family, kind]);
    if question.secure {
        DO_REQUESTS.inc(&zone);
    }
    TIME.took(&zone, time);
    let size = |bytes: usize| f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
    REQUEST_BYTES.observe(&by_proto, size(question.bytes));
    RESPONSE_BYTES.observe(&by_proto, size(bytes));
    let code = code_name(reply.metadata.response_code);
    RESPONSES.inc(&[SERVER, &question.zone, "", code, plugin]);
}

fn size(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(crate) fn cache_hit(is_denial: bool) {
    CACHE_HITS.inc(&[SERVER, if is_denial { "denial" } else { "success" }, ".", ""]);
}

pub(crate) fn cache_entries(successes: usize, denials: usize) {
    CACHE_ENTRIES.set(&[SERVER, "success", ".", ""], size(successes));
    CACHE_ENTRIES.set(&[SERVER, "denial", ".", ""], size(denials));
}

pub(crate) fn hosts_entries(count: usize) {
    HOSTS_ENTRIES.set(&[""], size(count));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_coredns_names_and_labels() {
        let question = Question {
            zone: "metrics.test.".into(),
            kind: RecordType::AAAA,
            secure: true,
            bytes: 40,
            is_tcp: false,
            is_ipv4: true,
        };
        let mut reply = Message::query();
        reply.metadata.response_code = ResponseCode::NXDomain;
        record(&question, &reply, "forward", 120, Duration::from_millis(3));
        let text = text();
        for line in [
            "# HELP coredns_dns_requests_total Counter of DNS requests made per zone, protocol and family.",
            "coredns_dns_requests_total{server=\"dns://:53\",zone=\"metrics.test.\",view=\"\",proto=\"udp\",family=\"1\",type=\"AAAA\"} 1",
            "coredns_dns_responses_total{server=\"dns://:53\",zone=\"metrics.test.\",view=\"\",rcode=\"NXDOMAIN\",plugin=\"forward\"} 1",
            "coredns_dns_request_duration_seconds_bucket{server=\"dns://:53\",zone=\"metrics.test.\",view=\"\",le=\"0.004\"} 1",
            "coredns_dns_response_size_bytes_bucket{server=\"dns://:53\",zone=\"metrics.test.\",view=\"\",proto=\"udp\",le=\"200\"} 1",
            "coredns_dns_do_requests_total{server=\"dns://:53\",zone=\"metrics.test.\",view=\"\"} 1",
            "coredns_reload_failed_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
