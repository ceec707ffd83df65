//! Following one resource from the watch cache: everything that is there, then every change, for
//! ever.

use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, ObjectKey, Status};
use base::Backoff;

use crate::registry::objects::Objects;
use crate::registry::watch_cache::{Filter, Position};

/// Who follows.
pub(crate) trait Follower: Send {
    /// These are all.
    fn replace(&mut self, all: &[Arc<Object>]);

    /// One came or changed.
    fn put(&mut self, object: &Arc<Object>);

    /// One is gone.
    fn remove(&mut self, key: &ObjectKey);

    /// All changes heard of by now have been told.
    fn settled(&mut self) {}
}

/// Tells everything that is there and acknowledged by now.
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
    follower.settled();
    Ok(position)
}

/// Tells every change behind `position`; who fell behind loads anew.
pub(crate) async fn keep(
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
                follower.settled();
            }
            Err(_) => {
                base::clock::sleep(backoff.next_delay()).await;
                match load(objects, gvr, follower).await {
                    Ok(fresh) => position = fresh,
                    Err(error) => {
                        tracing::warn!(%gvr, %error, "what follows this resource stands still, the next round loads it anew");
                    }
                }
            }
        }
    }
}
