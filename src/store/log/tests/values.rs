//! Values that are read from files: they stay correct while files are appended, replaced,
//! truncated, removed or refused.

use bytes::Bytes;
use parking_lot::RwLock;

use super::*;
use crate::contract::{KeyRange, KeyValue, RangeRequest, Revision};
use crate::log::{
    Applied, CheckpointHeader, SEGMENT_BYTES, checkpoint_name, map_segment_values, write_checkpoint,
};
use crate::mvcc::{ClusterData, State, Version};

/// The effect of each revision: the key, and the value unless it was a deletion.
type Written = BTreeMap<i64, (String, Option<String>)>;

/// A value whose every part identifies its position.
fn value(key: &str, step: u64, bytes: usize) -> String {
    let mut value = String::new();
    while value.len() < bytes {
        value.push_str(&format!("{key}@{step}+{} ", value.len()));
    }
    value
}

fn read(node: &Node, key: &str, revision: i64) -> Option<KeyValue> {
    let range = KeyRange::key(key.to_owned());
    let request = RangeRequest { revision: Some(Revision(revision)), ..RangeRequest::new(range) };
    node.shared.state.read().range(&request).unwrap().kvs.pop()
}

/// Compares all keys at the newest revision and at some earlier ones.
fn compare_all(node: &Node, written: &Written, compacted: i64) {
    let mut now: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for (revision, (key, value)) in written {
        now.insert(key, value.as_deref());
        let is_last = written.last_key_value().is_some_and(|(last, _)| last == revision);
        if *revision < compacted || !is_last && *revision % 5 != 0 {
            continue;
        }
        for (key, value) in &now {
            let found = read(node, key, *revision);
            let found = found.as_ref().map(|kv| std::str::from_utf8(&kv.value).unwrap());
            assert!(found == *value, "{key} at {revision}: {found:?}\nand not: {value:?}");
        }
    }
}

fn step(node: &Node, rng: &mut Rng, written: &mut Written, number: u64) {
    let key = format!("k{}", rng.below(24));
    if rng.chance(10) {
        if let Ok(revision) = commit(node, delete(&key))
            && revision > written.last_key_value().map_or(1, |(last, _)| *last)
        {
            written.insert(revision, (key, None));
        }
        return;
    }
    let length = usize::try_from(rng.below(20_000)).unwrap();
    let value = value(&key, number, length);
    if let Ok(revision) = commit(node, put(&key, &value)) {
        written.insert(revision, (key, Some(value)));
    }
}

/// Segments of 256 KiB fill every few dozen steps, while readers and checkpoints continue.
#[test]
fn every_value_is_the_one_that_was_written_whatever_file_it_lies_in() {
    for seed in 0..8 {
        let mut rng = Rng(seed);
        let mut disk = SimDisk::new();
        let mut written = Written::new();
        let mut compacted = 0;
        let mut files = 0;
        for start in 0..4 {
            if rng.chance(15) {
                disk.map_nothing();
            }
            let node = open(&disk).unwrap();
            compare_all(&node, &written, compacted);
            for number in 0..120 {
                step(&node, &mut rng, &mut written, start * 1000 + number);
                match rng.below(60) {
                    0 => run_checkpoint(&node),
                    1 => {
                        // Half-way through, the device becomes full.
                        disk.set_capacity(disk.used() + rng.below(200_000));
                        run_checkpoint(&node);
                        disk.repair();
                    }
                    2 => {
                        let newest = node.shared.state.read().revision();
                        compacted = (newest - 20).max(compacted + 1);
                        if commit(&node, Command::Compact(compacted)).is_err() {
                            compacted = node.shared.state.read().compacted();
                        }
                    }
                    3 => compare_all(&node, &written, compacted),
                    _ => {}
                }
                files = files.max(disk.mapped().0.len());
            }
            node.run_tasks();
            compare_all(&node, &written, compacted);
            if rng.chance(50) {
                assert_eq!(node.stop(), None);
                disk = disk.after_kill();
            } else {
                disk = disk.after_kill();
                drop(node);
            }
        }
        assert!(files > 1, "seed {seed}: values lay in {files} files at most");
    }
}

/// Fills this many segments.
fn fill(node: &Node, prefix: &str, segments: u64) -> Written {
    let mut written = Written::new();
    for number in 0..segments * SEGMENT_BYTES / 10_000 + 4 {
        let key = format!("{prefix}{number}");
        let value = value(&key, number, 10_000);
        let revision = commit(node, put(&key, &value)).unwrap();
        written.insert(revision, (key, Some(value)));
    }
    node.run_tasks();
    written
}

fn segments(names: &[String]) -> usize {
    names.iter().filter(|name| name.starts_with("log-")).count()
}

#[test]
fn full_segments_are_read_and_a_checkpoint_takes_their_place_and_leaves_nothing_behind() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let mut written = fill(&node, "a", 1);
    let (names, nameless) = disk.mapped();
    assert!(segments(&names) >= 1 && nameless == 0, "{names:?} {nameless}");
    // The last written file is not mapped: it is still appended to.
    let last = disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-"));
    let last: Vec<String> = last.collect();
    assert!(!names.contains(last.last().unwrap()), "{names:?} of {last:?}");
    for round in 0..3 {
        run_checkpoint(&node);
        let (names, nameless) = disk.mapped();
        assert!(names.len() == 1 && names[0].starts_with("checkpoint-"), "{round}: {names:?}");
        assert_eq!(nameless, 0, "round {round}: no removed file is mapped");
        compare_all(&node, &written, 0);
        written.extend(fill(&node, &format!("b{round}/"), 1));
    }
    let newest = *written.last_key_value().unwrap().0;
    compare_all(&node, &written, newest);
    // After a restart all values are in files, except those of the last segment.
    let disk = disk.after_kill();
    let node = open(&disk).unwrap();
    assert!(disk.mapped().0.len() >= 2, "{:?}", disk.mapped());
    compare_all(&node, &written, newest);
}

