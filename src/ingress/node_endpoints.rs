//! EndpointSlices whose endpoints are the nodes: Services that lead to the process of each node.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::Node;
use api::k8s::api::discovery::v1::EndpointSlice;
use client::{Client, Error, Informer, Patch, gvr_of};
use serde_json::{Value, json};

/// Addresses of one EndpointSlice (`MaxEndpointsPerSlice`).
const ENDPOINTS_MAX: usize = 1000;
/// Label with the name of the Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label with the manager of an EndpointSlice.
pub const MANAGER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// The address of a node, and whether it is ready.
pub fn endpoint(node: &Node) -> Option<(String, String, bool)> {
    let name = node.metadata.name.clone()?;
    let status = node.status.as_ref()?;
    let internal = status.addresses.iter().flatten().find(|a| a.type_ == "InternalIP")?;
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.filter(|c| c.type_ == "Ready").any(|c| c.status == "True");
    Some((name, internal.address.clone(), ready))
}

/// A Service whose endpoints are nodes.
#[derive(Debug)]
pub struct NodeService<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// The manager of its EndpointSlices.
    pub manager: &'a str,
    /// Ports of EndpointSlices.
    pub ports: Value,
    /// `metadata.ownerReferences` of its EndpointSlices.
    pub owners: Value,
}

/// The EndpointSlices of a Service, by name.
pub fn endpoint_slices(service: &NodeService<'_>, nodes: &[Node]) -> BTreeMap<String, Value> {
    let mut families: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut known: Vec<_> = nodes.iter().filter_map(endpoint).collect();
    known.sort();
    for (name, address, ready) in known {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        families.entry(family).or_default().push(json!({
            "addresses": [address],
            "nodeName": name,
            "targetRef": {"kind": "Node", "name": name},
            "conditions": {"ready": ready, "serving": ready, "terminating": false},
        }));
    }
    let mut slices = BTreeMap::new();
    for (family, endpoints) in families {
        for (number, chunk) in endpoints.chunks(ENDPOINTS_MAX).enumerate() {
            let name = format!("{}-{}-{number}", service.name, family.to_lowercase());
            let labels = json!({SERVICE_LABEL: service.name, MANAGER_LABEL: service.manager});
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": service.namespace, "labels": labels,
                    "ownerReferences": service.owners},
                "addressType": family,
                "ports": service.ports,
                "endpoints": chunk,
            });
            slices.insert(name, slice);
        }
    }
    slices
}

/// Writes the EndpointSlices that differ.
///
/// # Errors
/// The server's refusal or the transport's failure.
pub async fn write(
    client: &Client,
    known: &Informer<EndpointSlice>,
    namespace: &str,
    wanted: &BTreeMap<String, Value>,
) -> Result<(), Error> {
    for (name, slice) in wanted {
        let object = known.cache().get(namespace, name);
        let is_equal = object.as_ref().is_some_and(|object| {
            let value = object.value().ok();
            value.is_some_and(|value| {
                ["endpoints", "ports"].iter().all(|field| value.get(field) == slice.get(field))
            })
        });
        match object {
            Some(_) if is_equal => {}
            Some(_) => {
                let patch = Patch::Merge(slice);
                client.patch::<EndpointSlice>(namespace, name, "", &patch).await?;
            }
            None => {
                let gvr = gvr_of::<EndpointSlice>();
                client.post_value(&gvr, namespace, "", "", slice).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str, ready: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn each_node_is_an_endpoint_of_the_service() {
        let nodes = [
            node("b", "192.0.2.2", "True"),
            node("a", "192.0.2.1", "Unknown"),
            node("c", "2001:db8::1", "True"),
        ];
        let service = NodeService {
            namespace: "n",
            name: "ingress",
            manager: "m",
            ports: json!([]),
            owners: json!([]),
        };
        let slices = endpoint_slices(&service, &nodes);
        let names: Vec<&str> = slices.keys().map(String::as_str).collect();
        assert_eq!(names, ["ingress-ipv4-0", "ingress-ipv6-0"]);
        let endpoints = &slices["ingress-ipv4-0"]["endpoints"];
        assert_eq!(endpoints[0]["nodeName"], "a");
        assert_eq!(endpoints[0]["conditions"]["ready"], false);
        assert_eq!(endpoints[1]["addresses"][0], "192.0.2.2");
    }
}
