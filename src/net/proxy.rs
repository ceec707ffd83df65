//! The service proxy: services and endpoints become elements of flat nftables maps.

mod changes;
mod engine;
mod health;
mod metrics;
pub(crate) mod nft;
mod own_node;
mod programming;
pub(crate) mod rules;
pub(crate) mod services;
pub(crate) mod state;

pub(crate) use changes::{BY_SERVICE, slice_services};
pub(crate) use health::accept;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::{Endpoint, EndpointSlice};
use api::k8s::api::networking::v1::ServiceCIDR;
use base::{Backoff, Kind, Shutdown, Tasks};
use client::{Informer, Informers};
use sorting::{CollectOrdered as _, CompactSort as _};
use tokio::sync::watch;

use crate::config::{Config, Error};
use crate::netlink::Socket;
use changes::{ChangedServices, Dirty};
use engine::{Engine, Table};
use own_node::OwnNode;
use programming::Triggers;
use rules::{HostPort, NodeContext};
use services::SERVICE_NAME_LABEL;
use settings::addr::Family;

/// Host ports of all pods of this node, by owner.
pub(crate) type HostPorts = BTreeMap<String, Vec<HostPort>>;
/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(5);
/// Services planned before other tasks of the thread run.
const PLANS_PER_TURN: usize = 64;

/// Keeps the tables in sync with the API until shutdown.
pub(crate) struct Proxy {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    node: Informer<Node>,
    ranges: Informer<ServiceCIDR>,
    /// The Service CIDRs of the configuration; ServiceCIDR objects add more.
    configured: Vec<settings::Cidr>,
    /// All Service CIDRs, published for the routes of the bridge.
    blocks: watch::Sender<Option<Vec<settings::Cidr>>>,
    node_name: String,
    dirty: Arc<Dirty>,
    host_ports: watch::Receiver<HostPorts>,
    addresses: watch::Receiver<Vec<IpAddr>>,
    left_out: watch::Receiver<BTreeSet<String>>,
    checks: health::HealthChecks,
    health: Arc<health::Health>,
    /// Whether the proxy serves Service addresses.
    serves: bool,
    engine: Option<Engine>,
    synced: bool,
    triggers: Triggers,
}

impl Proxy {
    pub(crate) fn new(
        config: &Config,
        informers: &Informers,
        node: Informer<Node>,
        tasks: &Tasks,
        host_ports: watch::Receiver<HostPorts>,
        blocks: watch::Sender<Option<Vec<settings::Cidr>>>,
    ) -> Result<Self, Error> {
        let dirty = Arc::new(Dirty::default());
        let services = changes::watch_services(informers, &dirty);
        let slices = changes::watch_slices(informers, &dirty);
        changes::watch_own_node(&node, &config.node_name, &dirty);
        let ranges = informers.of::<ServiceCIDR>();
        let note = Arc::clone(&dirty);
        ranges.on_change(move |_| note.everything());
        let families: Vec<Family> = Family::ALL
            .into_iter()
            .filter(|f| config.cluster.cluster_cidrs.iter().any(|c| c.family() == *f))
            .collect();
        let tables = families.iter().map(|&family| Table::new(config, family)).collect();
        let engine = Engine {
            socket: Socket::netfilter().map_err(Error::io("cannot open a netfilter socket"))?,
            tables,
            node_context: NodeContext {
                node: config.node_name.clone(),
                zone: String::new(),
                node_ips: config.addresses.borrow().clone(),
                own_ips: config.cluster.cluster_dns.clone(),
            },
            live: false,
        };
        let health = Arc::new(health::Health::new(families, node.clone(), &config.node_name));
        if let Some(at) = config.proxy_healthz.filter(|_| config.cluster.proxy) {
            let serve = health::serve_proxy(Arc::clone(&health), at, tasks.clone());
            tasks.spawn(Kind::Critical, "proxy-healthz", serve);
        }
        if let Some(at) = config.proxy_metrics.filter(|_| config.cluster.proxy) {
            let serve = health::serve_metrics(Arc::clone(&dirty), at, tasks.clone());
            tasks.spawn(Kind::Critical, "proxy-metrics", serve);
        }
        Ok(Self {
            services,
            slices,
            node,
            ranges,
            configured: if config.cluster.proxy {
                config.cluster.service_cidrs.clone()
            } else {
                Vec::new()
            },
            blocks,
            node_name: config.node_name.clone(),
            dirty,
            host_ports,
            addresses: config.addresses.subscribe(),
            left_out: config.left_out.subscribe(),
            checks: health::HealthChecks::new(tasks.clone(), Arc::clone(&health)),
            health,
            serves: config.cluster.proxy,
            engine: Some(engine),
            synced: false,
            triggers: Triggers::default(),
        })
    }

