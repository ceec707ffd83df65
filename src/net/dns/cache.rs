//! Answers of upstream servers, kept within bounds of number and bytes; after their time for when
//! no server answers (RFC 8767), and denials as long as their SOA says (RFC 2308).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::dns::message::{plain, response};
use crate::dns::metrics;
use crate::dns::rules::CacheSettings;

/// Most answers kept.
const ENTRIES_MAX: usize = 8192;
/// Most bytes of answers and names.
const BYTES_MAX: usize = 4 << 20;
/// What an answer takes beside its bytes and its name.
const OVERHEAD: usize = 200;

/// What an answer is kept for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The server block, as blocks ask other servers.
    block: usize,
    name: String,
    kind: u16,
    class: u16,
    /// The client wants signatures, and checks them itself.
    secure: (bool, bool),
}

impl Key {
    pub(crate) fn of(block: usize, request: &Message) -> Option<Self> {
        let query = request.queries.first()?;
        Some(Self {
            block,
            name: plain(query.name()),
            kind: query.query_type().into(),
            class: query.query_class().into(),
            secure: (
                request.edns.as_ref().is_some_and(|e| e.flags().dnssec_ok),
                request.metadata.checking_disabled,
            ),
        })
    }
}

#[derive(Debug)]
struct Kept {
    bytes: Box<[u8]>,
    from: Instant,
    until: Instant,
    /// Its place among all by the time when they end.
    place: (Instant, u64),
    is_denial: bool,
    refreshing: bool,
}

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<Arc<Key>, Kept>,
    by_end: BTreeMap<(Instant, u64), Arc<Key>>,
    bytes: usize,
    count: u64,
    denials: usize,
}

/// The answers.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Inner>);

/// What is known about a question.
#[derive(Debug)]
pub(crate) enum CacheLookup {
    Nothing,
    Fresh(Message),
    /// An answer after its time.
    Stale(Message),
}

/// For how many seconds an answer is kept; none for answers that are not.
fn lifetime(message: &Message, settings: &CacheSettings) -> Option<(u32, bool)> {
    let is_denial =
        message.answers.is_empty() || message.metadata.response_code == ResponseCode::NXDomain;
    if message.metadata.truncation {
        return None;
    }
    let (shortest, longest) = match message.metadata.response_code {
        ResponseCode::NoError if !is_denial => settings.success?,
        ResponseCode::NoError | ResponseCode::NXDomain => settings.denial?,
        _ => return None,
    };
    // RFC 2308, section 5: the smaller of the SOA's TTL and its minimum; without a SOA a denial is
    // not kept.
    let soa = |record: &Record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    };
    let seconds = if is_denial {
        message.authorities.iter().find_map(soa)?
    } else {
        let all = message.answers.iter().chain(&message.authorities);
        all.map(|record| record.ttl).min()?
    };
    let seconds = seconds.clamp(shortest, longest);
    (seconds > 0).then_some((seconds, is_denial))
}

/// An answer to `request` with the records of a kept one; `ttl` changes their TTLs.
fn revived(request: &Message, kept: &Message, ttl: impl Fn(u32) -> u32) -> Message {
    let mut out = response(request, kept.metadata.response_code);
    let aged = |list: &[Record]| {
        let mut list = list.to_vec();
        for record in list.iter_mut().filter(|r| r.record_type() != RecordType::OPT) {
            record.ttl = ttl(record.ttl);
        }
        list
    };
    out.insert_answers(aged(&kept.answers));
    out.insert_authorities(aged(&kept.authorities));
    out.insert_additionals(aged(&kept.additionals));
    out
}

impl Inner {
    fn remove(&mut self, key: &Key) {
        let Some((key, old)) = self.kept.remove_entry(key) else { return };
        self.by_end.remove(&old.place);
        self.bytes = self.bytes.saturating_sub(size(&key, &old.bytes));
        self.denials -= usize::from(old.is_denial);
    }
}

fn size(key: &Key, bytes: &[u8]) -> usize {
    2 * key.name.len() + bytes.len() + OVERHEAD
}

