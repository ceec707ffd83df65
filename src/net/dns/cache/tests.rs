//! How long answers are kept, and what is left of them.

use super::*;
use hickory_proto::op::Query;
use hickory_proto::rr::Name;
use hickory_proto::rr::rdata::{A, SOA};

use crate::dns::corefile::{CorefileError, Source, parse_override};
use crate::dns::plugins::Reader;

fn question(name: &str) -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message
}

fn address(name: &str, ttl: u32) -> Message {
    let mut out = response(&question(name), ResponseCode::NoError);
    let data = RData::A(A([192, 0, 2, 1].into()));
    out.add_answer(Record::from_rdata(Name::from_ascii(name).unwrap(), ttl, data));
    out
}

fn denial(name: &str, code: ResponseCode, ttl: u32, minimum: u32) -> Message {
    let mut out = response(&question(name), code);
    let zone = || Name::from_ascii("test.").unwrap();
    let data = RData::SOA(SOA::new(zone(), zone(), 1, 1, 1, 1, minimum));
    out.add_authority(Record::from_rdata(zone(), ttl, data));
    out
}

fn settings(text: &str) -> Result<CacheSettings, CorefileError> {
    let source = Source { key: "k", text };
    let directive = parse_override(source)?.remove(0);
    CacheSettings::parse(Reader::new(source, &directive), &directive, &mut Vec::new())
}

#[test]
fn answers_are_kept_as_long_as_their_records_and_the_bounds_say() {
    let default = CacheSettings::default();
    let explicit = settings("cache 30").unwrap();
    let own = settings("cache {\n success 100 600 10\n denial 100 60\n}").unwrap();
    let no_denials = settings("cache {\n disable denial\n}").unwrap();
    let nx = ResponseCode::NXDomain;
    let mut truncated = address("a.test.", 60);
    truncated.metadata.truncation = true;
    for (message, settings, want) in [
        (address("a.test.", 60), &default, Some(60)),
        (address("a.test.", 900), &default, Some(300)),
        (address("a.test.", 0), &default, None),
        (address("a.test.", 900), &explicit, Some(30)),
        (address("a.test.", 1), &explicit, Some(5)),
        (address("a.test.", 900), &own, Some(600)),
        (address("a.test.", 1), &own, Some(10)),
        // RFC 2308: the smaller of the SOA's TTL and minimum.
        (denial("a.test.", nx, 20, 900), &default, Some(20)),
        (denial("a.test.", nx, 900, 10), &default, Some(10)),
        (denial("a.test.", nx, 900, 900), &default, Some(30)),
        (denial("a.test.", nx, 900, 900), &own, Some(60)),
        (denial("a.test.", ResponseCode::NoError, 20, 900), &default, Some(20)),
        (denial("a.test.", nx, 20, 20), &no_denials, None),
        (denial("a.test.", ResponseCode::ServFail, 20, 20), &default, None),
        (response(&question("a.test."), nx), &default, None),
        (truncated, &default, None),
    ] {
        let got = lifetime(&message, settings).map(|(seconds, _)| seconds);
        assert_eq!(got, want, "{message} {settings:?}");
    }
}

/// The answer's TTL, or what was found instead.
fn ttl(cache: &Cache, name: &str, settings: &CacheSettings) -> String {
    let request = question(name);
    match cache.find(&Key::of(0, &request).unwrap(), &request, settings) {
        CacheLookup::Nothing => "nothing".into(),
        CacheLookup::Fresh(m) => format!("fresh {}", m.answers[0].ttl),
        CacheLookup::Stale(m) => format!("stale {}", m.answers[0].ttl),
    }
}

fn keep(cache: &Cache, name: &str, ttl: u32, settings: &CacheSettings) {
    let key = Key::of(0, &question(name)).unwrap();
    cache.keep(key, &mut address(name, ttl), settings);
}