    /// Runs until shutdown; after a refusal by the kernel the whole table is applied again.
    pub(crate) async fn run(mut self, shutdown: Shutdown) -> Result<(), Error> {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        self.start().await?;
        if self.serves {
            // With the table in node_context the kernel tracks connections, so the conntrack
            // settings exist.
            base::tasks::blocking(crate::host::set_conntrack_timeouts).await?;
        }
        let ready = {
            let (services, slices) = (self.services.clone(), self.slices.clone());
            let (node, ranges) = (self.node.clone(), self.ranges.clone());
            async move {
                tokio::join!(services.synced(), slices.synced(), node.synced(), ranges.synced())
            }
        };
        tokio::pin!(ready);
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                _ = &mut ready, if !self.synced => {
                    // Until the caches have synced, a table of an earlier run stays unchanged.
                    self.synced = true;
                    self.dirty.everything();
                }
                () = self.dirty.wake.notified() => {}
                changed = self.host_ports.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                changed = self.addresses.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.dirty.everything();
                }
                changed = self.left_out.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.dirty_own();
                }
            }
            self.health.waiting();
            metrics::queued(self.health.families());
            base::clock::sleep(GATHER).await;
            while let Err(error) = self.sync().await {
                tracing::warn!(%error, "proxy: cannot apply service rules, replacing the table");
                if let Some(engine) = &mut self.engine {
                    engine.live = false;
                }
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
            backoff.reset();
            self.health.applied(self.synced);
        }
    }

    /// Creates a table at once when no earlier run left one: pods need masquerade before the API
    /// answers.
    async fn start(&mut self) -> Result<(), Error> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let list = self.host_ports.borrow_and_update().clone();
        self.engine = base::tasks::blocking(move || -> Result<Engine, Error> {
            for table in &mut engine.tables {
                table.plan_host_ports(&list);
                let layout = &table.layout;
                if !crate::nft::has_table(&mut engine.socket, layout.family, &layout.table)? {
                    layout.replace(&mut engine.socket, &table.state, &engine.node_context)?;
                }
            }
            Ok(engine)
        })
        .await?
        .map(Some)?;
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), Error> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let list = self.host_ports.borrow_and_update().clone();
        for table in &mut engine.tables {
            table.plan_host_ports(&list);
        }
        if !self.synced {
            // Until the cache has synced, only add host ports; the full sync replaces the table
            // anyway.
            let (engine, result) = base::tasks::blocking(move || {
                for table in &mut engine.tables {
                    let difference = table.take_difference();
                    if let Err(error) =
                        table.layout.apply(&mut engine.socket, &table.state, &difference)
                    {
                        return (engine, Err(error.into()));
                    }
                }
                (engine, Ok(()))
            })
            .await?;
            self.engine = Some(engine);
            return result.or_else(|error: Error| {
                tracing::debug!(%error, "proxy: host ports wait for the full table");
                Ok(())
            });
        }
        let mut changed = ChangedServices::new();
        if self.dirty.take_everything() {
            let node = self.node.cache().get("", &self.node_name);
            let OwnNode { zone, addresses } = node.map(|n| OwnNode::of(&n)).unwrap_or_default();
            engine.node_context.zone = zone.unwrap_or_default();
            engine.node_context.node_ips.clone_from(&self.addresses.borrow_and_update());
            engine.node_context.node_ips.extend(addresses);
            self.follow_ranges(&mut engine);
            let known = self.services.cache().list("").into_iter();
            changed = known
                .map(|o| {
                    ((o.key.namespace.to_string(), o.key.name.to_string()), Default::default())
                })
                .collect();
            for owner in engine.tables.iter().flat_map(|t| t.state.owners()) {
                if let Some((namespace, name)) = owner.split_once('/') {
                    changed.entry((namespace.to_owned(), name.to_owned())).or_default();
                }
            }
        }
        changed.append(&mut self.dirty.take());
        for (index, (namespace, name)) in changed.keys().enumerate() {
            self.plan(&mut engine, namespace, name);
            // Thousands of Services must not hold up this thread's other tasks.
            if index % PLANS_PER_TURN == PLANS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        let (engine, result) = base::tasks::blocking(move || {
            let result = engine.sync();
            (engine, result)
        })
        .await?;
        self.engine = Some(engine);
        if result.is_ok() {
            self.triggers.applied();
        }
        result
    }

    /// Addresses in the Service CIDRs that no Service has are refused; ServiceCIDR objects add to
    /// those of the configuration.
    fn follow_ranges(&self, engine: &mut Engine) {
        let mut blocks = self.configured.clone();
        if self.serves {
            let specs = self.ranges.list("").into_iter().filter_map(|r| r.spec?.cidrs);
            blocks.extend(specs.flatten().filter_map(|b| b.parse::<settings::Cidr>().ok()));
        }
        blocks.compact_sort();
        blocks.dedup();
        for table in &mut engine.tables {
            let family = table.layout.family;
            let now: Vec<_> = blocks.iter().copied().filter(|b| b.family() == family).collect();
            if table.layout.service != now {
                table.layout.service = now;
                engine.live = false;
            }
        }
        if self.serves {
            self.blocks.send_if_modified(|known| {
                let changed = known.as_ref() != Some(&blocks);
                *known = Some(blocks);
                changed
            });
        }
    }

    /// Marks the Services of this node's pods as changed.
    fn dirty_own(&self) {
        for slice in self.slices.list("") {
            let meta = &slice.metadata;
            let service = meta.labels.as_ref().and_then(|l| l.get(SERVICE_NAME_LABEL));
            let (Some(namespace), Some(service)) = (&meta.namespace, service) else { continue };
            let own = |e: &Endpoint| e.node_name.as_deref() == Some(self.node_name.as_str());
            if slice.endpoints.iter().flatten().any(own) {
                self.dirty.plan_again(namespace, service);
            }
        }
    }

    fn plan(&mut self, engine: &mut Engine, namespace: &str, name: &str) {
        let key = format!("{namespace}/{name}");
        let service = self.services.get(namespace, name).filter(|_| self.serves);
        let ports = service.as_ref().map(services::ports).unwrap_or_default();
        let slices = self.slices.by_index(BY_SERVICE, &key);
        self.triggers.note(&key, &slices);
        let spec = service.as_ref().and_then(|s| s.spec.as_ref());
        // Some Services publish their pods whether they are ready or not.
        let as_told = spec.is_some_and(|s| s.publish_not_ready_addresses == Some(true));
        let endpoints = if as_told {
            services::endpoints(&slices, &self.node_name, &BTreeSet::new())
        } else {
            services::endpoints(&slices, &self.node_name, &self.left_out.borrow())
        };
        let local: BTreeSet<_> = endpoints
            .values()
            .flatten()
            .filter(|e| e.local && e.ready)
            .map(|e| e.address)
            .collect_set();
        let port = service.as_ref().and_then(services::health_check_port);
        self.checks.set(namespace, name, port, local.len());
        for table in &mut engine.tables {
            if ports.is_empty() {
                table.groups.release(&key);
            }
            let family = table.layout.family;
            let wanted =
                rules::plan(&mut table.groups, &ports, &endpoints, &engine.node_context, family);
            table.state.replace(&key, wanted);
        }
    }
}
