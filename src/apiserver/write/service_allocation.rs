//! Allocates addresses and ports of Services before validation; releases them when the write fails
//! or the Service is deleted.
//!
//! An address is allocated by creating its `IPAddress` object, so that no two writers get the same
//! one; a node port by checking the Services and the ports of writes in progress, here and on other
//! servers.

mod added;
mod address;
mod ports;
pub(crate) mod repair;
mod reserved;

use std::net::IpAddr;

use api::Status;
use api::field::{Error, Path};
use api::validation::core::service;
use serde_json::{Value, json};

use crate::metrics::storage as metrics;
use crate::registry::service_pools::{RANDOM_TRIES, Range, ServicePools};
use crate::registry::{Resource, metadata};
use crate::request::context::Context;
use address::{address_object, release, take};

/// Addresses tried before a range counts as full.
const TRIES_MAX: u32 = 1024;

/// The allocations of one write, committed or released with its result.
#[must_use = "finish it"]
#[derive(Default)]
pub(crate) struct ServiceAllocation<'a> {
    context: Option<&'a Context>,
    /// Whether the write is a dry run, which only checks addresses and ports.
    dry_run: bool,
    taken: Vec<String>,
    freed: Vec<String>,
    ports: Vec<u16>,
    /// Reservations of the same ports across several servers.
    reserved: Option<reserved::Reserved>,
}

impl ServiceAllocation<'_> {
    /// Commits the allocations when the write was stored and releases them otherwise.
    pub(crate) async fn finish(self, stored: bool) {
        let Some(context) = self.context.filter(|_| !self.dry_run) else { return };
        let revision = context.server.objects.storage().backend().revision().0;
        {
            let mut allocation = context.server.services.held.lock();
            for port in &self.ports {
                if stored {
                    allocation.insert(*port, revision)
                } else {
                    allocation.remove(port)
                };
            }
        }
        if let Some(reserved) = self.reserved {
            reserved.release(context).await;
        }
        for address in if stored { &self.freed } else { &self.taken } {
            release(context, address).await;
        }
    }
}

fn is_service(row: &Resource) -> bool {
    row.spec.gvr.group.is_empty() && &*row.spec.gvr.resource == "services"
}

/// Allocates the addresses and ports of a new Service.
///
/// # Errors
/// 422 when a requested address or port is not available.
pub(crate) async fn before_create<'a>(
    context: &'a Context,
    row: &Resource,
    value: &mut Value,
    dry_run: bool,
) -> Result<ServiceAllocation<'a>, Status> {
    if !is_service(row) {
        return Ok(ServiceAllocation::default());
    }
    if !text(value, "clusterIP").is_empty() && list(value, "clusterIPs").is_empty() {
        set(value, "clusterIPs", json!([text(value, "clusterIP")]));
    }
    allocate(context, value, None, dry_run).await
}

/// Carries over or allocates the addresses and ports of a changed Service.
///
/// # Errors
/// As [`before_create`].
pub(crate) async fn before_update<'a>(
    context: &'a Context,
    row: &Resource,
    subresource: &str,
    value: &mut Value,
    old: &Value,
    dry_run: bool,
) -> Result<ServiceAllocation<'a>, Status> {
    if !is_service(row) || !subresource.is_empty() {
        return Ok(ServiceAllocation::default());
    }
    keep_allocated(value, old);
    ports::check_duplicates(value)?;
    normalize_addresses(value, old);
    allocate(context, value, Some(old), dry_run).await
}

/// Releases the addresses and ports of a deleted Service.
pub(crate) async fn deleted(context: &Context, row: &Resource, value: &Value) {
    if is_service(row) {
        for address in list(value, "clusterIPs").into_iter().filter(|ip| ip != "None") {
            release(context, &address).await;
        }
    }
}

fn text<'a>(service: &'a Value, field: &str) -> &'a str {
    service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_str).unwrap_or_default()
}

fn list(service: &Value, field: &str) -> Vec<String> {
    let list = service.get("spec").and_then(|s| s.get(field)).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn set(service: &mut Value, field: &str, new: Value) {
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert(field.to_owned(), new);
    }
}

fn kind(service: &Value) -> &str {
    match text(service, "type") {
        "" => "ClusterIP",
        kind => kind,
    }
}

