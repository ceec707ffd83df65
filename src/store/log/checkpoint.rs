//! Checkpoints: the whole state in one file, written under a temporary name, synced and renamed.

use std::io;

use bytes::Bytes;
use parking_lot::RwLock;

use super::files::{Disk, DiskFile};
use super::record::{CHECKPOINT_MAGIC, FILE_HEADER, HEAD, Head, Kind};
use super::{
    Applied, OpenError, StoredMembership, behind, decode_alarm, decode_id, decode_membership,
    decode_profile, encode_alarm, encode_id, encode_membership, encode_profile, record,
};
use crate::contract::ClusterId;
use crate::encoding::{Malformed, Put, Reader};
use crate::mvcc::{ClusterData, Gap, Import, Source, State, Version};

/// Bytes of keys and values exported from the state per lock.
const BYTES_PER_LOCK: usize = 128 * 1024;
/// Size of the write buffer in bytes.
const WRITE_BYTES: usize = 1024 * 1024;

/// File name of the checkpoint of the state before entry `index`.
pub(crate) fn checkpoint_name(index: u64) -> String {
    format!("checkpoint-{index:016x}")
}

/// Content of a checkpoint besides the keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CheckpointHeader {
    /// Last entry included, and the membership after it.
    pub(crate) applied: Applied,
    /// Revision of the state.
    pub(crate) revision: i64,
    /// Compacted revision.
    pub(crate) compacted: i64,
    /// Revisions lost to unclean stops.
    pub(crate) gaps: Vec<Gap>,
    /// Leases: id and granted seconds.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Alarms and profiles.
    pub(crate) cluster_data: ClusterData,
}

