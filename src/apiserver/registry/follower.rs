//! Follows one resource through the watch cache: all objects, then every change, until shutdown.

use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, ObjectKey, Status};
use base::Backoff;

use crate::registry::objects::Objects;
use crate::registry::watch_cache::{Filter, Position};

/// Receives the objects and changes of a resource.
pub(crate) trait Follower: Send {
    /// Replaces all objects after a list.
    fn replace(&mut self, all: &[Arc<Object>]);

    /// An object was added or changed.
    fn put(&mut self, object: &Arc<Object>);

    /// An object was deleted.
    fn remove(&mut self, key: &ObjectKey);

    /// All changes received so far have been delivered.
    fn synced(&mut self) {}
}

/// Lists the resource and passes all objects to the follower; returns the position after them.
///
/// # Errors
/// When the cache does not load.
pub(crate) async fn load(
    objects: &Objects,
    gvr: &Gvr,
    follower: &mut impl Follower,
) -> Result<Position, Status> {
    let row = objects.row(gvr)?;
    let cache = objects.fresh_cache(&row).await?;
    let (page, position) = cache.list_and_watch(&Filter::default());
    follower.replace(&page.items);
    follower.synced();
    Ok(position)
}

/// Passes every change after `position` to the follower. A follower that lags relists.
pub(crate) async fn follow(
    objects: &Objects,
    gvr: &Gvr,
    follower: &mut impl Follower,
    mut position: Position,
) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(5));
    loop {
        match position.next().await {
            Ok((events, _)) => {
                backoff.reset();
                for event in events {
                    if event.deleted {
                        follower.remove(&event.entry.object.key);
                    } else {
                        follower.put(&event.entry.object);
                    }
                }
                follower.synced();
            }
            Err(_) => {
                base::clock::sleep(backoff.next_delay()).await;
                match load(objects, gvr, follower).await {
                    Ok(fresh) => position = fresh,
                    Err(error) => {
                        tracing::warn!(%gvr, %error, "cannot relist this resource, retrying");
                    }
                }
            }
        }
    }
}