fn needs_address(service: &Value) -> bool {
    kind(service) != "ExternalName"
}

fn invalid(service: &Value, error: Error) -> Status {
    Status::invalid("", "Service", metadata::text(service, "name"), &[error])
}

/// Restores allocated values that the client omitted.
fn keep_allocated(value: &mut Value, old: &Value) {
    if needs_address(old) && needs_address(value) {
        if text(value, "clusterIP").is_empty() {
            set(value, "clusterIP", text(old, "clusterIP").into());
        }
        if list(value, "clusterIPs").is_empty() && !list(old, "clusterIPs").is_empty() {
            set(value, "clusterIPs", json!(list(old, "clusterIPs")));
        }
    }
    ports::keep_allocated(value, old);
}

/// Makes the singular and the plural address field equal, because old clients set only one of them
/// (`NormalizeClusterIPs`).
fn normalize_addresses(value: &mut Value, old: &Value) {
    let same = list(value, "clusterIPs") == list(old, "clusterIPs");
    let (new_ip, old_ip) = (text(value, "clusterIP").to_owned(), text(old, "clusterIP"));
    if new_ip == old_ip || !same {
        return;
    }
    if new_ip.is_empty() {
        if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("clusterIPs");
        }
    } else {
        set(value, "clusterIPs", json!([new_ip]));
    }
}

async fn allocate<'a>(
    context: &'a Context,
    value: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<ServiceAllocation<'a>, Status> {
    let mut allocation =
        ServiceAllocation { context: Some(context), dry_run, ..ServiceAllocation::default() };
    let outcome = allocate_into(context, value, old, dry_run, &mut allocation).await;
    match outcome {
        Ok(()) => Ok(allocation),
        Err(refusal) => {
            allocation.finish(false).await;
            Err(refusal)
        }
    }
}

async fn allocate_into(
    context: &Context,
    value: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
    allocation: &mut ServiceAllocation<'_>,
) -> Result<(), Status> {
    let services = &context.server.services;
    let before =
        old.filter(|o| needs_address(o)).map(|o| list(o, "clusterIPs")).unwrap_or_default();
    let before: Vec<String> = before.into_iter().filter(|ip| ip != "None").collect();
    if !needs_address(value)
        && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
    {
        // Defaulted for every type although `ExternalName` ignores it; an invalid policy is left
        // for validation.
        let policy = spec.get("internalTrafficPolicy").and_then(Value::as_str);
        if matches!(policy, None | Some("Cluster" | "Local")) {
            spec.remove("internalTrafficPolicy");
        }
    }
    if needs_address(value) {
        families(services, value, old)?;
        if text(value, "clusterIP") != "None" {
            addresses(context, value, &before, dry_run, allocation).await?;
            let now = list(value, "clusterIPs");
            allocation.freed.extend(before.into_iter().filter(|ip| !now.contains(ip)));
        }
    } else {
        allocation.freed.extend(before);
    }
    ports::allocate(context, value, old, dry_run, &mut allocation.ports).await?;
    if !dry_run {
        allocation.reserved = reserved::reserve(context, &allocation.ports).await?;
    }
    Ok(())
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

/// Whether a Service has neither an address nor a selector.
fn is_headless_without_selector(service: &Value) -> bool {
    let selector = service.pointer("/spec/selector").and_then(Value::as_object);
    text(service, "clusterIP") == "None" && selector.is_none_or(serde_json::Map::is_empty)
}

/// Policy and families (`initIPFamilyFields` of `pkg/registry/core/service/storage/alloc.go`).
fn families(services: &ServicePools, value: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    default_policy(value, old);
    let errors = service::validate_addresses(value, old.unwrap_or(&Value::Null));
    reject(value, &errors)?;
    let is_single = text(value, "ipFamilyPolicy") == "SingleStack";
    let mut errors = match old {
        Some(old) => release_secondary(value, old, is_single),
        None => Vec::new(),
    };
    let mut families = list(value, "ipFamilies");
    errors.extend(add_families_of_addresses(services, value, is_single, &mut families));
    reject(value, &errors)?;
    let primary = services.ranges.first().map_or("IPv4", Range::family);
    let is_any_family = is_headless_without_selector(value);
    if !is_any_family {
        reject(value, &unavailable_families(services, value, &families))?;
    }
    if families.is_empty() {
        families.push(primary.to_owned());
    }
    // Without address and selector both families are possible, whatever the cluster has.
    let has_secondary = is_any_family || services.ranges.len() == 2;
    if !is_single && families.len() == 1 && has_secondary {
        families.extend(families.first().map(|f| other(f).to_owned()));
    }
    set(value, "ipFamilies", json!(families));
    Ok(())
}

/// 422 of the Service with these errors, if there are any.
fn reject(service: &Value, errors: &[Error]) -> Result<(), Status> {
    match errors {
        [] => Ok(()),
        errors => Err(Status::invalid("", "Service", metadata::text(service, "name"), errors)),
    }
}

fn policy_error(service: &Value, detail: String) -> Error {
    let path = Path::new("spec").child("ipFamilyPolicy");
    Error::invalid(&path, text(service, "ipFamilyPolicy"), detail)
}

/// Sets a missing policy: that of the old Service, or by its kind.
fn default_policy(value: &mut Value, old: Option<&Value>) {
    if value.pointer("/spec/ipFamilyPolicy").is_some_and(|policy| !policy.is_null()) {
        return;
    }
    let policy = match old.map(|o| text(o, "ipFamilyPolicy")).filter(|p| !p.is_empty()) {
        Some(policy) => policy,
        None if is_headless_without_selector(value) => "RequireDualStack",
        None => "SingleStack",
    };
    set(value, "ipFamilyPolicy", policy.into());
}

/// Drops the secondary address and family of a Service that becomes `SingleStack`; the errors of
/// one that drops them under another policy.
fn release_secondary(value: &mut Value, old: &Value, is_single: bool) -> Vec<Error> {
    let mut errors = Vec::new();
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (new, had) = (list(value, field), list(old, field));
        if is_single && new == had && new.len() > 1 {
            set(value, field, json!(new.into_iter().take(1).collect::<Vec<_>>()));
        } else if !is_single && !new.is_empty() && new.len() < had.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(policy_error(value, detail));
        }
    }
    errors
}

