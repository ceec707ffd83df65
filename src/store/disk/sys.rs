//! Maps of files: the one place of the store that the compiler does not check.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use memmap2::Mmap;

/// Most bytes that are mapped at once: on boards of 32 bits addresses are scarce, elsewhere they are not.
const MAPPED_BYTES_MAX: usize =
    if cfg!(target_pointer_width = "32") { 512 * 1024 * 1024 } else { usize::MAX / 2 };

static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts what is mapped until it no longer is.
struct Counted(usize);

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.0, Relaxed);
    }
}

struct Map {
    map: Mmap,
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
    let map = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(Map { map, _counted: counted }))
}
