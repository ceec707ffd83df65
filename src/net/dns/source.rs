//! The zone's directory over shared informers; answers go on from the cache while the server is
//! away.

use std::net::IpAddr;

use api::Object;
use api::k8s::api::core::v1::{Namespace, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use client::{Informer, Informers, informer::decode};

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

fn service_addresses(object: &Object) -> Vec<String> {
    let Some(spec) = decode::<Service>(object).and_then(|s| s.spec) else { return Vec::new() };
    let list = spec.cluster_ips.unwrap_or_default().into_iter();
    list.filter_map(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.to_string()).collect()
}

fn slice_addresses(object: &Object) -> Vec<String> {
    let Some(slice) = decode::<EndpointSlice>(object) else { return Vec::new() };
    let list = slice.endpoints.into_iter().flatten().flat_map(|e| e.addresses.into_iter());
    list.filter_map(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.to_string()).collect()
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
