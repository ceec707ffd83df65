//! Recovery: the newest checkpoint, then the log after it. Everything is verified before anything
//! is changed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sorting::CompactSort as _;

use super::checkpoint::CheckpointHeader;
use super::entries::View;
use super::files::{Disk, read_all};
use super::record::{FILE_HEADER, Kind, LOG_MAGIC, Record, Scan, segment_name};
use super::replay::Replay;
use super::segments::{Log, Meta, Segment};
use super::writer::begin_log;
use super::{Applied, ExpectedStore, OpenError, SEGMENT_BYTES, Vote, behind, checkpoint, record};
use crate::contract::ClusterId;
use crate::mvcc::{Source, State};

/// Content of a directory.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The state after the newest entry known to be committed.
    pub(crate) state: State,
    pub(crate) applied: Applied,
    pub(crate) log: Log,
    /// The log in memory, most of all the entries that are not applied.
    pub(crate) view: View,
    /// Revisions before this one may have been handed out and lost; 0 after a clean stop.
    pub(crate) ceiling: i64,
    /// Bytes of log after the checkpoint.
    pub(crate) log_bytes: u64,
    /// Position, membership and size of the checkpoint.
    pub(crate) checkpoint: Option<(Applied, u64)>,
}

/// A segment file; its content is read in turn, because a log can be as large as the state.
struct SegmentFile {
    sequence: u64,
    header: Vec<u8>,
    /// No record was ever written.
    unused: bool,
}

impl SegmentFile {
    fn name(&self) -> String {
        segment_name(self.sequence)
    }
}

fn numbered(names: &[String], prefix: &str) -> Vec<u64> {
    let number = |name: &String| {
        let digits = name.strip_prefix(prefix).filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok()
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.compact_sort();
    numbers
}

fn check_cluster(
    file: &str,
    found: ClusterId,
    expected: &mut Option<ClusterId>,
) -> Result<(), OpenError> {
    match *expected.get_or_insert(found) {
        expected if expected != found => {
            Err(OpenError::ForeignCluster { file: file.to_owned(), found, expected })
        }
        _ => Ok(()),
    }
}

/// The owner of an empty directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The first member of its cluster.
    First,
    /// A member that joins a cluster.
    Joining,
}

/// The id of a cluster's first member.
pub(crate) fn first_member(cluster: ClusterId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = cluster.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1)
}

/// Reads the directory and prepares it for appending; creates the log if the directory is empty.
///
/// # Errors
/// See [`OpenError`]; the directory is unchanged then.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    cluster: Option<ClusterId>,
    identity: Identity,
) -> Result<Recovered, OpenError> {
    recover_expecting(disk, cluster, identity, &ExpectedStore::default())
}

/// As [`recover`], with an expectation of the content.
///
/// # Errors
/// See [`OpenError`]; the directory is unchanged then.
pub(crate) fn recover_expecting(
    disk: &Arc<dyn Disk>,
    cluster: Option<ClusterId>,
    identity: Identity,
    known: &ExpectedStore,
) -> Result<Recovered, OpenError> {
    let names = disk.list().map_err(OpenError::io("list", "the files"))?;
    let mut expected = cluster;
    let (mut replay, checkpoint) = load_checkpoint(disk, &names, &mut expected)?;
    let sequences = numbered(&names, "log-");
    if sequences.is_empty() {
        if let Some(newest) = checkpoint {
            return Err(OpenError::Missing { file: format!("the log behind {}", newest.name()) });
        }
        known.check_new("the store directory holds no log")?;
        return create(disk, expected.unwrap_or_else(ClusterId::random), identity);
    }
    let Segments { files, mut unused } = find_segments(disk, sequences)?;
    let mut tail = Tail::default();
    replay_all(disk, &files, &mut expected, &mut replay, &mut tail, known)?;
    check_owner(&names, &replay, checkpoint.as_ref(), known)?;
    // From here on the directory is changed.
    unused.extend(
        numbered(&names, "checkpoint-")
            .into_iter()
            .filter(|index| checkpoint.as_ref().is_none_or(|newest| *index < newest.index))
            .map(checkpoint::checkpoint_name)
            .chain(names.iter().filter(|name| name.ends_with(".tmp")).cloned()),
    );
    unused.iter().try_for_each(|name| disk.remove(name).map_err(OpenError::io("remove", name)))?;
    let Some(cluster) = expected.filter(|_| !files.is_empty()) else {
        return create(disk, expected.unwrap_or_else(ClusterId::random), identity);
    };
    let mut meta = replay.meta.clone();
    meta.next = replay.next;
    meta.committed = behind(replay.applied.id.as_ref());
    let ceiling = if replay.clean { 0 } else { meta.ceiling };
    // The ceiling stays until the revisions have advanced past it, in case this start is
    // interrupted.
    meta.ceiling = ceiling;
    let mut log = continue_log(disk, cluster, files, &tail, meta, known.recorded)?;
    if log.meta.node == 0 {
        begin(&mut log, identity)?;
    }
    let mut view = replay.view();
    view.purged = checkpoint.as_ref().and_then(|newest| newest.applied.id);
    Ok(Recovered {
        state: replay.state,
        applied: replay.applied,
        log,
        view,
        ceiling,
        log_bytes: replay.log_bytes,
        checkpoint: checkpoint.map(|newest| (newest.applied, newest.bytes)),
    })
}

