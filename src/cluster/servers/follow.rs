//! Updates the list of servers from the endpoints of the Service `kubernetes`.

use std::collections::BTreeSet;

use api::Gvr;
use api::k8s::api::discovery::v1::EndpointSlice;
use base::{Kind, Tasks};
use client::{Informer, Informers, Scope};

use super::Servers;

/// Sets the addresses of `servers` at each change of the EndpointSlices of `default/kubernetes`.
/// The client's identity must be allowed to watch them.
pub fn follow(servers: &Servers, informers: &Informers, tasks: &Tasks) {
    let scope = Scope {
        gvr: Gvr::new("discovery.k8s.io", "v1", "endpointslices"),
        namespace: "default".to_owned(),
        label_selector: "kubernetes.io/service-name=kubernetes".to_owned(),
        field_selector: String::new(),
    };
    let informer: Informer<EndpointSlice> = informers.scoped(scope);
    let (target, slices) = (servers.clone(), informer.clone());
    informer.on_change(move |_| {
        // Until the cache has synced, a missing endpoint may still arrive.
        if slices.is_synced() {
            target.set_addresses(&addresses(&slices.list("")));
        }
    });
    let servers = servers.clone();
    tasks.spawn(Kind::Request, "servers-listed", async move {
        informer.synced().await;
        servers.set_addresses(&addresses(&informer.list("")));
        Ok::<(), std::convert::Infallible>(())
    });
}

/// `host:port` of every ready endpoint, without duplicates.
fn addresses(slices: &[EndpointSlice]) -> Vec<String> {
    let mut all = BTreeSet::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten();
        let named = |p: &&api::k8s::api::discovery::v1::EndpointPort| {
            p.name.as_deref().is_none_or(|n| n.is_empty() || n == "https")
        };
        let Some(port) = ports.filter(named).find_map(|p| p.port) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
            for address in endpoint.addresses.iter().filter(|_| ready) {
                let bracketed =
                    if address.contains(':') { format!("[{address}]") } else { address.clone() };
                all.insert(format!("{bracketed}:{port}"));
            }
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_endpoints_of_both_families_become_addresses() {
        let slice = |family: &str, address: &str, ready: bool| {
            serde_json::from_value::<EndpointSlice>(json!({
                "metadata": {"name": address, "namespace": "default"},
                "addressType": family,
                "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
            }))
            .unwrap()
        };
        let all = [
            slice("IPv4", "10.0.0.2", true),
            slice("IPv6", "fd00::2", true),
            slice("IPv4", "10.0.0.3", false),
        ];
        assert_eq!(addresses(&all), ["10.0.0.2:6443", "[fd00::2]:6443"]);
    }
}
