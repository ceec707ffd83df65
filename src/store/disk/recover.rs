//! Recovery: the newest checkpoint, then the log behind it. Everything is checked before anything is changed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::checkpoint::{self, Description, decode_members};
use super::files::{Disk, read_all};
use super::log::{Log, Meta, Segment, segment_name};
use super::record::{self, FILE_HEADER, Kind, LOG_MAGIC, Record, Scan};
use super::{ClusterId, OpenError, SEGMENT_BYTES};
use crate::command::{Command, Malformed, Reader};
use crate::mvcc::State;

/// What a directory held.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) log: Log,
    /// Last entry applied.
    pub(crate) index: u64,
    /// Its term.
    pub(crate) term: u64,
    pub(crate) members: Vec<u64>,
    /// The log ended with a clean stop.
    pub(crate) clean: bool,
    /// Bytes of log behind the checkpoint.
    pub(crate) log_bytes: u64,
    /// Index and bytes of the checkpoint.
    pub(crate) checkpoint: Option<(u64, u64)>,
}

/// A segment's file as found; its content is read when it is its turn, for a log can be as large as the state.
struct Found {
    sequence: u64,
    header: Vec<u8>,
    /// No record was ever written.
    unused: bool,
}

impl Found {
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
    numbers.sort_unstable();
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

/// Where an entry stands and what it is.
pub(crate) fn decode_entry(payload: &[u8]) -> Result<(u64, u64, &[u8]), Malformed> {
    let mut reader = Reader::new(payload);
    let (term, index) = (reader.u64()?, reader.u64()?);
    Ok((term, index, reader.rest()))
}

/// The state while the log is replayed.
struct Replay {
    state: State,
    description: Description,
    clean: bool,
    log_bytes: u64,
}

impl Replay {
    /// Nothing is missing before entry `index`.
    fn check_next(&self, index: u64) -> Result<(), OpenError> {
        let next = self.description.index + 1;
        if index <= next {
            return Ok(());
        }
        Err(OpenError::Missing {
            file: format!("the part of the log from entry {next} to {}", index - 1),
        })
    }

