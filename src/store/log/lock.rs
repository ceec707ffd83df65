//! The lock that admits one process per data directory.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use super::OpenError;

/// Holds the lock of the directory until dropped; the kernel releases it when the process dies.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] Flock<File>);

impl Lock {
    /// Takes the lock of `dir` without waiting.
    ///
    /// # Errors
    /// [`OpenError::Locked`] with the holder's pid; [`OpenError::Io`].
    pub(crate) fn take(dir: &Path) -> Result<Self, OpenError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("lock"));
        let file = file.map_err(OpenError::io("open", "lock"))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let write = |file: &mut File| {
                    file.set_len(0)?;
                    writeln!(file, "{}", std::process::id())
                };
                write(&mut lock).map_err(OpenError::io("write", "lock"))?;
                Ok(Self(lock))
            }
            Err((mut file, nix::Error::EWOULDBLOCK)) => {
                let mut pid = String::new();
                // The pid only helps readers of the error; the kernel decides about the lock.
                let known =
                    file.read_to_string(&mut pid).is_ok() && pid.trim().parse::<u32>().is_ok();
                let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
                Err(OpenError::Locked { dir: dir.to_owned(), pid })
            }
            Err((_, error)) => {
                Err(OpenError::Io { action: "lock", file: "lock".to_owned(), source: error.into() })
            }
        }
    }
}
