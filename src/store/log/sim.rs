//! A simulated directory: unsynced writes and names may be lost or torn by sector, and any
//! operation can fail.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use super::files::{Disk, DiskFile};

const SECTOR: usize = 512;

/// A small seeded generator (splitmix64), for tests only.
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Default, Clone)]
struct File {
    durable: Vec<u8>,
    current: Vec<u8>,
    reserved: u64,
    /// The content of maps in use: while one exists, the file must not change.
    maps: Vec<Weak<Vec<u8>>>,
}

impl File {
    fn check_unmapped(&self) {
        let mapped = self.maps.iter().any(|map| map.strong_count() > 0);
        assert!(!mapped, "a file is changed while values are read from a map of it");
    }
}

/// A map of a file with its content at that time.
struct Map(Arc<Vec<u8>>);

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    next: u64,
    operations: u64,
    syncs: u64,
    /// The power is lost at this operation.
    power_cut_at: Option<u64>,
    /// This sync fails.
    fail_sync_at: Option<u64>,
    /// Capacity of the device in bytes.
    capacity: u64,
    /// Whether the file system cannot reserve space: a full device is detected by the write.
    lazy_space: bool,
    /// Maximum delay of a batch of the log, in milliseconds.
    latency: u64,
    /// Whether the file system does not support maps.
    mapless: bool,
}

/// A simulated directory; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk(Arc<Mutex<Inner>>);

impl SimDisk {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Inner { capacity: u64::MAX, ..Inner::default() })))
    }

    pub(crate) fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    pub(crate) fn has_power(&self) -> bool {
        let inner = self.0.lock();
        inner.power_cut_at.is_none_or(|at| inner.operations < at)
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    pub(crate) fn cut_power_at(&self, operation: u64) {
        self.0.lock().power_cut_at = Some(operation);
    }

    pub(crate) fn fail_sync_at(&self, sync: u64) {
        self.0.lock().fail_sync_at = Some(sync);
    }

    pub(crate) fn set_latency(&self, milliseconds: u64) {
        self.0.lock().latency = milliseconds;
    }

    /// Removes all pending faults.
    pub(crate) fn repair(&self) {
        let mut inner = self.0.lock();
        (inner.power_cut_at, inner.fail_sync_at) = (None, None);
        (inner.capacity, inner.latency) = (u64::MAX, 0);
    }

    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.0.lock().capacity = bytes;
    }

    pub(crate) fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Disables maps.
    pub(crate) fn map_nothing(&self) {
        self.0.lock().mapless = true;
    }

    /// Names of the mapped files, and the number of mapped files without a name.
    pub(crate) fn mapped(&self) -> (Vec<String>, usize) {
        let inner = self.0.lock();
        let mapped = |id: &u64| {
            let file = inner.files.get(id);
            file.is_some_and(|file| file.maps.iter().any(|map| map.strong_count() > 0))
        };
        let names = inner.names.iter().filter(|(_, id)| mapped(id)).map(|(name, _)| name.clone());
        let named: Vec<u64> = inner.names.values().copied().collect();
        let nameless = inner.files.keys().filter(|id| !named.contains(id) && mapped(id)).count();
        (names.collect(), nameless)
    }

    /// Disables reservation of space.
    pub(crate) fn reserve_nothing(&self) {
        self.0.lock().lazy_space = true;
    }

    /// The directory after a power loss: any unsynced sectors and names may have been written.
    pub(crate) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let inner = self.0.lock();
        let mut names = inner.durable_names.clone();
        // Names reach the disk in order; the number is random.
        if rng.chance(50) {
            names = inner.names.clone();
        }
        let mut files = BTreeMap::new();
        for id in names.values() {
            let Some(file) = inner.files.get(id) else { continue };
            let mut content = file.durable.clone();
            let all = rng.chance(25);
            let keep = rng.below(101);
            let length = if rng.chance(50) { file.current.len() } else { content.len() };
            content.resize(length, 0);
            for (at, sector) in file.current.chunks(SECTOR).enumerate() {
                let from = at * SECTOR;
                let differs = file.durable.get(from..(from + sector.len()).min(file.durable.len()))
                    != Some(sector);
                if differs && (all || rng.chance(keep)) {
                    for (offset, byte) in sector.iter().enumerate() {
                        if let Some(place) = content.get_mut(from + offset) {
                            *place = *byte;
                        }
                    }
                }
            }
            files.insert(
                *id,
                File {
                    durable: content.clone(),
                    current: content,
                    reserved: file.reserved,
                    maps: Vec::new(),
                },
            );
        }
        let next = inner.next;
        Self(Arc::new(Mutex::new(Inner {
            files,
            durable_names: names.clone(),
            names,
            next,
            capacity: u64::MAX,
            ..Inner::default()
        })))
    }

    /// The directory after a kill: written data exists, but unsynced data is still not durable.
    pub(crate) fn after_kill(&self) -> Self {
        let inner = self.0.lock();
        let unmapped = |file: &File| File { maps: Vec::new(), ..file.clone() };
        Self(Arc::new(Mutex::new(Inner {
            files: inner.files.iter().map(|(id, file)| (*id, unmapped(file))).collect(),
            durable_names: inner.durable_names.clone(),
            names: inner.names.clone(),
            next: inner.next,
            capacity: u64::MAX,
            ..Inner::default()
        })))
    }

    /// Changes the durable content of a file.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.0.lock();
        let id = inner.names[name];
        let file = inner.files.get_mut(&id).unwrap();
        edit(&mut file.current);
        file.durable = file.current.clone();
    }

    pub(super) fn content(&self, name: &str) -> Vec<u8> {
        let inner = self.0.lock();
        inner.files[&inner.names[name]].current.clone()
    }

    /// An independent copy.
    pub(crate) fn copy(&self) -> Self {
        self.after_power_cut_keeping_all()
    }

    fn after_power_cut_keeping_all(&self) -> Self {
        let inner = self.0.lock();
        let keep =
            |file: &File| File { durable: file.current.clone(), maps: Vec::new(), ..file.clone() };
        let files = inner.files.iter().map(|(id, file)| (*id, keep(file))).collect();
        let names = inner.names.clone();
        Self(Arc::new(Mutex::new(Inner {
            files,
            durable_names: names.clone(),
            names,
            next: inner.next,
            capacity: u64::MAX,
            ..Inner::default()
        })))
    }
}

