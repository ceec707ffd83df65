//! While no server answers, Services leave out the pods of this node that the node knows not to be ready.
//!
//! With a server this is its part: endpoints follow the pods' statuses. Without one they stay as they were last told, and what fails
//! meanwhile would be sent requests until a server is back.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use base::{Kind, Tasks};
use node::NotReadyPods;
use tokio::sync::watch;
use tokio::time::Instant;

/// Servers answer, or do not, when they have for so long: a server or an agent that starts anew changes no rules, and a server that is
/// back has time to tell which endpoints there are.
const SETTLED: Duration = Duration::from_secs(5);

/// Whether to go by the node's own knowledge.
#[derive(Debug)]
struct Cut {
    is: bool,
    /// Since when servers say the contrary.
    against: Option<Instant>,
}

impl Cut {
    /// Takes whether a server answers; when to look again.
    fn told(&mut self, answers: bool, now: Instant) -> Option<Instant> {
        if answers != self.is {
            self.against = None;
            return None;
        }
        let end = *self.against.get_or_insert(now) + SETTLED;
        if now < end {
            return Some(end);
        }
        (self.is, self.against) = (!answers, None);
        None
    }
}

/// Follows both until shutdown.
pub(super) fn follow(
    unready: &NotReadyPods,
    mut answering: watch::Receiver<bool>,
    left_out: watch::Sender<BTreeSet<String>>,
    tasks: &Tasks,
) {
    let (mut unready, shutdown) = (unready.subscribe(), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "left-out", async move {
        let mut cut = Cut { is: false, against: None };
        loop {
            let look = cut.told(*answering.borrow_and_update(), base::clock::now());
            let pods: BTreeSet<String> = match &*unready.borrow_and_update() {
                all if cut.is => all.keys().cloned().collect(),
                _ => BTreeSet::new(),
            };
            left_out.send_if_modified(|known| {
                let changed = *known != pods;
                *known = pods;
                changed
            });
            let settled = async {
                match look {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = answering.changed() => if changed.is_err() { break },
                changed = unready.changed() => if changed.is_err() { break },
                () = settled => {}
                () = shutdown.requested() => break,
            }
        }
        shutdown.requested().await;
        Ok::<(), Infallible>(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_changes_who_is_believed() {
        let start = base::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut cut = Cut { is: false, against: None };
        // An agent that starts, and a server that starts again.
        assert_eq!(cut.told(false, at(0)), Some(at(5)));
        assert_eq!((cut.told(true, at(1)), cut.is), (None, false));
        assert_eq!(cut.told(false, at(100)), Some(at(105)));
        assert_eq!(cut.told(false, at(103)), Some(at(105)));
        assert_eq!((cut.told(false, at(105)), cut.is), (None, true));
        // It is back, and needs some time to say what is.
        assert_eq!((cut.told(true, at(200)), cut.is), (Some(at(205)), true));
        assert_eq!((cut.told(false, at(202)), cut.is), (None, true));
        assert_eq!(
            (cut.told(true, at(300)), cut.told(true, at(305)), cut.is),
            (Some(at(305)), None, false)
        );
    }
}
