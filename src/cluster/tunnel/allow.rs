//! The destinations that servers may reach through an agent: its own machine and its own pods.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use async_trait::async_trait;
use tokio::sync::watch;

/// A CIDR, such as that of the pods of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    first: IpAddr,
    prefix: u8,
}

/// The first `prefix` bits of an address; `None` when it has fewer.
fn network(ip: IpAddr, prefix: u8) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => {
            let host = 32_u32.checked_sub(u32::from(prefix))?;
            let mask = u32::MAX.checked_shl(host).unwrap_or(0);
            Some(IpAddr::from((u32::from(ip) & mask).to_be_bytes()))
        }
        IpAddr::V6(ip) => {
            let host = 128_u32.checked_sub(u32::from(prefix))?;
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            Some(IpAddr::from((u128::from(ip) & mask).to_be_bytes()))
        }
    }
}

impl Block {
    /// Parses `address/prefix`; host bits are cleared.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/')?;
        let prefix = prefix.parse().ok()?;
        Some(Self { first: network(ip.parse().ok()?, prefix)?, prefix })
    }

    /// The CIDR of this prefix length that contains an address; `None` when the address has fewer
    /// bits.
    pub fn around(ip: IpAddr, prefix: u8) -> Option<Self> {
        Some(Self { first: network(ip, prefix)?, prefix })
    }

    /// The prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the CIDR contains an address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && network(ip, self.prefix) == Some(self.first)
    }
}

/// Recognizes the pods of this node.
#[async_trait]
pub trait Pods: Send + Sync {
    /// Whether an address is in one of the node's CIDRs (`spec.podCIDRs`).
    async fn is_pod(&self, ip: IpAddr) -> bool;
}

/// The agent's own machine.
#[derive(Debug, Clone)]
pub struct LocalMachine {
    /// Name of the node.
    pub node: String,
    /// Its addresses, which may change while it runs.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// Port of the kubelet API.
    pub kubelet_port: u16,
}

/// Decision about a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Permitted.
    Allowed(SocketAddr),
    /// Permitted if it is a pod of this node.
    IfPod(SocketAddr),
    /// Refused.
    Refused,
}

/// Classifies a destination. The kubelet is permitted, and so are all ports of this machine's
/// addresses, where pods with host networking listen.
pub fn classify(host: &str, port: u16, own: &LocalMachine) -> Destination {
    let addresses = own.addresses.borrow();
    let first = addresses.first().copied().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    if port == 0 {
        return Destination::Refused;
    }
    if host == own.node && port == own.kubelet_port {
        return Destination::Allowed(SocketAddr::new(first, port));
    }
    let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() else {
        return Destination::Refused;
    };
    let to = SocketAddr::new(ip.to_canonical(), port);
    match to.ip() {
        ip if addresses.contains(&ip) => Destination::Allowed(to),
        ip if ip.is_loopback() && port == own.kubelet_port => Destination::Allowed(to),
        ip if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() => Destination::Refused,
        _ => Destination::IfPod(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_contain_their_addresses() {
        let block = Block::parse("10.42.7.0/24").unwrap();
        let has = |ip: &str| block.contains(ip.parse().unwrap());
        assert!(has("10.42.7.1") && has("10.42.7.255"));
        assert!(!has("10.42.8.1") && !has("::ffff:10.42.7.1") && !has("fd00::1"));
        let six = Block::parse("fd00:42:0:7::1/64").unwrap();
        assert!(six.contains("fd00:42:0:7:8::9".parse().unwrap()));
        assert!(!six.contains("fd00:42:0:8::9".parse().unwrap()));
        assert!(Block::parse("0.0.0.0/0").unwrap().contains("203.0.113.9".parse().unwrap()));
        assert!(!Block::parse("0.0.0.0/0").unwrap().contains("fd00::1".parse().unwrap()));
        for bad in ["10.42.7.0", "10.42.7.0/33", "fd00::/129", "x/24", "10.0.0.0/-1"] {
            assert_eq!(Block::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_this_machine_and_its_pods_are_permitted() {
        let (moves, addresses) =
            watch::channel(vec!["192.0.2.7".parse().unwrap(), "fd00::7".parse().unwrap()]);
        let own = LocalMachine { node: "worker-1".into(), addresses, kubelet_port: 10250 };
        let allowed = |to: &str| Destination::Allowed(to.parse().unwrap());
        let if_pod = |to: &str| Destination::IfPod(to.parse().unwrap());
        for (host, port, want) in [
            ("192.0.2.7", 10250, allowed("192.0.2.7:10250")),
            ("192.0.2.7", 9100, allowed("192.0.2.7:9100")),
            ("[fd00::7]", 9100, allowed("[fd00::7]:9100")),
            ("worker-1", 10250, allowed("192.0.2.7:10250")),
            ("127.0.0.1", 10250, allowed("127.0.0.1:10250")),
            ("::1", 10250, allowed("[::1]:10250")),
            ("127.0.0.1", 10255, Destination::Refused),
            ("::ffff:127.0.0.1", 6379, Destination::Refused),
            ("0.0.0.0", 10250, Destination::Refused),
            ("worker-1", 22, Destination::Refused),
            ("example.com", 80, Destination::Refused),
            ("192.0.2.7", 0, Destination::Refused),
            ("10.42.7.9", 80, if_pod("10.42.7.9:80")),
            ("192.0.2.8", 10250, if_pod("192.0.2.8:10250")),
        ] {
            assert_eq!(classify(host, port, &own), want, "{host}:{port}");
        }
        moves.send_replace(vec!["192.0.2.9".parse().unwrap()]);
        assert_eq!(
            classify("192.0.2.9", 9100, &own),
            allowed("192.0.2.9:9100"),
            "the machine moved"
        );
        assert_eq!(classify("worker-1", 10250, &own), allowed("192.0.2.9:10250"));
        assert_eq!(classify("192.0.2.7", 9100, &own), if_pod("192.0.2.7:9100"));
    }
}
