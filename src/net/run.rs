//! Wires the parts of the network of one node together.

use std::path::PathBuf;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use base::{Kind, Tasks};
use client::{Client, Informer, Informers, Scope, gvr_of};
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::cni::{self, Server};
use crate::config::{Config, Error};
use crate::dns;
use crate::host;
use crate::netlink::Socket;
use crate::overlay;
use crate::policy::{self, Policies};
use crate::proxy::{HostPorts, Proxy};
use crate::virtual_address;
use settings::Backend;
use settings::addr::Cidr;

/// Holds the addresses of cluster DNS and the routes of Services where another CNI plugin connects
/// pods. Not `cni0`: plugins of others use that name.
const SERVICE_BRIDGE: &str = "kube-lite-svc";

fn remembered_path(config: &Config) -> PathBuf {
    config.state_dir.join("pod-cidrs")
}

fn parse_blocks<'a>(list: impl Iterator<Item = &'a str>) -> Vec<Cidr> {
    list.filter_map(|block| match block.parse() {
        Ok(block) => Some(block),
        Err(error) => {
            tracing::warn!(%error, "pod address block ignored");
            None
        }
    })
    .collect()
}

/// The node's blocks as last told by the API, so that pods start without it.
fn remembered(config: &Config) -> Vec<Cidr> {
    if !config.pod_cidrs.is_empty() {
        return config.pod_cidrs.clone();
    }
    let text = base::fs::read_to_string(&remembered_path(config)).unwrap_or_default();
    parse_blocks(text.lines())
}

fn check(config: &Config) -> Result<(), Error> {
    if let Some(name) = config.interface.as_deref().filter(|n| n.is_empty() || n.len() > 15) {
        return Err(Error::Config(format!("interface name {name:?} must have 1 to 15 characters")));
    }
    for (name, length) in [("bridge name", config.bridge.len())] {
        if length == 0 || length > 15 {
            return Err(Error::Config(format!(
                "{name} {:?} must have 1 to 15 characters",
                config.bridge
            )));
        }
    }
    // The kernel takes 255; the overlay's has eight more.
    if config.table.is_empty() || config.table.len() > 240 {
        return Err(Error::Config(format!(
            "nftables table name {:?} must have 1 to 240 characters",
            config.table
        )));
    }
    if config.cluster.cluster_cidrs.is_empty() {
        return Err(Error::Config("the pod network needs a cluster CIDR".into()));
    }
    Ok(())
}

/// Runs the network of this node until shutdown. `client` and `informers` act as the network
/// (`system:kube-proxy`), `node` as the node, whose annotations tell others how to reach its pods.
/// Rules, links and leases stay when it ends, so that pods and their connections go on; the next
/// start adopts them.
///
/// # Errors
/// When the kernel or a path refuses what the network cannot do without; the message names it.
pub async fn run(
    mut config: Config,
    (client, informers): (Client, Informers),
    node: Client,
    tasks: Tasks,
) -> Result<(), Error> {
    // With `none` another CNI plugin connects pods; Services, cluster DNS and host rules stay here.
    let own_pods = config.cluster.backend != Backend::None;
    if !own_pods {
        config.bridge = SERVICE_BRIDGE.to_owned();
    }
    let config = config;
    check(&config)?;
    base::fs::create_dir(&config.state_dir, 0o700)
        .map_err(Error::io("cannot use the network's state directory"))?;
    let known = if own_pods { remembered(&config) } else { Vec::new() };
    let (blocks, blocks_seen) = watch::channel(known.clone());
    let (host_ports, host_ports_seen) = watch::channel(HostPorts::new());
    let nodes = nodes(&config, &informers);
    let mut server = match own_pods {
        true => Some(open_server(&config, &known, blocks_seen.clone(), host_ports).await?),
        false => {
            let config = config.clone();
            base::tasks::blocking(move || host::ensure_bridge(&config, &[], None)).await??;
            None
        }
    };
    let (services, services_seen) = watch::channel(None);
    let proxy = Proxy::new(&config, &informers, nodes.clone(), &tasks, host_ports_seen, services)?;
    let virtual_addresses = config.virtual_addresses.as_ref();
    if let Some(servers) = virtual_addresses.filter(|_| !config.cluster.lb_pool.is_empty()) {
        virtual_address::follow(&config, servers, &informers, &nodes, &tasks);
    }
    if !config.cluster.cluster_dns.is_empty() {
        dns::serve(&config, &informers, &nodes, &tasks);
    }
    let shutdown = tasks.shutdown().clone();
    match server.as_mut().filter(|_| config.cluster.network_policies || config.guard.is_some()) {
        Some((server, _)) => {
            let parts = (&client, &informers, nodes.clone());
            let (policies, gate) = Policies::new(&config, parts, server.pods(), &tasks)?;
            server.gated(gate);
            tasks.spawn(Kind::Critical, "policies", policies.run(shutdown.clone()));
        }
        None => remove_policies(&config).await?,
    }
    tasks.spawn(Kind::Critical, "proxy", proxy.run(shutdown.clone()));
    if let Some((server, listener)) = server {
        let serving = Arc::new(server).run(listener, tasks.clone(), shutdown.clone());
        tasks.spawn(Kind::Critical, "cni-server", async move {
            serving.await;
            Ok::<(), Error>(())
        });
        if config.pod_cidrs.is_empty() {
            follow_node(&config, &nodes, blocks.clone());
        }
    }
    overlay::start(&config, &nodes, client, node, blocks_seen.clone(), &tasks)?;
    {
        let config = config.clone();
        base::tasks::blocking(move || match own_pods {
            true => cni::install(&config),
            false => cni::uninstall(&config),
        })
        .await??;
    }
    apply_blocks(&config, (blocks_seen, services_seen), known, &tasks).await?;
    drop(blocks);
    Ok(())
}