#[test]
fn a_held_value_stays_readable_after_its_file_was_removed() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let written = fill(&node, "a", 1);
    let newest = *written.last_key_value().unwrap().0;
    let held: Vec<KeyValue> =
        written.values().map(|(key, _)| read(&node, key, newest).unwrap()).collect();
    let before = disk.mapped().0;
    run_checkpoint(&node);
    run_checkpoint(&node);
    let (names, nameless) = disk.mapped();
    assert!(before.iter().all(|name| !names.contains(name)), "{before:?} {names:?}");
    assert!(nameless > 0, "the values are still there");
    for (kv, (_, value)) in held.iter().zip(written.values()) {
        assert_eq!(Some(std::str::from_utf8(&kv.value).unwrap()), value.as_deref());
    }
    drop(held);
    assert_eq!(disk.mapped().1, 0);
}

#[test]
fn a_checkpoint_that_fails_leaves_the_values_where_they_are() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let written = fill(&node, "a", 1);
    run_checkpoint(&node);
    let before = disk.mapped();
    let mut all = written.clone();
    all.extend(fill(&node, "b", 1));
    disk.set_capacity(disk.used() + 100_000);
    run_checkpoint(&node);
    disk.repair();
    assert!(before.0.iter().all(|name| disk.mapped().0.contains(name)), "{before:?}");
    compare_all(&node, &all, 0);
}

#[test]
fn without_maps_values_stay_in_memory() {
    let disk = SimDisk::new();
    disk.map_nothing();
    let node = open(&disk).unwrap();
    let mut written = fill(&node, "a", 3);
    run_checkpoint(&node);
    written.extend(fill(&node, "b", 1));
    assert_eq!(disk.mapped(), (Vec::new(), 0));
    let newest = *written.last_key_value().unwrap().0;
    compare_all(&node, &written, newest);
    let copy = disk.copy();
    copy.map_nothing();
    compare_all(&open(&copy).unwrap(), &written, newest);
}

/// A value in a record is used only if the state agrees: entries of another leader may have
/// replaced it.
#[test]
fn a_segment_whose_entries_were_replaced_gives_no_value() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let written = fill(&node, "a", 1);
    drop(node);
    // Another history: the same keys and lengths, every second value differs.
    let mut state = State::default();
    for (number, (key, value)) in written.values().enumerate() {
        let value = value.clone().unwrap();
        let other = if number % 2 == 0 { value.to_uppercase() } else { value };
        state.apply(&put(key, &other), &mut Vec::new()).unwrap();
    }
    let state = RwLock::new(state);
    let disk = disk.copy();
    map_segment_values(&disk, 1, &state, &mut 0).unwrap();
    assert_eq!(disk.mapped().0, [LOG]);
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let found = state.read().range(&RangeRequest::new(all)).unwrap().kvs;
    assert_eq!(found.len(), written.len());
    for (number, (key, value)) in written.values().enumerate() {
        let value = value.clone().unwrap();
        let expected = if number % 2 == 0 { value.to_uppercase() } else { value };
        let kv = found.iter().find(|kv| kv.key == key.as_bytes()).unwrap();
        assert!(kv.value == expected.as_bytes(), "{key}: {:?}", kv.value);
    }
}

#[test]
fn a_damaged_segment_gives_no_value_from_there_on() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let written = fill(&node, "a", 1);
    drop(node);
    let mut state = State::default();
    for (key, value) in written.values() {
        state.apply(&put(key, value.as_ref().unwrap()), &mut Vec::new()).unwrap();
    }
    let (state, disk) = (RwLock::new(state), disk.copy());
    disk.edit(LOG, |content| content[100_000] ^= 1);
    let error = map_segment_values(&disk, 1, &state, &mut 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    assert!(error.to_string().contains(LOG), "{error}");
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let found = state.read().range(&RangeRequest::new(all)).unwrap().kvs;
    let right = |kv: &KeyValue| {
        written.values().any(|(key, value)| {
            key.as_bytes() == kv.key && value.as_ref().unwrap().as_bytes() == kv.value
        })
    };
    assert!(found.len() == written.len() && found.iter().all(right));
    assert!(map_segment_values(&disk, 77, &state, &mut 0).is_ok(), "one that is gone");
}

/// Data changed by the device must not get a new checksum.
#[test]
fn a_value_that_its_device_changed_is_not_written_anew() {
    let version = |value: &'static str, sum| Version {
        value: Bytes::from_static(value.as_bytes()),
        created: 2,
        modified: 2,
        version: 1,
        lease: 0,
        sub: 0,
        sum,
    };
    let write = |version| {
        let keys = [(Bytes::from_static(b"key"), vec![version])].into_iter();
        let leases = std::iter::empty();
        let state = State::import(2, 0, Vec::new(), ClusterData::default(), leases, keys);
        let description = CheckpointHeader::of(&state, Applied::default());
        let disk = SimDisk::new();
        let written =
            write_checkpoint(&disk, ClusterId([1; 16]), &RwLock::new(state), &description);
        (written, disk.list().unwrap())
    };
    let sum = crc32c::crc32c(b"as it was");
    assert_eq!(write(version("as it was", sum)).1, [checkpoint_name(0)]);
    let (written, names) = write(version("as it is ", sum));
    let error = written.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("key at revision 2"), "{error}");
    assert_eq!(names, [""; 0]);
}
