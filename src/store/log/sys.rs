//! Mappings of files, which need unsafe code.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use memmap2::{Mmap, UncheckedAdvice};
use parking_lot::Mutex;

/// Maximum of mapped bytes: on 32-bit boards address space is scarce.
const MAPPED_BYTES_MAX: usize =
    if cfg!(target_pointer_width = "32") { 512 * 1024 * 1024 } else { usize::MAX / 2 };

static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// All current mappings: one per full segment and checkpoint.
static MAPS: Mutex<Vec<Weak<Mmap>>> = Mutex::new(Vec::new());

/// Accounts for the mapped bytes.
struct Counted(usize);

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

struct Map {
    map: Arc<Mmap>,
    // Declared after the map: it counts until the map is gone.
    _counted: Counted,
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Maps a whole file. The mapping ends with the last slice of it, even if the file was removed.
/// Only for files that are never written or truncated again by any process.
///
/// # Errors
/// Errors of the file system, which may not support mappings; `OutOfMemory` beyond the maximum.
#[expect(unsafe_code, reason = "only the caller can know that a file stays as it is")]
pub(super) fn map(file: &File) -> io::Result<Bytes> {
    let size = usize::try_from(file.metadata()?.len())
        .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let before = MAPPED_BYTES.fetch_add(size, Relaxed);
    let counted = Counted(size);
    if before.saturating_add(size) > MAPPED_BYTES_MAX {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: the map is read only and its content never changes: it belongs to a full segment or a
    // checkpoint, which the store never writes or truncates again, and the lock of the directory
    // excludes other processes.
    let map = Arc::new(unsafe { Mmap::map(file)? });
    let mut maps = MAPS.lock();
    maps.retain(|map| map.strong_count() > 0);
    maps.push(Arc::downgrade(&map));
    Ok(Bytes::from_owner(Map { map, _counted: counted }))
}

/// Releases the resident pages of all mappings until they are read again (`MADV_DONTNEED`). The
/// content stays in the page cache, from which the kernel reclaims freely; mapped pages it reclaims
/// late.
#[expect(unsafe_code, reason = "only here it is known what is mapped, and how")]
pub fn advise_dontneed() {
    let maps: Vec<Arc<Mmap>> = MAPS.lock().iter().filter_map(Weak::upgrade).collect();
    for map in maps {
        // SAFETY: the map is shared and read only: its pages are those of the file and are read
        // again from there.
        let advised = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        if let Err(error) = advised {
            tracing::debug!(%error, "cannot release pages of a mapped file of the store");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Resident KiB of the mapping at this address (`/proc/self/smaps`).
    fn resident(bytes: &[u8]) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", bytes.as_ptr().addr());
        let map = maps.split_once(&begins).unwrap().1;
        let line = map.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn pages_that_were_read_are_let_go_of_and_come_back_as_they_were() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..1024 * 1024).map(|n: u32| (n % 251) as u8).collect();
        file.write_all(&content).unwrap();
        let bytes = map(&file).unwrap();
        assert_eq!(bytes, content);
        assert_eq!(resident(&bytes), 1024);
        advise_dontneed();
        assert_eq!(resident(&bytes), 0);
        assert_eq!(bytes, content);
    }
}
