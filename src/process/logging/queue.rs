//! The queue between what is logged and standard error: a log that cannot be written is dropped and
//! counted, and no task of the process fails, blocks or panics because of it.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

/// Maximum size of the queue in bytes. Lines that do not fit are dropped.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Capacity that the queue keeps once a burst is written.
const QUEUE_BYTES_KEPT: usize = 8 << 10;
/// Stack of the thread that writes.
const STACK_BYTES: usize = 64 << 10;
/// How long the writer waits for a non-blocking descriptor before it drops the lines.
const WRITABLE_WAIT_MS: u16 = 1000;

/// A bounded queue of log lines that one thread writes.
#[derive(Debug, Clone, Default)]
pub(super) struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Lines were added.
    filled: Condvar,
    /// Lines were written or dropped.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// The thread is writing lines that it took out.
    writing: bool,
    /// Lines dropped since the last notice.
    dropped: u64,
}

impl LogQueue {
    /// A queue whose lines a thread writes to `sink` until the process ends.
    pub(super) fn start(sink: impl Write + Send + 'static) -> Self {
        let queue = Self::default();
        let writer = queue.clone();
        let thread = std::thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES);
        // Without a thread every line is dropped; the runtime, which needs threads too, then says
        // why.
        let _ = thread.spawn(move || writer.write_all_lines(sink));
        queue
    }

    /// Adds whole lines, or drops them when the queue is full.
    pub(super) fn push(&self, lines: &[u8]) {
        let mut state = self.0.state.lock();
        if state.lines.len() + lines.len() > QUEUE_BYTES_MAX {
            state.dropped += count_lines(lines);
            return;
        }
        state.lines.extend_from_slice(lines);
        drop(state);
        self.0.filled.notify_one();
    }

    /// Waits until everything is written or dropped, at most `limit`; whether it is.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.0.state.lock();
        while state.writing || !state.lines.is_empty() {
            if self.0.written.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn write_all_lines(&self, mut sink: impl Write) {
        let mut lines = Vec::new();
        loop {
            let dropped = {
                let mut state = self.0.state.lock();
                state.writing = false;
                self.0.written.notify_all();
                while state.lines.is_empty() {
                    self.0.filled.wait(&mut state);
                }
                state.writing = true;
                std::mem::swap(&mut state.lines, &mut lines);
                std::mem::take(&mut state.dropped)
            };
            let lost = write_with_notice(&mut sink, &lines, dropped);
            self.0.state.lock().dropped += lost;
            lines.clear();
            lines.shrink_to(QUEUE_BYTES_KEPT);
        }
    }
}

/// Writes `lines`, after a notice where `dropped` earlier ones are missing; the number of lines
/// that remain without a notice.
fn write_with_notice(sink: &mut impl Write, lines: &[u8], dropped: u64) -> u64 {
    if dropped > 0 {
        let now = jiff::Timestamp::now();
        let notice = format!(
            "{now:.6}  WARN kube_lite::logging: log lines were dropped because standard error could \
             not be written lines={dropped}\n"
        );
        if write(sink, notice.as_bytes()) > 0 {
            return dropped + count_lines(lines);
        }
    }
    write(sink, lines)
}

/// Writes `lines`; the number of lines that were not written whole.
fn write(sink: &mut impl Write, mut lines: &[u8]) -> u64 {
    while !lines.is_empty() {
        match sink.write(lines) {
            Ok(0) => break,
            Ok(written) => lines = lines.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && writable() => {}
            Err(_) => break,
        }
    }
    count_lines(lines)
}

/// Waits until standard error, which another process may have made non-blocking, takes more.
fn writable() -> bool {
    let stderr = io::stderr();
    let mut descriptors = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut descriptors, PollTimeout::from(WRITABLE_WAIT_MS)).is_ok_and(|ready| ready > 0)
}

fn count_lines(lines: &[u8]) -> u64 {
    lines.iter().map(|byte| u64::from(*byte == b'\n')).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LIMIT: Duration = Duration::from_secs(60);

    /// What a sink has written.
    type Output = Arc<Mutex<Vec<u8>>>;

    /// A sink that reports what is written, and fails or blocks on demand.
    struct Sink {
        /// The outcome of each write: an error, or success for `None` and once the sender is
        /// dropped.
        next: Receiver<Option<io::ErrorKind>>,
        out: Output,
    }

    impl Write for Sink {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            match self.next.recv() {
                Ok(Some(error)) => return Err(error.into()),
                Ok(None) | Err(_) => self.out.lock().extend_from_slice(lines),
            }
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> (LogQueue, Sender<Option<io::ErrorKind>>, Output) {
        let (sender, next) = channel();
        let out = Arc::default();
        (LogQueue::start(Sink { next, out: Arc::clone(&out) }), sender, out)
    }

    fn text(out: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(out.lock().clone()).unwrap()
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported_once_writing_works_again() {
        let (queue, sink, out) = queue();
        for error in [io::ErrorKind::StorageFull, io::ErrorKind::BrokenPipe] {
            queue.push(b"lost\n");
            sink.send(Some(error)).unwrap();
            // The notice of the first loss is lost as well.
            assert!(queue.flush(LIMIT));
        }
        drop(sink);
        queue.push(b"kept\n");
        assert!(queue.flush(LIMIT));
        let text = text(&out);
        let (notice, rest) = text.split_once('\n').unwrap();
        assert!(notice.ends_with(" lines=2"), "{notice}");
        assert_eq!(rest, "kept\n");
    }

    #[test]
    fn a_blocked_reader_neither_blocks_callers_nor_grows_the_queue() {
        let (queue, sink, out) = queue();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..2000 {
            queue.push(&line);
        }
        assert!(!queue.flush(Duration::from_millis(10)));
        assert!(queue.0.state.lock().lines.len() <= QUEUE_BYTES_MAX);
        drop(sink);
        assert!(queue.flush(LIMIT));
        queue.push(b"end\n");
        assert!(queue.flush(LIMIT));
        let text = text(&out);
        let written = text.matches('x').count() / 1023;
        let notices = text.lines().filter_map(|line| line.split_once(" lines="));
        let dropped: usize = notices.map(|(_, lines)| lines.parse::<usize>().unwrap()).sum();
        assert!(dropped > 0);
        assert_eq!(written + dropped, 2000);
        assert!(text.ends_with("end\n"));
    }
}
