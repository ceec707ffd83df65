//! Queueing disciplines of links: token buckets that limit a link's rate, and the redirection of
//! received packets to another link.

use std::io;

use nix::errno::Errno;
use nix::libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, RTM_NEWTFILTER};
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::netlink::link::text;
use crate::netlink::{CREATE, EXCL, REPLACE, Socket, Writer, attribute, encode, ne32, unless};

// `TCA_…`
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
// `TCA_TBF_…`
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// `TC_H_ROOT`: the discipline of packets that the link sends.
const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`: the discipline of packets that the link receives.
const INGRESS: u32 = 0xffff_fff1;
const ROOT_HANDLE: u32 = 1 << 16;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// `TC_LINKLAYER_ETHERNET`.
const ETHERNET: u8 = 1;
/// `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 3;
/// Length of `struct tcmsg`.
const HEADER: usize = 20;

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Bytes that pass at once after a pause.
    pub(crate) burst: u32,
    /// Bytes that wait; more are dropped.
    pub(crate) limit: u32,
}

/// The start of a message: `struct tcmsg` and the kind.
fn message(link: u32, handle: u32, parent: u32, info: u32, kind: &str) -> Writer {
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    for field in [link, handle, parent, info] {
        writer.raw(&field.to_ne_bytes());
    }
    writer.text(KIND, kind);
    writer
}

impl TokenBucket {
    /// `struct tc_tbf_qopt`: two rates, of which the second is unused, the limit, and two durations
    /// that [`TBF_BURST`] supersedes.
    fn parameters(&self) -> Vec<u8> {
        let mut out = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
        out.extend(u32::try_from(self.rate).unwrap_or(u32::MAX).to_ne_bytes());
        out.extend([0; 12]);
        out.extend(self.limit.to_ne_bytes());
        out.extend([0; 8]);
        out
    }

    /// The bucket that a message describes, without its burst, which the kernel reports as a
    /// rounded duration.
    fn decode_rate(body: &[u8]) -> Option<u64> {
        let list = body.get(HEADER..)?;
        if text(attribute(list, KIND)?) != "tbf" {
            return None;
        }
        let options = attribute(list, OPTIONS)?;
        let rate64 = attribute(options, TBF_RATE64).and_then(|v| v.try_into().ok());
        match rate64.map(u64::from_ne_bytes) {
            Some(rate) => Some(rate),
            None => attribute(options, TBF_PARAMETERS).and_then(|p| ne32(p, 8)).map(u64::from),
        }
    }
}

impl Socket {
    /// Limits what a link sends; replaces an earlier limit.
    pub(crate) fn limit_rate(&mut self, link: u32, bucket: &TokenBucket) -> io::Result<()> {
        let mut body = message(link, ROOT_HANDLE, ROOT, 0, "tbf");
        body.nest(OPTIONS, |w| {
            w.attr(TBF_PARAMETERS, &bucket.parameters());
            if bucket.rate > u64::from(u32::MAX) {
                w.attr(TBF_RATE64, &bucket.rate.to_ne_bytes());
            }
            w.ne32(TBF_BURST, bucket.burst);
        });
        self.request(RTM_NEWQDISC, CREATE | REPLACE, &body.0)
    }

    /// The rate, in bytes per second, to which [`Self::limit_rate`] limits a link.
    pub(crate) fn rate_limit(&mut self, link: u32) -> io::Result<Option<u64>> {
        let mut rate = None;
        self.dump(RTM_GETQDISC, &message(link, 0, 0, 0, "").0, |received| {
            if ne32(&received.body, 4) == Some(link) && ne32(&received.body, 12) == Some(ROOT) {
                rate = TokenBucket::decode_rate(&received.body);
            }
        })?;
        Ok(rate)
    }

    /// Creates an `ifb` link that is up: packets redirected to it pass its discipline, and the link
    /// that received them receives them after that.
    pub(crate) fn add_ifb(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        let builder = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Ifb);
        let link = builder.name(name.to_owned()).mtu(mtu).up().build();
        self.request(nix::libc::RTM_NEWLINK, CREATE | EXCL, &encode(&link))
    }

    /// Sends all packets that a link receives through another link; replaces an earlier
    /// redirection.
    pub(crate) fn redirect(&mut self, from: u32, to: u32) -> io::Result<()> {
        let discipline = message(from, INGRESS_HANDLE, INGRESS, 0, "ingress");
        // The kernel reports a missing discipline as one of the two.
        let gone = unless(Errno::ENOENT, self.request(RTM_DELQDISC, 0, &discipline.0));
        unless(Errno::EINVAL, gone)?;
        self.request(RTM_NEWQDISC, CREATE | EXCL, &discipline.0)?;
        let info = 1 << 16 | u32::from(ALL_PROTOCOLS.to_be());
        let mut filter = message(from, 0, INGRESS_HANDLE, info, "u32");
        // `struct tc_u32_sel` with one key that matches everything; 1 is `TC_U32_TERMINAL`.
        let mut selector = [0; 32];
        (selector[0], selector[2]) = (1, 1);
        // `struct tc_mirred`: 4 is `TC_ACT_STOLEN`, 1 is `TCA_EGRESS_REDIR`.
        let mirror: Vec<u8> =
            [0, 0, 4, 0, 0, 1, to].iter().flat_map(|v: &u32| v.to_ne_bytes()).collect();
        filter.nest(OPTIONS, |w| {
            // `TCA_U32_SEL` and `TCA_U32_ACT`.
            w.attr(5, &selector).nest(7, |w| {
                w.nest(1, |w| {
                    w.text(1, "mirred").nest(2, |w| {
                        // `TCA_MIRRED_PARMS`.
                        w.attr(2, &mirror);
                    });
                });
            });
        });
        self.request(RTM_NEWTFILTER, CREATE | EXCL, &filter.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn a_token_bucket_is_read_back_and_replaced_and_packets_are_redirected_to_an_ifb() {
        let name = "a_token_bucket_is_read_back_and_replaced_and_packets_are_redirected_to_an_ifb";
        if !privileged(name) {
            return;
        }
        in_namespace(|| {
            connected_links();
            let mut socket = Socket::route().unwrap();
            let [d0, d1] = ["d0", "d1"].map(|name| socket.link(name).unwrap().unwrap().index);
            assert_eq!(socket.rate_limit(d0).unwrap(), None);
            for rate in [125, 125_000_000, 125_000_000_000_000] {
                let bucket = TokenBucket { rate, burst: 65_536, limit: 80_000 };
                socket.limit_rate(d0, &bucket).unwrap();
                assert_eq!(socket.rate_limit(d0).unwrap(), Some(rate));
                assert_eq!(socket.rate_limit(d1).unwrap(), None);
            }
            let bucket = TokenBucket { rate: 1_000_000, burst: 65_536, limit: 80_000 };
            socket.limit_rate(d0, &bucket).unwrap();
            let shown = shell("tc qdisc show dev d0");
            assert!(shown.contains("rate 8Mbit burst 64Kb"), "{shown}");
            socket.add_ifb("i0", 1400).unwrap();
            let ifb = socket.link("i0").unwrap().unwrap();
            assert_eq!((ifb.mtu, ifb.up), (1400, true));
            for _ in 0..2 {
                socket.redirect(d0, ifb.index).unwrap();
                let shown = shell("tc filter show dev d0 ingress");
                assert!(shown.contains("mirred (Egress Redirect to device i0) stolen"), "{shown}");
            }
        });
    }
}
