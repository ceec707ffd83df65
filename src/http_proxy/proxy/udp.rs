//! Datagrams that are passed on: one socket per client, so that answers find their way back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base::{Kind, Tasks};
use parking_lot::Mutex;
use tokio::net::UdpSocket;

use super::entry::PortMode;

/// Clients of a port at a time; datagrams of more are dropped.
const SESSIONS_MAX: usize = 1024;
/// How long a session lives without a datagram (`nf_conntrack_udp_timeout_stream`).
const IDLE_TIME: Duration = Duration::from_secs(120);
/// The largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

type Sessions = Arc<Mutex<HashMap<SocketAddr, Arc<UdpSocket>>>>;

/// Serves a port until its tasks stop.
pub(super) async fn serve(socket: Arc<UdpSocket>, entry: &ArcSwap<PortMode>, tasks: &Tasks) {
    let shutdown = tasks.shutdown();
    let sessions = Sessions::default();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            () = shutdown.requested() => return,
        };
        // An error is that of an earlier answer, such as an unreachable client.
        let Ok((count, client)) = received else { continue };
        let known = sessions.lock().get(&client).cloned();
        let session = match known {
            Some(session) => session,
            None => match open(&socket, client, entry, &sessions, tasks).await {
                Ok(Some(session)) => session,
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%client, %error, "gateway: datagram dropped");
                    continue;
                }
            },
        };
        if let Some(datagram) = buffer.get(..count)
            && session.send(datagram).await.is_err()
        {
            // The endpoint refuses; the next datagram chooses again.
            sessions.lock().remove(&client);
        }
    }
}

/// A session of a client; `None` if there is no endpoint or no room.
async fn open(
    socket: &Arc<UdpSocket>,
    client: SocketAddr,
    entry: &ArcSwap<PortMode>,
    sessions: &Sessions,
    tasks: &Tasks,
) -> io::Result<Option<Arc<UdpSocket>>> {
    if sessions.lock().len() >= SESSIONS_MAX {
        return Ok(None);
    }
    let entry = entry.load_full();
    let PortMode::Udp(Some(split)) = &*entry else { return Ok(None) };
    let backend = split.choose().and_then(|chosen| chosen.backend.as_ref());
    let Some(endpoint) = backend.and_then(|backend| backend.choose(&[])) else { return Ok(None) };
    let any = match endpoint.address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let session = Arc::new(UdpSocket::bind((any, 0)).await?);
    session.connect(endpoint.address).await?;
    sessions.lock().insert(client, Arc::clone(&session));
    let (socket, sessions, own) = (Arc::clone(socket), Arc::clone(sessions), Arc::clone(&session));
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "gateway-datagrams", async move {
        let active = endpoint.begin();
        tokio::select! {
            () = answer(&socket, client, &own) => {}
            () = shutdown.requested() => {}
        }
        drop(active);
        let mut sessions = sessions.lock();
        if sessions.get(&client).is_some_and(|current| Arc::ptr_eq(current, &own)) {
            sessions.remove(&client);
        }
        Ok::<(), Infallible>(())
    });
    Ok(Some(session))
}

/// Passes answers on until none comes for a while.
async fn answer(socket: &UdpSocket, client: SocketAddr, session: &UdpSocket) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while let Ok(Ok(count)) = tokio::time::timeout(IDLE_TIME, session.recv(&mut buffer)).await {
        let Some(datagram) = buffer.get(..count) else { return };
        if socket.send_to(datagram, client).await.is_err() {
            return;
        }
    }
}
