//! Node ports and health-check node ports of Services.

use std::collections::{HashMap, HashSet};

use api::field::{Error, Path};
use api::{Gvr, Status};
use serde_json::Value;

use super::{invalid, kind, set, text};
use crate::metrics::storage as metrics;
use crate::registry::watch_cache::Filter;
use crate::request::context::Context;
use crate::response::status;

/// Rejects duplicate node ports of a changed Service with 500, as upstream's `updateNodePorts` does
/// before validation.
pub(super) fn check_duplicates(service: &Value) -> Result<(), Status> {
    if !wants_ports(service) {
        return Ok(());
    }
    let mut seen = HashSet::new();
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    for port in ports.into_iter().flatten() {
        let number = port.get("nodePort").and_then(Value::as_i64).unwrap_or_default();
        let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or_default();
        if number != 0 && !seen.insert((protocol, number)) {
            let text = format!("duplicate nodePort: {{{protocol} {number}}}");
            return Err(status::unmapped(500, text));
        }
    }
    Ok(())
}

fn wants_ports(service: &Value) -> bool {
    match kind(service) {
        "NodePort" => true,
        "LoadBalancer" => service
            .pointer("/spec/allocateLoadBalancerNodePorts")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        _ => false,
    }
}

fn may_have_ports(service: &Value) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
}

fn wants_health_port(service: &Value) -> bool {
    kind(service) == "LoadBalancer" && text(service, "externalTrafficPolicy") == "Local"
}

fn port_of(entry: &Value, field: &str) -> u16 {
    entry.get(field).and_then(Value::as_u64).and_then(|p| u16::try_from(p).ok()).unwrap_or(0)
}

/// A number that is not a port.
fn invalid_port(entry: &Value, field: &str) -> Option<i64> {
    entry.get(field).and_then(Value::as_i64).filter(|port| u16::try_from(*port).is_err())
}

