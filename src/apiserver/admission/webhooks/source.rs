//! The webhook configurations, followed in the watch cache: a change takes effect when this server
//! receives its event.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Gvr, Object, ObjectKey, Status};
use arc_swap::ArcSwap;
use base::{Kind, Tasks};

use super::hook::{self, Hook};
use crate::registry::follower;
use crate::registry::follower::Follower;
use crate::registry::objects::Objects;
use webhook::Callout;

/// Hooks in the order of their calls: configurations by name, hooks in the order of each
/// configuration.
pub(super) type Hooks = ArcSwap<Vec<Arc<Hook>>>;

/// The configurations of both kinds.
pub struct Sources {
    pub(super) mutating: Arc<Hooks>,
    pub(super) validating: Arc<Hooks>,
    callout: Callout,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sources")
    }
}

impl Sources {
    pub(super) fn new(callout: Callout) -> Self {
        Self { mutating: Arc::default(), validating: Arc::default(), callout }
    }

    /// Loads all configurations and keeps them current until shutdown. Await this before serving,
    /// so that no write bypasses a webhook.
    ///
    /// # Errors
    /// If a cache fails to load.
    pub async fn follow(&self, objects: &Arc<Objects>, tasks: &Tasks) -> Result<(), Status> {
        let kinds: [(&'static Gvr, &Arc<Hooks>); 2] = [
            (&lookup::MUTATING_WEBHOOK_CONFIGURATIONS, &self.mutating),
            (&lookup::VALIDATING_WEBHOOK_CONFIGURATIONS, &self.validating),
        ];
        for (gvr, hooks) in kinds {
            let mut reader = Reader {
                callout: self.callout.clone(),
                read: BTreeMap::new(),
                hooks: Arc::clone(hooks),
            };
            let position = follower::load(objects, gvr, &mut reader).await?;
            let (objects, shutdown) = (Arc::clone(objects), tasks.shutdown().clone());
            tasks.spawn(Kind::Critical, "webhook configurations", async move {
                tokio::select! {
                    () = follower::follow(&objects, gvr, &mut reader, position) => {}
                    () = shutdown.requested() => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
        Ok(())
    }
}

/// Follows one kind of configuration.
struct Reader {
    callout: Callout,
    /// By name, with the resource version.
    read: BTreeMap<Arc<str>, (i64, Vec<Arc<Hook>>)>,
    hooks: Arc<Hooks>,
}

impl Follower for Reader {
    fn replace(&mut self, all: &[Arc<Object>]) {
        self.read.retain(|name, _| all.iter().any(|o| o.key.name == *name));
        for object in all {
            self.put(object);
        }
    }

    /// Parses a configuration; an unchanged one keeps its hooks and their connections.
    fn put(&mut self, object: &Arc<Object>) {
        if self.read.get(&object.key.name).is_some_and(|(at, _)| *at == object.resource_version) {
            return;
        }
        match object.value() {
            Ok(value) => {
                let hooks = hook::of_configuration(&value, &self.callout);
                let hooks = hooks.into_iter().map(Arc::new).collect();
                self.read.insert(Arc::clone(&object.key.name), (object.resource_version, hooks));
            }
            Err(error) => {
                tracing::error!(configuration = %object.key, %error, "cannot decode a stored webhook configuration");
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.read.remove(&key.name);
    }

    fn synced(&mut self) {
        let all = self.read.values().flat_map(|(_, hooks)| hooks.iter().map(Arc::clone)).collect();
        self.hooks.store(Arc::new(all));
    }
}
