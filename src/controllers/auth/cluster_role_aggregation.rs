//! ClusterRoles that are the sum of others: `aggregationRule` becomes `rules`.

use api::k8s::api::rbac::v1::{ClusterRole, PolicyRule};
use client::{Action, Client, Error, Informer, Patch};
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

const MANAGER: &str = "clusterrole-aggregation-controller";

/// Starts the controller. One key for all roles: any of them may be part of any other.
pub(crate) fn start(context: &Context) {
    let client = context.client(MANAGER);
    let roles = context.informers.of::<ClusterRole>();
    let mut keyed = Keyed::new();
    keyed.watches(&roles, |_| vec![(String::new(), String::new())]);
    keyed.run(&context.tasks, MANAGER, 1, move |_| {
        let (client, roles) = (client.clone(), roles.clone());
        async move { reconcile(&client, &roles).await }
    });
}

async fn reconcile(client: &Client, informer: &Informer<ClusterRole>) -> Result<Action, Error> {
    let roles = informer.list("");
    for role in roles.iter().filter(|r| r.aggregation_rule.is_some()) {
        let Some(rules) = changed(role, &roles) else { continue };
        let name = role.metadata.name.as_deref().unwrap_or_default();
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name},
        });
        if !rules.is_empty() {
            object["rules"] = serde_json::to_value(rules)?;
        }
        let patch = Patch::Apply { object: &object, manager: MANAGER, force: true };
        settled(client.patch::<ClusterRole>("", name, "", &patch).await)?;
    }
    Ok(Action::Done)
}

/// Empty lists and absent ones are the same.
fn normal(rule: &PolicyRule) -> PolicyRule {
    let some = |list: &Option<Vec<String>>| list.clone().filter(|l| !l.is_empty());
    PolicyRule {
        api_groups: some(&rule.api_groups),
        non_resource_urls: some(&rule.non_resource_urls),
        resource_names: some(&rule.resource_names),
        resources: some(&rule.resources),
        verbs: rule.verbs.clone(),
    }
}

/// The rules that the role should have; `None` when it has them.
fn changed(role: &ClusterRole, all: &[ClusterRole]) -> Option<Vec<PolicyRule>> {
    let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.as_deref();
    let mut rules: Vec<PolicyRule> = Vec::new();
    // The cache is in the order of names, as upstream's sum is.
    for selector in selectors.unwrap_or_default() {
        let parts = all.iter().filter(|r| {
            r.metadata.name != role.metadata.name
                && client::labels::selects(selector, r.metadata.labels.as_ref())
        });
        for rule in parts.flat_map(|r| r.rules.iter().flatten()).map(normal) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    let have: Vec<PolicyRule> = role.rules.iter().flatten().map(normal).collect();
    (have != rules).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_summed_once_in_the_order_of_names() {
        let role = |name: &str, label: &str, verbs: &[&str]| -> ClusterRole {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"to": label}},
                "rules": verbs.iter().map(|v| json!({"verbs": [v], "resources": ["pods"],
                    "apiGroups": [""]})).collect::<Vec<_>>()}))
            .unwrap()
        };
        let mut sum: ClusterRole = serde_json::from_value(json!({"metadata": {"name": "sum",
            "labels": {"to": "sum"}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]},
            "rules": [{"verbs": ["delete"], "nonResourceURLs": [], "resources": ["pods"],
                "apiGroups": [""]}]}))
        .unwrap();
        let all = [
            role("a", "sum", &["get", "list"]),
            role("b", "sum", &["list", "watch"]),
            role("c", "other", &["create"]),
            sum.clone(),
        ];
        let rules = changed(&sum, &all).unwrap();
        let verbs: Vec<&str> = rules.iter().map(|r| r.verbs[0].as_str()).collect();
        assert_eq!(verbs, ["get", "list", "watch"]);
        sum.rules = Some(rules);
        assert_eq!(changed(&sum, &all), None);
    }
}