#[tokio::test(start_paused = true)]
async fn answers_age_and_stay_for_when_no_server_answers() {
    let cache = Cache::default();
    let default = CacheSettings::default();
    keep(&cache, "a.test.", 60, &default);
    assert_eq!(ttl(&cache, "a.test.", &default), "fresh 60");
    assert_eq!(ttl(&cache, "A.TEST.", &default), "fresh 60");
    assert_eq!(ttl(&cache, "b.test.", &default), "nothing");
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(ttl(&cache, "a.test.", &default), "fresh 40");
    tokio::time::advance(Duration::from_secs(40)).await;
    assert_eq!(ttl(&cache, "a.test.", &default), "stale 30");
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(ttl(&cache, "a.test.", &default), "nothing");
    let explicit = settings("cache 30").unwrap();
    keep(&cache, "a.test.", 500, &explicit);
    assert_eq!(ttl(&cache, "a.test.", &explicit), "fresh 30");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(ttl(&cache, "a.test.", &explicit), "fresh 20");
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(ttl(&cache, "a.test.", &explicit), "nothing");
    let keeps = settings("cache 30 {\n keepttl\n serve_stale 1m immediate 7s\n}").unwrap();
    keep(&cache, "a.test.", 500, &keeps);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(ttl(&cache, "a.test.", &keeps), "fresh 500");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(ttl(&cache, "a.test.", &keeps), "stale 7");
    let key = Key::of(0, &question("a.test.")).unwrap();
    assert!(cache.begin_refresh(&key) && !cache.begin_refresh(&key));
    cache.end_refresh(&key);
    assert!(cache.begin_refresh(&key));
    cache.clear();
    assert_eq!(ttl(&cache, "a.test.", &keeps), "nothing");
}

#[tokio::test(start_paused = true)]
async fn number_and_bytes_have_bounds_and_the_first_to_end_goes_first() {
    let cache = Cache::default();
    let default = CacheSettings::default();
    keep(&cache, "first.test.", 10, &default);
    for number in 0..ENTRIES_MAX {
        keep(&cache, &format!("n{number}.test."), 100, &default);
    }
    assert_eq!(ttl(&cache, "first.test.", &default), "nothing");
    assert_eq!(ttl(&cache, "n0.test.", &default), "fresh 100");
    let inner = cache.0.lock();
    assert_eq!((inner.kept.len(), inner.by_end.len()), (ENTRIES_MAX, ENTRIES_MAX));
    drop(inner);
    let wide = |number: usize| {
        let name = format!("w{number}.test.");
        let mut message = address(&name, 200);
        for last in 0..200 {
            let data = RData::A(A([10, 0, 0, last].into()));
            message.add_answer(Record::from_rdata(Name::from_ascii(&name).unwrap(), 200, data));
        }
        (Key::of(0, &question(&name)).unwrap(), message)
    };
    for number in 0..2000 {
        let (key, mut message) = wide(number);
        cache.keep(key, &mut message, &default);
    }
    let inner = cache.0.lock();
    assert!(inner.bytes <= BYTES_MAX && inner.kept.len() > 900, "{}", inner.kept.len());
    let sum: usize = inner.kept.iter().map(|(key, kept)| size(key, &kept.bytes)).sum();
    assert_eq!(inner.bytes, sum);
}

#[test]
fn invalid_settings_are_refused() {
    for (text, want) in [
        ("cache 0", "k, line 1: cache: TTL: \"0\" is not a number from 1"),
        ("cache -5", "k, line 1: cache: TTL: \"-5\" is not a number from 1"),
        ("cache example.org", "k, line 1: cache: only the zones of the server block"),
        ("cache {\n success\n}", "k, line 2: cache: success needs CAPACITY"),
        ("cache {\n serve_stale x\n}", "k, line 2: cache: serve_stale: x is no duration"),
        ("cache {\n serve_stale 1h often\n}", "k, line 2: cache: serve_stale: unknown mode often"),
        ("cache {\n servfail 5s\n}", "k, line 2: cache: servfail is not supported"),
        ("cache {\n disable all\n}", "k, line 2: cache: disable needs success or denial"),
    ] {
        let got = settings(text).unwrap_err().to_string();
        assert!(got.starts_with(want), "{got}, not {want}");
    }
}
