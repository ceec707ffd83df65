//! One question to one server, over UDP, TCP or TLS (RFC 7858).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_proto::op::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use super::Upstream;
use crate::dns::message::UDP_MAX;

/// Whether the certificate of a server can have this name.
pub(crate) fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// The trust in servers with TLS: the certificates of the system, read on first use.
#[derive(Debug, Default)]
pub(crate) struct Tls(OnceCell<Arc<ClientConfig>>);

impl Tls {
    async fn config(&self) -> std::io::Result<Arc<ClientConfig>> {
        let made = self.0.get_or_try_init(|| async {
            let config = base::pki::external_roots::client(b"", false, None).await;
            let mut config = ClientConfig::clone(&*config.map_err(std::io::Error::other)?);
            // DNS over TLS has no protocol name that servers must know.
            config.alpn_protocols.clear();
            Ok::<_, std::io::Error>(Arc::new(config))
        });
        made.await.cloned()
    }
}

/// Sends a question and receives its answer.
pub(super) async fn ask(
    request: &Message,
    server: &Upstream,
    tcp: bool,
    tls: &Tls,
) -> std::io::Result<Message> {
    let mut own = request.clone();
    // A number of our own and a fresh port make answers hard to forge.
    own.metadata.id = Message::query().metadata.id;
    own.metadata.recursion_desired = true;
    if let Some(edns) = &mut own.edns {
        // A longer answer would not fit the buffer below, whatever the client offers.
        edns.set_max_payload(edns.max_payload().min(UDP_MAX));
    }
    let bytes = own.to_vec().map_err(std::io::Error::other)?;
    if let Some(name) = &server.tls_name {
        let name = ServerName::try_from(name.clone()).map_err(std::io::Error::other)?;
        let connector = TlsConnector::from(tls.config().await?);
        let stream = TcpStream::connect(server.address).await?;
        let stream = connector.connect(name, stream).await?;
        return over_stream(stream, &own, &bytes).await;
    }
    if tcp {
        return over_stream(TcpStream::connect(server.address).await?, &own, &bytes).await;
    }
    over_udp(server, &own, &bytes).await
}

fn fits(answer: &Message, question: &Message) -> bool {
    answer.metadata.id == question.metadata.id && answer.queries == question.queries
}

async fn over_stream(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Message,
    bytes: &[u8],
) -> std::io::Result<Message> {
    let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    stream.flush().await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_vec(&answer).map_err(std::io::Error::other)?;
    if fits(&answer, question) {
        Ok(answer)
    } else {
        Err(std::io::Error::other("the answer is for another question"))
    }
}

async fn over_udp(server: &Upstream, question: &Message, bytes: &[u8]) -> std::io::Result<Message> {
    let any: IpAddr = if server.address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server.address).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Ok(answer) = Message::from_vec(buffer.get(..length).unwrap_or_default())
            && fits(&answer, question)
        {
            return Ok(answer);
        }
    }
}
