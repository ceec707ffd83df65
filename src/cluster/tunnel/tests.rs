//! Tests with both ends of the tunnel.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::io::{BoxIo, Dial as _};
use base::pki::reloadable_cert::LiveCert;
use base::pki::{Ca, Profile, tls};
use base::{Kind, Shutdown, Tasks};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::agent::connect::{self, Connected, ConnectionKind};
use super::agent::{Agent, Shared};
use super::allow::{LocalMachine, Pods};
use super::{HeartbeatConfig, State, Tunnels};
use crate::servers::{Health, Servers};

/// A timeout that no successful test reaches.
const SOON: Duration = Duration::from_secs(60);
const SETTINGS: &str = "settings of the cluster";
const GROUPS: [&str; 2] = ["system:nodes", "system:authenticated"];

/// One address is a pod.
struct OnePod(IpAddr);

#[async_trait]
impl Pods for OnePod {
    async fn is_pod(&self, ip: IpAddr) -> bool {
        ip == self.0
    }
}

fn groups() -> Vec<String> {
    GROUPS.map(str::to_owned).to_vec()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("in time")
}

/// Serves HTTP/1.1 as the API's port does, but only the tunnel's path.
async fn serve(io: BoxIo, tunnels: Tunnels, user: &str) {
    let user = user.to_owned();
    let service = service_fn(move |mut request| {
        let response = tunnels.accept(Some((&user, &groups())), &mut request);
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let _ = connection.await;
}

/// A directory, the CAs of a cluster, and the dependencies of an agent.
struct World {
    directory: tempfile::TempDir,
    server_ca: Ca,
    client_ca: Ca,
    settings: watch::Sender<String>,
    tasks: Tasks,
    addresses: watch::Sender<Vec<IpAddr>>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = |name: &str| {
            let file = |end: &str| directory.path().join(format!("{name}.{end}"));
            Ca::load_or_create(&file("crt"), &file("key"), name).unwrap()
        };
        let (server_ca, client_ca) = (ca("server"), ca("client"));
        let (settings, tasks) = (watch::Sender::default(), Tasks::new(Shutdown::new()));
        let addresses = watch::Sender::new(vec![Ipv4Addr::LOCALHOST.into()]);
        Self { directory, server_ca, client_ca, settings, tasks, addresses }
    }

    fn agent(&self, servers: &Servers) -> Agent {
        let profile = Profile::client("system:node:worker", Some("system:nodes"));
        let cert = LiveCert::new(&self.client_ca.issue(&profile).unwrap()).unwrap();
        Agent {
            servers: servers.clone(),
            tls: tls::client(&[self.server_ca.der().clone()], Some(cert), &[]).unwrap(),
            own: LocalMachine {
                node: "worker".into(),
                addresses: self.addresses.subscribe(),
                kubelet_port: 10250,
            },
            pods: Arc::new(OnePod(Ipv4Addr::new(127, 0, 0, 9).into())),
            settings: self.settings.clone(),
            tasks: self.tasks.clone(),
        }
    }

    fn run_agent(&self, servers: &Servers) {
        self.tasks.spawn(Kind::Request, "agent", self.agent(servers).run());
    }

    /// The server's end of one connection without TLS.
    fn serve(&self, far: DuplexStream, tunnels: &Tunnels) {
        let tunnels = tunnels.clone();
        self.tasks.spawn(Kind::Request, "serve", async move {
            serve(Box::new(far), tunnels, "system:node:worker").await;
            Ok::<(), String>(())
        });
    }

    /// The agent's end of it.
    async fn upgraded(&self, near: DuplexStream) -> Connected {
        let ask = ConnectionKind::Tunnel(&[]);
        let upgraded = connect::upgrade(Box::new(near), "x", ask, &self.tasks).await;
        upgraded.unwrap_or_else(|e| panic!("{e}"))
    }

    fn servers(&self, flag: &str) -> Servers {
        Servers::open(self.directory.path(), Some(flag)).unwrap()
    }

    /// Accepts TLS with client certificates on a listener, until `stop`; counts connections.
    fn listen(
        &self,
        listener: TcpListener,
        tunnels: &Tunnels,
        stop: &Shutdown,
    ) -> Arc<AtomicUsize> {
        let profile = Profile::server("s", &["kubernetes".into()], &[]);
        let cert = LiveCert::new(&self.server_ca.issue(&profile).unwrap()).unwrap();
        let config =
            tls::verifying_server(cert, &[self.client_ca.der().clone()], &["h2", "http/1.1"]);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
        let (tunnels, stop, tasks) = (tunnels.clone(), stop.clone(), self.tasks.clone());
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        self.tasks.spawn(Kind::Request, "listen", async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = stop.requested() => return Ok::<(), String>(()),
                };
                counted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, tunnels, stop) = (acceptor.clone(), tunnels.clone(), stop.clone());
                tasks.spawn(Kind::Request, "serve", async move {
                    let serving = async {
                        // A client may connect and send nothing.
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        assert!(stream.get_ref().1.peer_certificates().is_some());
                        serve(Box::new(stream), tunnels, "system:node:worker").await;
                    };
                    tokio::select! {
                        () = serving => {}
                        () = stop.requested() => {}
                    }
                    Ok::<(), String>(())
                });
            }
        });
        count
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.shutdown().request();
    }
}