/// The segments of a log.
#[derive(Default)]
struct Segments {
    /// Consecutive segments, oldest first.
    files: VecDeque<SegmentFile>,
    /// Names of files to remove.
    unused: Vec<String>,
}

/// Finds the consecutive segments of the log.
fn find_segments(disk: &Arc<dyn Disk>, sequences: Vec<u64>) -> Result<Segments, OpenError> {
    let Segments { mut files, mut unused } = Segments::default();
    for sequence in sequences {
        let found = find_segment(disk, sequence)?;
        if found.unused
            && record::read_file_header(&found.name(), LOG_MAGIC, &found.header)
                .is_err_and(|e| is_damage(&e))
        {
            // The process ended while it created the file: it was never used.
            unused.push(found.name());
            continue;
        }
        if files.back().is_some_and(|before| before.sequence + 1 != sequence) {
            // Segments removed after a checkpoint can reappear after a power loss. The replay
            // detects missing entries.
            unused.extend(files.drain(..).map(|file| file.name()));
        }
        files.push_back(found);
    }
    Ok(Segments { files, unused })
}

/// Checks that the log has an owner, and that it is the expected one.
fn check_owner(
    names: &[String],
    replay: &Replay,
    checkpoint: Option<&Newest>,
    known: &ExpectedStore,
) -> Result<(), OpenError> {
    if replay.meta.node != 0 {
        return known.check_member(replay.meta.node);
    }
    // The first record of a log identifies its owner and is durable before anything else: without
    // it there is no log.
    let name = numbered(names, "log-").last().copied().map_or_else(String::new, segment_name);
    if let Some(newest) = checkpoint {
        let file = format!("content of {name} after {}", newest.name());
        return Err(OpenError::Missing { file });
    }
    known.check_new(format!("{name} holds no record"))
}

fn is_damage(error: &OpenError) -> bool {
    matches!(error, OpenError::Corrupt { .. })
}

fn create(
    disk: &Arc<dyn Disk>,
    cluster: ClusterId,
    identity: Identity,
) -> Result<Recovered, OpenError> {
    let mut log = Log::create(Arc::clone(disk), cluster)?;
    begin(&mut log, identity)?;
    Ok(Recovered {
        state: State::default(),
        applied: Applied::default(),
        log,
        view: View::default(),
        ceiling: 0,
        log_bytes: 0,
        checkpoint: None,
    })
}

/// Writes the owner of the log.
fn begin(log: &mut Log, identity: Identity) -> Result<(), OpenError> {
    let first = first_member(log.cluster());
    let mut node = first;
    while identity == Identity::Joining && (node == first || node == 0) {
        node = base::clock::random_u64();
    }
    begin_log(log, Meta { node, ..Meta::default() })
}

/// Starts the log of a cluster's first member after a checkpoint whose entries are all its own, in
/// the first term.
///
/// # Errors
/// [`OpenError::Io`].
pub(crate) fn begin_at(
    disk: &Arc<dyn Disk>,
    cluster: ClusterId,
    applied: &Applied,
) -> Result<(), OpenError> {
    let (node, next) = (first_member(cluster), behind(applied.id.as_ref()));
    let vote = Some(Vote::new_committed(1, node));
    let mut log = Log::create(Arc::clone(disk), cluster)?;
    begin_log(&mut log, Meta { node, vote, next, committed: next, ceiling: 0 })
}