impl Inner {
    fn used(&self) -> u64 {
        self.names
            .values()
            .filter_map(|id| self.files.get(id))
            .map(|f| f.reserved.max(f.current.len() as u64))
            .sum()
    }

    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.power_cut_at {
            Some(at) if self.operations >= at => Err(io::Error::other("the power is gone")),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.operation()?;
        self.syncs += 1;
        if self.fail_sync_at == Some(self.syncs) {
            Err(io::Error::other("input/output error"))
        } else {
            Ok(())
        }
    }

    fn id(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.0.lock();
        inner.operation()?;
        let size = if inner.lazy_space { 0 } else { size };
        if inner.used() + size > inner.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let id = inner.next;
        inner.next += 1;
        let zeros = vec![0; usize::try_from(size).unwrap()];
        let file =
            File { durable: zeros.clone(), current: zeros, reserved: size, maps: Vec::new() };
        inner.files.insert(id, file);
        inner.names.insert(name.to_owned(), id);
        Ok(Box::new(SimFile { disk: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let id = self.0.lock().id(name)?;
        Ok(Box::new(SimFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.operation()?;
        let id = inner.id(from)?;
        inner.names.remove(from);
        inner.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.operation()?;
        inner.names.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.0.lock();
        inner.sync()?;
        inner.durable_names = inner.names.clone();
        Ok(())
    }

    fn latency(&self) -> std::time::Duration {
        match self.0.lock().latency {
            0 => std::time::Duration::ZERO,
            most => std::time::Duration::from_millis(base::clock::random_u64() % (most + 1)),
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    id: u64,
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().files[&self.id].current.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let inner = self.disk.0.lock();
        let content = &inner.files[&self.id].current;
        let from = usize::try_from(offset).unwrap().min(content.len());
        let count = buffer.len().min(content.len() - from);
        buffer[..count].copy_from_slice(&content[from..from + count]);
        Ok(count)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.0.lock();
        let lost = inner.operation().is_err();
        if lost && inner.power_cut_at != Some(inner.operations) {
            return Err(io::Error::other("the power is gone"));
        }
        let from = usize::try_from(offset).unwrap();
        let (used, capacity) = (inner.used(), inner.capacity);
        let file = inner.files.get_mut(&self.id).unwrap();
        file.check_unmapped();
        let grows = ((from + data.len()) as u64)
            .saturating_sub(file.reserved.max(file.current.len() as u64));
        if used + grows > capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if file.current.len() < from + data.len() {
            file.current.resize(from + data.len(), 0);
        }
        // If the power is lost during the write, parts of it may have been written.
        file.current[from..from + data.len()].copy_from_slice(data);
        if lost { Err(io::Error::other("the power is gone")) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.disk.0.lock();
        inner.sync()?;
        let file = inner.files.get_mut(&self.id).unwrap();
        file.durable = file.current.clone();
        Ok(())
    }

    fn cut(&mut self, length: u64, size: u64) -> io::Result<()> {
        let mut inner = self.disk.0.lock();
        inner.operation()?;
        let lazy_space = inner.lazy_space;
        let file = inner.files.get_mut(&self.id).unwrap();
        file.check_unmapped();
        file.current.truncate(usize::try_from(length).unwrap());
        if !lazy_space {
            file.current.resize(usize::try_from(size.max(length)).unwrap(), 0);
        }
        Ok(())
    }

    fn map(&self) -> io::Result<Bytes> {
        let mut inner = self.disk.0.lock();
        if inner.mapless {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let file = inner.files.get_mut(&self.id).unwrap();
        let map = Arc::new(file.current.clone());
        file.maps.retain(|map| map.strong_count() > 0);
        file.maps.push(Arc::downgrade(&map));
        Ok(Bytes::from_owner(Map(map)))
    }
}