fn entries(service: &Value) -> &[Value] {
    service.pointer("/spec/ports").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn all_ports(service: &Value) -> HashSet<u16> {
    let mut ports: HashSet<u16> = entries(service).iter().map(|e| port_of(e, "nodePort")).collect();
    ports.insert(service.get("spec").map_or(0, |spec| port_of(spec, "healthCheckNodePort")));
    ports.remove(&0);
    ports
}

/// Restores node ports that the client omitted, by the names of the ports.
pub(super) fn keep_allocated(value: &mut Value, old: &Value) {
    if may_have_ports(old) && may_have_ports(value) {
        let now: HashSet<u16> = entries(value).iter().map(|e| port_of(e, "nodePort")).collect();
        let name = |e: &Value| e.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let had: Vec<(String, u16)> =
            entries(old).iter().map(|e| (name(e), port_of(e, "nodePort"))).collect();
        for entry in
            value.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten()
        {
            if port_of(entry, "nodePort") == 0
                && invalid_port(entry, "nodePort").is_none()
                && let Some((_, port)) =
                    had.iter().find(|(n, p)| *n == name(entry) && *p != 0 && !now.contains(p))
                && let Some(map) = entry.as_object_mut()
            {
                map.insert("nodePort".into(), (*port).into());
            }
        }
    }
    if wants_health_port(old) && wants_health_port(value) {
        let none = value.get("spec").is_none_or(|spec| port_of(spec, "healthCheckNodePort") == 0);
        let had = old.get("spec").map_or(0, |spec| port_of(spec, "healthCheckNodePort"));
        if none && had != 0 {
            set(value, "healthCheckNodePort", had.into());
        }
    }
}

/// Allocates the ports that the Service needs and appends them to `taken`.
pub(super) async fn allocate(
    context: &Context,
    value: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
    taken: &mut Vec<u16>,
) -> Result<(), Status> {
    if !may_have_ports(value) {
        return Ok(());
    }
    let own = old.map(all_ports).unwrap_or_default();
    let used = used(context).await?;
    let requested = all_ports(value);
    let mut allocator = PortAllocator { context, used, own, requested, dry_run, taken };
    allocate_node_ports(&mut allocator, value)?;
    if wants_health_port(value) {
        allocate_health_port(&mut allocator, value)?;
    }
    Ok(())
}

/// Allocates a node port for each port that has none. Ports of the same number, which differ in
/// their protocol, share one (`updateNodePorts` of `pkg/registry/core/service/storage/alloc.go`).
fn allocate_node_ports(allocator: &mut PortAllocator<'_>, value: &mut Value) -> Result<(), Status> {
    // The first node port of each port, and all node ports.
    let mut by_port: HashMap<i64, u16> = HashMap::new();
    let mut node_ports: HashSet<u16> = HashSet::new();
    let requested_later = first_requests(value);
    for index in 0..entries(value).len() {
        let Some(entry) = entries(value).get(index) else { continue };
        let requested = port_of(entry, "nodePort");
        let port = entry.get("port").and_then(Value::as_i64).unwrap_or(0);
        if requested == 0 && !wants_ports(value) {
            continue;
        }
        let path = Path::new("spec").child("ports").index(index).child("nodePort");
        if let Some(number) = invalid_port(entry, "nodePort") {
            if allocator.dry_run {
                continue;
            }
            let error = Error::invalid(&path, number, allocator.out_of_range().to_string());
            return Err(invalid(value, error));
        }
        let shared = by_port.get(&port).copied();
        let given = match (requested, shared) {
            (0, Some(shared)) => shared,
            // The same port for another protocol, requested explicitly later in the list.
            (0, None) => match requested_later.get(&port).copied() {
                Some(later) => later,
                None => allocator.next_counted().map_err(|e| Status::internal(&e.to_string()))?,
            },
            (number, shared) if shared == Some(number) || node_ports.contains(&number) => number,
            (number, _) => {
                allocator.take_counted(number).map_err(|why| {
                    invalid(value, Error::invalid(&path, number, why.to_string()))
                })?;
                number
            }
        };
        by_port.entry(port).or_insert(given);
        node_ports.insert(given);
        let entry = value
            .pointer_mut("/spec/ports")
            .and_then(Value::as_array_mut)
            .and_then(|p| p.get_mut(index));
        if let Some(map) = entry.and_then(Value::as_object_mut) {
            map.insert("nodePort".into(), given.into());
        }
    }
    Ok(())
}

/// The first node port that the entries of each port request.
fn first_requests(service: &Value) -> HashMap<i64, u16> {
    let mut requests = HashMap::new();
    for entry in entries(service) {
        let node_port = port_of(entry, "nodePort");
        if let Some(port) = entry.get("port").and_then(Value::as_i64)
            && node_port != 0
        {
            requests.entry(port).or_insert(node_port);
        }
    }
    requests
}

/// Allocates the health-check node port of a load balancer.
fn allocate_health_port(
    allocator: &mut PortAllocator<'_>,
    value: &mut Value,
) -> Result<(), Status> {
    let refuse = |requested: i64, why: PortError| {
        Status::internal(&format!(
            "failed to allocate requested HealthCheck NodePort {requested}: {why}"
        ))
    };
    let spec = value.get("spec").unwrap_or(&Value::Null);
    if let Some(number) = invalid_port(spec, "healthCheckNodePort") {
        return match allocator.dry_run {
            true => Ok(()),
            false => Err(refuse(number, allocator.out_of_range())),
        };
    }
    let requested = port_of(spec, "healthCheckNodePort");
    let port = if requested == 0 {
        allocator.next().map_err(|e| Status::internal(&e.to_string()))?
    } else {
        allocator.take(requested).map_err(|why| refuse(requested.into(), why))?;
        requested
    };
    set(value, "healthCheckNodePort", port.into());
    Ok(())
}

/// Ports of all Services.
pub(super) async fn used(context: &Context) -> Result<HashSet<u16>, Status> {
    let row = context.server.objects.row(&Gvr::new("", "v1", "services"))?;
    let cache = context.server.objects.fresh_cache(&row).await?;
    let mut used = HashSet::new();
    for object in cache.list(&Filter::default(), None, 0).items {
        // Most Services have no node port; their bytes show that without parsing.
        if contains(object.raw(), b"odePort\":") {
            used.extend(all_ports(&object.value().unwrap_or_default()));
        }
    }
    let reached = cache.revision();
    context.server.services.held.lock().retain(|_, revision| *revision == 0 || *revision > reached);
    Ok(used)
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// Why a node port cannot be allocated; the texts are those of upstream's `portallocator`.
#[derive(Debug, thiserror::Error)]
enum PortError {
    /// The port is outside the range of node ports.
    #[error("provided port is not in the valid range. The range of valid ports is {first}-{last}")]
    OutOfRange { first: u16, last: u16 },
    /// Another Service has the port.
    #[error("provided port is already allocated")]
    Allocated,
    /// No port is left.
    #[error("failed to allocate a nodePort: range is full")]
    Full,
}

/// Allocates the node ports of one write.
struct PortAllocator<'a> {
    context: &'a Context,
    /// Ports of all Services.
    used: HashSet<u16>,
    /// Ports that the Service already has.
    own: HashSet<u16>,
    /// Ports that the Service requests explicitly; they are not chosen for its other ports.
    requested: HashSet<u16>,
    dry_run: bool,
    taken: &'a mut Vec<u16>,
}

impl PortAllocator<'_> {
    fn out_of_range(&self) -> PortError {
        let (first, last) = self.context.server.services.ports;
        PortError::OutOfRange { first, last }
    }

    /// As [`PortAllocator::take`], counted in the metrics.
    fn take_counted(&mut self, port: u16) -> Result<(), PortError> {
        let taken = self.take(port);
        if !self.dry_run {
            metrics::port(true, taken.is_ok());
        }
        taken
    }

    /// As [`PortAllocator::next`], counted in the metrics.
    fn next_counted(&mut self) -> Result<u16, PortError> {
        let found = self.next();
        if !self.dry_run {
            metrics::port(false, found.is_ok());
        }
        found
    }

    /// Allocates a requested port.
    fn take(&mut self, port: u16) -> Result<(), PortError> {
        let services = &self.context.server.services;
        let (low, high) = services.ports;
        if self.own.contains(&port) {
            return Ok(());
        }
        // A dry run only checks the allocated ports, as upstream's `portallocator` dry run does.
        if !self.dry_run && (port < low || port > high) {
            return Err(self.out_of_range());
        }
        let mut held = services.held.lock();
        if self.used.contains(&port) || self.taken.contains(&port) || held.contains_key(&port) {
            return Err(PortError::Allocated);
        }
        // A dry run must not block a write.
        if !self.dry_run {
            held.insert(port, 0);
        }
        self.taken.push(port);
        Ok(())
    }

    /// Allocates any free port.
    fn next(&mut self) -> Result<u16, PortError> {
        let (low, high) = self.context.server.services.ports;
        let size = u64::from(high - low) + 1;
        // Users choose ports from the lower end, so it is allocated last.
        let reserved = (size / 32).clamp(16, 128).min(size / 2);
        let start = base::clock::random_u64() % (size - reserved);
        let upper = (0..size - reserved).map(|step| reserved + (start + step) % (size - reserved));
        for offset in upper.chain(0..reserved) {
            let port = u16::try_from(u64::from(low) + offset).unwrap_or(high);
            let is_free = !self.own.contains(&port) && !self.requested.contains(&port);
            if is_free && self.take(port).is_ok() {
                return Ok(port);
            }
        }
        Err(PortError::Full)
    }
}
