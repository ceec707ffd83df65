//! Frames of pods go to the node alone. Rules are asked where packets are routed; a pod that makes frames itself could hand
//! them to another pod of its bridge, where nobody routes.
//!
//! Ports of a bridge can be isolated from each other, but a kernel with `br_netfilter` hands translated packets from port
//! to port itself. So frames are looked at where they come in, before anything is translated.

use crate::netlink::Socket;
use crate::nft::expr::{Rule, Verdict};
use crate::nft::{Batch, Error, Hook};

/// The bridge that a frame comes in by (`NFT_META_BRI_IIFNAME`).
const BRIDGE: u32 = 17;
/// Before anybody else's (`NF_BR_PRI_FIRST`, `NF_BR_PRI_BRNF` is 0).
const PRIORITY: i32 = -300;

/// Drops what pods send to another unicast address than the bridge's own, in one transaction.
pub(super) fn hold(
    socket: &mut Socket,
    table: &str,
    bridge: &str,
    mac: &[u8],
) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    let hook = Some(Hook { kind: "filter", number: 0, priority: PRIORITY });
    batch.add_chain("from-pods", hook);
    let rule = Rule::new().interface(BRIDGE, bridge).hardware_destination(0);
    // The lowest bit of the first byte makes an address one of many.
    let rule = rule.bitwise(0, &[1, 0, 0, 0, 0, 0], &[0; 6]).compare(0, true, &[0; 6]);
    let rule = rule.hardware_destination(0).compare(0, false, mac);
    batch.add_rule("from-pods", &rule.verdict(Verdict::Drop));
    batch.commit(socket)
}

/// Takes the table away; none there is fine.
pub(super) fn release(socket: &mut Socket, table: &str) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    batch.add_table();
    batch.delete_table();
    batch.commit(socket)
}
