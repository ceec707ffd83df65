//! `--lb-pool` and `--api-vip`: the virtual addresses, checked against everything that has
//! addresses already.

use std::net::IpAddr;

use settings::{AddressPool, AddressRange, Cidr, Family};

use super::network::AddressRanges;
use crate::command_line::ServerArgs;
use crate::error_catalogue::CommandError;
use crate::error_catalogue::invalid_flag;
use crate::machine::Machine;

/// Parses both flags.
///
/// # Errors
/// A text of another form, or addresses that something else has.
pub(super) fn parse(
    args: &ServerArgs,
    ranges: &AddressRanges,
    machine: &Machine,
) -> Result<(AddressPool, Option<IpAddr>), CommandError> {
    let flags = &args.virtual_addresses;
    let texts = flags.lb_pool.iter().map(|text| text.trim());
    let joined = flags.lb_pool.join(",");
    let pool = AddressPool::parse(texts).map_err(|why| invalid_flag("lb-pool", &joined, why))?;
    for range in pool.ranges() {
        check_range("lb-pool", range, ranges, machine)?;
    }
    if !pool.is_empty() {
        check_components(args, &joined)?;
    }
    if let Some(vip) = flags.api_vip {
        check_api_vip(args, vip, &pool, ranges, machine)?;
    }
    Ok((pool, flags.api_vip))
}

/// The components that a pool needs.
fn check_components(args: &ServerArgs, pool: &str) -> Result<(), CommandError> {
    let refuse = |why: &str| Err(invalid_flag("lb-pool", pool, why));
    if args.disable.iter().any(|name| name == "servicelb") {
        return refuse("contradicts --disable=servicelb, which leaves Services to others");
    }
    if args.cloud.disable_cloud_controller {
        return refuse("contradicts --disable-cloud-controller, which leaves Services to others");
    }
    if args.cluster.disable_kube_proxy {
        return refuse("contradicts --disable-kube-proxy: the service proxy serves the addresses");
    }
    check_store(args, "lb-pool", pool)
}

/// The servers of the embedded store agree on the holder of an address.
fn check_store(args: &ServerArgs, flag: &str, value: &str) -> Result<(), CommandError> {
    if args.datastore.datastore_endpoint.is_some() {
        let why = "needs the embedded store: the members of the store agree on the node that holds \
                   an address; remove --datastore-endpoint or use an external load balancer";
        return Err(invalid_flag(flag, value, why));
    }
    Ok(())
}

fn check_api_vip(
    args: &ServerArgs,
    vip: IpAddr,
    pool: &AddressPool,
    ranges: &AddressRanges,
    machine: &Machine,
) -> Result<(), CommandError> {
    let range: AddressRange =
        vip.to_string().parse().map_err(|why| invalid_flag("api-vip", vip, why))?;
    check_range("api-vip", &range, ranges, machine)?;
    if pool.contains(vip) {
        let why = "lies in --lb-pool, whose addresses Services get";
        return Err(invalid_flag("api-vip", vip, why));
    }
    if !machine.listen.is_unspecified() {
        let why =
            format!("contradicts --bind-address={}: the API does not listen there", machine.listen);
        return Err(invalid_flag("api-vip", vip, why));
    }
    if !machine.node_ips.iter().any(|ip| Family::of(*ip) == Family::of(vip)) {
        let why = "this server has no address of the same IP family; see --node-ip";
        return Err(invalid_flag("api-vip", vip, why));
    }
    check_store(args, "api-vip", &vip.to_string())
}

/// Refuses addresses of pods, Services and this machine.
fn check_range(
    flag: &str,
    range: &AddressRange,
    ranges: &AddressRanges,
    machine: &Machine,
) -> Result<(), CommandError> {
    let overlapping = |blocks: &[Cidr]| blocks.iter().find(|b| range.overlaps_block(b)).copied();
    if let Some(pods) = overlapping(&ranges.pods) {
        return Err(invalid_flag(flag, range, format!("overlaps with --cluster-cidr={pods}")));
    }
    if let Some(services) = overlapping(&ranges.services) {
        return Err(invalid_flag(flag, range, format!("overlaps with --service-cidr={services}")));
    }
    let own = machine.node_ips.iter().chain(&machine.args.addresses.node_external_ip);
    if let Some(own) = own.copied().find(|ip| range.contains(*ip)) {
        return Err(invalid_flag(flag, range, format!("contains {own}, an address of this node")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;

    #[test]
    fn pools_and_the_virtual_address_of_the_api_are_checked() {
        let good = config(&[
            "--lb-pool=192.0.2.10-192.0.2.20",
            "--lb-pool=198.51.100.0/28",
            "--api-vip=192.0.2.9",
            "--node-ip=192.0.2.1",
        ])
        .unwrap();
        assert_eq!(good.cluster.lb_pool.ranges().len(), 2);
        assert_eq!(good.api_vip, "192.0.2.9".parse().ok());
        for (flags, why) in [
            (&["--lb-pool=192.0.2"][..], "--lb-pool=192.0.2: \"192.0.2\" is not a range"),
            (&["--lb-pool=10.42.7.0-10.42.7.9"], "overlaps with --cluster-cidr=10.42.0.0/16"),
            (&["--lb-pool=10.43.0.0/28"], "overlaps with --service-cidr=10.43.0.0/16"),
            (&["--lb-pool=192.0.2.0/24"], "contains 192.0.2.1, an address of this node"),
            (&["--lb-pool=203.0.113.7", "--disable=servicelb"], "contradicts --disable=servicelb"),
            (
                &["--lb-pool=203.0.113.7", "--disable-kube-proxy"],
                "contradicts --disable-kube-proxy",
            ),
            (
                &["--lb-pool=203.0.113.7", "--disable-cloud-controller"],
                "contradicts --disable-cloud",
            ),
            (&["--lb-pool=203.0.113.7,203.0.113.9", "--api-vip=203.0.113.9"], "lies in --lb-pool"),
            (&["--api-vip=10.43.0.9"], "overlaps with --service-cidr"),
            (&["--api-vip=192.0.2.1"], "contains 192.0.2.1, an address of this node"),
            (&["--api-vip=2001:db8::9"], "no address of the same IP family"),
            (&["--api-vip=192.0.2.9", "--bind-address=192.0.2.1"], "contradicts --bind-address"),
            (&["--api-vip=127.0.0.1"], "cannot be held by a machine"),
            (
                &["--lb-pool=203.0.113.7", "--datastore-endpoint=postgres://u:p@192.0.2.3/d"],
                "needs the embedded store",
            ),
        ] {
            let flags = [flags, &["--node-ip=192.0.2.1"]].concat();
            let error = config(&flags).unwrap_err();
            assert!(error.contains(why), "{flags:?}: {error}");
        }
    }
}