/// Adds the families of the addresses that have no family in the list yet; the errors of a
/// `SingleStack` Service with two of either and of addresses whose family the cluster lacks.
fn add_families_of_addresses(
    services: &ServicePools,
    value: &Value,
    is_single: bool,
    families: &mut Vec<String>,
) -> Vec<Error> {
    let mut errors = Vec::new();
    let addresses = list(value, "clusterIPs");
    for (what, many) in [("cluster IPs", &addresses), ("IP families", &*families)] {
        if is_single && many.len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            errors.push(policy_error(value, detail));
        }
    }
    for (index, address) in
        addresses.iter().enumerate().skip(families.len()).filter(|(_, a)| *a != "None")
    {
        let family = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => "IPv4",
            Ok(IpAddr::V6(_)) => "IPv6",
            // Validation rejects invalid addresses.
            Err(_) => continue,
        };
        if services.range(family).is_none() {
            let path = Path::new("spec").child("clusterIPs").index(index);
            let detail = format!("{family} is not configured on this cluster");
            errors.push(Error::invalid(&path, json!(addresses), detail));
            continue;
        }
        families.push(family.to_owned());
    }
    errors
}

/// The errors of a policy and of families that the cluster does not have.
fn unavailable_families(services: &ServicePools, value: &Value, families: &[String]) -> Vec<Error> {
    let mut errors = Vec::new();
    if text(value, "ipFamilyPolicy") == "RequireDualStack" && services.ranges.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(policy_error(value, detail.to_owned()));
    }
    for (index, family) in families.iter().enumerate() {
        if services.range(family).is_none() {
            let path = Path::new("spec").child("ipFamilies").index(index);
            errors.push(Error::invalid(&path, family.as_str(), "not configured on this cluster"));
        }
    }
    errors
}

