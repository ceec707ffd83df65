//! Keeps a cache equal to the server: a streaming list, then changes, resumed after interruptions.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::WatchEvent;
use base::{Backoff, Shutdown};

use crate::client::Client;
use crate::informer::{Change, Shared};
use crate::transport::WatchStream;

/// As client-go's reflector: 800 ms doubling to 30 s (`k8s.io/client-go/tools/cache`).
const BACKOFF: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));

/// How a watch ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The stream closed; resume from the last revision.
    Closed,
    /// The revision was compacted; list again.
    Expired,
}

/// Runs until shutdown. Failures are retried and logged once per cause, not at each retry.
pub(crate) async fn run(
    client: Client,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut resume = None;
    // The last logged cause; only another cause is logged.
    let mut told = String::new();
    while !shutdown.is_requested() {
        let started = tokio::select! {
            started = client.transport().watch(&shared.scope, resume) => started,
            () = shutdown.requested() => break,
        };
        let stream = match started {
            Ok(stream) => stream,
            Err(error) => {
                if resume.is_some() && (error.is_expired() || error.is_too_new()) {
                    resume = None;
                    continue;
                }
                let error = error.to_string();
                if backoff.failures() == 0 || error != told {
                    tracing::warn!(gvr = %shared.scope.gvr, %error, "watch failed, retrying");
                    told = error;
                }
                if !backoff.wait_or(&shutdown, client.transport().back()).await {
                    break;
                }
                continue;
            }
        };
        let end = tokio::select! {
            end = follow(&shared, stream, &mut resume, &mut backoff) => end,
            () = shutdown.requested() => break,
        };
        if end == End::Expired {
            resume = None;
        }
        // A server that closes connections at once must not be retried in a tight loop.
        let back = client.transport().back();
        if backoff.failures() > 0 && !backoff.wait_or(&shutdown, back).await {
            break;
        }
    }
    Ok(())
}

/// Applies the events of a stream. `resume` is the revision after the last complete event.
async fn follow(
    shared: &Shared,
    mut stream: WatchStream,
    resume: &mut Option<i64>,
    backoff: &mut Backoff,
) -> End {
    // During a streaming list: keys that were not received yet. Those left at its end have been
    // deleted.
    let mut unseen: Option<HashSet<_>> =
        resume.is_none().then(|| shared.cache.keys().into_iter().collect());
    let mut progressed = false;
    while let Some(event) = stream.recv().await {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                if let Some(unseen) = &mut unseen {
                    unseen.remove(&object.key);
                } else {
                    *resume = Some(object.resource_version);
                }
                let change = match shared.cache.put(Arc::clone(&object)) {
                    Some(old)
                        if old.resource_version == object.resource_version
                            && old.uid == object.uid =>
                    {
                        continue;
                    }
                    Some(old) => Change::Updated { old, new: object },
                    None => Change::Added(object),
                };
                shared.notify(&change);
            }
            WatchEvent::Deleted(object) => {
                if unseen.is_none() {
                    *resume = Some(object.resource_version);
                }
                if shared.cache.remove(&object.key).is_some() {
                    shared.notify(&Change::Deleted(object));
                }
            }
            WatchEvent::Bookmark { revision, initial } => {
                if initial {
                    for key in unseen.take().unwrap_or_default() {
                        if let Some(old) = shared.cache.remove(&key) {
                            shared.notify(&Change::Deleted(old));
                        }
                    }
                    shared.synced.send_replace(true);
                }
                if unseen.is_none() {
                    *resume = Some(revision);
                }
            }
            WatchEvent::Error(status)
                if status.code == 410 || crate::error::is_too_new(&status) =>
            {
                return End::Expired;
            }
            WatchEvent::Error(status) => {
                tracing::warn!(gvr = %shared.scope.gvr, error = %status, "watch ended with an error");
                let _ = backoff.next_delay();
                return End::Closed;
            }
        }
        if !progressed {
            progressed = true;
            backoff.reset();
        }
    }
    if !progressed {
        let _ = backoff.next_delay();
    }
    End::Closed
}
