//! Answers the plugin: gives addresses, makes links, publishes host ports.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use api::ObjectKey;
use base::{Kind, Shutdown, Tasks};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use crate::cni::attach::{self, Bridge};
use crate::cni::{Command, Failure, MESSAGE_MAX, Reply, Request};
use crate::config::{Config, Error};
use crate::host;
use crate::ipam::{Ipam, Lease};
use crate::netlink::Socket;
use crate::policy::Local;
use crate::policy::gate::{Gate, Leases};
use crate::proxy::HostPorts;
use settings::addr::Cidr;

/// Pods started at once; more wait in the socket's backlog.
const CALLS_MAX: usize = 32;
/// How long an ADD waits for the node's pod block.
const BLOCK_WAIT: Duration = Duration::from_secs(30);
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// The agent's half of the plugin.
#[derive(Debug)]
pub(crate) struct Server {
    config: Config,
    ipam: Mutex<Ipam>,
    /// Calls for one sandbox interface, one at a time.
    busy: Mutex<HashSet<String>>,
    free: tokio::sync::Notify,
    blocks: watch::Receiver<Vec<Cidr>>,
    host_ports: watch::Sender<HostPorts>,
    /// All pods with addresses here, for policies.
    pods: watch::Sender<Leases>,
    /// Where a pod waits for the rules of its policies; without it they are not enforced.
    gate: Option<Gate>,
}

struct Turn<'a>(&'a Server, String);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().remove(&self.1);
        self.0.free.notify_waiters();
    }
}

fn owner(lease: &Lease) -> String {
    format!("{}@{}", lease.container, lease.interface)
}

impl Server {
    /// Reads the leases and gives back those whose link is gone.
    pub(crate) fn open(
        config: &Config,
        blocks: watch::Receiver<Vec<Cidr>>,
        host_ports: watch::Sender<HostPorts>,
    ) -> Result<Self, Error> {
        let directory = config.state_dir.join("leases");
        // The socket's folder is in memory: what is there is of this run of the machine, as links
        // are.
        let copies = config.socket.parent().map(|folder| folder.join("lease-copies"));
        let ipam = Ipam::open(&directory, copies.as_deref())
            .map_err(Error::io(format!("cannot read leases in {}", directory.display())))?;
        let server = Self {
            config: config.clone(),
            ipam: Mutex::new(ipam),
            busy: Mutex::default(),
            free: tokio::sync::Notify::new(),
            blocks,
            host_ports,
            pods: watch::Sender::default(),
            gate: None,
        };
        server.collect().map_err(|f| Error::Config(f.message))?;
        server.publish();
        Ok(server)
    }

    /// All pods with addresses on this node, and further changes.
    pub(crate) fn pods(&self) -> watch::Receiver<Leases> {
        self.pods.subscribe()
    }

    /// Pods start when this lets them.
    pub(crate) fn gated(&mut self, gate: Gate) {
        self.gate = Some(gate);
    }

    /// Serves the socket until shutdown.
    pub(crate) async fn run(
        self: Arc<Self>,
        listener: UnixListener,
        tasks: Tasks,
        shutdown: Shutdown,
    ) {
        let limit = Arc::new(Semaphore::new(CALLS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&limit).acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = shutdown.requested() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let server = Arc::clone(&self);
            tasks.spawn(Kind::Request, "cni", async move {
                let _permit = permit;
                server.serve(stream).await
            });
        }
    }

    /// Binds the plugin's socket, for root alone.
    pub(crate) fn bind(config: &Config) -> Result<UnixListener, Error> {
        let path = &config.socket;
        let named = || Error::io(format!("cannot listen on {}", path.display()));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(named())?;
        }
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(named()(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(named())?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(named())?;
        Ok(listener)
    }

    async fn serve(self: Arc<Self>, mut stream: UnixStream) -> std::io::Result<()> {
        let mut input = Vec::new();
        let mut limited = (&mut stream).take(MESSAGE_MAX);
        let read = limited.read_to_end(&mut input);
        tokio::time::timeout(READ_DEADLINE, read).await??;
        // `kube-lite status` connects to see that this process answers.
        if input.is_empty() {
            return Ok(());
        }
        let reply = match serde_json::from_slice::<Request>(&input) {
            Ok(request) => self.answer(request).await,
            Err(error) => Err(Failure::decode(format!("bad request: {error}"))),
        };
        let reply = reply.map_or_else(Reply::failed, Reply::done);
        stream.write_all(&serde_json::to_vec(&reply)?).await?;
        stream.shutdown().await
    }

    async fn turn(&self, key: String) -> Turn<'_> {
        loop {
            let freed = self.free.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.busy.lock().insert(key.clone()) {
                return Turn(self, key);
            }
            freed.await;
        }
    }

    async fn answer(self: &Arc<Self>, request: Request) -> Result<Value, Failure> {
        let command = request.command()?;
        let _turn = self.turn(format!("{}@{}", request.container, request.interface)).await;
        if matches!(command, Command::Add | Command::Status) {
            let mut blocks = self.blocks.clone();
            let known = tokio::time::timeout(BLOCK_WAIT, blocks.wait_for(|b| !b.is_empty()));
            let text = format!(
                "node {} has no pod address block yet (spec.podCIDRs); is the server reachable?",
                self.config.node_name
            );
            if command == Command::Status && self.blocks.borrow().is_empty() {
                return Err(Failure::unavailable(text));
            }
            if !matches!(known.await, Ok(Ok(_))) {
                return Err(Failure::again(text));
            }
        }
        let request = Arc::new(request);
        let result = self.worked(command, &request).await?;
        if let (Command::Add, Some(gate)) = (command, &self.gate) {
            let generation = self.pods.borrow().generation;
            let pod = request.pod();
            let pod = ObjectKey::new(pod.namespace, pod.name);
            if let Err(why) = gate.pass(generation, &pod).await {
                // Nothing of the pod runs yet.
                self.worked(Command::Delete, &request).await?;
                return Err(Failure::again(why.to_string()));
            }
        }
        Ok(result)
    }

