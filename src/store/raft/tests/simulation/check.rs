//! Checks whether a history is possible: by the revisions in all responses, and by the search of an
//! independent checker.

use std::collections::{BTreeMap, BTreeSet};

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::model::{Call, Model, Reply, Response};
use super::world::{Book, Outcome, Record, WatchedEvent, Witnessed};

type CheckResult = Result<(), String>;

/// Checks the whole book.
pub(super) fn check(book: &Book) -> CheckResult {
    if let Some(wrong) = &book.wrong {
        return Err(wrong.clone());
    }
    let timeline = timeline(&book.seen)?;
    let owners = owners(book, &timeline)?;
    real_time(book, &timeline)?;
    leases(book, &owners, &timeline)?;
    streams(book, &timeline)?;
    search(book, &owners)
}

/// The keys after each revision, replayed from the watched events.
fn timeline(seen: &BTreeMap<i64, Witnessed>) -> Result<Vec<Model>, String> {
    // Revision 0 has no keys.
    let mut models = vec![Model::default(), Model::default()];
    for (revision, witnessed) in seen {
        let before = models.last().unwrap();
        if *revision != before.revision + 1 {
            return Err(format!("revision {} was never used", before.revision + 1));
        }
        let mut after = before.clone();
        after.revision = *revision;
        for event in &witnessed.events {
            let known = before.items.get(&event.key);
            let modified = known.map_or(0, |item| item.modified);
            if event.before != 0 && event.before != modified {
                return Err(format!("{event:?} follows {known:?}"));
            }
            if event.deleted {
                if after.items.remove(&event.key).is_none() {
                    return Err(format!("{event:?} deletes what was not there"));
                }
                continue;
            }
            after.put(event.key, event.value, event.lease);
            let item = &after.items[&event.key];
            if (event.create, event.version) != (item.create, item.version) {
                return Err(format!("{event:?} makes {item:?}"));
            }
        }
        models.push(after);
    }
    Ok(models)
}

fn at(timeline: &[Model], revision: i64) -> Result<&Model, String> {
    usize::try_from(revision)
        .ok()
        .and_then(|at| timeline.get(at))
        .ok_or_else(|| format!("no machine ever showed revision {revision}"))
}

/// The call that made each revision; `None` is an expired lease.
type Owners = BTreeMap<i64, Option<usize>>;

fn blame(record: &Record, why: &str) -> String {
    format!("{why}: {record:?}")
}

/// Whether a response equals the model's, and whether the call made its revision.
fn replays(record: &Record, reply: &Reply, timeline: &[Model]) -> Result<bool, String> {
    let now = at(timeline, reply.revision)?;
    // There is nothing before the revision of an empty store.
    if reply.revision > 1 {
        let before = at(timeline, reply.revision - 1)?;
        let (after, expected) = before.apply(&record.call);
        if after.revision == reply.revision && after == *now && expected == *reply {
            return Ok(true);
        }
    }
    let (_, expected) = now.apply(&record.call);
    if expected == *reply {
        return Ok(false);
    }
    Err(blame(record, &format!("with {:?} it answers {expected:?}", now.items)))
}