async fn addresses(
    context: &Context,
    value: &mut Value,
    before: &[String],
    dry_run: bool,
    allocation: &mut ServiceAllocation<'_>,
) -> Result<(), Status> {
    let services = &context.server.services;
    let mut now = list(value, "clusterIPs");
    let shown = json!(now);
    let path = Path::new("spec").child("clusterIPs");
    for (index, family) in list(value, "ipFamilies").iter().enumerate() {
        let Some(range) = services.range(family) else { continue };
        match now.get(index).filter(|ip| !ip.is_empty()).cloned() {
            Some(given) if before.contains(&given) => {}
            // Validation rejects the change of an allocated address.
            Some(_) if index < before.len() => {}
            Some(given) => {
                let refuse = |why: &dyn std::fmt::Display| {
                    invalid(
                        value,
                        Error::invalid(
                            &path,
                            shown.clone(),
                            format!("failed to allocate IP {given}: {why}"),
                        ),
                    )
                };
                let Ok(address) = given.parse::<IpAddr>() else { continue };
                match range.check(address) {
                    Err(_) if added::has(context, address).await? => {}
                    Err(_) if dry_run => return Err(refuse(&range.out_of_range(address))),
                    checked => checked.map_err(|error| refuse(&error))?,
                }
                let begun = base::clock::now();
                let is_free = take(context, value, &address, dry_run).await?;
                if !dry_run {
                    metrics::address(range.text(), true, is_free, begun.elapsed());
                }
                if !is_free {
                    return Err(refuse(&"provided IP is already allocated"));
                }
                allocation.taken.push(address.to_string());
            }
            None => {
                let address = next(context, value, range, family, dry_run).await?;
                allocation.taken.push(address.clone());
                if index < now.len() {
                    if let Some(slot) = now.get_mut(index) {
                        *slot = address;
                    }
                } else {
                    now.push(address);
                }
            }
        }
    }
    if let Some(first) = now.first() {
        set(value, "clusterIP", first.as_str().into());
    }
    set(value, "clusterIPs", json!(now));
    Ok(())
}

async fn next(
    context: &Context,
    service: &Value,
    range: &Range,
    family: &str,
    dry_run: bool,
) -> Result<String, Status> {
    let begun = base::clock::now();
    let found = next_of(context, service, range, dry_run).await?;
    if !dry_run {
        metrics::address(range.text(), false, found.is_some(), begun.elapsed());
    }
    if let Some(address) = found {
        return Ok(address);
    }
    for range in added::ranges(context, family).await? {
        if let Some(address) = next_of(context, service, &range, dry_run).await? {
            return Ok(address);
        }
    }
    let name = metadata::text(service, "name");
    Err(Status::internal(&format!(
        "failed to allocate a serviceIP for Service {}: range is full",
        api::field::go_quote(name)
    )))
}

/// Allocates a free address of a range; `None` when none is found.
async fn next_of(
    context: &Context,
    service: &Value,
    range: &Range,
    dry_run: bool,
) -> Result<Option<String>, Status> {
    let start = base::clock::random_u64();
    for attempt in 0..TRIES_MAX {
        // The first tries are at random; the later ones pass over the range in order, so that the
        // last free address of a small one is found.
        let random = if attempt < RANDOM_TRIES { base::clock::random_u64() } else { start };
        let address = range.candidate(attempt, random);
        if take(context, service, &address, dry_run).await? {
            return Ok(Some(address.to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of kube-apiserver 1.37.1.
    #[test]
    fn invalid_node_ports_are_not_replaced() {
        let service = |port: i64| json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
        for (sent, kept) in [(-1, -1), (0, 30080)] {
            let mut value = service(sent);
            ports::keep_allocated(&mut value, &service(30080));
            assert_eq!(value, service(kept));
        }
    }

    /// Answers of kube-apiserver 1.37.1 on a cluster with one family.
    #[test]
    fn a_headless_service_that_gets_a_selector_needs_available_families() {
        let services = ServicePools::new(&["10.96.0.0/16".to_owned()], (30000, 32767)).unwrap();
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}});
        families(&services, &mut service, None).unwrap();
        assert_eq!(service["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        assert_eq!(service["spec"]["ipFamilyPolicy"], "RequireDualStack");
        let (old, mut new) = (service.clone(), service);
        new["spec"]["selector"] = json!({"app": "x"});
        let refused = families(&services, &mut new, Some(&old)).unwrap_err();
        assert_eq!(
            refused.message,
            "Service \"s\" is invalid: [spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services, spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster]"
        );
    }
}
