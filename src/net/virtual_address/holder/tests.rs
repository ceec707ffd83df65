//! A holder on a link of its own, with servers in this process.

use async_trait::async_trait;
use parking_lot::Mutex;

use super::super::{Arbiter, LeaseError, LeaseResponse, LeaseServer};
use super::*;
use crate::testing::{connected_links, eventually, in_namespace, privileged, shell};

/// A server that can be cut off.
#[derive(Debug)]
struct TestServer {
    arbiter: Arbiter,
    servers: usize,
    is_cut_off: Mutex<bool>,
}

impl TestServer {
    fn new(name: &str, servers: usize) -> Arc<Self> {
        let arbiter = Arbiter::new(name.into(), "s");
        Arc::new(Self { arbiter, servers, is_cut_off: Mutex::new(false) })
    }
}

#[async_trait]
impl LeaseServer for TestServer {
    async fn request(&self, request: &LeaseRequest) -> Result<LeaseResponse, LeaseError> {
        if *self.is_cut_off.lock() {
            return Err(LeaseError("cut off".into()));
        }
        Ok(self.arbiter.answer(request.clone(), self.servers, |_| true).await)
    }
}

#[derive(Debug)]
struct TestServers(Vec<Arc<TestServer>>, watch::Sender<bool>);

impl LeaseServers for TestServers {
    fn list(&self) -> Vec<Arc<dyn LeaseServer>> {
        self.0.iter().map(|server| Arc::clone(server) as Arc<dyn LeaseServer>).collect()
    }

    fn contested(&self) -> watch::Receiver<bool> {
        self.1.subscribe()
    }
}

const ADDRESS: &str = "192.0.2.10";

/// Runs a holder of [`ADDRESS`] on a link; `test` gets its servers.
fn with_holder<F: Future<Output = ()>>(
    servers: Vec<Arc<TestServer>>,
    test: impl FnOnce(Vec<Arc<TestServer>>, watch::Sender<Option<BTreeSet<IpAddr>>>) -> F
    + Send
    + 'static,
) {
    in_namespace(move || {
        connected_links();
        shell("ip addr add 192.0.2.1/24 dev d0");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let tasks = Tasks::new(base::Shutdown::new());
            let address: IpAddr = ADDRESS.parse().unwrap();
            let (sender, wanted) = watch::channel(Some(BTreeSet::from([address])));
            let own = watch::channel(vec!["192.0.2.1".parse().unwrap()]);
            let config = HolderConfig {
                name: "a".into(),
                servers: Arc::new(TestServers(servers.clone(), watch::Sender::new(true))),
                wanted,
                addresses: own.1,
                is_virtual: Arc::new(move |ip| ip == address),
                held: watch::Sender::default(),
            };
            tasks.spawn(Kind::Critical, "holder", Holder::new(config, &tasks).run());
            test(servers, sender).await;
            tasks.shutdown().request();
            tasks.drain(Duration::from_secs(2)).await;
            assert!(!has_address(), "a holder that stops gives the address up");
        });
    });
}

fn has_address() -> bool {
    shell("ip address show dev d0").contains(&format!("{ADDRESS}/32"))
}

fn claim(holder: &str) -> LeaseRequest {
    let claim = BTreeSet::from([ADDRESS.parse().unwrap()]);
    LeaseRequest { holder: holder.into(), claim, ..LeaseRequest::default() }
}

const SHOW: &str = "ip address show dev d0";

#[test]
fn an_address_is_held_while_more_than_half_of_the_servers_grant_it() {
    if !privileged("an_address_is_held_while_more_than_half_of_the_servers_grant_it") {
        return;
    }
    let servers = ["x", "y", "z"].map(|name| TestServer::new(name, 3));
    with_holder(servers.into(), |servers, wanted| async move {
        eventually("the address is taken", SHOW, has_address).await;
        *servers[0].is_cut_off.lock() = true;
        base::clock::sleep(Duration::from_millis(2500)).await;
        assert!(has_address(), "two of three servers grant it");
        *servers[1].is_cut_off.lock() = true;
        let begun = base::clock::now();
        eventually("the address is given up", SHOW, || !has_address()).await;
        assert!(begun.elapsed() < super::super::LEASE, "{:?}", begun.elapsed());
        let others = servers[2].arbiter.answer(claim("b"), 3, |_| true).await.others;
        assert!(others.len() == 1, "its lease has not ended before");
        servers.iter().for_each(|server| *server.is_cut_off.lock() = false);
        eventually("the address is taken again", SHOW, has_address).await;
        wanted.send_replace(Some(BTreeSet::new()));
        eventually("an address that is not wanted is given up", SHOW, || !has_address()).await;
        let granted = servers[2].arbiter.answer(claim("b"), 3, |_| true).await.granted;
        assert_eq!(granted.len(), 1, "and released at once");
    });
}

#[test]
fn an_address_stays_while_the_only_server_is_away_and_no_other_machine_has_it() {
    if !privileged("an_address_stays_while_the_only_server_is_away_and_no_other_machine_has_it") {
        return;
    }
    with_holder(vec![TestServer::new("x", 1)], |servers, wanted| async move {
        let _wanted = wanted;
        eventually("the address is taken", SHOW, has_address).await;
        *servers[0].is_cut_off.lock() = true;
        base::clock::sleep(Duration::from_secs(3)).await;
        assert!(has_address());
        assert_eq!(servers[0].arbiter.answer(claim("b"), 1, |_| true).await.granted.len(), 1);
        *servers[0].is_cut_off.lock() = false;
        let begun = base::clock::now();
        eventually("the address of another machine is given up", SHOW, || !has_address()).await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}