/// Makes the bridge, reads the leases of pods and binds the CNI plugin's socket.
async fn open_server(
    config: &Config,
    known: &[Cidr],
    blocks: watch::Receiver<Vec<Cidr>>,
    host_ports: watch::Sender<HostPorts>,
) -> Result<(Server, UnixListener), Error> {
    let (opened, known) = (config.clone(), known.to_vec());
    let server = base::tasks::blocking(move || {
        host::ensure_bridge(&opened, &known, None)?;
        Server::open(&opened, blocks, host_ports)
    })
    .await??;
    Ok((server, Server::bind(config)?))
}

/// Removes the rules of network policies that an earlier start with other flags left.
async fn remove_policies(config: &Config) -> Result<(), Error> {
    let config = config.clone();
    base::tasks::blocking(move || -> Result<(), Error> {
        let socket = Socket::netfilter();
        let mut socket = socket.map_err(Error::io("cannot open a netfilter socket"))?;
        policy::remove(&config, &mut socket).pop().map_or(Ok(()), Err)
    })
    .await?
}

/// All nodes with an overlay; this node alone without one.
fn nodes(config: &Config, informers: &Informers) -> Informer<Node> {
    let scope = Scope::all(gvr_of::<Node>());
    match config.cluster.backend {
        // Labels of other nodes decide whether this one may hold virtual addresses.
        Backend::None if config.cluster.lb_pool.is_empty() => {
            informers.scoped(scope.fields(format!("metadata.name={}", config.node_name)))
        }
        _ => informers.scoped(scope),
    }
}

fn follow_node(config: &Config, nodes: &Informer<Node>, blocks: watch::Sender<Vec<Cidr>>) {
    let own = config.node_name.clone();
    nodes.on_change(move |change| {
        if *change.object().key.name != *own {
            return;
        }
        let Some(node) = client::informer::decode::<Node>(change.object()) else { return };
        let Some(spec) = node.spec else { return };
        let mut list = spec.pod_cidrs.unwrap_or_default();
        if list.is_empty() {
            list.extend(spec.pod_cidr);
        }
        let list = parse_blocks(list.iter().map(String::as_str));
        blocks.send_if_modified(|old| {
            let changed = !list.is_empty() && *old != list;
            if changed {
                *old = list;
            }
            changed
        });
    });
}

/// Remembers new blocks of pods, and moves the bridge to them and to new blocks of services, until
/// shutdown.
async fn apply_blocks(
    config: &Config,
    (mut blocks, mut services): (watch::Receiver<Vec<Cidr>>, watch::Receiver<Option<Vec<Cidr>>>),
    blocks_applied: Vec<Cidr>,
    tasks: &Tasks,
) -> Result<(), Error> {
    let mut applied = (blocks_applied, None);
    loop {
        let now = (blocks.borrow_and_update().clone(), services.borrow_and_update().clone());
        if now != applied {
            let (config, fresh) = (config.clone(), now.0 != applied.0);
            let (list, services) = now.clone();
            base::tasks::blocking(move || -> Result<(), Error> {
                if fresh {
                    let text: String = list.iter().map(|b| format!("{b}\n")).collect();
                    base::fs::write_atomic(&remembered_path(&config), text.as_bytes(), 0o600)
                        .map_err(Error::io("cannot remember the pod address blocks"))?;
                }
                match host::ensure_bridge(&config, &list, services.as_deref()) {
                    // Somebody's range of services is no reason to end.
                    Err(error) if !fresh => {
                        tracing::warn!(%error, "routes of services are not right")
                    }
                    done => drop(done?),
                }
                Ok(())
            })
            .await??;
            applied = now;
        }
        let alive = tokio::select! {
            () = tasks.shutdown().requested() => return Ok(()),
            changed = blocks.changed() => changed.is_ok(),
            changed = services.changed() => changed.is_ok(),
        };
        if !alive {
            tasks.shutdown().requested().await;
            return Ok(());
        }
    }
}
