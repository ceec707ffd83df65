//! Hints for `spec.trafficDistribution` of Services, as upstream's
//! `k8s.io/endpointslice/trafficdist` writes them: each ready endpoint names its own zone, with
//! `PreferSameNode` its own node, too.

use api::k8s::api::discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForNode, ForZone};

use super::Plan;

/// Whether an endpoint takes new connections.
pub(super) fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

/// What the hints of a Service's endpoints name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heuristic {
    /// Nothing: traffic goes to all endpoints.
    None,
    /// The zone of the endpoint.
    Zone,
    /// The zone and the node of the endpoint.
    ZoneAndNode,
}

impl Heuristic {
    fn of(distribution: Option<&str>) -> Self {
        match distribution {
            Some("PreferClose" | "PreferSameZone") => Self::Zone,
            Some("PreferSameNode") => Self::ZoneAndNode,
            _ => Self::None,
        }
    }

    /// The hints that an endpoint must have. Endpoints that are not ready keep what they have, as
    /// upstream's do: nothing uses their hints.
    fn hints(self, endpoint: &Endpoint) -> Option<EndpointHints> {
        if self == Self::None {
            return None;
        }
        if !is_ready(endpoint) {
            return endpoint.hints.clone();
        }
        let zone = endpoint.zone.clone().map(|name| vec![ForZone { name }]);
        let node = endpoint.node_name.clone().filter(|_| self == Self::ZoneAndNode);
        let node = node.map(|name| vec![ForNode { name }]);
        (zone.is_some() || node.is_some())
            .then_some(EndpointHints { for_zones: zone, for_nodes: node })
    }

    /// Corrects the hints of endpoints; returns whether one changed.
    fn apply(self, endpoints: Option<&mut Vec<Endpoint>>) -> bool {
        let mut changed = false;
        for endpoint in endpoints.into_iter().flatten() {
            let hints = self.hints(endpoint);
            changed |= hints != endpoint.hints;
            endpoint.hints = hints;
        }
        changed
    }
}

/// Corrects the hints in a plan. Slices that are otherwise unchanged are written if their hints are
/// wrong.
pub(super) fn reconcile(plan: &mut Plan, distribution: Option<&str>) {
    apply(plan, Heuristic::of(distribution), |_| true);
}

/// Removes the hints of one address family.
pub(super) fn remove(plan: &mut Plan, family: &str) {
    apply(plan, Heuristic::None, |slice| slice.address_type == family);
}

fn apply(plan: &mut Plan, heuristic: Heuristic, is_for: impl Fn(&EndpointSlice) -> bool) {
    for slice in plan.create.iter_mut().chain(&mut plan.update).filter(|slice| is_for(slice)) {
        heuristic.apply(slice.endpoints.as_mut());
    }
    for mut slice in std::mem::take(&mut plan.unchanged) {
        match is_for(&slice) && heuristic.apply(slice.endpoints.as_mut()) {
            true => plan.update.push(slice),
            false => plan.unchanged.push(slice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "addressType": "IPv4",
            "endpoints": endpoints}))
        .unwrap()
    }

    fn endpoint(ready: bool, zone: Option<&str>, node: Option<&str>, hints: Value) -> Value {
        json!({"addresses": ["10.0.0.1"], "conditions": {"ready": ready}, "zone": zone,
            "nodeName": node, "hints": hints})
    }

    fn zone_hint(name: &str) -> Value {
        json!({"forZones": [{"name": name}]})
    }

    // Cases of upstream's `TestReconcileHints_trafficDistribution_is_PreferClose`, `PreferSameNode`
    // and `is_nil_or_empty`.
    #[test]
    fn hints_follow_zone_and_node_of_ready_endpoints() {
        let both = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]});
        for (distribution, ready, zone, node, have, want) in [
            (Some("PreferClose"), true, Some("a"), Some("n"), json!(null), zone_hint("a")),
            (Some("PreferSameZone"), true, Some("a"), Some("n"), zone_hint("b"), zone_hint("a")),
            (Some("PreferSameZone"), true, Some("a"), Some("n"), both.clone(), zone_hint("a")),
            (Some("PreferSameZone"), true, None, Some("n"), zone_hint("b"), json!(null)),
            (Some("PreferSameZone"), false, Some("a"), Some("n"), json!(null), json!(null)),
            (Some("PreferSameNode"), true, Some("a"), Some("n"), zone_hint("a"), both.clone()),
            (
                Some("PreferSameNode"),
                true,
                None,
                Some("n"),
                json!(null),
                json!({"forNodes": [{"name": "n"}]}),
            ),
            (Some("PreferSameNode"), true, None, None, both.clone(), json!(null)),
            (None, true, Some("a"), Some("n"), both.clone(), json!(null)),
            (None, false, Some("a"), Some("n"), zone_hint("a"), json!(null)),
        ] {
            let have_slice = slice(&json!([endpoint(ready, zone, node, have.clone())]));
            let want_slice = slice(&json!([endpoint(ready, zone, node, want.clone())]));
            let mut plan = Plan { unchanged: vec![have_slice.clone()], ..Plan::default() };
            reconcile(&mut plan, distribution);
            let is_write = have_slice != want_slice;
            let got = if is_write { &plan.update } else { &plan.unchanged };
            assert_eq!(
                got.as_slice(),
                std::slice::from_ref(&want_slice),
                "{distribution:?} {have}"
            );
            assert_eq!(plan.update.len() + plan.unchanged.len(), 1);
            let mut plan = Plan { create: vec![have_slice], ..Plan::default() };
            reconcile(&mut plan, distribution);
            assert_eq!(plan.create, [want_slice], "{distribution:?} {have}");
        }
    }
}
