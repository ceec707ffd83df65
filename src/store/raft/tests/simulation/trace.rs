//! Everything that happened in a run, in one number: two runs with the same number were the same run.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Debug)]
struct Inner {
    begun: Instant,
    print: bool,
    digest: Mutex<(u64, u64)>,
}

/// See the module; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Trace(Arc<Inner>);

impl Trace {
    /// Begins now; with `print`, each line goes to standard error, too.
    pub(crate) fn new(print: bool) -> Self {
        let digest = Mutex::new((0xcbf2_9ce4_8422_2325, 0));
        Self(Arc::new(Inner { begun: base::clock::now(), print, digest }))
    }

    /// Microseconds since the begin.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.0.begun.elapsed().as_micros()).unwrap()
    }

    /// Notes what happened.
    pub(crate) fn note(&self, what: Arguments<'_>) {
        let line = format!("{:>12} {what}\n", self.now());
        let mut digest = self.0.digest.lock();
        for byte in line.bytes() {
            digest.0 = (digest.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        digest.1 += 1;
        drop(digest);
        if self.0.print {
            // Who does not read the log does not need it.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    /// The number, and how many things happened.
    pub(crate) fn digest(&self) -> (u64, u64) {
        *self.0.digest.lock()
    }
}
