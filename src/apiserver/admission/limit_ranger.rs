//! LimitRanger: the defaults and limits of a namespace for containers, pods and claims.

use std::sync::Arc;

use api::Status;
use api::quantity::Quantity;
use api::value::{ensure_object, entries, get, has, items, items_mut, set, str_at};
use async_trait::async_trait;
use serde_json::Value;
use sorting::CompactSort as _;

use super::pod_resources::{Amounts, Side, amounts, total};
use super::{Operation, Plugin, Request};
use component_config::aggregate_errors;
use lookup::Lookup;

/// The LimitRanger plugin.
pub struct LimitRanger(pub Arc<dyn Lookup>);

impl LimitRanger {
    async fn ranges(&self, namespace: &str) -> Result<Vec<Value>, Status> {
        let ranges = self.0.list(&lookup::LIMIT_RANGES, namespace).await?;
        let values = ranges.iter().map(|range| range.value());
        values.map(|value| value.map_err(|e| Status::internal(&e.to_string()))).collect()
    }
}

fn applies(request: &Request<'_>) -> bool {
    if request.old.is_some_and(|old| has(get(old, "metadata"), "deletionTimestamp")) {
        return false;
    }
    match (request.subresource, request.operation) {
        ("resize", Operation::Update) => request.is("", "pods"),
        ("", Operation::Create) => {
            request.is("", "pods") || request.is("", "persistentvolumeclaims")
        }
        ("", Operation::Update) => request.is("", "persistentvolumeclaims"),
        _ => false,
    }
}

fn limits<'v>(range: &'v Value, kind: &str) -> impl Iterator<Item = &'v Value> {
    items(get(range, "spec"), "limits").iter().filter(move |limit| str_at(limit, "type") == kind)
}

/// Applies the defaults of one LimitRange; adds upstream's annotation text for each default to
/// `notes`.
fn fill(container: &mut Value, range: &Value, kind: &str, notes: &mut Vec<String>) {
    for (from, to, word) in
        [("defaultRequest", "requests", "request"), ("default", "limits", "limit")]
    {
        let mut names: Vec<String> = Vec::new();
        for limit in limits(range, "Container") {
            for (name, amount) in entries(limit, from) {
                let Some(list) =
                    ensure_object(container, "resources").and_then(|r| ensure_object(r, to))
                else {
                    continue;
                };
                if !has(list, name) {
                    set(list, name, amount.clone());
                    names.push(name.clone());
                }
            }
        }
        names.compact_sort();
        if !names.is_empty() {
            notes.push(format!(
                "{} {word} for {kind} {}",
                names.join(", "),
                str_at(container, "name")
            ));
        }
    }
}

fn fill_pod(pod: &mut Value, range: &Value) {
    let mut notes = Vec::new();
    let Some(spec) = pod.get_mut("spec") else { return };
    for (list, kind) in [("containers", "container"), ("initContainers", "init container")] {
        for container in items_mut(spec, list) {
            fill(container, range, kind, &mut notes);
        }
    }
    if notes.is_empty() {
        return;
    }
    let note = format!("LimitRanger plugin set: {}", notes.join("; "));
    if let Some(annotations) =
        ensure_object(pod, "metadata").and_then(|meta| ensure_object(meta, "annotations"))
    {
        set(annotations, "kubernetes.io/limit-ranger", note);
    }
}

fn minimum(
    kind: &str,
    name: &str,
    least: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let Some(request) = requests.get(name) else {
        return Some(format!(
            "minimum {name} usage per {kind} is {least}.  No request is specified"
        ));
    };
    if *request < least {
        return Some(format!(
            "minimum {name} usage per {kind} is {least}, but request is {request}"
        ));
    }
    let limit = limits.get(name).filter(|limit| **limit < least)?;
    Some(format!("minimum {name} usage per {kind} is {least}, but limit is {limit}"))
}

fn maximum(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let Some(limit) = limits.get(name) else {
        return Some(format!("maximum {name} usage per {kind} is {most}.  No limit is specified"));
    };
    if *limit > most {
        return Some(format!("maximum {name} usage per {kind} is {most}, but limit is {limit}"));
    }
    let request = requests.get(name).filter(|request| **request > most)?;
    Some(format!("maximum {name} usage per {kind} is {most}, but request is {request}"))
}

fn maximum_request(kind: &str, name: &str, most: Quantity, requests: &Amounts) -> Option<String> {
    let Some(request) = requests.get(name) else {
        return Some(format!(
            "maximum {name} usage per {kind} is {most}.  No request is specified"
        ));
    };
    (*request > most)
        .then(|| format!("maximum {name} usage per {kind} is {most}, but request is {request}"))
}

