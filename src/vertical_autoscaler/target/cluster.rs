//! Controllers of the cluster, from shared caches and the scale subresource.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use api::k8s::api::batch::v1::{CronJob, Job};
use api::k8s::api::core::v1::ReplicationController;
use api::selector::LabelSelector;
use api::uri::escaped;
use api::{Gvr, Object};
use async_trait::async_trait;
use client::{Client, Discovery, Informer, Informers, Scope, gvr_of};
use parking_lot::Mutex;
use serde_json::Value;

use super::{ControllerKey, Controllers, ScaleError, selector, topmost};
use crate::admission::matching::{TargetError, Targets};
use crate::policy::pod::ControllerRef;

/// The caches of well-known controllers, and the client for others.
pub struct ClusterControllers {
    caches: [(&'static str, Informer<()>); 7],
    client: Client,
}

impl ClusterControllers {
    /// Reads controllers from shared caches, and scales as `client`.
    pub fn new(informers: &Informers, client: Client) -> Self {
        let cache = |gvr: Gvr| informers.scoped::<()>(Scope::all(gvr));
        Self {
            caches: [
                ("CronJob", cache(gvr_of::<CronJob>())),
                ("DaemonSet", cache(gvr_of::<DaemonSet>())),
                ("Deployment", cache(gvr_of::<Deployment>())),
                ("Job", cache(gvr_of::<Job>())),
                ("ReplicaSet", cache(gvr_of::<ReplicaSet>())),
                ("ReplicationController", cache(gvr_of::<ReplicationController>())),
                ("StatefulSet", cache(gvr_of::<StatefulSet>())),
            ],
            client,
        }
    }

    /// Resolves once all caches have their first list.
    pub async fn synced(&self) {
        for (_, cache) in &self.caches {
            cache.synced().await;
        }
    }

    /// Starts a series of reads in which each scale is read once.
    pub fn lookup(&self) -> Lookup<'_> {
        Lookup { cluster: self, paths: Mutex::default(), scales: Mutex::default() }
    }

    fn cache(&self, kind: &str) -> Option<&Informer<()>> {
        self.caches.iter().find(|(known, _)| *known == kind).map(|(_, cache)| cache)
    }
}

#[async_trait]
impl Targets for ClusterControllers {
    async fn top_most(
        &self,
        namespace: &str,
        owner: &ControllerRef,
    ) -> Result<Option<ControllerRef>, TargetError> {
        let found = topmost(&self.lookup(), &key(namespace, owner)).await;
        let found = found.map_err(|error| TargetError(error.to_string()))?;
        Ok(found.map(|ControllerKey { api_version, kind, name, .. }| ControllerRef {
            api_version,
            kind,
            name,
        }))
    }

    async fn selector(
        &self,
        namespace: &str,
        target: &ControllerRef,
    ) -> Result<LabelSelector, TargetError> {
        let found = selector(&self.lookup(), &key(namespace, target)).await;
        found.map_err(|error| TargetError(error.to_string()))
    }
}

fn key(namespace: &str, controller: &ControllerRef) -> ControllerKey {
    let ControllerRef { api_version, kind, name } = controller.clone();
    ControllerKey { namespace: namespace.to_owned(), api_version, kind, name }
}

/// A series of reads. It lives as long as one round, because definitions and scales change.
pub struct Lookup<'a> {
    cluster: &'a ClusterControllers,
    /// Paths of resources by `apiVersion` and kind.
    paths: Mutex<HashMap<(String, String), Gvr>>,
    scales: Mutex<HashMap<ControllerKey, Result<Value, ScaleError>>>,
}

impl Lookup<'_> {
    /// The resource of a kind: in the given version or, if that is not served, in the version that
    /// the server prefers.
    async fn resource(&self, key: &ControllerKey) -> Result<Gvr, ScaleError> {
        let of_kind = (key.api_version.clone(), key.kind.clone());
        if let Some(known) = self.paths.lock().get(&of_kind) {
            return Ok(known.clone());
        }
        if key.api_version.matches('/').count() > 1 {
            return Err(ScaleError::GroupVersion(key.api_version.clone()));
        }
        let mut discovery = Discovery::new(&self.cluster.client);
        let group = key.api_version.split_once('/').map_or("", |(group, _)| group);
        let mut found = match key.api_version.is_empty() {
            true => None,
            false => discovery.kind(&key.api_version, &key.kind).await?,
        };
        if found.is_none() && !group.is_empty() {
            let about = match discovery.read(&format!("/apis/{}", escaped(group))).await {
                Err(error) if error.status().is_some_and(|status| status.code == 404) => {
                    Value::Null
                }
                about => about?,
            };
            let preferred = api::value::str_in(&about, &["preferredVersion", "groupVersion"]);
            if !preferred.is_empty() {
                found = discovery.kind(preferred, &key.kind).await?;
            }
        }
        let no_match = || ScaleError::NoMatch { kind: key.kind.clone(), group: group.to_owned() };
        let gvr = found.ok_or_else(no_match)?.gvr;
        self.paths.lock().insert(of_kind, gvr.clone());
        Ok(gvr)
    }

    async fn read_scale(&self, key: &ControllerKey) -> Result<Value, ScaleError> {
        let gvr = self.resource(key).await?;
        let path = Client::path(&gvr, &escaped(&key.namespace), &escaped(&key.name), "scale");
        let scale = self.cluster.client.get_as(&path, "application/json").await?;
        Ok(serde_json::from_slice(&scale).map_err(client::Error::from)?)
    }
}

impl Controllers for Lookup<'_> {
    fn is_well_known(&self, kind: &str) -> bool {
        self.cluster.cache(kind).is_some()
    }

    fn get(&self, key: &ControllerKey) -> Option<Arc<Object>> {
        self.cluster.cache(&key.kind)?.cache().get(&key.namespace, &key.name)
    }

    async fn scale(&self, key: &ControllerKey) -> Result<Value, ScaleError> {
        let known = self.scales.lock().get(key).cloned();
        if let Some(known) = known {
            return known;
        }
        let scale = self.read_scale(key).await;
        self.scales.lock().insert(key.clone(), scale.clone());
        scale
    }
}
