//! The addresses on the link that has this machine's own address; blocking.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use crate::netlink::Socket;
use crate::netlink::link::Mac;
use settings::addr::Family;

/// The link on which this machine answers for virtual addresses of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    /// `None` for links without Ethernet's addresses: nothing is announced there.
    pub(super) mac: Option<Mac>,
}

/// The link that has this machine's own address of a family; `None` without such an address.
pub(super) fn find(own: &[IpAddr], family: Family) -> io::Result<Option<Interface>> {
    let mut socket = Socket::route()?;
    let Some(own) = own.iter().find(|ip| Family::of(**ip) == family) else { return Ok(None) };
    let Some(at) = socket.all_addresses()?.into_iter().find(|a| a.ip == *own) else {
        return Ok(None);
    };
    let link = socket.links()?.into_iter().find(|link| link.index == at.index);
    let mac = link.and_then(|link| link.mac.as_slice().try_into().ok());
    Ok(Some(Interface { index: at.index, mac }))
}

/// Adds addresses to the link, or extends the time after which the kernel removes them: that of
/// `seconds`, or never.
pub(super) fn hold(interface: &Interface, ips: &[IpAddr], seconds: Option<u32>) -> io::Result<()> {
    let mut socket = Socket::route()?;
    for ip in ips {
        socket.add_expiring_address(interface.index, *ip, seconds)?;
    }
    Ok(())
}

/// Removes these addresses, on whichever link they are.
pub(super) fn remove(ips: &BTreeSet<IpAddr>) -> io::Result<()> {
    let mut socket = Socket::route()?;
    for at in socket.all_addresses()?.into_iter().filter(|at| ips.contains(&at.ip)) {
        // The kernel may have removed it meanwhile.
        let _ = socket.delete_address(at.index, at.ip, at.prefix);
    }
    Ok(())
}

/// The addresses of this machine for which `is_ours`.
pub(super) fn present(is_ours: impl Fn(IpAddr) -> bool) -> io::Result<BTreeSet<IpAddr>> {
    let all = Socket::route()?.all_addresses()?.into_iter();
    let single = all.filter(|at| at.prefix == Family::of(at.ip).bits() && is_ours(at.ip));
    Ok(single.map(|at| at.ip).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the kernel's time is under test")]
    fn the_kernel_removes_an_address_that_is_not_extended() {
        if !privileged("the_kernel_removes_an_address_that_is_not_extended") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("sysctl -qw net.ipv6.conf.all.disable_ipv6=0");
            shell("ip addr add 192.0.2.1/24 dev d0; ip addr add 2001:db8::1/64 dev d0 nodad");
            let own: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap()];
            assert_eq!(find(&own, Family::V6).unwrap(), None);
            let interface = find(&own, Family::V4).unwrap().unwrap();
            let ips: Vec<IpAddr> =
                vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()];
            let all = |ip: IpAddr| ips.contains(&ip);
            for _ in 0..4 {
                hold(&interface, &ips, Some(1)).unwrap();
                std::thread::sleep(Duration::from_millis(400));
                assert_eq!(present(all).unwrap().len(), 2, "extended");
            }
            let begun = Instant::now();
            hold(&interface, &ips, Some(1)).unwrap();
            while !present(all).unwrap().is_empty() {
                assert!(begun.elapsed() < Duration::from_millis(1400), "{:?}", begun.elapsed());
                std::thread::sleep(Duration::from_millis(10));
            }
            hold(&interface, &ips, None).unwrap();
            std::thread::sleep(Duration::from_millis(1500));
            assert_eq!(present(all).unwrap().len(), 2, "kept");
            remove(&ips.iter().copied().collect()).unwrap();
            assert_eq!(present(all).unwrap().len(), 0);
        });
    }
}
