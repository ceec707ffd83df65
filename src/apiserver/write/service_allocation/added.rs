//! Ranges that `ServiceCIDR` objects add to the configured ones.

use std::net::IpAddr;

use api::{Gvr, Status};
use serde_json::Value;

use super::Range;
use crate::registry::watch_cache::Filter;
use crate::request::context::Context;

/// The blocks of a ServiceCIDR; none while it is not ready or being deleted, because addresses are
/// not allocated from it then.
fn usable(object: &Value) -> Vec<Range> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|c| c.get("type") == Some(&"Ready".into()) && c.get("status") == Some(&"True".into()));
    let stays = object.pointer("/metadata/deletionTimestamp").is_none();
    let blocks = object.pointer("/spec/cidrs").and_then(Value::as_array).filter(|_| ready && stays);
    // A block without usable addresses is skipped without an error.
    let texts = blocks.into_iter().flatten().filter_map(Value::as_str);
    texts.filter_map(|block| Range::of_any_size(block).ok()).collect()
}

async fn all(context: &Context) -> Result<Vec<Range>, Status> {
    let objects = &context.server.objects;
    let row = objects.row(&Gvr::new("networking.k8s.io", "v1", "servicecidrs"))?;
    let cache = objects.fresh_cache(&row).await?;
    let page = cache.list(&Filter::default(), None, 0);
    Ok(page.items.iter().flat_map(|o| usable(&o.value().unwrap_or_default())).collect())
}

/// The added ranges of a family.
///
/// # Errors
/// When the ServiceCIDRs cannot be read.
pub(super) async fn ranges(context: &Context, family: &str) -> Result<Vec<Range>, Status> {
    let configured = context.server.services.range(family);
    let mut ranges = all(context).await?;
    ranges.retain(|r| r.family() == family && Some(r) != configured);
    Ok(ranges)
}

/// Whether this address can be allocated from an added range.
///
/// # Errors
/// When the ranges cannot be read.
pub(super) async fn has(context: &Context, address: IpAddr) -> Result<bool, Status> {
    Ok(all(context).await?.iter().any(|r| r.check(address).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_come_from_ready_ranges_that_are_not_being_deleted() {
        let object = |status: &str, deleted: bool| {
            let mut object = json!({"metadata": {"name": "more"},
                "spec": {"cidrs": ["10.44.0.0/24", "fd00:44::/120", "10.45.0.0/32"]},
                "status": {"conditions": [{"type": "Ready", "status": status}]}});
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            usable(&object).iter().map(Range::family).collect::<Vec<_>>()
        };
        assert_eq!(object("True", false), ["IPv4", "IPv6"]);
        assert!(object("False", false).is_empty() && object("True", true).is_empty());
        assert!(usable(&json!({"spec": {"cidrs": ["10.44.0.0/24"]}})).is_empty());
    }
}
