//! The plugin's calls against real namespaces.

use super::*;
use crate::testing::{Pod, config, in_namespace, privileged, request, shell};

#[test]
fn add_is_idempotent_delete_is_tolerant_and_a_lost_link_gives_its_lease_back() {
    if !privileged("add_is_idempotent_delete_is_tolerant_and_a_lost_link_gives_its_lease_back") {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        let (_keep, blocks) = watch::channel(config.pod_cidrs.clone());
        let (ports, _seen) = watch::channel(HostPorts::new());
        let server = Server::open(&config, blocks.clone(), ports.clone()).unwrap();
        let pod = Pod::new();
        let call = request("ADD", "one", &pod, serde_json::json!({}));
        let first = server.work(Command::Add, &call).unwrap();
        assert_eq!(first["ips"][0]["address"], "10.42.0.2/32");
        assert_eq!(first["ips"][1]["address"], "fd00:42::2/128");
        assert_eq!(server.work(Command::Add, &call).unwrap(), first);
        server.work(Command::Check, &call).unwrap();
        pod.run(|| drop(shell("ip addr del 10.42.0.2/32 dev eth0")));
        assert_eq!(
            server.work(Command::Check, &call).unwrap_err().message,
            "eth0 has not the address 10.42.0.2"
        );
        assert_eq!(server.work(Command::Add, &call).unwrap()["ips"], first["ips"], "repaired");
        let other = Pod::new();
        let second = server
            .work(Command::Add, &request("ADD", "two", &other, serde_json::json!({})))
            .unwrap();
        assert_eq!(second["ips"][0]["address"], "10.42.0.3/32");
        for address in ["10.42.0.2:80", "[fd00:42::2]:80"] {
            let address: std::net::SocketAddr = address.parse().unwrap();
            let _listener = pod.run(move || std::net::TcpListener::bind(address).unwrap());
            other.run(move || {
                std::net::TcpStream::connect_timeout(&address, READ_DEADLINE).unwrap()
            });
        }
        for _ in 0..2 {
            server
                .work(Command::Delete, &request("DEL", "one", &pod, serde_json::json!({})))
                .unwrap();
        }
        assert_eq!(server.ipam.lock().leases().count(), 1);
        drop(other);
        shell(&format!("ip link del {} 2>/dev/null || true", attach::host_link("two", "eth0")));
        let server = Server::open(&config, blocks, ports).unwrap();
        assert_eq!(server.ipam.lock().leases().count(), 0);
        let failed = request("ADD", "bad", &pod, serde_json::json!({"bandwidth":{"egressRate":1}}));
        assert_eq!(server.work(Command::Add, &failed).unwrap_err().code, 7);
        assert_eq!(server.ipam.lock().leases().count(), 0, "a failed ADD keeps no address");
    });
}
