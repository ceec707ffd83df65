//! Small durable writes that bypass the page cache.
//!
//! A write followed by `fdatasync` is two requests to the device, and the waiting thread wakes up
//! in between only to issue the second. For a durable direct write the kernel issues both by
//! itself; on a device with forced unit access (FUA) they are one request. A segment written this
//! way must be read once more when it is full, so large batches, whose values are most of a
//! segment, use the page cache.

mod sys;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, OnceLock};

use memmap2::MmapMut;
use nix::libc::O_DIRECT;

use sys::Queue;

/// Block size that devices and file systems write atomically; nearly all accept a multiple of 512.
const BLOCK: usize = 4096;

/// Larger pieces, including the rest of their first and last blocks, are not written this way.
const BYTES_MAX: usize = 16 * 1024;

/// The kernel's queue for the files of a directory, created on first use.
#[derive(Debug, Default)]
pub(super) struct Queues(OnceLock<Option<Arc<Queue>>>);

impl Queues {
    /// The queue; `None` if the kernel provides none.
    fn get(&self) -> Option<Arc<Queue>> {
        let made = self.0.get_or_init(|| match Queue::open() {
            Ok(queue) => Some(Arc::new(queue)),
            Err(error) => {
                tracing::debug!(%error, "direct writes are not available, the log uses the page \
                    cache");
                None
            }
        });
        made.clone()
    }
}

/// A file opened for direct writes; unsuitable writes are left to the caller.
#[derive(Debug)]
pub(super) struct Direct {
    queue: Arc<Queue>,
    file: File,
    /// Start of the block that the next piece continues, as far as it is known.
    buffer: MmapMut,
    /// Offset of that piece.
    known: Option<u64>,
}

impl Direct {
    /// Reopens `file` for direct writes; `None` if that is not possible.
    pub(super) fn open(queues: &Queues, file: &File) -> Option<Self> {
        let queue = queues.get()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(path);
        let buffer = MmapMut::map_anon(BYTES_MAX);
        match opened.and_then(|file| Ok((file, buffer?))) {
            Ok((file, buffer)) => Some(Self { queue, file, buffer, known: None }),
            Err(error) => {
                tracing::debug!(%error, "direct writes are not available, the log uses the page \
                    cache");
                None
            }
        }
    }

    /// Writes `data` durably. The start of the first block is read from `cached`, the same file
    /// through the page cache, unless it was written here; the rest of the last block becomes
    /// zeros. `None` means that nothing was written and the caller must write otherwise.
    ///
    /// # Errors
    /// Errors of the device; then the state of all bytes from `offset` on is unknown.
    pub(super) fn write(
        &mut self,
        cached: &File,
        offset: u64,
        data: &[u8],
    ) -> Option<io::Result<()>> {
        let head = usize::try_from(offset % BLOCK as u64).ok()?;
        let end = head.checked_add(data.len())?;
        let total = end.next_multiple_of(BLOCK);
        let known = self.known.take() == Some(offset);
        let begin = offset - head as u64;
        let before = self.buffer.get_mut(..head)?;
        // Too large, or empty.
        if total > BYTES_MAX || data.is_empty() {
            return None;
        }
        if !known && cached.read_exact_at(before, begin).is_err() {
            return None;
        }
        self.buffer.get_mut(head..end)?.copy_from_slice(data);
        self.buffer.get_mut(end..total)?.fill(0);
        match self.queue.write(&self.file, self.buffer.get(..total)?, begin) {
            Ok(written) if written == total => {
                let last = end / BLOCK * BLOCK;
                if last < total {
                    self.buffer.copy_within(last..total, 0);
                }
                self.known = Some(offset + data.len() as u64);
                Some(Ok(()))
            }
            // A partial write is repeated as a whole.
            Ok(_) => None,
            Err(error) if is_refused(&error) => {
                tracing::debug!(%error, "a part of direct writes are not available, the log uses \
                    the page cache");
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// Whether a write was refused before it started: the file system or the device does not accept it,
/// or not now.
fn is_refused(error: &io::Error) -> bool {
    use nix::libc::{EAGAIN, EINVAL, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM};
    let refusals = [EAGAIN, EINVAL, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM];
    error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of zeros on a real file system, and its direct writer.
    fn opened(length: u64) -> (File, Direct) {
        // The folder of the crate: /tmp may be in memory.
        let file = tempfile::tempfile_in(".").unwrap();
        file.set_len(length).unwrap();
        file.sync_all().unwrap();
        let direct = Direct::open(&Queues::default(), &file).unwrap();
        (file, direct)
    }

    #[test]
    fn pieces_of_any_length_stand_in_the_file_as_they_were_written() {
        let (file, mut direct) = opened(1 << 20);
        let mut expected = Vec::new();
        let mut next = (1..=251_u8).cycle();
        let lengths = [1, 4095, 4096, 300, 3796, 12_000, 7, 511, 513, 4097, 288, 16_000, 4094];
        for (n, length) in lengths.into_iter().enumerate() {
            let piece: Vec<u8> = next.by_ref().take(length).collect();
            let at = expected.len() as u64;
            let written = direct.write(&file, at, &piece);
            if written.is_none() {
                // Larger than a direct write may be, including the start of its block.
                assert!(length >= 12_000, "piece {n} of {length}");
                file.write_all_at(&piece, at).unwrap();
                file.sync_data().unwrap();
            }
            expected.extend(piece);
            let mut read = vec![0; expected.len() + 4096];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read[..expected.len()] == expected, "after piece {n} of {length}");
            assert!(read[expected.len()..].iter().all(|byte| *byte == 0), "zeros behind it");
        }
        assert!(direct.write(&file, 0, &[]).is_none());
        assert!(direct.write(&file, 0, &vec![1; BYTES_MAX + 1]).is_none());
    }

    #[test]
    fn a_piece_elsewhere_keeps_what_is_before_it_in_its_block() {
        let (file, mut direct) = opened(64 * 1024);
        file.write_all_at(&[3; 9000], 0).unwrap();
        file.sync_data().unwrap();
        direct.write(&file, 9000, b"nine").unwrap().unwrap();
        direct.write(&file, 5000, b"five").unwrap().unwrap();
        let mut read = [0; 9004];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read[..5000] == [3; 5000]);
        assert_eq!(&read[5000..5004], b"five");
        assert!(read[5004..8192].iter().all(|byte| *byte == 0), "to the end of the block");
        assert!(read[8192..9000] == [3; 808]);
        assert_eq!(&read[9000..], b"nine");
    }

    #[test]
    fn an_error_is_told_and_a_refusal_is_not_one() {
        let (file, direct) = opened(BLOCK as u64);
        let buffer = MmapMut::map_anon(BLOCK).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = File::open(path).unwrap();
        let error = direct.queue.write(&read_only, &buffer, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EBADF));
        assert!(!is_refused(&error));
        let unfit = OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(is_refused(&direct.queue.write(&unfit, &buffer, 0).unwrap_err()));
    }
}