/// A world with an agent that has a tunnel to a server, and the count of the server's connections.
async fn connected(config: HeartbeatConfig) -> (World, Tunnels, Arc<AtomicUsize>) {
    let (world, listener) = (World::new(), local().await);
    let servers = world.servers(&listener.local_addr().unwrap().to_string());
    let tunnels = Tunnels::new(config, SETTINGS.into(), world.tasks.clone());
    let connections = world.listen(listener, &tunnels, world.tasks.shutdown());
    world.run_agent(&servers);
    up(&tunnels, "worker").await;
    (world, tunnels, connections)
}

async fn local() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

async fn up(tunnels: &Tunnels, node: &str) {
    is(tunnels, node, State::Up).await;
}

async fn is(tunnels: &Tunnels, node: &str, state: State) {
    let mut presences = tunnels.presences();
    let seen = presences.wait_for(|all| all.get(node).is_some_and(|p| p.state == state));
    drop(within(seen).await.unwrap());
}

/// Runs an echo server on a port of 127.0.0.1.
async fn echo(tasks: &Tasks) -> u16 {
    let listener = local().await;
    let port = listener.local_addr().unwrap().port();
    let own = tasks.clone();
    tasks.spawn(Kind::Request, "echo", async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            own.spawn(Kind::Request, "echo-one", async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                Ok::<(), String>(())
            });
        }
        Ok::<(), String>(())
    });
    port
}

async fn echoes(io: &mut BoxIo, bytes: &[u8]) {
    io.write_all(bytes).await.unwrap();
    let mut back = vec![0; bytes.len()];
    within(io.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, bytes);
}

#[tokio::test]
async fn the_server_reaches_only_permitted_destinations() {
    let (world, tunnels, _) = connected(HeartbeatConfig::CALM).await;

    let mut settings = world.settings.subscribe();
    drop(within(settings.wait_for(|settings_digest| settings_digest == SETTINGS)).await.unwrap());

    let port = echo(&world.tasks).await;
    let mut io = within(tunnels.dial("worker", "127.0.0.1", port)).await.unwrap();
    echoes(&mut io, b"hello").await;
    // Both directions at once, with more data than all windows and buffers hold.
    let (mut reader, mut writer) = tokio::io::split(io);
    let sent = vec![7_u8; 3 << 20];
    let send = async { writer.write_all(&sent).await.unwrap() };
    let mut got = vec![0; 3 << 20];
    let ((), read) = within(async { tokio::join!(send, reader.read_exact(&mut got)) }).await;
    read.unwrap();
    assert!(got == sent);

    let closed = local().await;
    let free = closed.local_addr().unwrap().port();
    drop(closed);
    for (node, host, port, want) in [
        ("worker", "127.0.0.1", free, std::io::ErrorKind::ConnectionRefused),
        ("worker", "127.0.0.2", port, std::io::ErrorKind::PermissionDenied),
        ("worker", "localhost", port, std::io::ErrorKind::PermissionDenied),
        ("worker", "fd00::1", port, std::io::ErrorKind::PermissionDenied),
        ("other", "127.0.0.1", port, std::io::ErrorKind::NotConnected),
    ] {
        let error = within(tunnels.dial(node, host, port)).await.err().unwrap();
        assert_eq!(error.kind(), want, "{node} {host}: {error}");
    }
}