    async fn worked(
        self: &Arc<Self>,
        command: Command,
        request: &Arc<Request>,
    ) -> Result<Value, Failure> {
        let (server, request) = (Arc::clone(self), Arc::clone(request));
        let result = base::tasks::blocking(move || server.work(command, &request)).await;
        result.map_err(|_| Failure::io("the network worker panicked"))?
    }

    pub(crate) fn work(&self, command: Command, request: &Request) -> Result<Value, Failure> {
        match command {
            Command::Add => self.add(request),
            Command::Delete => {
                self.delete(&request.container, &request.interface)?;
                Ok(Value::Null)
            }
            Command::Check => {
                let lease = self.ipam.lock().get(&request.container, &request.interface).cloned();
                let lease =
                    lease.ok_or_else(|| Failure { code: 3, message: "no such sandbox".into() })?;
                attach::check(request, &lease)?;
                Ok(Value::Null)
            }
            Command::Status => Ok(Value::Null),
            Command::Collect => {
                let valid: HashSet<(String, String)> = request.config["cni.dev/valid-attachments"]
                    .as_array()
                    .ok_or_else(|| Failure::config("GC needs cni.dev/valid-attachments"))?
                    .iter()
                    .map(|a| {
                        let text = |n: &str| a[n].as_str().unwrap_or_default().to_owned();
                        (text("containerID"), text("ifname"))
                    })
                    .collect();
                let all: Vec<Lease> = self.ipam.lock().leases().cloned().collect();
                for lease in all {
                    if !valid.contains(&(lease.container.clone(), lease.interface.clone())) {
                        self.delete(&lease.container, &lease.interface)?;
                    }
                }
                Ok(Value::Null)
            }
        }
    }

    fn add(&self, request: &Request) -> Result<Value, Failure> {
        let blocks = self.blocks.borrow().clone();
        let (link, mtu) = host::ensure_bridge(&self.config, &blocks, None)
            .map_err(|e| Failure::io(e.to_string()))?;
        let host_link = attach::host_link(&request.container, &request.interface);
        let had = self.ipam.lock().get(&request.container, &request.interface).is_some();
        let mut lease = self
            .ipam
            .lock()
            .allocate(&request.container, &request.interface, request.pod(), &blocks, &host_link)
            .map_err(|e| Failure::again(e.to_string()))?;
        let bridge =
            Bridge { link, mtu, gateways: blocks.iter().filter_map(host::gateway).collect() };
        let result = request.host_ports(&lease.addresses).and_then(|ports| {
            if lease.host_ports != ports {
                lease.host_ports = ports;
                self.ipam.lock().store(lease.clone()).map_err(|e| Failure::io(e.to_string()))?;
            }
            attach::add(request, &lease, &bridge)
        });
        if result.is_err() && !had {
            let _ = self.ipam.lock().release(&request.container, &request.interface);
        } else {
            self.publish();
        }
        result
    }

    fn delete(&self, container: &str, interface: &str) -> Result<(), Failure> {
        let lease = self.ipam.lock().get(container, interface).cloned();
        let Some(lease) = lease else { return Ok(()) };
        // The link first: an address must not be given again while a link still has it.
        attach::remove(&lease)?;
        self.ipam.lock().release(container, interface).map_err(|e| Failure::io(e.to_string()))?;
        self.publish();
        Ok(())
    }

    /// Gives back leases whose link is gone: their DEL came while the agent was away, or the
    /// machine restarted. Their pods get the same addresses again.
    fn collect(&self) -> Result<(), Failure> {
        let io = |e: std::io::Error| Failure::io(format!("cannot read the node's links: {e}"));
        let links = Socket::route().and_then(|mut s| s.links()).map_err(io)?;
        let present: HashSet<String> = links.into_iter().map(|l| l.name).collect();
        let all: Vec<Lease> = self.ipam.lock().leases().cloned().collect();
        for lease in all {
            if !present.contains(&lease.host_link) {
                attach::remove(&lease)?;
                self.ipam
                    .lock()
                    .release(&lease.container, &lease.interface)
                    .map_err(|e| Failure::io(e.to_string()))?;
            }
        }
        Ok(())
    }

    fn publish(&self) {
        let ipam = self.ipam.lock();
        let list: HostPorts = ipam
            .leases()
            .filter(|l| !l.host_ports.is_empty())
            .map(|l| (owner(l), l.host_ports.clone()))
            .collect();
        self.host_ports.send_if_modified(|old| {
            let changed = *old != list;
            *old = list;
            changed
        });
        let local = |l: &Lease| Local {
            key: ObjectKey::new(&l.namespace, &l.name),
            uid: l.pod.clone(),
            addresses: l.addresses.clone(),
            link: l.host_link.clone(),
        };
        let pods: Vec<Local> = ipam.leases().map(local).collect();
        self.pods.send_if_modified(|known| {
            let changed = known.generation == 0 || known.pods != pods;
            known.generation += u64::from(changed);
            known.pods = pods;
            changed
        });
    }
}

#[cfg(test)]
mod tests;
