//! Volumes of the kind `iscsi` (`pkg/volume/iscsi`): sessions with a target are opened and closed
//! by `iscsiadm`, one for each portal, and all volumes of a target on this node share them.

mod attach;
mod detach;
mod disk;
mod iface;
mod iscsiadm;
#[cfg(test)]
mod tests;

pub(super) use attach::{Credentials, attach};
pub(super) use detach::{close_session, delete_devices, is_session_busy};
pub(super) use disk::{IscsiDisk, IscsiSource, PLUGIN};