#[tokio::test]
async fn stalled_streams_do_not_block_others() {
    let (world, tunnels, _) = connected(HeartbeatConfig::CALM).await;
    let port = echo(&world.tasks).await;
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let mut io = within(tunnels.dial("worker", "127.0.0.1", port)).await.unwrap();
        // Write until all windows of this stream are full.
        let block = vec![1_u8; 64 * 1024];
        while tokio::time::timeout(Duration::from_millis(20), io.write_all(&block)).await.is_ok() {}
        stalled.push(io);
    }
    let mut io = within(tunnels.dial("worker", "127.0.0.1", port)).await.unwrap();
    echoes(&mut io, &[5; 100_000]).await;
    drop(stalled);
    let many = (0..100).map(|n: u8| {
        let tunnels = tunnels.clone();
        async move {
            let mut io = tunnels.dial("worker", "127.0.0.1", port).await.unwrap();
            echoes(&mut io, &[n; 1000]).await;
        }
    });
    within(futures::future::join_all(many)).await;
}

#[tokio::test]
async fn the_last_bytes_are_read_despite_concurrent_writes() {
    let (world, tunnels, _) = connected(HeartbeatConfig::CALM).await;
    let brief = local().await;
    let (port, echo) = (brief.local_addr().unwrap().port(), echo(&world.tasks).await);
    for _ in 0..50 {
        let mut io = within(tunnels.dial("worker", "127.0.0.1", port)).await.unwrap();
        let (mut far, _) = within(brief.accept()).await.unwrap();
        far.write_all(b"bye").await.unwrap();
        drop(far);
        // Time for the end to arrive.
        let mut later = within(tunnels.dial("worker", "127.0.0.1", echo)).await.unwrap();
        echoes(&mut later, b"hello").await;
        io.write_all(b"?").await.unwrap();
        io.flush().await.unwrap();
        let mut said = String::new();
        within(io.read_to_string(&mut said)).await.unwrap();
        assert_eq!(said, "bye");
    }
}

#[tokio::test]
async fn a_lost_server_cuts_its_connections_and_its_return_is_signalled() {
    let world = World::new();
    let listener = local().await;
    let address = listener.local_addr().unwrap();
    let servers = world.servers(&address.to_string());
    let first = Tasks::new(world.tasks.shutdown().child());
    let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), first.clone());
    world.listen(listener, &tunnels, first.shutdown());
    world.run_agent(&servers);
    up(&tunnels, "worker").await;
    let mut connection = within(servers.dial("kubernetes", 443)).await.unwrap();
    let mut back = Box::pin(servers.back());
    assert!(futures::poll!(back.as_mut()).is_pending());
    let port = echo(&world.tasks).await;
    let mut carried = within(tunnels.dial("worker", "127.0.0.1", port)).await.unwrap();
    echoes(&mut carried, b"x").await;

    // A newer tunnel of the node replaces the first, whose streams end.
    let (near, far) = tokio::io::duplex(64 * 1024);
    world.serve(far, &tunnels);
    let newer = world.upgraded(near).await;
    assert!(within(carried.read_u8()).await.is_err());
    assert!(within(connection.read_u8()).await.is_err());
    drop(newer);
    within(back).await;

    let mut back = Box::pin(servers.back());
    assert!(futures::poll!(back.as_mut()).is_pending());
    first.shutdown().request();
    within(first.drain(SOON)).await;
    let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), world.tasks.clone());
    let listener = TcpListener::bind(address).await.unwrap();
    world.listen(listener, &tunnels, world.tasks.shutdown());
    within(back).await;
    assert_eq!(servers.states()[0].state, Health::Connected);
}

