//! Limits of a pod's bandwidth: what the runtime requests from the annotations
//! `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`, applied as the plugin
//! `bandwidth` of containernetworking does.
//!
//! A token bucket on the host's end of the veth pair limits what the pod receives. What the pod
//! sends passes a token bucket on an `ifb` link, which the pod cannot change.

use std::io;

use serde_json::Value;

use crate::cni::Failure;
use crate::cni::request::member;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::netlink::traffic_control::TokenBucket;

/// How long a packet waits at most: the latency of the plugin `bandwidth`.
const LATENCY_MS: u64 = 25;
/// Longest burst. containerd requests 512 MiB, which would leave most transfers without a limit.
const BURST_MS: u64 = 20;
/// One large segment of TCP.
const BURST_MIN: u64 = 64 << 10;

/// The limits of one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of what the pod receives.
    pub(super) ingress: Option<TokenBucket>,
    /// Of what the pod sends.
    pub(super) egress: Option<TokenBucket>,
}

/// The bucket for a rate and a burst in bits.
fn bucket(rate_bits: u64, burst_bits: u64) -> TokenBucket {
    // Below one byte per second the kernel has no rate.
    let rate = (rate_bits / 8).max(1);
    let longest = rate.saturating_mul(BURST_MS) / 1000;
    let burst = (burst_bits / 8).min(longest).max(BURST_MIN);
    let waiting = rate.saturating_mul(LATENCY_MS) / 1000;
    let clamped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    TokenBucket { rate, burst: clamped(burst), limit: clamped(waiting.saturating_add(burst)) }
}

impl Limits {
    /// Reads `runtimeConfig.bandwidth`; a rate of 0 is no limit.
    ///
    /// # Errors
    /// With a rate without a burst or a burst without a rate, as the plugin `bandwidth`.
    pub(super) fn read(bandwidth: &Value) -> Result<Self, Failure> {
        let side = |name: &str| -> Result<Option<TokenBucket>, Failure> {
            let number = |part: &str| match member(bandwidth, &format!("{name}{part}")) {
                None | Some(Value::Null) => Ok(0),
                Some(value) => value.as_u64().ok_or_else(|| {
                    Failure::config(format!("bandwidth limit {name}{part} is no number: {value}"))
                }),
            };
            match (number("Rate")?, number("Burst")?) {
                (0, 0) => Ok(None),
                (0, _) => Err(Failure::config(format!("{name}Burst is set without {name}Rate"))),
                (_, 0) => Err(Failure::config(format!("{name}Rate is set without {name}Burst"))),
                (rate, burst) => Ok(Some(bucket(rate, burst))),
            }
        };
        Ok(Self { ingress: side("ingress")?, egress: side("egress")? })
    }

    /// Applies the limits to a pod's link, and removes earlier ones that differ.
    pub(super) fn apply(&self, socket: &mut Socket, host: &Link) -> Result<(), Failure> {
        let failed = |what: &'static str, hint: &'static str| {
            let name = host.name.clone();
            move |e: io::Error| Failure::io(format!("cannot {what} of {name}: {e}{hint}"))
        };
        if let Some(bucket) = &self.ingress {
            socket.limit_rate(host.index, bucket).map_err(failed(
                "limit the ingress bandwidth",
                "; does the kernel have the module sch_tbf?",
            ))?;
        }
        let ifb = ifb(&host.name);
        let remove = failed("remove the old egress limit", "");
        socket.delete_link(&ifb).map_err(remove)?;
        let Some(bucket) = &self.egress else { return Ok(()) };
        let mut limit = || {
            socket.add_ifb(&ifb, host.mtu)?;
            let made =
                socket.link(&ifb)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            socket.limit_rate(made.index, bucket)?;
            socket.redirect(host.index, made.index)
        };
        let hint = "; does the kernel have the modules ifb, sch_tbf, sch_ingress, cls_u32 and \
                    act_mirred?";
        limit().map_err(failed("limit the egress bandwidth", hint))
    }

    /// Whether the limits of a pod's link are these.
    pub(super) fn check(&self, socket: &mut Socket, host: &str) -> Result<(), Failure> {
        for (link, wanted) in [(host.to_owned(), self.ingress), (ifb(host), self.egress)] {
            let rate = socket.link(&link).and_then(|found| match found {
                Some(found) => socket.rate_limit(found.index),
                None => Ok(None),
            });
            let rate =
                rate.map_err(|e| Failure::io(format!("cannot read the limit of {link}: {e}")))?;
            if rate != wanted.map(|bucket| bucket.rate) {
                return Err(Failure::io(format!("the bandwidth limit of {link} has changed")));
            }
        }
        Ok(())
    }
}

/// The name of the `ifb` link that belongs to a host link.
pub(super) fn ifb(host_link: &str) -> String {
    format!("ifb{}", host_link.strip_prefix("veth").unwrap_or(host_link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_read_as_the_bandwidth_plugin_reads_them() {
        let limits = |value: Value| Limits::read(&value);
        let none = Limits::default();
        assert_eq!(limits(Value::Null), Ok(none));
        assert_eq!(limits(json!({"ingressRate": 0, "ingressBurst": 0})), Ok(none));
        // What containerd sends for 8M and 1P.
        let read = limits(json!({
            "IngressRate": 8_000_000, "IngressBurst": u32::MAX,
            "EgressRate": 1_000_000_000_000_000_u64, "EgressBurst": u32::MAX,
        }));
        let ingress = TokenBucket { rate: 1_000_000, burst: 65_536, limit: 90_536 };
        let egress =
            TokenBucket { rate: 125_000_000_000_000, burst: u32::MAX / 8, limit: u32::MAX };
        assert_eq!(read, Ok(Limits { ingress: Some(ingress), egress: Some(egress) }));
        assert_eq!(bucket(1000, 1), TokenBucket { rate: 125, burst: 65_536, limit: 65_539 });
        for (bad, message) in [
            (json!({"ingressRate": 1000}), "ingressRate is set without ingressBurst"),
            (json!({"egressBurst": 1000}), "egressBurst is set without egressRate"),
            (json!({"egressRate": -1}), "bandwidth limit egressRate is no number: -1"),
        ] {
            let failure = limits(bad).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (7, message));
        }
    }

    #[test]
    fn the_name_of_an_ifb_fits_into_that_of_a_link() {
        let name = ifb(&crate::cni::host_link("container", "eth0"));
        assert!(name.len() < 16 && name.starts_with("ifb"), "{name}");
    }
}
