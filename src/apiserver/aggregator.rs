//! The aggregation layer: an APIService delegates a group version to another API server, and its
//! requests are proxied with the identity of the user (upstream's `kube-aggregator`).

pub(crate) mod availability;
mod discovery;
pub(crate) mod openapi;
mod proxy;
mod remote;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Gvr, Object, ObjectKey, Status};
use arc_swap::ArcSwap;
use base::pki::reloadable_cert::LiveCert;
use base::{Kind, Tasks};

use crate::registry::follower;
use crate::registry::follower::Follower;
use crate::registry::objects::Objects;
pub(crate) use discovery::merge;
pub(crate) use remote::Remote;
use webhook::Callout;

/// The settings for connections to other API servers.
#[derive(Clone)]
pub struct Settings {
    /// The access to Services.
    pub callout: Callout,
    /// The client certificate of the front proxy (`--proxy-client-cert-file`); its CA is published
    /// in `extension-apiserver-authentication`.
    pub certificate: Arc<LiveCert>,
}

/// The remotes by group and version.
pub(crate) type Table = BTreeMap<(String, String), Arc<Remote>>;

/// All aggregated API servers.
#[derive(Default)]
pub(crate) struct Aggregator {
    remotes: ArcSwap<Table>,
}

impl Aggregator {
    /// The current remotes.
    pub(crate) fn remotes(&self) -> Arc<Table> {
        self.remotes.load_full()
    }

    /// The remote that serves a path: `/apis/GROUP/VERSION` and everything below it.
    pub(crate) fn of_path(&self, path: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.load();
        if remotes.is_empty() {
            return None;
        }
        let mut parts = path.strip_prefix("/apis/")?.split('/');
        let (group, version) = (parts.next()?, parts.next()?);
        remotes.get(&(group.to_owned(), version.to_owned())).cloned()
    }

    /// Follows APIServices and their Services and EndpointSlices until shutdown.
    ///
    /// # Errors
    /// If a cache fails to load.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        objects: &Arc<Objects>,
        settings: &Settings,
        tasks: &Tasks,
    ) -> Result<(), Status> {
        let mut services = Services {
            aggregator: Arc::clone(self),
            objects: Arc::clone(objects),
            settings: settings.clone(),
            tasks: tasks.clone(),
            table: Table::new(),
        };
        let position = follower::load(objects, &lookup::API_SERVICES, &mut services).await?;
        let (of, shutdown) = (Arc::clone(objects), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, "apiservices", async move {
            tokio::select! {
                () = follower::follow(&of, &lookup::API_SERVICES, &mut services, position) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        for (gvr, name) in [
            (&*lookup::SERVICES, "services of apiservices"),
            (&*lookup::ENDPOINT_SLICES, "endpoints of apiservices"),
        ] {
            let mut wakes = EndpointFollower { aggregator: Arc::clone(self), gvr };
            let position = follower::load(objects, gvr, &mut wakes).await?;
            let (of, shutdown) = (Arc::clone(objects), tasks.shutdown().clone());
            tasks.spawn(Kind::Critical, name, async move {
                tokio::select! {
                    () = follower::follow(&of, gvr, &mut wakes, position) => {}
                    () = shutdown.requested() => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
        Ok(())
    }
}

/// Maintains the table of remotes, and an availability task for each.
struct Services {
    aggregator: Arc<Aggregator>,
    objects: Arc<Objects>,
    settings: Settings,
    tasks: Tasks,
    table: Table,
}

impl Services {
    fn forget(&mut self, name: &str) {
        self.table.retain(|_, remote| {
            let other = remote.name != name;
            if !other {
                remote.end();
            }
            other
        });
    }
}

impl Follower for Services {
    fn replace(&mut self, all: &[Arc<Object>]) {
        let gone: Vec<String> = self
            .table
            .values()
            .filter(|remote| !all.iter().any(|o| *o.key.name == *remote.name))
            .map(|remote| remote.name.clone())
            .collect();
        for name in gone {
            self.forget(&name);
        }
        for object in all {
            self.put(object);
        }
    }

    fn put(&mut self, object: &Arc<Object>) {
        let value = match object.value() {
            Ok(value) => value,
            Err(error) => {
                tracing::error!(apiservice = %object.key, %error, "cannot read a stored APIService");
                return;
            }
        };
        let known = self.table.values().find(|remote| *remote.name == *object.key.name);
        if let Some(known) = known
            && known.is_same(&value)
        {
            return;
        }
        self.forget(&object.key.name);
        let Some(remote) = Remote::of(&value, &self.settings) else { return };
        let gv = (remote.group.clone(), remote.version.clone());
        if !self.objects.registry().yields_to_aggregation(&gv.0, &gv.1) {
            tracing::warn!(
                apiservice = remote.name,
                "an APIService delegates a group version that this server serves; it is ignored"
            );
            return;
        }
        let remote = Arc::new(remote);
        self.table.insert(gv, Arc::clone(&remote));
        let watching = availability::watch(remote, Arc::clone(&self.objects));
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "availability of an apiservice", async move {
            tokio::select! {
                () = watching => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.forget(&key.name);
    }

    fn synced(&mut self) {
        self.aggregator.remotes.store(Arc::new(self.table.clone()));
    }
}

/// Wakes the remotes whose Service or endpoints changed.
struct EndpointFollower {
    aggregator: Arc<Aggregator>,
    gvr: &'static Gvr,
}

impl EndpointFollower {
    fn wake(&self, namespace: &str, service: &str) {
        for remote in self.aggregator.remotes.load().values() {
            if remote.namespace == namespace && remote.service == service {
                remote.wake();
            }
        }
    }
}

impl Follower for EndpointFollower {
    fn replace(&mut self, _: &[Arc<Object>]) {
        for remote in self.aggregator.remotes.load().values() {
            remote.wake();
        }
    }

    fn put(&mut self, object: &Arc<Object>) {
        let service = if *self.gvr == *lookup::SERVICES {
            &*object.key.name
        } else {
            object.label("kubernetes.io/service-name").unwrap_or_default()
        };
        self.wake(&object.key.namespace, service);
    }

    fn remove(&mut self, key: &ObjectKey) {
        // The deleted slice does not name its Service: wake all remotes of the namespace.
        for remote in self.aggregator.remotes.load().values() {
            if *remote.namespace == *key.namespace {
                remote.wake();
            }
        }
    }
}
