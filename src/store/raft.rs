//! A member of openraft over the log on disk: log store, state machine, proposals and the network.
//!
//! An entry carries a batch of commands: all commands queued while the previous batch was written.
//! One write and one `fdatasync` serve all of them, and the cost of consensus is per batch, not per
//! command.

mod applied_state;
mod checkpoints;
mod engine;
mod failure_detector;
mod forward;
mod leadership_transfer;
mod log_store;
mod members;
mod membership_watch;
mod network;
mod proposals;
mod rpc_server;
mod snapshot_receiver;
mod start;
mod state_machine;
mod transport;
mod wire;

#[cfg(test)]
pub(crate) use engine::RaftEngine;
pub use failure_detector::PeerConnection;
pub use members::{Members, to_promote};
pub use membership_watch::Responses;
pub use start::MemberOptions;
pub(crate) use start::{Options, Started, start};
pub use transport::{CallError, Lane, MAX_MESSAGE_BYTES, Peer, Transport};

use crate::log::Types;

pub(crate) type Raft = openraft::Raft<Types, state_machine::Machine>;

/// Entry point of the fuzzers for a request and a response.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_wire(bytes: &[u8]) {
    if let Ok((_, reader)) = wire::Envelope::decode(bytes) {
        drop(wire::Request::decode(reader));
    }
    drop(wire::Response::decode(bytes));
}

#[cfg(test)]
mod tests;
