//! The service proxy: services and endpoints become elements of flat nftables maps.

mod health;
pub(crate) mod nft;
mod own_node;
pub(crate) mod rules;
pub(crate) mod services;
pub(crate) mod state;

pub(crate) use health::accept;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::{Endpoint, EndpointSlice};
use api::k8s::api::networking::v1::ServiceCIDR;
use base::{Backoff, Kind, Shutdown, Tasks};
use client::{Informer, Informers};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::config::{Config, Error};
use crate::netlink::Socket;
use crate::netlink::conntrack;
use nft::Layout;
use own_node::OwnNode;
use rules::{DesiredElements, Groups, HostPort, NodeContext};
use services::SERVICE_NAME_LABEL;
use settings::addr::Family;
use state::State;

/// Host ports of all pods of this node, by owner.
pub(crate) type HostPorts = BTreeMap<String, Vec<HostPort>>;
/// Index of EndpointSlices by `namespace/service`.
pub(crate) const BY_SERVICE: &str = "service";
/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(5);

pub(crate) fn slice_services(slice: &Object) -> Vec<String> {
    let name = slice.label(SERVICE_NAME_LABEL);
    name.map(|n| format!("{}/{n}", slice.key.namespace)).into_iter().collect()
}

/// One family's table and its desired state.
#[derive(Debug)]
struct Table {
    layout: Layout,
    state: State,
    groups: Groups,
}

#[derive(Debug)]
struct Engine {
    socket: Socket,
    tables: Vec<Table>,
    node_context: NodeContext,
    /// The table was made by this process and equals the state.
    live: bool,
}

