//! The caches that Gateways are compiled from.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use api::{Gvr, Object};
use base::Tasks;
use client::{Change, Client, Informer, Informers, Scope, gvr_of};
use serde::de::DeserializeOwned;

use super::objects::{Objects, References, RouteKind};
use super::types::{GROUP, Resource};

/// A resource of Gateway API.
pub fn gvr(resource: &str) -> Gvr {
    Gvr::new(GROUP, "v1", resource)
}

/// Caches of Gateway API and of what it refers to.
#[derive(Debug, Clone)]
pub struct Caches {
    classes: Informer<()>,
    gateways: Informer<()>,
    sets: Informer<()>,
    routes: Vec<(RouteKind, Informer<()>)>,
    grants: Informer<()>,
    policies: Informer<()>,
    /// Services.
    pub services: Informer<Service>,
    namespaces: Informer<Namespace>,
    secrets: Informer<Secret>,
    config_maps: Informer<ConfigMap>,
}

impl Caches {
    /// Starts the caches. `shared` has Services and namespaces, `client` reads the others,
    /// `secrets` the Secrets of type `kubernetes.io/tls`. `note` is called at each change, with
    /// whether it is a Service.
    pub fn new(
        shared: &Informers,
        client: &Client,
        secrets: &Client,
        tasks: &Tasks,
        note: impl Fn(bool) + Clone + Send + Sync + 'static,
    ) -> Self {
        let own = Informers::new(client.clone(), tasks.clone());
        let of_secrets = Informers::new(secrets.clone(), tasks.clone());
        let resource = |name: &str| own.scoped::<()>(Scope::all(gvr(name)));
        let tls = Scope::all(gvr_of::<Secret>()).fields("type=kubernetes.io/tls");
        let caches = Self {
            classes: resource("gatewayclasses"),
            gateways: resource("gateways"),
            sets: resource("listenersets"),
            routes: RouteKind::ALL.map(|kind| (kind, resource(kind.resource()))).to_vec(),
            grants: resource("referencegrants"),
            policies: resource("backendtlspolicies"),
            services: shared.of(),
            namespaces: shared.of(),
            secrets: of_secrets.scoped(tls),
            config_maps: own.of(),
        };
        let each = |informer: &Informer<()>| {
            let note = note.clone();
            informer.on_change(move |change| {
                if is_news(change) {
                    note(false);
                }
            });
        };
        each(&caches.classes);
        each(&caches.gateways);
        each(&caches.sets);
        caches.routes.iter().for_each(|(_, informer)| each(informer));
        each(&caches.grants);
        each(&caches.policies);
        let own = note.clone();
        caches.services.on_change(move |_| own(true));
        let own = note.clone();
        caches.namespaces.on_change(move |_| own(false));
        let own = note.clone();
        caches.secrets.on_change(move |_| own(false));
        caches.config_maps.on_change(move |_| note(false));
        caches
    }

    /// Resolves when all caches have their first list.
    pub async fn synced(&self) {
        for (_, informer) in &self.routes {
            informer.synced().await;
        }
        tokio::join!(
            self.classes.synced(),
            self.gateways.synced(),
            self.sets.synced(),
            self.grants.synced(),
            self.policies.synced(),
            self.services.synced(),
            self.namespaces.synced(),
            self.secrets.synced(),
            self.config_maps.synced()
        );
    }

    /// The objects, sorted by precedence.
    pub fn objects(&self) -> Objects {
        let routes = self.routes.iter().flat_map(|(kind, informer)| {
            read(informer).into_iter().map(move |route| (*kind, route))
        });
        let mut objects = Objects {
            classes: read(&self.classes),
            gateways: read(&self.gateways),
            sets: read(&self.sets),
            routes: routes.collect(),
            grants: read(&self.grants),
            policies: read(&self.policies),
        };
        objects.sort();
        objects
    }
}

/// Whether a change is news. That of a status is, too: the leader replaces what others wrote there.
fn is_news(change: &Change) -> bool {
    match change {
        Change::Updated { old, new } => old.resource_version != new.resource_version,
        _ => true,
    }
}

/// The objects of a cache. One that has another form than its definition is left out.
fn read<S: DeserializeOwned + Default>(informer: &Informer<()>) -> Vec<Resource<S>> {
    let decode = |object: &std::sync::Arc<Object>| {
        let decoded = serde_json::from_slice(&object.json());
        decoded
            .inspect_err(|error| {
                tracing::warn!(object = %object.key, %error, "gateway: cannot decode an object");
            })
            .ok()
    };
    informer.cache().list("").iter().filter_map(decode).collect()
}

impl References for Caches {
    fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services.get(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        self.secrets.get(namespace, name)
    }

    fn config_map(&self, namespace: &str, name: &str) -> Option<BTreeMap<String, String>> {
        Some(self.config_maps.get(namespace, name)?.data.unwrap_or_default())
    }

    fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        Some(self.namespaces.get("", name)?.metadata.labels.unwrap_or_default())
    }
}