#[tokio::test]
async fn a_removed_local_address_reopens_connections() {
    let (world, listener) = (World::new(), local().await);
    let servers = world.servers(&listener.local_addr().unwrap().to_string());
    let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), world.tasks.clone());
    world.listen(listener, &tunnels, world.tasks.shutdown());
    world.run_agent(&servers);
    up(&tunnels, "worker").await;
    let mut connection = within(servers.dial("kubernetes", 443)).await.unwrap();
    let mut back = Box::pin(servers.back());
    assert!(futures::poll!(back.as_mut()).is_pending());
    let here = TcpListener::bind(("127.0.0.8", 0)).await.unwrap();
    let port = here.local_addr().unwrap().port();

    // An additional address changes nothing, a replaced one does.
    let (old, new): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [127, 0, 0, 8].into());
    world.addresses.send_replace(vec![old, new]);
    drop(within(tunnels.dial("worker", "127.0.0.8", port)).await.unwrap());
    assert!(futures::poll!(back.as_mut()).is_pending());
    world.addresses.send_replace(vec![new]);
    assert!(within(connection.read_u8()).await.is_err());
    within(back).await;
    let reached = async {
        while tunnels.dial("worker", "127.0.0.8", port).await.is_err() {
            base::clock::sleep(Duration::from_millis(20)).await;
        }
    };
    within(reached).await;
    let error = within(tunnels.dial("worker", "127.0.0.1", port)).await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn one_server_with_two_addresses_has_one_tunnel() {
    let world = World::new();
    let listener = local().await;
    let port = listener.local_addr().unwrap().port();
    let servers = world.servers(&format!("127.0.0.1:{port}"));
    servers.set_addresses(&[format!("127.0.0.1:{port}"), format!("localhost:{port}")]);
    let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), world.tasks.clone());
    let connections = world.listen(listener, &tunnels, world.tasks.shutdown());
    world.run_agent(&servers);
    // Both addresses may connect at once. In the end one has the tunnel, the other waits, and no
    // further connection is opened.
    within(async {
        loop {
            let before = connections.load(Ordering::SeqCst);
            base::clock::sleep(Duration::from_millis(1500)).await;
            let all = servers.states().iter().all(|s| s.state == Health::Connected);
            if all && connections.load(Ordering::SeqCst) == before {
                break;
            }
        }
    })
    .await;
    assert!(tunnels.has("worker"));
}

/// Two addresses of one server connect at once. The server keeps one tunnel, and connections by the
/// other address continue.
#[tokio::test]
async fn ending_one_of_two_tunnels_to_a_server_keeps_all_connections() {
    for ends in [0, 1] {
        let (world, listener) = (World::new(), local().await);
        let addresses = [listener.local_addr().unwrap().to_string(), "127.0.0.1:9".to_owned()];
        let servers = world.servers(&addresses[ends]);
        servers.set_addresses(&addresses);
        let shared = Shared::new(world.agent(&servers));
        let stops = [Shutdown::new(), Shutdown::new()];
        let mut carried = Vec::new();
        for (address, stop) in addresses.iter().zip(stops.clone()) {
            // Separate registries, so that the test decides which tunnel ends.
            let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), world.tasks.clone());
            let (near, far) = tokio::io::duplex(64 * 1024);
            world.serve(far, &tunnels);
            let connected = Connected { id: "one".to_owned(), ..world.upgraded(near).await };
            let (shared, address, ended) = (Arc::clone(&shared), address.clone(), Shutdown::new());
            carried.push(ended.clone());
            world.tasks.spawn(Kind::Request, "tunnel", async move {
                shared.serve_tunnel(&address, connected, &stop).await;
                ended.request();
                Ok::<(), String>(())
            });
            up(&tunnels, "worker").await;
        }
        let mut connection = within(servers.dial("kubernetes", 443)).await.unwrap();
        stops[ends].request();
        within(carried[ends].requested()).await;
        assert!(servers.states().iter().all(|s| s.state == Health::Connected));
        assert!(futures::poll!(Box::pin(connection.read_u8())).is_pending(), "it was cut");

        // The end of the last tunnel means that the server is lost.
        stops[1 - ends].request();
        within(carried[1 - ends].requested()).await;
        let lost = servers.states().into_iter().find(|s| s.address == addresses[1 - ends]);
        assert_eq!(lost.unwrap().state, Health::Unreachable);
    }
}

