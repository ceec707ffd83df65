//! Bounds the connections of a listener by evicting the one that has been idle the longest.
//!
//! kube-apiserver does not bound connections. Here a client that opens many connections without
//! sending requests cannot lock out other clients: above the soft limit each new connection evicts
//! the longest idle one. A live client reconnects with its next request.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All connections of a listener.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimiter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Connections, idle or not.
    all: usize,
    /// Increases with each connection that becomes idle.
    idle_order: u64,
    /// Idle connections, ordered by when they became idle.
    idle: BTreeMap<u64, CancellationToken>,
}

impl State {
    fn mark_idle(&mut self, eviction: &CancellationToken) -> u64 {
        self.idle_order += 1;
        self.idle.insert(self.idle_order, eviction.clone());
        self.idle_order
    }
}

impl ConnectionLimiter {
    /// Registers a new connection. Above `soft_limit` connections, evicts the longest idle one.
    pub(crate) fn accept(self: &Arc<Self>, soft_limit: usize) -> Arc<ConnectionGuard> {
        let eviction = CancellationToken::new();
        let mut state = self.0.lock();
        state.all += 1;
        if state.all > soft_limit
            && let Some((_, longest)) = state.idle.pop_first()
        {
            longest.cancel();
        }
        let idle_order = state.mark_idle(&eviction);
        drop(state);
        let activity = Mutex::new(Activity { requests: 0, idle_order });
        Arc::new(ConnectionGuard { limiter: Arc::clone(self), eviction, activity })
    }
}

/// Registration of one open connection; dropping it removes the connection.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    limiter: Arc<ConnectionLimiter>,
    eviction: CancellationToken,
    activity: Mutex<Activity>,
}

#[derive(Debug)]
struct Activity {
    /// Requests whose responses are not sent yet.
    requests: usize,
    /// Key in `State::idle` while the connection is idle.
    idle_order: u64,
}

impl ConnectionGuard {
    /// Completes when the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.eviction.cancelled().await;
    }

    /// Marks the connection as busy until the guard is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> RequestGuard {
        let mut activity = self.activity.lock();
        activity.requests += 1;
        if activity.requests == 1 {
            self.limiter.0.lock().idle.remove(&activity.idle_order);
        }
        drop(activity);
        RequestGuard(Arc::clone(self))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let idle_order = self.activity.get_mut().idle_order;
        let mut state = self.limiter.0.lock();
        state.all -= 1;
        state.idle.remove(&idle_order);
    }
}

/// Guard of a request in progress.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<ConnectionGuard>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut activity = self.0.activity.lock();
        activity.requests -= 1;
        // An evicted connection must not become a candidate for eviction again.
        if activity.requests == 0 && !self.0.eviction.is_cancelled() {
            activity.idle_order = self.0.limiter.0.lock().mark_idle(&self.0.eviction);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_is_evicted_and_none_with_a_request() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let is_evicted = |guard: &Arc<ConnectionGuard>| guard.eviction.is_cancelled();
        let (watching, first, second) = (limiter.accept(3), limiter.accept(3), limiter.accept(3));
        let watch = watching.request();
        // The connection that has just finished a request is the most recently idle one.
        drop((first.request(), first.request()));
        let third = limiter.accept(3);
        assert_eq!(
            [&watching, &first, &second, &third].map(is_evicted),
            [false, false, true, false]
        );
        let fourth = limiter.accept(3);
        assert_eq!(
            [&watching, &first, &third, &fourth].map(is_evicted),
            [false, true, false, false]
        );
        drop((first, second, third, fourth));
        let fifth = limiter.accept(1);
        assert!(!is_evicted(&watching), "no connection was idle");
        drop(watch);
        let sixth = limiter.accept(2);
        assert_eq!([&watching, &fifth, &sixth].map(is_evicted), [false, true, false]);
        drop((watching, fifth, sixth));
        let state = limiter.0.lock();
        assert_eq!((state.all, state.idle.len()), (0, 0));
    }
}
