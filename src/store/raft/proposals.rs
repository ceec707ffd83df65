//! Proposals: commands that wait for an entry, and the entry they become.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::contract::{Durability, StoreError};
use crate::log::{BATCH_BYTES, Batch};
use crate::mvcc::{Command, Outcome};

/// Bytes that openraft may write between the check for room and the entry: votes, blank entries,
/// membership changes.
pub(super) const ROOM_SLACK: u64 = 4096;

/// A queued command and its caller.
pub(super) struct QueuedCommand {
    pub(super) command: Command,
    pub(super) durability: Durability,
    pub(super) reply: oneshot::Sender<Result<Outcome, StoreError>>,
    /// Another member may propose the command if it leads.
    pub(super) forward: bool,
}

impl QueuedCommand {
    /// Separates the command from its caller.
    pub(super) fn split(self) -> (Command, Waiting) {
        (self.command, Waiting { reply: self.reply, forward: self.forward })
    }
}

/// The caller of a proposed command.
pub(super) struct Waiting {
    pub(super) reply: oneshot::Sender<Result<Outcome, StoreError>>,
    pub(super) forward: bool,
}

/// Takes the commands that another member must propose; refuses the rest.
pub(super) fn take_for_forwarding(
    requests: impl Iterator<Item = (Command, Waiting)>,
    refused: bool,
) -> NotLeaderBatch {
    let mut not_leader = NotLeaderBatch { commands: Vec::new(), replies: Vec::new(), refused };
    for (command, Waiting { reply, forward }) in requests {
        if reply.is_closed() {
            // A command whose caller has given up must not run later.
        } else if forward {
            not_leader.commands.push(command);
            not_leader.replies.push(reply);
        } else {
            let text = "this member is not the leader any more".to_owned();
            // The receiver may be gone.
            let _ = reply.send(Err(StoreError::Unavailable(text)));
        }
    }
    not_leader
}

/// Commands that this member cannot propose because it does not lead, and their callers.
pub(super) struct NotLeaderBatch {
    pub(super) commands: Vec<Command>,
    pub(super) replies: Vec<oneshot::Sender<Result<Outcome, StoreError>>>,
    /// openraft refused them: it knows another leader, or will.
    pub(super) refused: bool,
}

/// The content of an entry.
pub(super) struct Proposal {
    pub(super) requests: Vec<QueuedCommand>,
    pub(super) encoded: Vec<u8>,
}

impl Proposal {
    /// Repeats the content of an entry.
    pub(super) fn again(requests: Vec<QueuedCommand>) -> Self {
        let (mut encoded, mut scratch) = (Vec::new(), Vec::new());
        for request in &requests {
            Batch::encode(&request.command, &mut scratch, &mut encoded);
        }
        Self { requests, encoded }
    }

    /// Takes commands up to the size of an entry; a larger command alone.
    pub(super) fn take(queue: &mut VecDeque<QueuedCommand>) -> Self {
        let (mut requests, mut encoded, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(request) = queue.pop_front() {
            if request.reply.is_closed() {
                // The caller was told that there is no answer; a command whose caller has given up
                // must not run later.
                continue;
            }
            let before = encoded.len();
            Batch::encode(&request.command, &mut scratch, &mut encoded);
            if before > 0 && encoded.len() > BATCH_BYTES {
                encoded.truncate(before);
                queue.push_front(request);
                break;
            }
            requests.push(request);
        }
        Self { requests, encoded }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.encoded.len() as u64 + ROOM_SLACK
    }

    /// Refuses commands that do not free space.
    pub(super) fn only_what_frees(self, error: &StoreError) -> Self {
        let (frees, refused): (Vec<_>, Vec<_>) =
            self.requests.into_iter().partition(|request| request.command.frees_space());
        answer_all(refused, error);
        Self::take(&mut frees.into())
    }
}

pub(super) fn answer_all(requests: impl IntoIterator<Item = QueuedCommand>, error: &StoreError) {
    for request in requests {
        // The receiver may be gone.
        let _ = request.reply.send(Err(error.clone()));
    }
}
