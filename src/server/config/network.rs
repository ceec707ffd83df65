//! Address ranges, cluster DNS and node ports.

use std::net::IpAddr;

use settings::Cidr;

use crate::command_line::ServerArgs;
use crate::error_catalogue::CommandError;
use crate::error_catalogue::invalid_flag;

/// The address ranges of the cluster, one per IP family; those of pods and Services do not overlap.
pub(super) struct AddressRanges {
    /// Of pods.
    pub(super) pods: Vec<Cidr>,
    /// Of Services.
    pub(super) services: Vec<Cidr>,
}

impl AddressRanges {
    /// Parses `--cluster-cidr` and `--service-cidr`.
    pub(super) fn parse(args: &ServerArgs) -> Result<Self, CommandError> {
        let pods = cidrs("cluster-cidr", &args.cluster_cidr)?;
        let services = cidrs("service-cidr", &args.service_cidr)?;
        for service in &services {
            if let Some(pods) = pods.iter().find(|pods| pods.overlaps(service)) {
                let why = format!("overlaps with --cluster-cidr={pods}");
                return Err(invalid_flag("service-cidr", service, why));
            }
        }
        Ok(Self { pods, services })
    }

    /// The addresses of the cluster DNS: `given`, or the tenth address of each Service range; none
    /// if it does not run.
    pub(super) fn cluster_dns(
        &self,
        given: &[IpAddr],
        runs: bool,
    ) -> Result<Vec<IpAddr>, CommandError> {
        let dns = match given {
            [] => self.services.iter().filter_map(|cidr| cidr.nth(10)).collect(),
            given => given.to_vec(),
        };
        let is_outside = |ip: &&IpAddr| !self.services.iter().any(|cidr| cidr.contains(**ip));
        match dns.iter().find(is_outside) {
            Some(outside) => {
                Err(invalid_flag("cluster-dns", outside, "must lie in --service-cidr"))
            }
            None if runs => Ok(dns),
            None => Ok(Vec::new()),
        }
    }
}

fn cidrs(flag: &str, values: &[String]) -> Result<Vec<Cidr>, CommandError> {
    let mut parsed = Vec::with_capacity(values.len());
    for value in values {
        let cidr: Cidr = value.parse().map_err(|why| invalid_flag(flag, value, why))?;
        let given = value.trim().split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        if given != Some(cidr.first()) {
            return Err(invalid_flag(flag, value, format!("has host bits set, use {cidr}")));
        }
        parsed.push(cidr);
    }
    match parsed.as_slice() {
        [_] => Ok(parsed),
        [a, b] if a.family() != b.family() => Ok(parsed),
        _ => Err(invalid_flag(flag, values.join(","), "must be one range, or one per IP family")),
    }
}

/// First and last port of `--service-node-port-range`.
pub(super) fn node_ports(value: &str) -> Result<(u16, u16), CommandError> {
    let parse = || {
        let (from, to) = value.split_once('-')?;
        Some((from.trim().parse::<u16>().ok()?, to.trim().parse::<u16>().ok()?))
    };
    parse().filter(|(from, to)| *from > 0 && from <= to).ok_or_else(|| {
        invalid_flag("service-node-port-range", value, "must be FROM-TO, such as 30000-32767")
    })
}
