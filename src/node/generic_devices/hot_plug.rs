//! Reports that devices may have been plugged in or out: uevents of the kernel, and changes of the
//! directories of device nodes, in which udev makes its links.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use tokio::net::UnixDatagram;

/// The group of netlink in which the kernel itself sends uevents; that of udev is another one.
const KERNEL_GROUP: u32 = 1;
/// Maximum number of bytes of a uevent: the kernel's buffer of variables and the path.
const UEVENT_MAX: usize = 8 << 10;
/// Maximum number of watched directories.
const DIRECTORIES_MAX: usize = 256;

/// Receives the uevents of the kernel.
#[derive(Debug)]
struct UeventSocket {
    /// A netlink socket is a datagram socket: `recv`, the only call of this type that is used, is
    /// the same for both.
    socket: UnixDatagram,
    buffer: Vec<u8>,
}

impl UeventSocket {
    fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        let socket = UnixDatagram::from_std(std::os::unix::net::UnixDatagram::from(fd))?;
        Ok(Self { socket, buffer: vec![0; UEVENT_MAX] })
    }

    /// Resolves at the next relevant uevent, and if the kernel has dropped some.
    async fn changed(&mut self) -> io::Result<()> {
        loop {
            match self.socket.recv(&mut self.buffer).await {
                Ok(length) => {
                    if is_relevant(self.buffer.get(..length).unwrap_or_default()) {
                        return Ok(());
                    }
                }
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a uevent concerns a device node: network interfaces of pods come and go, too, and
/// disks change often without one.
fn is_relevant(message: &[u8]) -> bool {
    let mut lines = message.split(|byte| *byte == 0);
    let action = lines.next().unwrap_or_default();
    let is_action = ["add@", "remove@", "bind@", "unbind@", "move@"]
        .iter()
        .any(|known| action.starts_with(known.as_bytes()));
    is_action && lines.any(|line| line.starts_with(b"DEVNAME=") || line == b"SUBSYSTEM=usb")
}

/// Follows the names in directories.
struct DirectoryWatcher {
    watches: inotify::Watches,
    events: inotify::EventStream<Vec<u8>>,
}

impl DirectoryWatcher {
    fn open() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        Ok(Self { watches, events: inotify.into_event_stream(vec![0; 4096])? })
    }

    /// Watches directories, which may be watched already. Writes to devices are no changes.
    fn watch(&mut self, directories: &BTreeSet<PathBuf>) {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::ONLYDIR;
        for directory in directories.iter().take(DIRECTORIES_MAX) {
            // A directory that is gone meanwhile was a change of the one above it.
            if let Err(error) = self.watches.add(directory, mask) {
                let path = directory.display();
                tracing::debug!(%path, %error, "generic devices: cannot watch a directory");
            }
        }
    }

    /// Resolves at the next change of a name; names with a dot are temporary ones of udev.
    async fn changed(&mut self) -> io::Result<()> {
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    let name = event.name.as_ref().map(|name| name.to_string_lossy());
                    let is_hidden = name.is_some_and(|name| name.starts_with('.'));
                    if !is_hidden && !event.mask.contains(EventMask::IGNORED) {
                        return Ok(());
                    }
                }
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

/// The sources of changes. One that fails is left out, as the other one reports most changes.
pub(super) struct HotPlug {
    uevents: Option<UeventSocket>,
    directories: Option<DirectoryWatcher>,
}

impl HotPlug {
    /// Opens both sources. Must be called in a runtime.
    pub(super) fn open() -> Self {
        let (uevents, directories) = (UeventSocket::open(), DirectoryWatcher::open());
        for error in uevents.as_ref().err().into_iter().chain(directories.as_ref().err()) {
            tracing::warn!(%error, "generic devices: hot-plug is incomplete");
        }
        Self { uevents: uevents.ok(), directories: directories.ok() }
    }

    /// Watches directories, which may be watched already.
    pub(super) fn watch(&mut self, directories: &BTreeSet<PathBuf>) {
        if let Some(watcher) = &mut self.directories {
            watcher.watch(directories);
        }
    }

    /// Resolves at the next change. Can be dropped at any time: a change is not lost.
    pub(super) async fn changed(&mut self) {
        loop {
            let Self { uevents, directories } = self;
            let of_uevents = uevents.as_mut().map(UeventSocket::changed);
            let of_directories = directories.as_mut().map(DirectoryWatcher::changed);
            let outcome = tokio::select! {
                outcome = changed_or_pending(of_uevents) => {
                    outcome.inspect_err(|_| *uevents = None)
                }
                outcome = changed_or_pending(of_directories) => {
                    outcome.inspect_err(|_| *directories = None)
                }
            };
            match outcome {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "generic devices: hot-plug is incomplete"),
            }
        }
    }
}

/// Awaits a source; without one, waits forever.
async fn changed_or_pending(
    source: Option<impl Future<Output = io::Result<()>>>,
) -> io::Result<()> {
    match source {
        Some(source) => source.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Far longer than anything in these tests takes.
    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn uevents_without_a_device_node_are_not_relevant() {
        for (message, want) in [
            (&b"add@/devices/x/ttyUSB0\0ACTION=add\0SUBSYSTEM=tty\0DEVNAME=ttyUSB0\0"[..], true),
            (b"remove@/devices/x/1-1\0SUBSYSTEM=usb\0DEVNAME=bus/usb/001/004\0", true),
            (b"bind@/devices/x/1-1:1.0\0SUBSYSTEM=usb\0", true),
            (b"add@/devices/virtual/net/veth1\0SUBSYSTEM=net\0INTERFACE=veth1\0", false),
            (b"change@/devices/virtual/block/loop0\0SUBSYSTEM=block\0DEVNAME=loop0\0", false),
            (b"libudev\0\xfe\xed\xca\xfe", false),
            (b"", false),
        ] {
            assert_eq!(is_relevant(message), want, "{}", String::from_utf8_lossy(message));
        }
    }

    #[tokio::test]
    async fn names_that_appear_and_vanish_are_changes_and_writes_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let (node, hidden) = (directory.path().join("node"), directory.path().join(".tmp"));
        std::fs::write(&node, "").unwrap();
        let watcher = DirectoryWatcher::open().unwrap();
        let mut hot_plug = HotPlug { uevents: None, directories: Some(watcher) };
        hot_plug.watch(&[directory.path().to_owned()].into());
        std::fs::write(&node, "x").unwrap();
        std::fs::write(hidden, "").unwrap();
        assert!(futures::poll!(Box::pin(hot_plug.changed())).is_pending());
        std::fs::remove_file(&node).unwrap();
        tokio::time::timeout(LIMIT, hot_plug.changed()).await.unwrap();
        std::os::unix::fs::symlink("/dev/null", &node).unwrap();
        tokio::time::timeout(LIMIT, hot_plug.changed()).await.unwrap();
    }
}