    fn record(&mut self, file: &str, record: &Record<'_>) -> Result<(), OpenError> {
        let corrupt = |e: Malformed| OpenError::Corrupt {
            file: file.to_owned(),
            offset: record.offset as u64,
            what: format!("its checksum matches, but the record is {e}"),
        };
        self.clean = record.kind == Kind::CleanStop;
        match record.kind {
            Kind::CleanStop => return Ok(()),
            Kind::Meta => {
                let (_, meta) = Meta::decode(record.payload).map_err(corrupt)?;
                self.check_next(meta.index + 1)?;
                self.description.meta = meta;
                return Ok(());
            }
            Kind::Command | Kind::Blank | Kind::Members => {}
            Kind::Head | Kind::Keys | Kind::End => return Err(corrupt(Malformed { at: 0 })),
        }
        let (term, index, body) = decode_entry(record.payload).map_err(corrupt)?;
        if index <= self.description.index {
            return Ok(());
        }
        self.check_next(index)?;
        self.log_bytes += record.payload.len() as u64;
        (self.description.index, self.description.term) = (index, term);
        match record.kind {
            Kind::Members => {
                self.description.members =
                    decode_members(&mut Reader::new(body)).map_err(corrupt)?
            }
            Kind::Command => {
                let command = Command::decode(body).map_err(corrupt)?;
                // A refused command was refused then too, and has no effect now either.
                let _ = self.state.apply(&command, &mut Vec::new());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reads the directory and brings it to where it can be appended to; makes a new one when there is nothing in it.
///
/// # Errors
/// See [`OpenError`]; nothing was changed then.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    cluster: Option<ClusterId>,
    node: u64,
) -> Result<Recovered, OpenError> {
    let names = disk.list().map_err(OpenError::io("list", "the files"))?;
    let mut expected = cluster;
    let (mut replay, checkpoint) = load_checkpoint(disk, &names, &mut expected)?;
    let sequences = numbered(&names, "log-");
    if sequences.is_empty() {
        if let Some((index, _)) = checkpoint {
            return Err(OpenError::Missing { file: format!("the log behind entry {index}") });
        }
        return create(disk, expected.unwrap_or_else(ClusterId::random), node);
    }
    let mut files: VecDeque<Found> = VecDeque::new();
    let mut remove_first = Vec::new();
    for sequence in sequences {
        let found = find_segment(disk, sequence)?;
        if found.unused
            && record::read_file_header(&found.name(), LOG_MAGIC, &found.header)
                .is_err_and(|e| is_damage(&e))
        {
            // The process ended while it made the file: it was never used.
            remove_first.push(found.name());
            continue;
        }
        if files.back().is_some_and(|before| before.sequence + 1 != sequence) {
            // Removed behind a checkpoint, and some removals did not last. Whether entries are missing shows in the replay.
            remove_first.extend(files.drain(..).map(|file| file.name()));
        }
        files.push_back(found);
    }
    let mut tail = Tail::default();
    replay_all(disk, &files, &mut expected, &mut replay, &mut tail)?;
    // From here on the directory is changed.
    remove_first.extend(
        numbered(&names, "checkpoint-")
            .into_iter()
            .filter(|index| checkpoint.is_none_or(|(newest, _)| *index < newest))
            .map(checkpoint::checkpoint_name)
            .chain(names.iter().filter(|name| name.ends_with(".tmp")).cloned()),
    );
    remove_first
        .iter()
        .try_for_each(|name| disk.remove(name).map_err(OpenError::io("remove", name)))?;
    let Some(cluster) = expected.filter(|_| !files.is_empty()) else {
        return create(disk, expected.unwrap_or_else(ClusterId::random), node);
    };
    let mut log = continue_log(disk, cluster, files, &tail, replay.description.meta)?;
    if replay.description.index == 0 {
        return initialize(log, node);
    }
    log.meta.index = replay.description.index;
    Ok(Recovered {
        state: replay.state,
        log,
        index: replay.description.index,
        term: replay.description.term,
        members: replay.description.members,
        clean: replay.clean,
        log_bytes: replay.log_bytes,
        checkpoint,
    })
}

fn is_damage(error: &OpenError) -> bool {
    matches!(error, OpenError::Corrupt { .. })
}

fn create(disk: &Arc<dyn Disk>, cluster: ClusterId, node: u64) -> Result<Recovered, OpenError> {
    initialize(Log::create(Arc::clone(disk), cluster)?, node)
}

/// Makes an empty log that of a cluster of one.
fn initialize(mut log: Log, node: u64) -> Result<Recovered, OpenError> {
    log.meta = Meta { node, term: 1, vote: node, committed: true, index: 0, ceiling: 0 };
    log.stage_meta();
    log.stage(Kind::Members, |out| {
        encode_entry(1, 1, out);
        checkpoint::encode_members(&[node], out);
    });
    let failed = |e| OpenError::Io {
        action: "write",
        file: "the log".to_owned(),
        source: std::io::Error::other(format!("{e:?}")),
    };
    log.write(true).map_err(failed)?;
    log.meta.index = 1;
    let state = State::default();
    Ok(Recovered {
        state,
        log,
        index: 1,
        term: 1,
        members: vec![node],
        clean: true,
        log_bytes: 0,
        checkpoint: None,
    })
}

/// Appends an entry's place in the log; its body follows.
pub(crate) fn encode_entry(term: u64, index: u64, out: &mut Vec<u8>) {
    use crate::command::Put;
    out.put_u64(term);
    out.put_u64(index);
}

fn load_checkpoint(
    disk: &Arc<dyn Disk>,
    names: &[String],
    expected: &mut Option<ClusterId>,
) -> Result<(Replay, Option<(u64, u64)>), OpenError> {
    let mut replay = Replay {
        state: State::default(),
        description: Description::default(),
        clean: false,
        log_bytes: 0,
    };
    let Some(newest) = numbered(names, "checkpoint-").pop() else { return Ok((replay, None)) };
    let name = checkpoint::checkpoint_name(newest);
    let (cluster, description, state, bytes) = checkpoint::read(disk.as_ref(), &name)?;
    check_cluster(&name, cluster, expected)?;
    (replay.state, replay.description) = (state, description);
    Ok((replay, Some((newest, bytes))))
}

/// Looks at a segment without keeping its content.
fn find_segment(disk: &Arc<dyn Disk>, sequence: u64) -> Result<Found, OpenError> {
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
        if read == 0 || bytes.iter().any(|byte| *byte != 0) {
            return Ok(Found { sequence, header, unused: read == 0 });
        }
        at += read as u64;
    }
}

fn read_segment(disk: &Arc<dyn Disk>, name: &str) -> Result<Vec<u8>, OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    read_all(file.as_ref()).map_err(OpenError::io("read", name))
}

/// Where the log ends: the place in `files`, and how that segment was scanned.
#[derive(Default)]
struct Tail {
    position: usize,
    end: usize,
    chain: u32,
    /// What stands behind the end and was never acknowledged.
    torn: Vec<u8>,
    /// End of the chain of the segment before.
    before: Option<u32>,
}

fn replay_all(
    disk: &Arc<dyn Disk>,
    files: &VecDeque<Found>,
    expected: &mut Option<ClusterId>,
    replay: &mut Replay,
    tail: &mut Tail,
) -> Result<(), OpenError> {
    let used = files.iter().rposition(|file| !file.unused).unwrap_or(0);
    let mut before: Option<u32> = None;
    for (position, file) in files.iter().enumerate() {
        let name = file.name();
        let (cluster, sequence, chain) = record::read_file_header(&name, LOG_MAGIC, &file.header)?;
        check_cluster(&name, cluster, expected)?;
        if sequence != file.sequence {
            let what = format!("its header says {}, so it was renamed", segment_name(sequence));
            return Err(OpenError::Corrupt { file: name, offset: 32, what });
        }
        if position > used {
            break;
        }
        let corrupt = |(offset, what)| OpenError::Corrupt { file: name.clone(), offset, what };
        let content = read_segment(disk, &name)?;
        let scan: Scan<'_> = record::scan(&content, chain, position == used).map_err(corrupt)?;
        check_joint(&name, scan.records.first(), before)?;
        for record in &scan.records {
            replay.record(&name, record)?;
        }
        let torn = content.get(scan.end..scan.end + scan.torn).unwrap_or_default().to_vec();
        *tail = Tail { position, end: scan.end, chain: scan.chain, torn, before };
        before = Some(scan.chain);
    }
    Ok(())
}

/// Every segment begins with a record that says how the one before ended.
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
            what:
                "it does not follow the end of the segment before, whose last records are missing"
                    .to_owned(),
        }),
    }
}

