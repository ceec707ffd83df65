//! Byte streams as trait objects, dialers, and copying between two streams.

use crate::Shutdown;
use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A byte stream of any type.
pub type BoxIo = Box<dyn Io>;

/// Opens connections to nodes, pods and services.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Connects to a host (name or address) and port.
    ///
    /// # Errors
    /// Errors of the network.
    async fn dial(&self, host: &str, port: u16) -> std::io::Result<BoxIo>;

    /// Resolves when the peer is reached again after a failure; never, if the dialer does not track
    /// that.
    async fn back(&self) {
        std::future::pending().await
    }
}

/// Plain TCP with `TCP_NODELAY`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

#[async_trait]
impl Dial for Tcp {
    async fn dial(&self, host: &str, port: u16) -> std::io::Result<BoxIo> {
        let stream = tokio::net::TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Copies in both directions until one side ends or fails, or the process stops; then closes both.
///
/// The first end closes both directions, as in upstream's proxies: the protocols carried here
/// signal half-closed streams themselves.
pub async fn join(a: impl Io, b: impl Io, shutdown: &Shutdown) {
    let (mut a_in, mut a_out) = tokio::io::split(a);
    let (mut b_in, mut b_out) = tokio::io::split(b);
    tokio::select! {
        copied = tokio::io::copy(&mut a_in, &mut b_out) => log_error(copied),
        copied = tokio::io::copy(&mut b_in, &mut a_out) => log_error(copied),
        () = shutdown.requested() => {}
    }
    let _ = tokio::join!(a_out.shutdown(), b_out.shutdown());
}

fn log_error(copied: std::io::Result<u64>) {
    if let Err(error) = copied {
        tracing::debug!(%error, "a carried connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn the_last_bytes_of_a_side_arrive_before_the_end() {
        let (client, ours) = tokio::io::duplex(64);
        let (theirs, mut server) = tokio::io::duplex(64);
        let shutdown = Shutdown::new();
        let say = async {
            server.write_all(b"bye").await.unwrap();
            drop(server);
        };
        let mut client = client;
        let hear = async {
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            text
        };
        let ((), (), text) = tokio::join!(join(ours, theirs, &shutdown), say, hear);
        assert_eq!(text, "bye");
    }
}
