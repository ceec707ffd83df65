//! Maps of files: the one place of the store that the compiler does not check.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use memmap2::{Mmap, UncheckedAdvice};
use parking_lot::Mutex;

/// Most bytes that are mapped at once: on boards of 32 bits addresses are scarce, elsewhere they are not.
const MAPPED_BYTES_MAX: usize =
    if cfg!(target_pointer_width = "32") { 512 * 1024 * 1024 } else { usize::MAX / 2 };

static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// All maps that are there: as many as there are full segments and checkpoints.
static MAPS: Mutex<Vec<Weak<Mmap>>> = Mutex::new(Vec::new());

/// Counts what is mapped until it no longer is.
struct Counted(usize);

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

struct Map {
    map: Arc<Mmap>,
    // Behind the map: it counts for as long as that is there.
    _counted: Counted,
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// All of a file as bytes that are read where they lie. The map goes with the last slice of it, whatever became of the
/// file's name. Only for a file that is never written or cut again, by anybody.
///
/// # Errors
/// The file system's, which may know no maps; `OutOfMemory` where no more addresses are to be used.
#[expect(unsafe_code, reason = "only the caller can know that a file stays as it is")]
pub(super) fn map(file: &File) -> io::Result<Bytes> {
    let size = usize::try_from(file.metadata()?.len())
        .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let before = MAPPED_BYTES.fetch_add(size, Relaxed);
    let counted = Counted(size);
    if before.saturating_add(size) > MAPPED_BYTES_MAX {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: the map is read only, and what it shows does not change: it is of a full segment or of a checkpoint, which the
    // store never writes or cuts again, and the directory's lock keeps other processes of the store out.
    let map = Arc::new(unsafe { Mmap::map(file)? });
    let mut maps = MAPS.lock();
    maps.retain(|map| map.strong_count() > 0);
    maps.push(Arc::downgrade(&map));
    Ok(Bytes::from_owner(Map { map, _counted: counted }))
}

/// Has no page of any map count as this process's memory until it is read again. What was read stays in the page cache, which
/// the kernel gives to whom it wants; pages that are mapped it takes away late.
#[expect(unsafe_code, reason = "only here it is known what is mapped, and how")]
pub fn advise_dontneed() {
    let maps: Vec<Arc<Mmap>> = MAPS.lock().iter().filter_map(Weak::upgrade).collect();
    for map in maps {
        // SAFETY: the map is shared and read only: its pages are the file's, and come back from there as they were.
        let advised = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        if let Err(error) = advised {
            tracing::debug!(%error, "pages of a file of the store are kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// KiB of the map that holds this address that are in memory (`/proc/self/smaps`).
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
