//! Connections as objects, how they are made, and how two are joined.

use crate::Shutdown;
use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A byte stream of any make.
pub type BoxIo = Box<dyn Io>;

/// Opens connections to nodes, pods and services.
#[async_trait]
pub trait Dial: Send + Sync {
    /// A connection to a host (name or address) and port.
    ///
    /// # Errors
    /// Those of the network.
    async fn dial(&self, host: &str, port: u16) -> std::io::Result<BoxIo>;

    /// Resolves when the other side is reached again after it was away; never, where that is not
    /// known.
    async fn back(&self) {
        std::future::pending().await
    }
}

/// Plain TCP, without delay of small writes.
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

/// Copies both ways until one side has said everything or breaks, or the process stops; then both
/// are closed.
///
/// The whole ends with its first half, as in upstream's proxies: the protocols carried here
/// announce their ends inside.
pub async fn join(a: impl Io, b: impl Io, shutdown: &Shutdown) {
    let (mut a_in, mut a_out) = tokio::io::split(a);
    let (mut b_in, mut b_out) = tokio::io::split(b);
    tokio::select! {
        copied = tokio::io::copy(&mut a_in, &mut b_out) => note(copied),
        copied = tokio::io::copy(&mut b_in, &mut a_out) => note(copied),
        () = shutdown.requested() => {}
    }
    let _ = tokio::join!(a_out.shutdown(), b_out.shutdown());
}

fn note(copied: std::io::Result<u64>) {
    if let Err(error) = copied {
        tracing::debug!(%error, "a carried connection broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn what_one_side_says_last_arrives_before_the_end() {
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