impl Cache {
    /// The answer that is kept for a question.
    pub(crate) fn find(
        &self,
        key: &Key,
        request: &Message,
        settings: &CacheSettings,
    ) -> CacheLookup {
        let now = base::clock::now();
        metrics::CACHE_REQUESTS.inc(&metrics::CACHE_LABELS);
        let inner = self.0.lock();
        let longest = settings.stale.as_ref().map_or(Duration::ZERO, |stale| stale.up_to);
        let kept = inner.kept.get(key).filter(|kept| now < kept.until + longest);
        let found = kept.and_then(|kept| Some((Message::from_vec(&kept.bytes).ok()?, kept)));
        let Some((message, kept)) = found else {
            metrics::CACHE_MISSES.inc(&metrics::CACHE_LABELS);
            return CacheLookup::Nothing;
        };
        metrics::cache_hit(kept.is_denial);
        if now >= kept.until {
            let ttl = settings.stale.as_ref().map_or(0, |stale| stale.ttl);
            return CacheLookup::Stale(revived(request, &message, |_| ttl));
        }
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let age = seconds(now - kept.from);
        let left = seconds(kept.until - now);
        CacheLookup::Fresh(revived(request, &message, |ttl| match settings {
            CacheSettings { keeps_ttl: true, .. } => ttl,
            CacheSettings { is_explicit: true, .. } => left,
            _ => ttl.saturating_sub(age),
        }))
    }

    /// Keeps an answer. With the plugin in the configuration its records get the time for which it
    /// is kept, as CoreDNS does, so that TTLs do not jump.
    pub(crate) fn keep(&self, key: Key, message: &mut Message, settings: &CacheSettings) {
        let Some((seconds, is_denial)) = lifetime(message, settings) else { return };
        if settings.is_explicit && !settings.keeps_ttl {
            let lists = [&mut message.answers, &mut message.authorities, &mut message.additionals];
            for record in lists.into_iter().flatten() {
                record.ttl = seconds;
            }
        }
        let Ok(bytes) = message.to_vec() else { return };
        let stale = settings.stale.as_ref().map_or(Duration::ZERO, |stale| stale.up_to);
        let now = base::clock::now();
        let until = now + Duration::from_secs(u64::from(seconds));
        let mut inner = self.0.lock();
        inner.remove(&key);
        inner.count += 1;
        let place = (until + stale, inner.count);
        let key = Arc::new(key);
        inner.bytes += size(&key, &bytes);
        inner.denials += usize::from(is_denial);
        inner.by_end.insert(place, Arc::clone(&key));
        let bytes = bytes.into_boxed_slice();
        let kept = Kept { bytes, from: now, until, place, is_denial, refreshing: false };
        inner.kept.insert(key, kept);
        // Those that end first go first: those whose time is over, stale time included, then the
        // others.
        while inner.kept.len() > ENTRIES_MAX || inner.bytes > BYTES_MAX {
            let Some(oldest) = inner.by_end.first_key_value().map(|(_, key)| Arc::clone(key))
            else {
                break;
            };
            inner.remove(&oldest);
            metrics::CACHE_EVICTIONS.inc(&["dns://:53", "success", ".", ""]);
        }
        let (all, denials) = (inner.kept.len(), inner.denials);
        drop(inner);
        metrics::cache_entries(all - denials, denials);
    }

    /// Begins to renew an answer; false if that is under way.
    pub(crate) fn begin_refresh(&self, key: &Key) -> bool {
        let mut inner = self.0.lock();
        let kept = inner.kept.get_mut(key);
        kept.is_some_and(|kept| !std::mem::replace(&mut kept.refreshing, true))
    }

    /// Ends to renew an answer that no server gave.
    pub(crate) fn end_refresh(&self, key: &Key) {
        if let Some(kept) = self.0.lock().kept.get_mut(key) {
            kept.refreshing = false;
        }
    }

    /// Forgets all: another configuration asks other servers.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Inner::default();
        metrics::cache_entries(0, 0);
    }
}

#[cfg(test)]
mod tests;
