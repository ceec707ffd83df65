//! Listening sockets outlive a restart of the process: a client that connects meanwhile waits in
//! the kernel's queue and is refused no connection.
//!
//! A process that stops starts a keeper, which is this program under another name. The keeper holds
//! the sockets, accepts nothing, and passes them to the process that is started next. Without one
//! it ends after [`HOLD_TIME`], and clients are refused as usual. A process that is killed leaves
//! no keeper.

use std::fs;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::Mutex;

use crate::sys::{DESCRIPTORS_MAX, receive_descriptors};

/// The name under which the program runs as a keeper.
const KEEPER: &str = "kube-lite-sockets";
/// How long a keeper waits for the next process. The units of the installation restart within 2 s.
const HOLD_TIME: Duration = Duration::from_secs(10);
/// How long either side waits for the other one, which answers at once if it works.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The sockets that an earlier process has left, and the way to leave them.
#[derive(Debug)]
pub(crate) struct Handover {
    /// The Unix socket of the keeper.
    path: PathBuf,
    inherited: Mutex<Vec<TcpListener>>,
}

impl Handover {
    /// Takes what an earlier process has left; blocks for a moment.
    pub(crate) fn take(path: PathBuf) -> Self {
        let inherited = match receive(&path) {
            Ok(inherited) => inherited,
            Err(error) if is_absent(&error) => Vec::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "ingress: cannot take over sockets");
                Vec::new()
            }
        };
        // The next keeper uses the path again.
        drop(fs::remove_file(&path));
        Self { path, inherited: Mutex::new(inherited) }
    }

    /// The socket of an earlier process that listens at this address.
    pub(crate) fn listener(&self, address: SocketAddr) -> Option<tokio::net::TcpListener> {
        let mut inherited = self.inherited.lock();
        let is_at = |socket: &TcpListener| socket.local_addr().is_ok_and(|own| own == address);
        let found = inherited.iter().position(is_at)?;
        let socket = inherited.swap_remove(found);
        socket.set_nonblocking(true).ok()?;
        tokio::net::TcpListener::from_std(socket).ok()
    }

    /// Closes the sockets that nothing listens at any more.
    pub(crate) fn close_rest(&self) {
        self.inherited.lock().clear();
    }

    /// Leaves sockets to the next process; blocks for a moment.
    ///
    /// # Errors
    /// The keeper cannot be started.
    pub(crate) fn leave(&self, sockets: &[TcpListener]) -> io::Result<()> {
        drop(fs::remove_file(&self.path));
        let door = UnixListener::bind(&self.path)?;
        let (ours, theirs) = UnixStream::pair()?;
        send(&ours, sockets)?;
        let keeper = Command::new("/proc/self/exe")
            .arg0(KEEPER)
            .env_clear()
            .process_group(0)
            .stdin(OwnedFd::from(door))
            .stdout(OwnedFd::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        tracing::debug!(process = keeper.id(), "ingress: sockets are kept for the next process");
        Ok(())
    }
}

/// Whether no process has left anything.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn receive(path: &Path) -> io::Result<Vec<TcpListener>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    Ok(receive_descriptors(&stream)?.into_iter().map(TcpListener::from).collect())
}

fn send(stream: &UnixStream, sockets: &[TcpListener]) -> io::Result<()> {
    let numbers: Vec<RawFd> =
        sockets.iter().take(DESCRIPTORS_MAX).map(|socket| socket.as_raw_fd()).collect();
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    let rights = [ControlMessage::ScmRights(&numbers)];
    let byte = [IoSlice::new(&[0])];
    sendmsg::<()>(stream.as_raw_fd(), &byte, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Whether this process is to keep sockets.
pub fn is_keeper_call() -> bool {
    std::env::args_os().next().is_some_and(|name| name == KEEPER)
}

/// Keeps the sockets that come over standard output's connection, until a process connects to the
/// socket on standard input.
pub fn keeper_main() -> ExitCode {
    match keep() {
        Ok(()) => ExitCode::SUCCESS,
        // Its parent has ended, and it has no log.
        Err(_) => ExitCode::FAILURE,
    }
}

fn keep() -> io::Result<()> {
    let door = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let source = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    source.set_read_timeout(Some(ANSWER_TIME))?;
    let sockets: Vec<TcpListener> =
        receive_descriptors(&source)?.into_iter().map(TcpListener::from).collect();
    let time = PollTimeout::try_from(HOLD_TIME).unwrap_or(PollTimeout::ZERO);
    if poll(&mut [PollFd::new(door.as_fd(), PollFlags::POLLIN)], time)? == 0 {
        return Ok(());
    }
    let (next, _) = door.accept()?;
    send(&next, &sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The keeper itself is this program; `tests/ingress-churn` restarts the real one.
    #[test]
    fn sockets_pass_with_the_connections_in_their_queue() {
        let folder =
            std::env::temp_dir().join(format!("kube-lite-handover-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("sockets");
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
        let waiting = std::net::TcpStream::connect(addresses[1]).unwrap();
        let door = UnixListener::bind(&path).unwrap();
        let keeper = std::thread::spawn(move || {
            let (next, _) = door.accept().unwrap();
            send(&next, &[first, second]).unwrap();
        });
        let handover = Handover::take(path.clone());
        keeper.join().unwrap();
        assert!(!path.exists(), "the path is free for the next keeper");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = handover.listener(addresses[1]).unwrap();
            let (_, from) = socket.accept().await.unwrap();
            assert_eq!(from, waiting.local_addr().unwrap());
            assert!(handover.listener(addresses[1]).is_none(), "a socket is taken once");
        });
        handover.close_rest();
        assert!(std::net::TcpStream::connect(addresses[0]).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_a_keeper_nothing_is_inherited() {
        let handover = Handover::take("/nonexistent/sockets".into());
        assert!(handover.listener(([127, 0, 0, 1], 1).into()).is_none());
    }
}
