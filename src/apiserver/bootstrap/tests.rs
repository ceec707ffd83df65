//! Tests of a start with an empty store, a second start, and a start after changes by clients.

use super::*;
use parking_lot::Mutex;

#[derive(Default)]
struct Memory {
    objects: Mutex<BTreeMap<String, Value>>,
    writes: Mutex<usize>,
}

fn key(gvr: &Gvr, namespace: &str, name: &str) -> String {
    format!("{}/{namespace}/{name}", gvr.resource)
}

#[async_trait]
impl Writer for Memory {
    fn serves(&self, gvr: &Gvr) -> bool {
        &*gvr.resource != "apiservices"
    }
    async fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Option<Value>, Status> {
        Ok(self.objects.lock().get(&key(gvr, namespace, name)).cloned())
    }
    async fn create(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        self.update(gvr, namespace, object).await
    }
    async fn update(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status> {
        *self.writes.lock() += 1;
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.objects.lock().insert(key(gvr, namespace, &name), object);
        Ok(())
    }
    async fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Status> {
        self.objects.lock().remove(&key(gvr, namespace, name));
        Ok(())
    }
}

fn settings() -> Settings {
    Settings {
        service_ip: "10.43.0.1".parse().unwrap(),
        service_cidrs: vec!["10.43.0.0/16".into()],
        cluster_dns: Vec::new(),
        advertised: vec!["192.168.1.5".parse().unwrap(), "fd00::5".parse().unwrap()],
        port: 6443,
        client_ca: "CA".into(),
        request_header_ca: "RH".into(),
        request_header_names: vec!["system:auth-proxy".into()],
        resource_metrics: true,
    }
}

#[tokio::test]
async fn a_second_start_writes_nothing() {
    let memory = Memory::default();
    // 4 namespaces; cluster roles and their bindings, roles and their bindings: 73 + 54 + 7 + 7 of
    // upstream, the others are in `rbac.txt` and the role of the resource metrics; 8 + 11 flow
    // control, 2 priority classes, ServiceCIDR, service, endpoints, slice, config map.
    assert_eq!(ensure(&memory, &settings()).await.unwrap(), 4 + 83 + 66 + 10 + 10 + 8 + 11 + 2 + 5);
    assert_eq!(ensure(&memory, &settings()).await.unwrap(), 0);
    let with_dns = Settings { cluster_dns: vec!["10.43.0.10".parse().unwrap()], ..settings() };
    assert_eq!(ensure(&memory, &with_dns).await.unwrap(), 1);
    assert_eq!(
        memory.objects.lock()["services/kube-system/kube-dns"]["spec"]["clusterIPs"],
        json!(["10.43.0.10"])
    );
    // A Service of an earlier version gets the port of the metrics.
    let ports = |memory: &Memory| {
        memory.objects.lock()["services/kube-system/kube-dns"]["spec"]["ports"].clone()
    };
    let all = ports(&memory);
    assert_eq!(all[2]["port"], 9153);
    memory.objects.lock().get_mut("services/kube-system/kube-dns").unwrap()["spec"]["ports"] =
        json!([all[0], all[1]]);
    assert_eq!(ensure(&memory, &with_dns).await.unwrap(), 1);
    assert_eq!(ports(&memory), all);
    let slice = &memory.objects.lock()["endpointslices/default/kubernetes"].clone();
    assert_eq!(
        slice["endpoints"],
        json!([{"addresses": ["192.168.1.5"], "conditions": {"ready": true}}])
    );
}

#[tokio::test]
async fn removed_rules_are_restored_and_added_rules_are_kept() {
    let memory = Memory::default();
    ensure(&memory, &settings()).await.unwrap();
    {
        let mut objects = memory.objects.lock();
        objects.remove("clusterrolebindings//cluster-admin");
        objects.get_mut("clusterroles//system:basic-user").unwrap()["rules"] =
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        let protected = objects.get_mut("clusterroles//system:discovery").unwrap();
        protected["rules"] = json!([]);
        protected["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] =
            json!("false");
        objects.get_mut("clusterrolebindings//system:discovery").unwrap()["roleRef"]["name"] =
            json!("view");
    }
    assert_eq!(ensure(&memory, &settings()).await.unwrap(), 3);
    let objects = memory.objects.lock();
    let rules: Vec<Rule> =
        serde_json::from_value(objects["clusterroles//system:basic-user"]["rules"].clone())
            .unwrap();
    let resources: Vec<&str> =
        rules.iter().flat_map(|r| r.resources.iter().map(String::as_str)).collect();
    assert_eq!(
        resources,
        ["pods", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"]
    );
    assert_eq!(objects["clusterroles//system:discovery"]["rules"], json!([]));
    assert_eq!(
        objects["clusterrolebindings//system:discovery"]["roleRef"]["name"],
        "system:discovery"
    );
}

#[test]
fn aggregated_roles_have_no_rules() {
    let (_, admin) =
        policy::objects().into_iter().find(|(_, o)| o["metadata"]["name"] == "admin").unwrap();
    assert_eq!(admin["rules"], serde_json::Value::Null);
    assert_eq!(
        admin["aggregationRule"],
        json!({"clusterRoleSelectors": [{"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}}]})
    );
    assert!(node_rules().iter().any(|rule| rule.resources == ["leases"]));
}

/// C3.16: missing selectors of an aggregated role are restored, and additional ones are kept
/// (upstream's `computeReconciledRole`).
#[test]
fn selectors_of_aggregated_roles_are_restored() {
    let (_, wanted) =
        policy::objects().into_iter().find(|(_, o)| o["metadata"]["name"] == "edit").unwrap();
    let own = json!({"matchLabels": {"x": "y"}});
    let selectors = |rule: Value| {
        let mut object = wanted.clone();
        object["aggregationRule"] = rule;
        repair_rbac(&mut object, &wanted);
        object["aggregationRule"]["clusterRoleSelectors"].clone()
    };
    let expected = wanted["aggregationRule"]["clusterRoleSelectors"][0].clone();
    assert_eq!(selectors(Value::Null), json!([expected]));
    assert_eq!(selectors(json!({"clusterRoleSelectors": [own]})), json!([own, expected]));
    assert_eq!(selectors(wanted["aggregationRule"].clone()), json!([expected]));
}

/// C2.2 (CVE-2021-25740, CVE-2020-8554): editors of a namespace cannot redirect traffic. Of the
/// user-facing roles only cluster-admin can write Endpoints, EndpointSlices or the status of
/// Services. Upstream removed the first two from `edit` in 1.22 (`EndpointsWriteRule`).
#[test]
fn editors_write_no_endpoints_and_no_status_of_services() {
    let roles = policy::objects();
    let writes = |rule: &Value| {
        let verbs = rule["verbs"].as_array().into_iter().flatten();
        verbs.filter_map(Value::as_str).any(|verb| !matches!(verb, "get" | "list" | "watch"))
    };
    let has = |rule: &Value, name: &str| {
        rule["resources"].as_array().into_iter().flatten().any(|resource| resource == name)
    };
    let mut looked = 0;
    for (_, role) in &roles {
        let labels = role["metadata"]["labels"].as_object().into_iter().flatten();
        let aggregated = labels.filter(|(name, _)| name.contains("/aggregate-to-")).count() > 0;
        let name = role["metadata"]["name"].as_str().unwrap_or_default();
        if role["kind"] != "ClusterRole"
            || !(aggregated || ["admin", "edit", "view"].contains(&name))
        {
            continue;
        }
        looked += 1;
        let rules = role["rules"].as_array().into_iter().flatten();
        for rule in rules.filter(|rule| writes(rule)) {
            for forbidden in
                ["endpoints", "endpointslices", "services/status", "endpoints/restricted", "*"]
            {
                assert!(!has(rule, forbidden), "{name}: {rule}");
            }
        }
    }
    // admin, edit, view and the three that are aggregated into them.
    assert!(looked >= 6, "{looked}");
    let edit =
        roles.iter().find(|(_, role)| role["metadata"]["name"] == "system:aggregate-to-edit");
    let rules = edit.unwrap().1["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| writes(rule) && has(rule, "services")), "services are theirs");
}