impl CheckpointHeader {
    /// The header for a state after `applied`.
    pub(crate) fn of(state: &State, applied: Applied) -> Self {
        Self {
            applied,
            revision: state.revision(),
            compacted: state.compacted(),
            gaps: state.gaps().to_vec(),
            leases: state.leases().collect(),
            cluster_data: state.cluster_data().clone(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_id(self.applied.id, out);
        encode_id(*self.applied.membership.log_id(), out);
        encode_membership(self.applied.membership.membership(), out);
        out.put_i64(self.revision);
        out.put_i64(self.compacted);
        out.put_u64(self.gaps.len() as u64);
        for gap in &self.gaps {
            out.put_i64(gap.from);
            out.put_i64(gap.to);
        }
        out.put_u64(self.leases.len() as u64);
        for (id, ttl) in &self.leases {
            out.put_i64(*id);
            out.put_i64(*ttl);
        }
        if self.cluster_data == ClusterData::default() {
            // Nothing is appended, as in files from before these fields existed.
            return;
        }
        out.put_u64(self.cluster_data.alarms.len() as u64);
        self.cluster_data
            .alarms
            .iter()
            .for_each(|(alarm, member)| encode_alarm(*member, *alarm, out));
        out.put_u64(self.cluster_data.profiles.len() as u64);
        for (member, profile) in &self.cluster_data.profiles {
            encode_profile(*member, profile, out);
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let id = decode_id(&mut reader)?;
        let since = decode_id(&mut reader)?;
        let membership = StoredMembership::new(since, decode_membership(&mut reader)?);
        let mut this = Self {
            applied: Applied { id, membership },
            revision: reader.i64()?,
            compacted: reader.i64()?,
            ..Self::default()
        };
        for _ in 0..reader.u64()? {
            this.gaps.push(Gap { from: reader.i64()?, to: reader.i64()? });
        }
        for _ in 0..reader.u64()? {
            this.leases.push((reader.i64()?, reader.i64()?));
        }
        if reader.end().is_err() {
            for _ in 0..reader.u64()? {
                let (member, alarm) = decode_alarm(&mut reader)?;
                this.cluster_data.alarms.insert((alarm, member));
            }
            for _ in 0..reader.u64()? {
                let (member, profile) = decode_profile(&mut reader)?;
                this.cluster_data.profiles.insert(member, profile);
            }
        }
        reader.end().map(|()| this)
    }
}

fn encode_key(key: &Bytes, versions: &[Version], out: &mut Vec<u8>) {
    out.put_bytes(key);
    out.put_u64(versions.len() as u64);
    for version in versions {
        out.put_i64(version.created);
        out.put_i64(version.modified);
        if version.sub == 0 {
            out.put_i64(version.version);
        } else {
            // A negative number announces a sub-revision.
            out.put_i64(-1 - version.version);
            out.put_u64(u64::from(version.sub));
        }
        out.put_i64(version.lease);
        out.put_bytes(&version.value);
    }
}

/// The keys of a record with their versions; keys and values are slices of it.
pub(super) fn decode_keys(payload: &Bytes) -> Result<Vec<(Bytes, Vec<Version>)>, Malformed> {
    let mut reader = Reader::sharing(payload, payload);
    let mut keys = Vec::new();
    while reader.end().is_err() {
        keys.push(decode_key(&mut reader)?);
    }
    Ok(keys)
}

fn decode_key(reader: &mut Reader<'_>) -> Result<(Bytes, Vec<Version>), Malformed> {
    let (key, count) = (reader.bytes()?, reader.u64()?);
    // Nearly always one; a damaged length must not cause a large allocation.
    let mut versions = Vec::with_capacity(usize::from(count > 0));
    for _ in 0..count {
        let (created, modified, version) = (reader.i64()?, reader.i64()?, reader.i64()?);
        let (version, sub) = if version < 0 {
            (-1 - version, u32::try_from(reader.u64()?).or_else(|_| reader.malformed())?)
        } else {
            (version, 0)
        };
        let (lease, value) = (reader.i64()?, reader.bytes()?);
        versions.push(Version { created, modified, version, lease, value, sub, sum: 0 });
    }
    Ok((key, versions))
}

/// Appends records to a file in large writes.
struct Output {
    file: Box<dyn DiskFile>,
    offset: u64,
    chain: u32,
    buffer: Vec<u8>,
}

impl Output {
    fn flush(&mut self) -> io::Result<()> {
        self.chain = record::seal(&mut self.buffer, self.chain, 0);
        self.file.write_at(self.offset, &self.buffer)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes the checkpoint of a pinned state and returns its size. After an error no file has the
/// final name.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn write(
    disk: &dyn Disk,
    cluster: ClusterId,
    state: &RwLock<State>,
    description: &CheckpointHeader,
) -> io::Result<u64> {
    let temporary = "checkpoint.tmp";
    let result = write_to(disk, cluster, state, description, temporary);
    if result.is_err() {
        // The first error counts; the next start removes the file too.
        let _ = disk.remove(temporary);
    }
    result
}

fn write_to(
    disk: &dyn Disk,
    cluster: ClusterId,
    state: &RwLock<State>,
    description: &CheckpointHeader,
    temporary: &str,
) -> io::Result<u64> {
    let header =
        record::file_header(CHECKPOINT_MAGIC, cluster, behind(description.applied.id.as_ref()));
    let mut file = disk.create(temporary, 0)?;
    file.write_at(0, &header)?;
    let mut out = Output {
        file,
        offset: FILE_HEADER as u64,
        chain: record::header_chain(&header),
        buffer: Vec::new(),
    };
    record::append(&mut out.buffer, Kind::Head, |out| description.encode(out));
    let mut after: Option<Bytes> = None;
    let mut total = 0_u64;
    loop {
        let keys = state.read().export(after.as_ref(), description.revision, BYTES_PER_LOCK);
        let Some((last, _)) = keys.last() else { break };
        after = Some(last.clone());
        for (key, versions) in &keys {
            versions.iter().try_for_each(|version| version.check(key))?;
        }
        record::append(&mut out.buffer, Kind::Keys, |out| {
            for (key, versions) in keys.iter().filter(|(_, versions)| !versions.is_empty()) {
                encode_key(key, versions, out);
                total += 1;
            }
        });
        if out.buffer.len() >= WRITE_BYTES {
            out.flush()?;
        }
    }
    record::append(&mut out.buffer, Kind::End, |out| out.put_u64(total));
    out.flush()?;
    out.file.sync()?;
    disk.rename(temporary, &checkpoint_name(behind(description.applied.id.as_ref())))?;
    disk.sync()?;
    Ok(out.offset)
}

/// Reads the records of a checkpoint one by one.
struct Input<'a> {
    name: &'a str,
    file: Box<dyn DiskFile>,
    /// The mapped file, if it can be mapped: values stay in it.
    map: Option<Bytes>,
    offset: u64,
    chain: u32,
    payload: Bytes,
    /// Position of the payload in the file.
    payload_at: u64,
}

impl Input<'_> {
    fn corrupt(&self, what: &str) -> OpenError {
        OpenError::Corrupt {
            file: self.name.to_owned(),
            offset: self.offset,
            what: what.to_owned(),
        }
    }

    fn next(&mut self) -> Result<Kind, OpenError> {
        let mut head = [0; HEAD];
        let read =
            self.file.read_at(self.offset, &mut head).map_err(OpenError::io("read", self.name))?;
        let head = Head::parse(head.get(..read).unwrap_or_default())
            .filter(|head| head.previous == self.chain);
        let head =
            head.ok_or_else(|| self.corrupt("a record's head does not match its checksum"))?;
        // Reuses the allocated and initialized memory.
        let mut payload = std::mem::take(&mut self.payload).try_into_mut().unwrap_or_default();
        payload.resize(head.length, 0);
        self.payload_at = self.offset + HEAD as u64;
        let read = self
            .file
            .read_at(self.payload_at, &mut payload)
            .map_err(OpenError::io("read", self.name))?;
        if read != head.length || !head.matches(&payload) {
            return Err(self.corrupt("a record does not match its checksum"));
        }
        self.payload = payload.freeze();
        self.offset = (self.offset + (HEAD + head.length) as u64).next_multiple_of(8);
        self.chain = head.checksum;
        Ok(head.kind)
    }

    fn keys(&self, import: &mut Import) -> Result<(), OpenError> {
        let keys = decode_keys(&self.payload).map_err(|e| self.corrupt(&e.to_string()))?;
        let source = self.source();
        for (key, mut versions) in keys {
            for version in &mut versions {
                match source.as_ref().and_then(|source| source.find(&version.value)) {
                    Some(stored) => (version.value, version.sum) = (stored.value, stored.sum),
                    None => version.value = Bytes::copy_from_slice(&version.value),
                }
            }
            import.add(&key, versions);
        }
        Ok(())
    }

    /// The mapping of the payload's values.
    fn source(&self) -> Option<Source> {
        let at = usize::try_from(self.payload_at).ok()?;
        let end = at.checked_add(self.payload.len())?;
        let map = self.map.as_ref().filter(|map| end <= map.len())?;
        Source::new(self.payload.clone(), map.slice(at..end))
    }
}

/// Name of a checkpoint that is being received from another member; a start removes leftovers.
pub(crate) const INCOMING: &str = "incoming.tmp";

/// Maps a file that is never written again; `None` if mapping fails, then its values are kept in
/// memory.
pub(super) fn map(file: &dyn DiskFile, name: &str) -> Option<Bytes> {
    let map = file.map();
    map.inspect_err(
        |error| tracing::debug!(name, %error, "cannot map the file, its values stay in memory"),
    )
    .ok()
}

/// Reads and verifies a checkpoint: its cluster, its header and the state.
///
/// # Errors
/// [`OpenError::Corrupt`], [`OpenError::NewerFormat`], [`OpenError::Io`].
pub(crate) fn read(
    disk: &dyn Disk,
    name: &str,
) -> Result<(ClusterId, CheckpointHeader, State, u64), OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    let mut header = [0; FILE_HEADER];
    let got = file.read_at(0, &mut header).map_err(OpenError::io("read", name))?;
    let (cluster, index, chain) =
        record::read_file_header(name, CHECKPOINT_MAGIC, header.get(..got).unwrap_or_default())?;
    let map = map(file.as_ref(), name);
    let (offset, payload) = (FILE_HEADER as u64, Bytes::new());
    let mut input = Input { name, file, map, offset, chain, payload, payload_at: 0 };
    if input.next()? != Kind::Head {
        return Err(input.corrupt("the first record is not the header"));
    }
    let description =
        CheckpointHeader::decode(&input.payload).map_err(|e| input.corrupt(&e.to_string()))?;
    let named = name == INCOMING || checkpoint_name(index) == name;
    if behind(description.applied.id.as_ref()) != index || !named {
        return Err(input.corrupt("its name, file header and header record name different entries"));
    }
    let d = &description;
    let (gaps, cluster_data, leases) =
        (d.gaps.clone(), d.cluster_data.clone(), d.leases.iter().copied());
    let mut import = Import::new(d.revision, d.compacted, gaps, cluster_data, leases);
    loop {
        match input.next()? {
            Kind::Keys => input.keys(&mut import)?,
            Kind::End if Reader::new(&input.payload).u64() == Ok(import.len() as u64) => break,
            _ => return Err(input.corrupt("the number of keys in the last record is wrong")),
        }
    }
    Ok((cluster, description, import.finish(), input.offset))
}