impl Engine {
    fn sync(&mut self) -> Result<(), Error> {
        for table in &mut self.tables {
            let family = table.layout.family;
            let difference = table.state.take_difference();
            if !self.live {
                table.layout.replace(&mut self.socket, &table.state, &self.node_context)?;
            } else if !difference.is_empty() {
                table.layout.apply(&mut self.socket, &table.state, &difference)?;
            }
            let stale = conntrack::forget_stale(&mut self.socket, family, &difference.udp);
            match stale {
                Ok(0) => {}
                Ok(count) => {
                    tracing::debug!(
                        count,
                        "proxy: removed conntrack entries of stale UDP endpoints"
                    )
                }
                Err(error) => {
                    tracing::warn!(%error, "proxy: cannot remove stale UDP conntrack entries")
                }
            }
        }
        self.live = true;
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Dirty {
    services: Mutex<BTreeSet<(String, String)>>,
    all: std::sync::atomic::AtomicBool,
    wake: Notify,
}

impl Dirty {
    fn service(&self, namespace: &str, name: &str) {
        self.services.lock().insert((namespace.to_owned(), name.to_owned()));
        self.wake.notify_one();
    }

    fn everything(&self) {
        self.all.store(true, std::sync::atomic::Ordering::Release);
        self.wake.notify_one();
    }
}

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
        let services = informers.of::<Service>();
        let note = Arc::clone(&dirty);
        services.on_change(move |c| note.service(&c.object().key.namespace, &c.object().key.name));
        let slices = watch_slices(informers, &dirty);
        watch_own_node(&node, &config.node_name, &dirty);
        let ranges = informers.of::<ServiceCIDR>();
        let note = Arc::clone(&dirty);
        ranges.on_change(move |_| note.everything());
        let families: Vec<Family> = Family::ALL
            .into_iter()
            .filter(|f| config.cluster.cluster_cidrs.iter().any(|c| c.family() == *f))
            .collect();
        let tables = families.iter().map(|&family| empty_table(config, family)).collect();
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
                plan_host_ports(table, &list);
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
            plan_host_ports(table, &list);
        }
        if !self.synced {
            // Until the cache has synced, only add host ports; the full sync replaces the table
            // anyway.
            let (engine, result) = base::tasks::blocking(move || {
                for table in &mut engine.tables {
                    let difference = table.state.take_difference();
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
        if self.dirty.all.swap(false, std::sync::atomic::Ordering::AcqRel) {
            let node = self.node.cache().get("", &self.node_name);
            let OwnNode { zone, addresses } = node.map(|n| OwnNode::of(&n)).unwrap_or_default();
            engine.node_context.zone = zone.unwrap_or_default();
            engine.node_context.node_ips.clone_from(&self.addresses.borrow_and_update());
            engine.node_context.node_ips.extend(addresses);
            self.follow_ranges(&mut engine);
            let known = self.services.cache().list("").into_iter();
            let mut keys: BTreeSet<(String, String)> =
                known.map(|o| (o.key.namespace.to_string(), o.key.name.to_string())).collect();
            for owner in engine.tables.iter().flat_map(|t| t.state.owners()) {
                if let Some((namespace, name)) = owner.split_once('/') {
                    keys.insert((namespace.to_owned(), name.to_owned()));
                }
            }
            self.dirty.services.lock().extend(keys);
        }
        let keys = std::mem::take(&mut *self.dirty.services.lock());
        for (namespace, name) in keys {
            self.plan(&mut engine, &namespace, &name);
        }
        let (engine, result) = base::tasks::blocking(move || {
            let result = engine.sync();
            (engine, result)
        })
        .await?;
        self.engine = Some(engine);
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
        blocks.sort();
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
                self.dirty.service(namespace, service);
            }
        }
    }

    fn plan(&self, engine: &mut Engine, namespace: &str, name: &str) {
        let key = format!("{namespace}/{name}");
        let service = self.services.get(namespace, name).filter(|_| self.serves);
        let ports = service.as_ref().map(services::ports).unwrap_or_default();
        let slices = self.slices.by_index(BY_SERVICE, &key);
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
            .collect();
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

/// Follows EndpointSlices: a change marks their Services as changed.
fn watch_slices(informers: &Informers, dirty: &Arc<Dirty>) -> Informer<EndpointSlice> {
    let slices = informers.of::<EndpointSlice>();
    slices.add_index(BY_SERVICE, slice_services);
    let dirty = Arc::clone(dirty);
    slices.on_change(move |change| {
        let objects = match change {
            client::Change::Updated { old, new } => vec![old, new],
            other => vec![other.object()],
        };
        for object in objects {
            if let Some(name) = object.label(SERVICE_NAME_LABEL) {
                dirty.service(&object.key.namespace, name);
            }
        }
    });
    slices
}

/// Follows zone and addresses of this node: a change marks all Services as changed. The rest of a
/// node's status changes frequently and does not matter here.
fn watch_own_node(node: &Informer<Node>, name: &str, dirty: &Arc<Dirty>) {
    let (dirty, name) = (Arc::clone(dirty), name.to_owned());
    let before = Mutex::new(OwnNode::default());
    node.on_change(move |change| {
        if *change.object().key.name != *name {
            return;
        }
        let now = OwnNode::of(change.object());
        let mut before = before.lock();
        if *before != now {
            *before = now;
            dirty.everything();
        }
    });
}

/// The table of a family before any Service is known.
fn empty_table(config: &Config, family: Family) -> Table {
    let of_family = |blocks: &[settings::Cidr]| -> Vec<settings::Cidr> {
        blocks.iter().copied().filter(|b| b.family() == family).collect()
    };
    let cluster = &config.cluster;
    let service = if cluster.proxy { of_family(&cluster.service_cidrs) } else { Vec::new() };
    Table {
        layout: Layout {
            family,
            table: config.table.clone(),
            bridge: config.bridge.clone(),
            cluster: of_family(&cluster.cluster_cidrs),
            tunnel: cluster.backend.tunnels().then_some(cluster.overlay.vxlan_port),
            service,
        },
        state: State::default(),
        groups: Groups::default(),
    }
}

fn plan_host_ports(table: &mut Table, list: &HostPorts) {
    let gone: Vec<String> = table
        .state
        .owners()
        .filter(|o| !o.contains('/') && !list.contains_key(*o))
        .cloned()
        .collect();
    for owner in gone {
        table.state.replace(&owner, DesiredElements::default());
    }
    for (owner, ports) in list {
        table.state.replace(owner, rules::plan_host_ports(ports, table.layout.family));
    }
}