fn owners(book: &Book, timeline: &[Model]) -> Result<Owners, String> {
    let mut owners = Owners::new();
    let mut own = |revision: i64, owner: Option<usize>| match owners.insert(revision, owner) {
        None => Ok(()),
        Some(before) => Err(format!(
            "revision {revision} belongs to {owner:?} {:?} and to {before:?} {:?}",
            owner.map(|owner| &book.records[owner]),
            before.map(|owner| &book.records[owner]),
        )),
    };
    let mut values: BTreeMap<u64, i64> = BTreeMap::new();
    for (revision, witnessed) in &book.seen {
        for event in witnessed.events.iter().filter(|event| !event.deleted) {
            if let Some(before) = values.insert(event.value, *revision) {
                return Err(format!("{event:?} was written before, as {before}"));
            }
        }
    }
    let revokes = |record: &Record| matches!(record.call, Call::Revoke { .. });
    let others = book.records.iter().enumerate().filter(|(_, record)| !revokes(record));
    for (number, record) in others {
        let written = record.call.value().and_then(|value| values.remove(&value));
        match &record.outcome {
            Outcome::Reply(reply) if record.call.is_linear() => {
                let made = replays(record, reply, timeline)?;
                if made {
                    own(reply.revision, Some(number))?;
                }
                if written != (made && record.call.value().is_some()).then_some(reply.revision) {
                    return Err(blame(record, &format!("it was written as {written:?}")));
                }
            }
            Outcome::Refused(_) if written.is_some() => {
                return Err(blame(record, &format!("it was written as {written:?}")));
            }
            Outcome::Unknown(_) => {
                let Some(revision) = written else { continue };
                let (after, _) = at(timeline, revision - 1)?.apply(&record.call);
                if after != *at(timeline, revision)? {
                    return Err(blame(record, &format!("revision {revision} is something else")));
                }
                if book.seen[&revision].applied_state < record.begun {
                    return Err(blame(record, &format!("revision {revision} was there before")));
                }
                own(revision, Some(number))?;
            }
            _ => {}
        }
    }
    // Its response does not contain the deleted keys. A revision that another call made, or that
    // was seen before this call, was not made by it.
    for (number, record) in book.records.iter().enumerate().filter(|(_, record)| revokes(record)) {
        let Outcome::Reply(reply) = &record.outcome else { continue };
        let made = replays(record, reply, timeline)?;
        let before = |seen: &Witnessed| seen.applied_state < record.begun;
        if made
            && !owners.contains_key(&reply.revision)
            && !book.seen.get(&reply.revision).is_some_and(before)
        {
            owners.insert(reply.revision, Some(number));
        }
    }
    if let Some((value, revision)) = values.first_key_value() {
        return Err(format!("no call wrote the {value} of revision {revision}"));
    }
    let unowned: Vec<i64> = book.seen.keys().filter(|r| !owners.contains_key(r)).copied().collect();
    let mut used = BTreeSet::new();
    for revision in unowned {
        let owner = deleter(book, timeline, revision, &used)?;
        used.extend(owner);
        owners.insert(revision, owner);
    }
    Ok(owners)
}

/// The deletion without a response that made a revision.
fn deleter(
    book: &Book,
    timeline: &[Model],
    revision: i64,
    used: &BTreeSet<usize>,
) -> Result<Option<usize>, String> {
    let (before, after) = (at(timeline, revision - 1)?, at(timeline, revision)?);
    let witnessed = &book.seen[&revision];
    let could = |record: &Record| {
        matches!(record.outcome, Outcome::Unknown(_))
            && matches!(record.call, Call::Delete { .. } | Call::Revoke { .. })
            && record.begun < witnessed.applied_state
            && before.apply(&record.call).0 == *after
    };
    let mut records = book.records.iter().enumerate();
    if let Some((number, _)) = records.find(|(number, r)| !used.contains(number) && could(r)) {
        return Ok(Some(number));
    }
    let keys: Vec<u8> = witnessed.events.iter().map(|event| event.key).collect();
    let lease = keys.first().and_then(|key| before.items.get(key)).map_or(0, |item| item.lease);
    if lease != 0 && before.leased(lease) == keys && witnessed.events.iter().all(|e| e.deleted) {
        return Ok(None);
    }
    Err(format!("no call made revision {revision}: {:?}", witnessed.events))
}

