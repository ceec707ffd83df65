//! Tells what changes in the kernel's links, addresses and routes as it happens.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use tokio::net::UnixDatagram;

use crate::netlink::{Received, split};

/// Links, IPv4 and IPv6 addresses, IPv4 and IPv6 routes: bits of `RTNLGRP_LINK`, `…_IPV4_IFADDR`,
/// `…_IPV4_ROUTE`, `…_IPV6_IFADDR`, `…_IPV6_ROUTE`.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10;

/// What came.
#[derive(Debug)]
pub(crate) enum News {
    /// These changes.
    Changes(Vec<Received>),
    /// More than the kernel keeps: anything may have changed.
    Lost,
}

/// Listens to the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// A netlink socket is one of datagrams: what this type does to it (`recv`) is the same for all
    /// of them.
    socket: UnixDatagram,
    buffer: Vec<u8>,
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        let socket = UnixDatagram::from_std(std::os::unix::net::UnixDatagram::from(fd))?;
        Ok(Self { socket, buffer: vec![0; 32 << 10] })
    }

    /// The next changes.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(crate) async fn next(&mut self) -> io::Result<News> {
        match self.socket.recv(&mut self.buffer).await {
            Ok(length) => Ok(News::Changes(split(self.buffer.get(..length).unwrap_or_default()))),
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Ok(News::Lost),
            Err(error) => Err(error),
        }
    }
}
