//! Who makes room when there are many connections: the one that has been without a request for the
//! longest time.
//!
//! Upstream has no bound, and grows with what is opened. Here the bound is kept, and whoever opens
//! connections and says nothing cannot keep others out: each that comes when there is little room
//! ends the longest idle one, which a client that is alive opens again when it asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All connections of a listener.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Connections, idle or not.
    all: usize,
    /// Rises with each connection that becomes idle.
    turn: u64,
    /// Those without a request, in the order in which they became so.
    idle: BTreeMap<u64, CancellationToken>,
}

impl State {
    fn rest(&mut self, leave: &CancellationToken) -> u64 {
        self.turn += 1;
        self.idle.insert(self.turn, leave.clone());
        self.turn
    }
}

impl Crowd {
    /// A connection that has just come. When there are `enough` already, the one that has been idle
    /// for the longest time is asked to leave.
    pub(crate) fn enter(self: &Arc<Self>, enough: usize) -> Arc<Visitor> {
        let leave = CancellationToken::new();
        let mut state = self.0.lock();
        state.all += 1;
        if state.all > enough
            && let Some((_, longest)) = state.idle.pop_first()
        {
            longest.cancel();
        }
        let turn = state.rest(&leave);
        drop(state);
        let doing = Mutex::new(Doing { requests: 0, turn });
        Arc::new(Visitor { crowd: Arc::clone(self), leave, doing })
    }
}

/// One connection; dropped when it is gone.
#[derive(Debug)]
pub(crate) struct Visitor {
    crowd: Arc<Crowd>,
    leave: CancellationToken,
    doing: Mutex<Doing>,
}

#[derive(Debug)]
struct Doing {
    /// Requests whose answers are not sent yet.
    requests: usize,
    /// Its place among the idle ones, when it is one.
    turn: u64,
}

impl Visitor {
    /// Is over when the connection shall make room.
    pub(crate) async fn asked_to_leave(&self) {
        self.leave.cancelled().await;
    }

    /// The connection has a request until this is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> Busy {
        let mut doing = self.doing.lock();
        doing.requests += 1;
        if doing.requests == 1 {
            self.crowd.0.lock().idle.remove(&doing.turn);
        }
        drop(doing);
        Busy(Arc::clone(self))
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let turn = self.doing.get_mut().turn;
        let mut state = self.crowd.0.lock();
        state.all -= 1;
        state.idle.remove(&turn);
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Visitor>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut doing = self.0.doing.lock();
        doing.requests -= 1;
        // Who is leaving already makes no room for another one.
        if doing.requests == 0 && !self.0.leave.is_cancelled() {
            doing.turn = self.0.crowd.0.lock().rest(&self.0.leave);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_one_makes_room_and_none_with_a_request() {
        let crowd = Arc::new(Crowd::default());
        let left = |visitor: &Arc<Visitor>| visitor.leave.is_cancelled();
        let (watching, first, second) = (crowd.enter(3), crowd.enter(3), crowd.enter(3));
        let watch = watching.request();
        // Who has just been answered has been idle for the shortest time.
        drop((first.request(), first.request()));
        let third = crowd.enter(3);
        assert_eq!([&watching, &first, &second, &third].map(left), [false, false, true, false]);
        let fourth = crowd.enter(3);
        assert_eq!([&watching, &first, &third, &fourth].map(left), [false, true, false, false]);
        drop((first, second, third, fourth));
        let fifth = crowd.enter(1);
        assert!(!left(&watching), "there was nobody who could leave");
        drop(watch);
        let sixth = crowd.enter(2);
        assert_eq!([&watching, &fifth, &sixth].map(left), [false, true, false]);
        drop((watching, fifth, sixth));
        let state = crowd.0.lock();
        assert_eq!((state.all, state.idle.len()), (0, 0));
    }
}