/// A call that ended before another one began precedes it; observed revisions stay.
fn real_time(book: &Book, timeline: &[Model]) -> CheckResult {
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (number, record) in book.records.iter().enumerate() {
        moments.push((record.begun, true, number));
        moments.push((record.ended, false, number));
    }
    moments.sort_unstable();
    let mut floor = 0;
    let mut floors = vec![0; book.records.len()];
    let mut local: BTreeMap<(usize, u64), i64> = BTreeMap::new();
    for (_, begins, number) in moments {
        let record = &book.records[number];
        if begins {
            floors[number] = floor;
            continue;
        }
        let Outcome::Reply(reply) = &record.outcome else { continue };
        if record.call.is_linear() && reply.revision < floors[number] {
            let text = format!("revision {} was known before it began", floors[number]);
            return Err(blame(record, &text));
        }
        let mut found = None;
        match &record.call {
            Call::Read { keys, .. } => found = Some((keys, reply.revision)),
            Call::ReadAt { keys, revision } => found = Some((keys, *revision)),
            _ => {}
        }
        if let Some((keys, revision)) = found {
            let expected = at(timeline, revision)?.found(keys);
            if reply.answer != Response::Found(expected.clone()) {
                return Err(blame(record, &format!("at {revision} there is {expected:?}")));
            }
            // A machine never shows an older revision than before, until its restart.
            let shown = local.entry((record.machine, record.life)).or_default();
            if reply.revision < *shown {
                return Err(blame(record, &format!("the machine showed revision {shown} before")));
            }
            *shown = (*shown).max(reply.revision);
        }
        floor = floor.max(reply.revision);
    }
    Ok(())
}

/// No lease expires too early, and no revoked lease is renewed or used.
fn leases(book: &Book, owners: &Owners, timeline: &[Model]) -> CheckResult {
    for (revision, _) in owners.iter().filter(|(_, owner)| owner.is_none()) {
        let witnessed = &book.seen[revision];
        let before = at(timeline, revision - 1)?;
        let lease = before.items[&witnessed.events[0].key].lease;
        let renewals = book.records.iter().filter(|record| {
            matches!(record.call,
                Call::Renew { lease: l } | Call::Grant { lease: l, .. } if l == lease)
                && matches!(record.outcome, Outcome::Reply(_))
                && record.ended < witnessed.applied_state
        });
        let revoked = book.records.iter().any(|record| {
            matches!(record.call, Call::Revoke { lease: l } if l == lease)
                && record.begun < witnessed.applied_state
        });
        let Some(last) = renewals.max_by_key(|record| record.begun_at) else { continue };
        let Some((ttl, _)) = book.leases.get(&lease) else { continue };
        let end = last.begun_at + ttl.cast_unsigned() * 1_000_000;
        if witnessed.at < end && !revoked {
            let text = format!("lease {lease} ran out at {} before {end}", witnessed.at);
            return Err(blame(last, &text));
        }
    }
    let mut revoked: BTreeMap<i64, u64> = BTreeMap::new();
    for record in &book.records {
        if let (Call::Revoke { lease }, Outcome::Reply(_)) = (&record.call, &record.outcome) {
            revoked.insert(*lease, record.ended);
        }
    }
    for record in &book.records {
        let (Call::Renew { lease } | Call::Put { lease, .. }) = &record.call else { continue };
        let late = revoked.get(lease).is_some_and(|ended| *ended < record.begun);
        if late && matches!(record.outcome, Outcome::Reply(_)) {
            return Err(blame(record, "the lease was revoked before"));
        }
    }
    Ok(())
}

/// Every watch delivered all changes of its keys, once and in order.
fn streams(book: &Book, timeline: &[Model]) -> CheckResult {
    let newest = timeline.len() as i64 - 1;
    for stream in &book.streams {
        let wanted = |event: &&WatchedEvent| stream.keys.contains(&event.key);
        // A watch cancelled by a compaction may have delivered nothing.
        let expected = book.seen.range(stream.first..stream.first.max(stream.told + 1));
        let expected: Vec<&WatchedEvent> =
            expected.flat_map(|(_, witnessed)| witnessed.events.iter().filter(wanted)).collect();
        // The order within a revision is not specified, and the previous version may have been
        // compacted.
        let mut got = stream.events.clone();
        if !got.is_sorted_by_key(|event| event.revision) {
            return Err(format!("a watch went back: {stream:?}"));
        }
        got.sort_by_key(|event| (event.revision, event.key));
        let same = |(a, b): (&&WatchedEvent, &WatchedEvent)| {
            **a == WatchedEvent { before: a.before, ..b.clone() }
        };
        if expected.len() != got.len() || !expected.iter().zip(&got).all(same) {
            let missing: Vec<i64> = expected.iter().map(|event| event.revision).collect();
            let brought: Vec<i64> = got.iter().map(|event| event.revision).collect();
            return Err(format!(
                "a watch of {:?} from {} to {} brought {brought:?} instead of {missing:?}",
                stream.keys, stream.first, stream.told
            ));
        }
        if !stream.ended && stream.told < newest {
            return Err(format!("a watch was told {} of {newest}", stream.told));
        }
    }
    Ok(())
}