/// A pipe that discards all data after a request.
async fn swallowing(a: DuplexStream, b: DuplexStream, swallow: Shutdown) {
    let (mut a_in, mut a_out) = tokio::io::split(a);
    let (mut b_in, mut b_out) = tokio::io::split(b);
    tokio::select! {
        _ = tokio::io::copy(&mut a_in, &mut b_out) => {}
        _ = tokio::io::copy(&mut b_in, &mut a_out) => {}
        () = swallow.requested() => std::future::pending().await,
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_keep_an_idle_tunnel_and_silence_ends_it_at_both_ends() {
    let world = World::new();
    let servers = world.servers("127.0.0.1:9");
    let shared = Shared::new(world.agent(&servers));
    let config = HeartbeatConfig { extra_connections: 0, ..HeartbeatConfig::FAST };
    let tunnels = Tunnels::new(config, SETTINGS.into(), world.tasks.clone());
    let ((near, a), (b, far)) = (tokio::io::duplex(64 * 1024), tokio::io::duplex(64 * 1024));
    let cable = Shutdown::new();
    world.tasks.spawn(Kind::Request, "cable", {
        let cable = cable.clone();
        async move {
            swallowing(a, b, cable).await;
            Ok::<(), String>(())
        }
    });
    world.serve(far, &tunnels);
    let connected = world.upgraded(near).await;
    assert_eq!(connected.config, config);
    let agent_lost = Shutdown::new();
    world.tasks.spawn(Kind::Request, "agent", {
        let lost = agent_lost.clone();
        async move {
            shared.serve_tunnel("127.0.0.1:9", connected, &Shutdown::new()).await;
            lost.request();
            Ok::<(), String>(())
        }
    });
    up(&tunnels, "worker").await;
    base::clock::sleep(Duration::from_secs(3600)).await;
    assert!(tunnels.has("worker") && servers.states()[0].state == Health::Connected);
    let off = base::clock::now();
    cable.request();
    is(&tunnels, "worker", State::Silent).await;
    let took = off.elapsed();
    assert!(took > Duration::from_millis(4400) && took <= Duration::from_secs(6), "{took:?}");
    // An agent waits longer before it cuts all connections to a server.
    within(agent_lost.requested()).await;
    let took = off.elapsed();
    assert!(took > Duration::from_secs(15) && took <= Duration::from_secs(17), "{took:?}");
    assert_eq!(servers.states()[0].state, Health::Unreachable);
    let since = tunnels.presences().borrow()["worker"].since;
    assert!(since >= off - Duration::from_millis(1100) && since <= off);
}

#[tokio::test]
async fn fast_config_keeps_two_extra_connections() {
    let (_world, tunnels, connections) = connected(HeartbeatConfig::FAST).await;
    within(async {
        while tunnels.extra_connections("worker") < 2 {
            base::clock::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn only_nodes_may_open_tunnels_and_only_by_upgrade() {
    let world = World::new();
    let tunnels = Tunnels::new(HeartbeatConfig::CALM, SETTINGS.into(), world.tasks.clone());
    let ask = |user: Option<&str>, groups: &[String], upgrade: &str| {
        let request = http::Request::get(super::PATH).header("upgrade", upgrade);
        let mut request = request.body(()).unwrap();
        tunnels.accept(user.map(|u| (u, groups)), &mut request).status().as_u16()
    };
    assert_eq!(ask(None, &[], super::PROTOCOL), 401);
    assert_eq!(ask(Some("system:node:a"), &[], super::PROTOCOL), 403);
    assert_eq!(ask(Some("system:node:"), &groups(), super::PROTOCOL), 403);
    assert_eq!(ask(Some("jane"), &groups(), super::PROTOCOL), 403);
    assert_eq!(ask(Some("system:node:a"), &groups(), "websocket"), 426);
    assert_eq!(ask(Some("system:node:a"), &groups(), super::PROTOCOL), 101);
}
