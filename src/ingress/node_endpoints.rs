//! EndpointSlices whose endpoints are the nodes: Services that lead to the process of each node.

use std::collections::BTreeMap;

use api::Object;
use api::k8s::api::core::v1::Node;
use api::k8s::api::discovery::v1::EndpointSlice;
use client::informer::decode;
use client::{Change, Client, DeleteOptions, Error, Informer, Patch, gvr_of};
use serde_json::{Value, json};
use sorting::CompactSort as _;

/// Addresses of one EndpointSlice (`MaxEndpointsPerSlice`).
const ENDPOINTS_MAX: usize = 1000;
/// Label with the name of the Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label with the manager of an EndpointSlice.
pub const MANAGER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// The address of a node, and whether it is ready.
fn endpoint(node: &Node) -> Option<(String, String, bool)> {
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

/// Whether a change of a node changes its address or readiness; a heartbeat does not.
pub fn concerns(change: &Change) -> bool {
    let Change::Updated { old, new } = change else { return true };
    let read = |object: &Object| decode::<Node>(object).map(|node| endpoint(&node));
    read(old) != read(new)
}

impl NodeService<'_> {
    /// Its EndpointSlices, by name.
    fn slices(&self, nodes: &[Node]) -> BTreeMap<String, Value> {
        let mut families: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        let mut known: Vec<_> = nodes.iter().filter_map(endpoint).collect();
        known.compact_sort();
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
                let name = format!("{}-{}-{number}", self.name, family.to_lowercase());
                let labels = json!({SERVICE_LABEL: self.name, MANAGER_LABEL: self.manager});
                let slice = json!({
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": name, "namespace": self.namespace, "labels": labels,
                        "ownerReferences": self.owners},
                    "addressType": family,
                    "ports": self.ports,
                    "endpoints": chunk,
                });
                slices.insert(name, slice);
            }
        }
        slices
    }

    /// Writes the EndpointSlices that differ, and deletes those for which no node is left; without
    /// `nodes` that is all of them.
    ///
    /// # Errors
    /// The server's refusal or the transport's failure.
    pub async fn write(
        &self,
        client: &Client,
        known: &Informer<EndpointSlice>,
        nodes: &[Node],
    ) -> Result<(), Error> {
        let gvr = gvr_of::<EndpointSlice>();
        let wanted = self.slices(nodes);
        for (name, slice) in &wanted {
            let object = known.cache().get(self.namespace, name);
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
                    client.patch::<EndpointSlice>(self.namespace, name, "", &patch).await?;
                }
                None => {
                    client.post_value(&gvr, self.namespace, "", "", slice).await?;
                }
            }
        }
        for object in known.cache().list(self.namespace) {
            let is_own = object.label(MANAGER_LABEL) == Some(self.manager)
                && object.label(SERVICE_LABEL) == Some(self.name);
            let name = &object.key.name;
            if !is_own || wanted.contains_key(&**name) {
                continue;
            }
            let options = DeleteOptions::default();
            match client.delete_gvr(&gvr, self.namespace, name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
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
        let slices = service.slices(&nodes);
        let names: Vec<&str> = slices.keys().map(String::as_str).collect();
        assert_eq!(names, ["ingress-ipv4-0", "ingress-ipv6-0"]);
        let endpoints = &slices["ingress-ipv4-0"]["endpoints"];
        assert_eq!(endpoints[0]["nodeName"], "a");
        assert_eq!(endpoints[0]["conditions"]["ready"], false);
        assert_eq!(endpoints[1]["addresses"][0], "192.0.2.2");
    }
}
