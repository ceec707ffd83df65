//! Byte streams of clients and endpoints, as one type so that HTTP is compiled once.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{client, server};

use super::splice::{Pipe, is_marker};

/// A TCP connection of which some bytes were read before: they are read again first.
#[derive(Debug)]
pub(crate) struct Prefixed {
    prefix: Vec<u8>,
    at: usize,
    stream: TcpStream,
    /// Holds bytes that are written in place of markers.
    pipe: Option<Pipe>,
}

impl Prefixed {
    pub(crate) fn new(stream: TcpStream, prefix: Vec<u8>) -> Self {
        Self { prefix, at: 0, stream, pipe: None }
    }

    /// Writes bytes of a pipe in place of markers.
    pub(crate) fn set_pipe(&mut self, pipe: Pipe) {
        self.pipe = Some(pipe);
    }

    /// The socket, unless bytes were read before.
    fn socket(&self) -> Option<&TcpStream> {
        self.prefix.is_empty().then_some(&self.stream)
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(rest) = this.prefix.get(this.at..).filter(|rest| !rest.is_empty()) {
            let (now, _) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.at += now.len();
            if this.at == this.prefix.len() {
                (this.prefix, this.at) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &self.pipe {
            Some(pipe) if is_marker(bytes) => pipe.poll_drain(&self.stream, context, bytes.len()),
            _ => Pin::new(&mut self.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(pipe) = &self.pipe else {
            return Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        };
        let in_memory = bytes.iter().take_while(|bytes| !is_marker(bytes)).count();
        match (bytes.get(..in_memory).unwrap_or(bytes), bytes.first()) {
            ([], Some(marker)) => pipe.poll_drain(&self.stream, context, marker.len()),
            (before, _) => Pin::new(&mut self.stream).poll_write_vectored(context, before),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    /// TCP.
    Plain(Prefixed),
    /// TLS of a client.
    Client(Box<server::TlsStream<Prefixed>>),
    /// TLS to an endpoint.
    Endpoint(Box<client::TlsStream<TcpStream>>),
}

impl Stream {
    /// A TCP connection of which nothing was read.
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self::Plain(Prefixed::new(stream, Vec::new()))
    }

    /// The socket of a connection without TLS of which nothing was read.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => stream.socket(),
            Self::Client(_) | Self::Endpoint(_) => None,
        }
    }

    /// Writes bytes of a pipe in place of markers; returns the pipe, if the connection can have
    /// one.
    pub(crate) fn with_pipe(&mut self) -> Option<Pipe> {
        let Self::Plain(stream) = self else { return None };
        let pipe = Pipe::default();
        stream.set_pipe(pipe.clone());
        Some(pipe)
    }
}

/// Calls a function of whichever stream it is.
macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut *$self {
            Stream::Plain($stream) => $call,
            Stream::Client($stream) => $call,
            Stream::Endpoint($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(context, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Client(stream) => stream.is_write_vectored(),
            Self::Endpoint(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
