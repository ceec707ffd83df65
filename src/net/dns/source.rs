//! The zone's directory over shared informers; answers go on from the cache while the server is
//! away.

use std::borrow::Cow;
use std::net::IpAddr;

use api::Object;
use api::k8s::api::core::v1::{Namespace, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use client::{Informer, Informers};
use serde::Deserialize;

use crate::dns::zone::{Directory, EndpointInfo, PortInfo, ServiceInfo};
use crate::proxy::services::SERVICE_NAME_LABEL;
use crate::proxy::{BY_SERVICE, slice_services};

const BY_ADDRESS: &str = "address";

/// The cluster as its informers see it.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    namespaces: Informer<Namespace>,
}

/// What the address index reads of a Service; partial decoding skips the other fields, which is
/// several times cheaper where a node caches tens of thousands of Services.
#[derive(Deserialize, Default)]
#[serde(default)]
struct AddressedService<'a> {
    #[serde(borrow)]
    spec: ClusterAddresses<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClusterAddresses<'a> {
    #[serde(borrow, rename = "clusterIPs")]
    cluster_ips: Option<Vec<Cow<'a, str>>>,
}

/// What the address index reads of an EndpointSlice.
#[derive(Deserialize, Default)]
#[serde(default)]
struct AddressedSlice<'a> {
    #[serde(borrow)]
    endpoints: Option<Vec<EndpointAddresses<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EndpointAddresses<'a> {
    #[serde(borrow)]
    addresses: Vec<Cow<'a, str>>,
}

/// Index keys of those that are IP addresses, in canonical form.
fn address_keys<'a>(list: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    list.filter_map(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.to_string()).collect()
}

fn service_addresses(object: &Object) -> Vec<String> {
    let service: Option<AddressedService<'_>> = serde_json::from_slice(object.raw()).ok();
    let list = service.and_then(|s| s.spec.cluster_ips).into_iter().flatten();
    address_keys(list)
}

fn slice_addresses(object: &Object) -> Vec<String> {
    let slice: Option<AddressedSlice<'_>> = serde_json::from_slice(object.raw()).ok();
    let list = slice.and_then(|s| s.endpoints).into_iter().flatten();
    address_keys(list.flat_map(|e| e.addresses))
}

fn protocol(name: Option<&String>) -> String {
    name.map_or_else(|| "tcp".to_owned(), |p| p.to_ascii_lowercase())
}

fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|s| s.cluster_ip.as_deref()).is_none_or(|ip| ip == "None" || ip.is_empty())
}

impl Cluster {
    pub(crate) fn new(informers: &Informers) -> Self {
        let services = informers.of::<Service>();
        services.add_index(BY_ADDRESS, service_addresses);
        let slices = informers.of::<EndpointSlice>();
        slices.add_index(BY_SERVICE, slice_services);
        slices.add_index(BY_ADDRESS, slice_addresses);
        Self { services, slices, namespaces: informers.of::<Namespace>() }
    }

    /// Whether everything was seen once.
    pub(crate) fn is_synced(&self) -> bool {
        self.services.is_synced() && self.slices.is_synced() && self.namespaces.is_synced()
    }
}

impl Directory for Cluster {
    fn service(&self, namespace: &str, name: &str) -> Option<ServiceInfo> {
        let service = self.services.get(namespace, name)?;
        let headless = is_headless(&service);
        let spec = service.spec?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return Some(ServiceInfo::External(spec.external_name.unwrap_or_default()));
        }
        if headless {
            return Some(ServiceInfo::Headless);
        }
        let mut addresses: Vec<IpAddr> =
            spec.cluster_ips.iter().flatten().filter_map(|a| a.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip.and_then(|a| a.parse::<IpAddr>().ok()));
        }
        let ports = spec.ports.unwrap_or_default().into_iter().filter_map(|p| {
            Some(PortInfo {
                protocol: protocol(p.protocol.as_ref()),
                number: u16::try_from(p.port).ok()?,
                name: p.name.unwrap_or_default(),
            })
        });
        Some(ServiceInfo::Cluster { addresses, ports: ports.collect() })
    }

    fn endpoints(&self, namespace: &str, name: &str) -> Vec<EndpointInfo> {
        let mut out = Vec::new();
        for slice in self.slices.by_index(BY_SERVICE, &format!("{namespace}/{name}")) {
            if slice.address_type == "FQDN" {
                continue;
            }
            let ports: Vec<PortInfo> = slice
                .ports
                .unwrap_or_default()
                .into_iter()
                .filter_map(|p| {
                    Some(PortInfo {
                        protocol: protocol(p.protocol.as_ref()),
                        number: u16::try_from(p.port?).ok()?,
                        name: p.name.unwrap_or_default(),
                    })
                })
                .collect();
            for endpoint in slice.endpoints.into_iter().flatten() {
                // The controller marks unready pods ready where the service publishes them.
                let ready = endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
                let Some(address) = endpoint.addresses.first().and_then(|a| a.parse().ok()) else {
                    continue;
                };
                if ready {
                    let hostname = endpoint.hostname.filter(|h| !h.is_empty());
                    out.push(EndpointInfo { address, hostname, ports: ports.clone() });
                }
            }
        }
        out
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.cache().get("", namespace).is_some()
    }

    fn services_at(&self, address: IpAddr) -> Vec<(String, String)> {
        let found = self.services.cache().by_index(BY_ADDRESS, &address.to_string());
        found.iter().map(|o| (o.key.namespace.to_string(), o.key.name.to_string())).collect()
    }

    fn endpoints_at(&self, address: IpAddr) -> Vec<(String, String, Option<String>)> {
        let mut out = Vec::new();
        for object in self.slices.cache().by_index(BY_ADDRESS, &address.to_string()) {
            let Some(name) = object.label(SERVICE_NAME_LABEL) else { continue };
            let namespace = &*object.key.namespace;
            let at = self.endpoints(namespace, name).into_iter().find(|e| e.address == address);
            if let Some(endpoint) = at {
                out.push((namespace.to_owned(), name.to_owned(), endpoint.hostname));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: serde_json::Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn addresses_are_indexed_in_canonical_form() {
        let service = |spec: serde_json::Value| {
            service_addresses(&object(json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "a", "namespace": "n"}, "spec": spec})))
        };
        let both = json!({"clusterIPs": ["10.43.0.9", "fd00:0::9"], "ports": [{"port": 1}]});
        assert_eq!(service(both), ["10.43.0.9", "fd00::9"]);
        assert!(service(json!({"clusterIPs": ["None"]})).is_empty());
        assert!(service(json!({"type": "ExternalName", "clusterIPs": null})).is_empty());
        let slice = |endpoints: serde_json::Value| {
            slice_addresses(&object(json!({"apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice", "metadata": {"name": "a", "namespace": "n"},
                "addressType": "IPv4", "endpoints": endpoints})))
        };
        let list = json!([{"addresses": ["10.42.0.1"], "conditions": {"ready": false}},
            {"addresses": ["10.42.0.2"]}]);
        assert_eq!(slice(list), ["10.42.0.1", "10.42.0.2"]);
        assert!(slice(json!([{"addresses": ["a.example"]}])).is_empty());
        assert!(slice(serde_json::Value::Null).is_empty());
    }
}