/// A call as the checker sees it.
#[derive(Debug, Clone)]
enum Step {
    Answered(Call, Reply),
    /// The response was lost, but the call made this revision.
    Made(Call, i64),
    /// A lease expired.
    RanOut(Vec<u8>, i64),
}

struct Store;

impl Specification for Store {
    type State = Model;
    type Operation = Step;

    fn init() -> Model {
        Model::default()
    }

    fn apply(step: &Step, state: &Model) -> (bool, Model) {
        match step {
            Step::Answered(call, reply) => {
                let (next, expected) = state.apply(call);
                (expected == *reply, next)
            }
            Step::Made(call, revision) => {
                let (next, _) = state.apply(call);
                (next.revision == *revision && state.revision < *revision, next)
            }
            Step::RanOut(keys, revision) => {
                let mut next = state.clone();
                next.revision += 1;
                let all = keys.iter().all(|key| next.items.remove(key).is_some());
                (all && next.revision == *revision, next)
            }
        }
    }
}

/// Lets the checker search for an order of all calls that explains all responses.
fn search(book: &Book, owners: &Owners) -> CheckResult {
    let mut steps: Vec<(u64, u64, Step)> = Vec::new();
    for record in &book.records {
        if let Outcome::Reply(reply) = &record.outcome
            && record.call.is_linear()
        {
            let step = Step::Answered(record.call.clone(), reply.clone());
            steps.push((record.begun, record.ended, step));
        }
    }
    for (revision, owner) in owners {
        match owner.map(|owner| &book.records[owner]) {
            Some(record) if matches!(record.outcome, Outcome::Unknown(_)) => {
                let step = Step::Made(record.call.clone(), *revision);
                steps.push((record.begun, book.seen[revision].applied_state, step));
            }
            Some(_) => {}
            None => {
                let witnessed = &book.seen[revision];
                let keys = witnessed.events.iter().map(|event| event.key).collect();
                steps.push((0, witnessed.applied_state, Step::RanOut(keys, *revision)));
            }
        }
    }
    if steps.is_empty() {
        return Ok(());
    }
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (number, (begun, ended, _)) in steps.iter().enumerate() {
        moments.push((*begun, false, number));
        moments.push((*ended, true, number));
    }
    moments.sort_unstable();
    let action = |(_, ends, number): (u64, bool, usize)| {
        let step = steps[number].2.clone();
        (number, if ends { Action::Response(step) } else { Action::Call(step) })
    };
    let actions: Vec<_> = moments.into_iter().map(action).collect();
    if WGLChecker::<Store>::is_linearizable(History::from_actions(actions)) {
        return Ok(());
    }
    Err("no order of the calls explains their answers".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::model::Item;
    use super::*;

    fn record(begun: u64, ended: u64, call: Call, reply: Option<Reply>) -> Record {
        let outcome = reply.map_or(Outcome::Unknown("lost".to_owned()), Outcome::Reply);
        Record { client: 0, machine: 0, life: 0, begun, ended, begun_at: begun, call, outcome }
    }

    fn put(value: u64) -> Call {
        Call::Put { key: 1, value, lease: 0 }
    }

    fn item(value: u64, revision: i64, version: i64) -> Item {
        Item { value, create: 2, modified: revision, version, lease: 0 }
    }

    fn seen(value: u64, revision: i64, version: i64) -> WatchedEvent {
        let before = if revision == 2 { 0 } else { revision - 1 };
        WatchedEvent {
            key: 1,
            revision,
            deleted: false,
            value,
            create: 2,
            version,
            lease: 0,
            before,
        }
    }

    fn read(revision: i64, found: Option<Item>) -> (Call, Option<Reply>) {
        let found = found.into_iter().map(|item| (1, item)).collect();
        let call = Call::Read { keys: 1..2, consistent: true };
        (call, Some(Reply { revision, answer: Response::Found(found) }))
    }

    fn wrote(revision: i64, before: Option<Item>) -> Option<Reply> {
        Some(Reply { revision, answer: Response::Put(before) })
    }

    /// Two puts, the second one without a response, and later calls.
    fn book(more: Vec<Record>) -> Book {
        let mut book = Book::default();
        book.records.push(record(1, 2, put(1), wrote(2, None)));
        book.records.push(record(3, u64::MAX, put(2), None));
        book.records.extend(more);
        for (value, revision, applied_state) in [(1, 2, 2), (2, 3, 9)] {
            let events = vec![seen(value, revision, revision - 1)];
            book.seen.insert(revision, Witnessed { events, applied_state, at: applied_state });
        }
        book
    }

    #[test]
    fn linearizable_histories_pass_and_stale_reads_fail() {
        let after = |begun, (call, reply)| record(begun, begun + 1, call, reply);
        check(&book(vec![after(4, read(3, Some(item(2, 3, 2))))])).unwrap();
        check(&book(vec![after(4, read(2, Some(item(1, 2, 1))))])).unwrap();
        let fresh = after(4, read(3, Some(item(2, 3, 2))));
        let stale = after(6, read(2, Some(item(1, 2, 1))));
        let both = book(vec![fresh, stale]);
        assert!(check(&both).unwrap_err().contains("revision 3 was known"));
        let owners = owners(&both, &timeline(&both.seen).unwrap()).unwrap();
        assert!(search(&both, &owners).is_err(), "the checker finds it by itself");
    }

    #[test]
    fn lost_doubled_and_invented_writes_are_found() {
        let lost = record(4, 5, put(3), wrote(4, Some(item(2, 3, 2))));
        assert!(
            check(&book(vec![lost])).unwrap_err().contains("no machine ever showed revision 4")
        );
        let mut doubled = book(Vec::new());
        let again = Witnessed { events: vec![seen(2, 4, 3)], applied_state: 10, at: 10 };
        doubled.seen.insert(4, again);
        assert!(check(&doubled).unwrap_err().contains("was written before"));
        let mut invented = book(Vec::new());
        let other = Witnessed { events: vec![seen(7, 4, 3)], applied_state: 10, at: 10 };
        invented.seen.insert(4, other);
        assert!(check(&invented).unwrap_err().contains("no call wrote the 7"));
        let refused =
            Record { outcome: Outcome::Refused("no".to_owned()), ..record(3, 4, put(2), None) };
        let mut kept = book(Vec::new());
        kept.records[1] = refused;
        assert!(check(&kept).unwrap_err().contains("it was written as Some(3)"));
    }

    #[test]
    fn a_watch_with_a_gap_or_an_event_twice_is_found() {
        use super::super::world::Stream;
        let with = |events: Vec<WatchedEvent>| {
            let mut book = book(Vec::new());
            book.streams.push(Stream { keys: 0..8, first: 2, told: 3, events, ended: false });
            check(&book)
        };
        with(vec![seen(1, 2, 1), seen(2, 3, 2)]).unwrap();
        let mut ended = book(Vec::new());
        let (events, told) = (Vec::new(), 1);
        ended.streams.push(Stream { keys: 0..8, first: 2, told, events, ended: true });
        check(&ended).unwrap();
        ended.streams[0].ended = false;
        assert!(check(&ended).unwrap_err().contains("was told 1 of 3"));
        assert!(with(vec![seen(2, 3, 2)]).unwrap_err().contains("brought [3]"));
        let twice = vec![seen(1, 2, 1), seen(2, 3, 2), seen(2, 3, 2)];
        assert!(with(twice).unwrap_err().contains("brought [2, 3, 3]"));
        assert!(with(vec![seen(2, 3, 2), seen(1, 2, 1)]).unwrap_err().contains("went back"));
    }
}