fn ratio(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let text = |rest: &str| {
        Some(format!("{name} max limit to request ratio per {kind} is {most}, but {rest}"))
    };
    let Some(request) = requests.get(name).filter(|q| !q.is_zero()) else {
        return text("no request is specified or request is 0");
    };
    let Some(limit) = limits.get(name).filter(|q| !q.is_zero()) else {
        return text("no limit is specified or limit is 0");
    };
    let observed = limit.as_f64() / request.as_f64();
    if observed > most.as_f64() { text(&format!("provided ratio is {observed:.6}")) } else { None }
}

fn check(
    limit: &Value,
    kind: &str,
    requests: &Amounts,
    limits: &Amounts,
    errors: &mut Vec<String>,
) {
    errors.extend(
        amounts(limit, "min")
            .iter()
            .filter_map(|(name, q)| minimum(kind, name, *q, requests, limits)),
    );
    errors.extend(
        amounts(limit, "max")
            .iter()
            .filter_map(|(name, q)| maximum(kind, name, *q, requests, limits)),
    );
    let ratios = amounts(limit, "maxLimitRequestRatio");
    errors.extend(ratios.iter().filter_map(|(name, q)| ratio(kind, name, *q, requests, limits)));
}

fn check_pod(range: &Value, pod: &Value) -> Vec<String> {
    let (spec, mut errors) = (get(pod, "spec"), Vec::new());
    for limit in items(get(range, "spec"), "limits") {
        match str_at(limit, "type") {
            kind @ "Container" => {
                for container in
                    items(spec, "containers").iter().chain(items(spec, "initContainers"))
                {
                    let own = get(container, "resources");
                    check(
                        limit,
                        kind,
                        &amounts(own, "requests"),
                        &amounts(own, "limits"),
                        &mut errors,
                    );
                }
            }
            kind @ "Pod" => check(
                limit,
                kind,
                &total(spec, Side::Requests),
                &total(spec, Side::Limits),
                &mut errors,
            ),
            _ => {}
        }
    }
    errors
}

fn check_claim(range: &Value, claim: &Value) -> Vec<String> {
    let requests = amounts(get(get(claim, "spec"), "resources"), "requests");
    let (kind, mut errors) = ("PersistentVolumeClaim", Vec::new());
    for limit in limits(range, kind) {
        errors.extend(
            amounts(limit, "min")
                .iter()
                .filter_map(|(name, q)| minimum(kind, name, *q, &requests, &Amounts::new())),
        );
        errors.extend(
            amounts(limit, "max")
                .iter()
                .filter_map(|(name, q)| maximum_request(kind, name, *q, &requests)),
        );
    }
    errors
}

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let Some(pod) = object.as_mut().filter(|_| applies(request) && request.is("", "pods"))
        else {
            return Ok(());
        };
        for range in self.ranges(request.namespace).await? {
            fill_pod(pod, &range);
        }
        Ok(())
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(value) = object.filter(|_| applies(request)) else { return Ok(()) };
        for range in self.ranges(request.namespace).await? {
            let errors = if request.is("", "pods") {
                check_pod(&range, value)
            } else {
                check_claim(&range, value)
            };
            if !errors.is_empty() {
                return Err(request.forbidden(object, &aggregate_errors(&errors)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{admit, creates};
    use super::*;
    use lookup::testing::Fixed;
    use serde_json::json;

    fn plugin(limit: Value) -> LimitRanger {
        let range =
            json!({"metadata": {"name": "l", "namespace": "a"}, "spec": {"limits": [limit]}});
        LimitRanger(Fixed::new(&[(&lookup::LIMIT_RANGES, range)]))
    }

    async fn run(limit: Value, resources: Value) -> Result<Value, String> {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}});
        admit(&plugin(limit), creates(&lookup::PODS, "Pod"), pod)
            .await
            .map(|(pod, _)| pod)
            .map_err(|e| e.message)
    }

    /// Scenario "quota" of the answers recorded from a live 1.37.1.
    #[tokio::test]
    async fn defaults_are_set_and_maximums_enforced() {
        let limit = json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "250m"}});
        let pod = run(limit.clone(), json!({})).await.unwrap();
        assert_eq!(
            pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
            "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
        );
        assert_eq!(
            pod["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "500m"}})
        );
        assert_eq!(
            run(limit, json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}))
                .await
                .unwrap_err(),
            "pods \"p\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
        );
    }

    #[tokio::test]
    async fn minimums_and_ratios_are_enforced() {
        let both = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        let least = json!({"type": "Pod", "min": {"memory": "64Mi"}});
        assert_eq!(
            run(least.clone(), both("32Mi", "64Mi")).await.unwrap_err(),
            "pods \"p\" is forbidden: minimum memory usage per Pod is 64Mi, but request is 32Mi"
        );
        assert_eq!(
            run(least, json!({})).await.unwrap_err(),
            "pods \"p\" is forbidden: minimum memory usage per Pod is 64Mi.  No request is specified"
        );
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"memory": "2"}});
        assert_eq!(
            run(ratio, both("32Mi", "96Mi")).await.unwrap_err(),
            "pods \"p\" is forbidden: memory max limit to request ratio per Container is 2, but provided ratio is 3.000000"
        );
    }
}
