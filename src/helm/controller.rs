//! The controller of HelmChart and HelmChartConfig (`helm.cattle.io/v1`), with the behaviour of
//! k3s's helm-controller, but without jobs: the server process applies the charts.

mod inputs;
mod plan;
mod reconcile;
mod spec;
mod status;

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{ConfigMap, Secret};
use api::{Gvr, Object};
use base::Tasks;
use client::{Client, EventRecorder, Informer, Informers, Queue, run_workers};
use parking_lot::Mutex;
use serde_json::Value;

use crate::fetch::Network;
use spec::{ChartSpec, ConfigSpec};

/// The user as which the controller acts: charts may contain any object, so it is bound to
/// `cluster-admin`.
pub const USER: &str = "system:helm-controller";
/// The user agent of the controller, the component of its events, and the value of the annotation
/// `helmcharts.cattle.io/managed-by`, as in k3s.
pub const AGENT: &str = "helm-controller";

const GROUP: &str = "helm.cattle.io";
const CHARTS: &str = "helmcharts.helm.cattle.io";
const CONFIGS: &str = "helmchartconfigs.helm.cattle.io";
/// Charts that are applied at the same time; a hook may wait for minutes.
const WORKERS: usize = 4;

/// What wakes a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A definition of this group changed.
    Definitions,
    /// A chart: namespace and name.
    Chart(String, String),
}

/// The caches, while the kinds are served.
#[derive(Clone)]
struct Caches {
    charts: Informer<()>,
    configs: Informer<()>,
}

/// Failures of a chart with the same inputs.
#[derive(Debug, Clone, Default)]
struct Attempts {
    hash: String,
    failures: u32,
    /// When the next attempt is due.
    due: Option<tokio::time::Instant>,
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    informers: Informers,
    network: Network,
    queue: Queue<Key>,
    definitions: Informer<()>,
    caches: Mutex<Option<Caches>>,
    attempts: Mutex<HashMap<(String, String), Attempts>>,
}

/// Starts the controller. Until the kinds are defined it only listens to the shared cache of
/// definitions.
pub fn start(network: Network, client: Client, informers: &Informers, tasks: &Tasks) {
    let definitions =
        informers.of_gvr(Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"));
    let queue = Queue::new();
    let controller = Arc::new(Controller {
        recorder: EventRecorder::new(client.clone(), AGENT, "", tasks),
        client,
        informers: informers.clone(),
        network,
        queue: queue.clone(),
        definitions: definitions.clone(),
        caches: Mutex::new(None),
        attempts: Mutex::new(HashMap::new()),
    });
    let changed = queue.clone();
    definitions.on_change(move |change| {
        if matches!(&*change.object().key.name, CHARTS | CONFIGS) {
            changed.add(Key::Definitions);
        }
    });
    controller.watch_references(informers);
    run_workers(tasks, AGENT, WORKERS, &queue, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.handle(key).await }
    });
}

fn gvr(resource: &str) -> Gvr {
    Gvr::new(GROUP, "v1", resource)
}

fn is_established(object: &Object) -> bool {
    object.value().is_ok_and(|value| api::value::is_condition_true(&value, "Established"))
}

impl Controller {
    /// Starts the caches once both kinds are served, and stops them when one is not.
    fn follow_definitions(self: &Arc<Self>) {
        let is_served = |name: &str| {
            self.definitions.cache().get("", name).is_some_and(|object| is_established(&object))
        };
        let are_served = is_served(CHARTS) && is_served(CONFIGS);
        let mut caches = self.caches.lock();
        if are_served == caches.is_some() {
            return;
        }
        if !are_served {
            *caches = None;
            drop(caches);
            for resource in ["helmcharts", "helmchartconfigs"] {
                self.informers.forget(&gvr(resource), false);
            }
            return;
        }
        let charts = self.informers.of_gvr(gvr("helmcharts"));
        let configs = self.informers.of_gvr(gvr("helmchartconfigs"));
        *caches = Some(Caches { charts: charts.clone(), configs: configs.clone() });
        drop(caches);
        for informer in [&charts, &configs] {
            let queue = self.queue.clone();
            informer.on_change(move |change| {
                let key = &change.object().key;
                queue.add(Key::Chart(key.namespace.to_string(), key.name.to_string()));
            });
        }
    }

    /// Wakes the charts that refer to a changed Secret or ConfigMap.
    fn watch_references(self: &Arc<Self>, informers: &Informers) {
        let controller = Arc::downgrade(self);
        informers.of::<Secret>().on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.wake_referrers(change.object(), spec::refers_to_secret);
            }
        });
        let controller = Arc::downgrade(self);
        informers.of::<ConfigMap>().on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                controller.wake_referrers(change.object(), spec::refers_to_config_map);
            }
        });
    }

    fn wake_referrers(
        &self,
        changed: &Object,
        refers: fn(&ChartSpec, Option<&ConfigSpec>, &str) -> bool,
    ) {
        let Some(caches) = self.caches.lock().clone() else { return };
        let key = &changed.key;
        for chart in caches.charts.cache().list(&key.namespace) {
            let config = caches.configs.cache().get(&key.namespace, &chart.key.name);
            let config = config.and_then(|object| read_spec::<ConfigSpec>(&object));
            let Some(spec) = read_spec::<ChartSpec>(&chart) else { continue };
            if refers(&spec, config.as_ref(), &key.name) {
                let (namespace, name) = (key.namespace.to_string(), chart.key.name.to_string());
                self.queue.add(Key::Chart(namespace, name));
            }
        }
    }
}

fn read_spec<T: serde::de::DeserializeOwned>(object: &Object) -> Option<T> {
    let mut value = object.value().ok()?;
    serde_json::from_value(value.get_mut("spec").map(Value::take).unwrap_or_default()).ok()
}
