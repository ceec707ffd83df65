//! The accept loop of all listeners.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Backoff, Shutdown};

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The stream, with `TCP_NODELAY`.
    pub stream: TcpStream,
    /// Address of the peer.
    pub from: SocketAddr,
    /// Its slot among the served connections; released on drop.
    pub place: OwnedSemaphorePermit,
}

/// Binds a socket, again after growing pauses while it cannot be bound: the port may become free,
/// and the rest of the process works without it. `report` logs each failure. `None` at shutdown.
pub async fn bind_when_free<T, F>(
    bind: impl Fn() -> F,
    (first, longest): (Duration, Duration),
    shutdown: &Shutdown,
    report: impl Fn(std::io::Error),
) -> Option<T>
where
    F: Future<Output = std::io::Result<T>>,
{
    let mut backoff = Backoff::new(first, longest);
    loop {
        match bind().await {
            Ok(socket) => return Some(socket),
            Err(error) => report(error),
        }
        if !backoff.wait(shutdown).await {
            return None;
        }
    }
}

/// Accepts connections until shutdown and passes each to `each`, which starts a task for it. At
/// most `room` connections are served at a time; more wait in the kernel's queue. `what` names the
/// listener in the log.
pub async fn accept(
    listener: &TcpListener,
    what: &'static str,
    room: usize,
    shutdown: &Shutdown,
    mut each: impl FnMut(Accepted),
) {
    let places = Arc::new(Semaphore::new(room));
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = shutdown.requested() => return,
        };
        let Ok(place) = place else { return };
        let accepted = accepted.and_then(|(stream, from)| {
            stream.set_nodelay(true)?;
            Ok(Accepted { stream, from, place })
        });
        match accepted {
            Ok(accepted) => {
                backoff.reset();
                each(accepted);
            }
            Err(error) => {
                // Out of descriptors or memory: the listener itself works, so retry a little later.
                tracing::warn!(listener = what, %error, "a connection was not accepted");
                if !backoff.wait(shutdown).await {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn no_more_than_the_room_are_served_at_once_until_shutdown() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, (sender, mut served)) = (Shutdown::new(), tokio::sync::mpsc::channel(8));
        let accepting = async {
            accept(&listener, "test", 1, &shutdown, |one| sender.try_send(one).unwrap()).await;
        };
        let using = async {
            let mut first = TcpStream::connect(address).await.unwrap();
            let second = TcpStream::connect(address).await.unwrap();
            let one = served.recv().await.unwrap();
            assert_eq!(one.from, first.local_addr().unwrap());
            tokio::task::yield_now().await;
            assert!(served.try_recv().is_err(), "the room is full");
            drop(one);
            assert_eq!(first.read(&mut [0; 1]).await.unwrap(), 0);
            let two = served.recv().await.unwrap();
            assert_eq!(two.from, second.local_addr().unwrap());
            shutdown.request();
        };
        tokio::join!(accepting, using);
    }
}