/// The newest checkpoint.
struct Newest {
    index: u64,
    applied: Applied,
    bytes: u64,
}

impl Newest {
    fn name(&self) -> String {
        checkpoint::checkpoint_name(self.index)
    }
}

fn load_checkpoint(
    disk: &Arc<dyn Disk>,
    names: &[String],
    expected: &mut Option<ClusterId>,
) -> Result<(Replay, Option<Newest>), OpenError> {
    let mut replay = Replay::default();
    let Some(index) = numbered(names, "checkpoint-").pop() else { return Ok((replay, None)) };
    let name = checkpoint::checkpoint_name(index);
    let (cluster, description, state, bytes) = checkpoint::read(disk.as_ref(), &name)?;
    check_cluster(&name, cluster, expected)?;
    let CheckpointHeader { applied, .. } = description;
    replay.checkpoint = behind(applied.id.as_ref());
    replay.next = replay.checkpoint;
    (replay.state, replay.applied) = (state, applied.clone());
    Ok((replay, Some(Newest { index, applied, bytes })))
}

/// Examines a segment without keeping its content.
fn find_segment(disk: &Arc<dyn Disk>, sequence: u64) -> Result<SegmentFile, OpenError> {
    let name = segment_name(sequence);
    let failed = |e| OpenError::io("read", &name)(e);
    let file = disk.open(&name).map_err(OpenError::io("open", &name))?;
    let mut header = vec![0; FILE_HEADER];
    let read = file.read_at(0, &mut header).map_err(failed)?;
    header.truncate(read);
    let mut chunk = vec![0; 64 * 1024];
    let mut at = FILE_HEADER as u64;
    loop {
        let read = file.read_at(at, &mut chunk).map_err(failed)?;
        let bytes = chunk.get(..read).unwrap_or_default();
        if read == 0 || !record::is_zero(bytes) {
            return Ok(SegmentFile { sequence, header, unused: read == 0 });
        }
        at += read as u64;
    }
}

fn read_segment(
    disk: &Arc<dyn Disk>,
    name: &str,
    mut buffer: BytesMut,
    full: bool,
) -> Result<(Bytes, Option<Source>), OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    read_all(file.as_ref(), &mut buffer).map_err(OpenError::io("read", name))?;
    let content = buffer.freeze();
    let map = if full { checkpoint::map(file.as_ref(), name) } else { None };
    let source = map.and_then(|map| Source::new(content.clone(), map));
    Ok((content, source))
}

/// The end of the log: the index in `files`, and the scan of that segment.
#[derive(Default)]
struct Tail {
    position: usize,
    end: usize,
    chain: u32,
    /// Content after the end, never acknowledged.
    torn: Vec<u8>,
    /// Final checksum of the previous segment.
    before: Option<u32>,
    /// Index after the last entry of each segment that was read.
    behind: Vec<u64>,
}

fn replay_all(
    disk: &Arc<dyn Disk>,
    files: &VecDeque<SegmentFile>,
    expected: &mut Option<ClusterId>,
    replay: &mut Replay,
    tail: &mut Tail,
    known: &ExpectedStore,
) -> Result<(), OpenError> {
    let used = files.iter().rposition(|file| !file.unused).unwrap_or(0);
    let newest = files.get(used).filter(|file| !file.unused).map_or(0, |file| file.sequence);
    if newest > 0 {
        known.check_newest(newest)?;
    }
    let mut before: Option<u32> = None;
    let mut buffer = BytesMut::new();
    for (position, file) in files.iter().enumerate() {
        let name = file.name();
        let (cluster, sequence, chain) = record::read_file_header(&name, LOG_MAGIC, &file.header)?;
        check_cluster(&name, cluster, expected)?;
        if sequence != file.sequence {
            let what = format!(
                "its header names sequence {}: the file was renamed",
                segment_name(sequence)
            );
            return Err(OpenError::Corrupt { file: name, offset: 32, what });
        }
        if position > used {
            break;
        }
        let corrupt = |(offset, what)| OpenError::Corrupt { file: name.clone(), offset, what };
        // Segments after the last used one are not written any more.
        let (content, source) = read_segment(disk, &name, buffer, position < used)?;
        let scan: Scan<'_> = record::scan(&content, chain, position == used).map_err(corrupt)?;
        check_joint(&name, scan.records.first(), before)?;
        known.check_segment(sequence, &content, &scan, position == used)?;
        replay.behind = 0;
        replay.state.replay_from(source);
        for record in &scan.records {
            replay.record(sequence, &content, record)?;
        }
        replay.state.replay_from(None);
        let torn = content.get(scan.end..scan.end + scan.torn).unwrap_or_default().to_vec();
        tail.behind.push(replay.behind);
        let behind = std::mem::take(&mut tail.behind);
        *tail = Tail { position, end: scan.end, chain: scan.chain, torn, before, behind };
        before = Some(scan.chain);
        // Reuses the allocated memory; entries that are not applied yet may still hold it.
        buffer = content.try_into_mut().unwrap_or_default();
    }
    Ok(())
}