fn continue_log(
    disk: &Arc<dyn Disk>,
    cluster: ClusterId,
    mut files: VecDeque<Found>,
    tail: &Tail,
    meta: Meta,
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
            "the end of the log is torn: cut off what was never acknowledged"
        );
        let keep = disk.create("torn-tail", 0).and_then(|mut aside| {
            aside.write_at(0, &tail.torn)?;
            aside.sync()
        });
        if let Err(error) = keep {
            tracing::warn!(%error, "cannot keep a copy of the torn end in torn-tail");
        }
        let cut = file.cut(tail.end as u64, SEGMENT_BYTES).and_then(|()| file.sync());
        cut.map_err(OpenError::io("cut the torn end of", &name))?;
    }
    // What the last process wrote may still be only in memory.
    file.sync().map_err(OpenError::io("sync", &name))?;
    let offset = tail.end as u64;
    let mut current =
        Segment { sequence: last.sequence, file, offset, synced: offset, chain: tail.chain };
    if let Some(before) = tail.before.filter(|_| tail.end == FILE_HEADER) {
        // The segment had been begun, and nothing of it lasted: its first record is written again.
        current.begin(&meta, before).map_err(OpenError::io("write", &name))?;
    }
    let mut next = None;
    for found in unused {
        let name = found.name();
        if found.sequence == last.sequence + 1 {
            let file = disk.open(&name).map_err(OpenError::io("open", &name))?;
            let (_, sequence, chain) = record::read_file_header(&name, LOG_MAGIC, &found.header)?;
            let start = FILE_HEADER as u64;
            next = Some(Segment { sequence, file, offset: start, synced: start, chain });
        } else {
            disk.remove(&name).map_err(OpenError::io("remove", &name))?;
        }
    }
    let older = files.iter().map(|file| file.sequence).collect();
    Ok(Log::new(Arc::clone(disk), cluster, meta, older, current, next))
}
