//! The tables of all families: what they must contain and how that gets into the kernel.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::HostPorts;
use super::metrics;
use super::nft::Layout;
use super::rules::{self, DesiredElements, Groups, NodeContext};
use super::state::{Difference, State};
use crate::config::{Config, Error};
use crate::host;
use crate::netlink::{Socket, conntrack};
use settings::addr::Family;

/// One family's table and its desired state.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) layout: Layout,
    pub(super) state: State,
    pub(super) groups: Groups,
    /// UDP destinations whose connections to other endpoints are still to be removed.
    stale_udp: conntrack::Keep,
    /// The pods whose host ports are in the state.
    host_port_owners: BTreeSet<String>,
}

impl Table {
    /// The table of a family before any Service is known.
    pub(super) fn new(config: &Config, family: Family) -> Self {
        let of_family = |blocks: &[settings::Cidr]| -> Vec<settings::Cidr> {
            blocks.iter().copied().filter(|b| b.family() == family).collect()
        };
        let cluster = &config.cluster;
        let service = if cluster.proxy { of_family(&cluster.service_cidrs) } else { Vec::new() };
        Table {
            layout: Layout {
                family,
                table: config.table.clone(),
                bridge: config.bridge.clone(),
                cluster: of_family(&cluster.cluster_cidrs),
                tunnel: cluster.backend.tunnels().then_some(cluster.overlay.vxlan_port),
                service,
                localhost: config.localhost_node_ports,
            },
            state: State::default(),
            groups: Groups::default(),
            stale_udp: conntrack::Keep::default(),
            host_port_owners: BTreeSet::new(),
        }
    }

    /// Takes the host ports of all pods of this node into the state.
    pub(super) fn plan_host_ports(&mut self, list: &HostPorts) {
        let gone = |owner: &&String| !list.contains_key(*owner);
        for owner in self.host_port_owners.iter().filter(gone) {
            self.state.replace(owner, DesiredElements::default());
        }
        for (owner, ports) in list {
            self.state.replace(owner, rules::plan_host_ports(ports, self.layout.family));
        }
        if !self.host_port_owners.iter().eq(list.keys()) {
            self.host_port_owners = list.keys().cloned().collect();
        }
    }

    /// The difference since the last call. The UDP connections that it makes stale are remembered
    /// until [`Self::forget_stale`] has removed them.
    pub(super) fn take_difference(&mut self) -> Difference {
        let mut difference = self.state.take_difference();
        self.stale_udp.extend(difference.udp.drain());
        difference
    }

    /// Removes connections to UDP endpoints that are gone. After an error the next call tries it
    /// again.
    fn forget_stale(&mut self, socket: &mut Socket) {
        if self.stale_udp.is_empty() {
            return;
        }
        let begin = Instant::now();
        match conntrack::forget_stale(socket, self.layout.family, &self.stale_udp) {
            Ok(count) => {
                self.stale_udp.clear();
                metrics::connections_reconciled(self.layout.family, begin.elapsed(), count);
                if count > 0 {
                    tracing::debug!(count, "proxy: removed conntrack entries of stale endpoints");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "proxy: cannot remove stale UDP conntrack entries, retrying at the next change");
            }
        }
    }

    /// Applies the difference, or with `replace` the whole table.
    fn apply(
        &mut self,
        socket: &mut Socket,
        node_context: &NodeContext,
        (difference, replace): (&Difference, bool),
    ) -> Result<(), Error> {
        let begin = Instant::now();
        if replace {
            self.layout.replace(socket, &self.state, node_context)?;
        } else if !difference.is_empty() {
            self.layout.apply(socket, &self.state, difference)?;
        } else {
            return Ok(());
        }
        metrics::synced(self.layout.family, begin.elapsed(), replace, self.state.no_local());
        Ok(())
    }
}

/// The tables and the socket to the kernel.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) socket: Socket,
    pub(super) tables: Vec<Table>,
    pub(super) node_context: NodeContext,
    /// The table was made by this process and equals the state.
    pub(super) live: bool,
}

impl Engine {
    /// Applies what changed, and removes connections to endpoints that are gone.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        for table in &mut self.tables {
            let family = table.layout.family;
            let difference = table.take_difference();
            table
                .apply(&mut self.socket, &self.node_context, (&difference, !self.live))
                .inspect_err(|_| metrics::sync_failed(family))?;
            table.forget_stale(&mut self.socket);
            if !self.live && family == Family::V4 && table.layout.localhost {
                route_localnet();
            }
        }
        self.live = true;
        Ok(())
    }
}

/// Lets connections to node ports at loopback addresses leave the machine, once the rules exist
/// that keep others from the loopback addresses.
fn route_localnet() {
    if let Err(error) = host::sysctl("ipv4/conf/all/route_localnet", "1") {
        tracing::warn!(%error, "proxy: node ports at 127.0.0.1 reach endpoints of this node only");
    }
}
