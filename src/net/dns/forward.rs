//! Names outside the cluster: asked at the node's own name servers, remembered within bounds.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::dns::message::{UDP_MAX, plain, response};

/// Answers kept; one takes about 300 bytes.
const CACHE_MAX: usize = 4096;
/// Longest time an answer is kept, and a refusal.
const KEEP_MAX: Duration = Duration::from_secs(300);
const KEEP_NEGATIVE_MAX: Duration = Duration::from_secs(30);
/// One try at one server; resolvers in pods give up after 5 s.
const TRY_MAX: Duration = Duration::from_millis(1800);
const SERVERS_MAX: usize = 3;

type Key = (String, u16, bool);

struct Kept {
    message: Message,
    from: Instant,
    until: Instant,
}

#[derive(Default)]
struct Servers {
    list: Vec<SocketAddr>,
    read: Option<SystemTime>,
}

/// The way out.
pub(crate) struct Forwarder {
    resolv_conf: PathBuf,
    own: Vec<IpAddr>,
    servers: Mutex<Servers>,
    cache: Mutex<HashMap<Key, Kept>>,
}

fn parse_servers(text: &str, own: &[IpAddr]) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok())
        // A node that uses cluster DNS itself must not be asked in a circle.
        .filter(|ip| !own.contains(ip))
        .map(|ip| SocketAddr::new(ip, 53))
        .take(SERVERS_MAX)
        .collect()
}

fn lifetime(message: &Message) -> Option<Duration> {
    let negative = message.answers.is_empty();
    let (list, most) = match message.metadata.response_code {
        ResponseCode::NoError if !negative => (&message.answers, KEEP_MAX),
        ResponseCode::NoError | ResponseCode::NXDomain => (&message.authorities, KEEP_NEGATIVE_MAX),
        _ => return None,
    };
    let seconds = list
        .iter()
        .filter(|r| !negative || r.record_type() == RecordType::SOA)
        .map(|r| r.ttl)
        .min()?;
    let kept = Duration::from_secs(u64::from(seconds)).min(most);
    (!kept.is_zero() && !message.metadata.truncation).then_some(kept)
}

impl Forwarder {
    pub(crate) fn new(resolv_conf: PathBuf, own: Vec<IpAddr>) -> Self {
        Self { resolv_conf, own, servers: Mutex::default(), cache: Mutex::default() }
    }

    /// The servers of the node's configuration, read again when the file changed.
    fn servers(&self) -> Vec<SocketAddr> {
        let changed = std::fs::metadata(&self.resolv_conf).and_then(|m| m.modified()).ok();
        let mut servers = self.servers.lock();
        if changed.is_none() || servers.read != changed {
            let text = std::fs::read_to_string(&self.resolv_conf).unwrap_or_default();
            servers.list = parse_servers(&text, &self.own);
            servers.read = changed;
        }
        servers.list.clone()
    }

    fn kept(&self, key: &Key, request: &Message) -> Option<Message> {
        let now = Instant::now();
        let cache = self.cache.lock();
        let kept = cache.get(key).filter(|k| k.until > now)?;
        let age = u32::try_from(now.duration_since(kept.from).as_secs()).unwrap_or(u32::MAX);
        let mut out = response(request, kept.message.metadata.response_code);
        let aged = |list: &[hickory_proto::rr::Record]| {
            let mut list = list.to_vec();
            for record in &mut list {
                record.ttl = record.ttl.saturating_sub(age);
            }
            list
        };
        out.insert_answers(aged(&kept.message.answers));
        out.insert_authorities(aged(&kept.message.authorities));
        out.insert_additionals(aged(&kept.message.additionals));
        Some(out)
    }

    fn keep(&self, key: Key, message: &Message) {
        let Some(lifetime) = lifetime(message) else { return };
        let now = Instant::now();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_MAX {
            cache.retain(|_, k| k.until > now);
        }
        if cache.len() >= CACHE_MAX {
            let soonest = cache.iter().min_by_key(|(_, k)| k.until).map(|(k, _)| k.clone());
            soonest.map(|k| cache.remove(&k));
        }
        cache.insert(key, Kept { message: message.clone(), from: now, until: now + lifetime });
    }

    /// The answer to a question; SERVFAIL when no server answers.
    pub(crate) async fn resolve(&self, request: &Message, tcp: bool) -> Message {
        let Some(query) = request.queries.first() else {
            return response(request, ResponseCode::FormErr);
        };
        let secure = request.edns.as_ref().is_some_and(|e| e.flags().dnssec_ok);
        let key = (plain(query.name()), u16::from(query.query_type()), secure);
        if let Some(kept) = self.kept(&key, request) {
            return kept;
        }
        for server in self.servers() {
            let asked = tokio::time::timeout(TRY_MAX, self.ask(request, server, tcp)).await;
            match asked {
                Ok(Ok(answer)) => {
                    let code = answer.metadata.response_code;
                    if matches!(code, ResponseCode::ServFail | ResponseCode::Refused) {
                        continue;
                    }
                    self.keep(key, &answer);
                    let mut out = response(request, code);
                    out.metadata.truncation = answer.metadata.truncation;
                    out.insert_answers(answer.answers);
                    out.insert_authorities(answer.authorities);
                    out.insert_additionals(answer.additionals);
                    return out;
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "name server failed"),
                Err(_) => tracing::debug!(%server, "name server did not answer"),
            }
        }
        response(request, ResponseCode::ServFail)
    }

    async fn ask(
        &self,
        request: &Message,
        server: SocketAddr,
        tcp: bool,
    ) -> std::io::Result<Message> {
        let mut own = request.clone();
        // A number of our own and a fresh port make answers hard to forge.
        own.metadata.id = hickory_proto::op::Message::query().metadata.id;
        own.metadata.recursion_desired = true;
        if let Some(edns) = &mut own.edns {
            // A longer answer would not fit the buffer below, whatever the client offers.
            edns.set_max_payload(edns.max_payload().min(UDP_MAX));
        }
        let bytes = own.to_vec().map_err(std::io::Error::other)?;
        let fits = |answer: &Message| {
            answer.metadata.id == own.metadata.id && answer.queries == own.queries
        };
        if tcp {
            let mut stream = TcpStream::connect(server).await?;
            let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
            stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
            let mut answer = vec![0; usize::from(stream.read_u16().await?)];
            stream.read_exact(&mut answer).await?;
            let answer = Message::from_vec(&answer).map_err(std::io::Error::other)?;
            return if fits(&answer) {
                Ok(answer)
            } else {
                Err(std::io::Error::other("foreign answer"))
            };
        }
        let any: IpAddr = if server.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        socket.send(&bytes).await?;
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            if let Ok(answer) = Message::from_vec(buffer.get(..length).unwrap_or_default())
                && fits(&answer)
            {
                return Ok(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_from_the_nodes_file_without_ourselves() {
        let own = ["10.43.0.10".parse().unwrap()];
        let text = "# a\nsearch x\nnameserver 10.43.0.10\nnameserver 192.0.2.1 \n nameserver ::1\nnameserver bad\n";
        let got: Vec<String> = parse_servers(text, &own).iter().map(ToString::to_string).collect();
        assert_eq!(got, ["192.0.2.1:53", "[::1]:53"]);
    }
}