/// Checks that every segment starts with a record of how the previous one ended.
fn check_joint(
    name: &str,
    first: Option<&Record<'_>>,
    ended: Option<u32>,
) -> Result<(), OpenError> {
    let (Some(first), Some(ended)) = (first, ended) else { return Ok(()) };
    match (first.kind == Kind::Meta).then(|| Meta::decode(first.payload)) {
        Some(Ok((before, _))) if before == ended => Ok(()),
        _ => Err(OpenError::Corrupt {
            file: name.to_owned(),
            offset: first.offset as u64,
            what: "it does not continue the previous segment, whose last records are missing"
                .to_owned(),
        }),
    }
}

fn continue_log(
    disk: &Arc<dyn Disk>,
    cluster: ClusterId,
    mut files: VecDeque<SegmentFile>,
    tail: &Tail,
    meta: Meta,
    full_size: bool,
) -> Result<Log, OpenError> {
    let unused = files.split_off(tail.position + 1);
    let missing = || OpenError::Missing { file: "the log".to_owned() };
    let last = files.pop_back().ok_or_else(missing)?;
    let name = last.name();
    let mut file = disk.open(&name).map_err(OpenError::io("open", &name))?;
    if !tail.torn.is_empty() {
        tracing::warn!(
            file = name,
            offset = tail.end,
            bytes = tail.torn.len(),
            "the end of the log is torn, truncating data that was never acknowledged"
        );
        let keep = disk.create("torn-tail", 0).and_then(|mut aside| {
            aside.write_at(0, &tail.torn)?;
            aside.sync()
        });
        if let Err(error) = keep {
            tracing::warn!(%error, "cannot keep a copy of the torn end in torn-tail");
        }
        let cut = file.cut(tail.end as u64, SEGMENT_BYTES).and_then(|()| file.sync());
        cut.map_err(OpenError::io("truncate the torn end of", &name))?;
    } else if full_size && file.size().is_ok_and(|size| size < SEGMENT_BYTES) {
        let extended = file.cut(tail.end as u64, SEGMENT_BYTES);
        extended.map_err(OpenError::io("extend", &name))?;
    }
    // Data of the previous process may still be in memory only.
    file.sync().map_err(OpenError::io("sync", &name))?;
    let offset = tail.end as u64;
    let behind = tail.behind.last().copied().unwrap_or(0);
    let mut current = Segment {
        sequence: last.sequence,
        file,
        offset,
        synced: offset,
        chain: tail.chain,
        behind,
    };
    if let Some(before) = tail.before.filter(|_| tail.end == FILE_HEADER) {
        // The segment was started, and nothing in it survived: its first record is written again.
        current.begin(&meta, before).map_err(OpenError::io("write", &name))?;
    }
    let mut next = None;
    for found in unused {
        let name = found.name();
        if found.sequence == last.sequence + 1 {
            let file = disk.open(&name).map_err(OpenError::io("open", &name))?;
            let (_, sequence, chain) = record::read_file_header(&name, LOG_MAGIC, &found.header)?;
            let start = FILE_HEADER as u64;
            next = Some(Segment { sequence, file, offset: start, synced: start, chain, behind: 0 });
        } else {
            disk.remove(&name).map_err(OpenError::io("remove", &name))?;
        }
    }
    let older = files.iter().map(|file| file.sequence).zip(tail.behind.iter().copied()).collect();
    Ok(Log::new(Arc::clone(disk), cluster, meta, older, current, next))
}
