//! Compares columns with recorded answers of kube-apiserver, and rows with upstream's printer tests
//! and recorded answers.

mod kinds;

use api::Gvk;
use serde_json::{Map, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn cells(group: &str, kind: &str, object: &Value) -> Value {
    Value::Array(row(&Gvk::new(group, "v1", kind), object, now()))
}

/// `name/type@+`: the type unless it is string, `@` for the format `name`, `+` for wide.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("", "ComponentStatus", "Name@|Status|Message|Error"),
    ("", "ConfigMap", "Name@|Data|Age"),
    ("", "Endpoints", "Name@|Endpoints|Age"),
    (
        "",
        "Event",
        "Last Seen|Type|Reason|Object|Subobject+|Source+|Message|First Seen+|Count+|Name@+",
    ),
    ("", "LimitRange", "Name@|Created At/date"),
    ("", "Namespace", "Name@|Status|Age"),
    (
        "",
        "Node",
        "Name@|Status|Roles|Age|Version|Internal-IP+|External-IP+|OS-Image+|Kernel-Version+|Container-Runtime+",
    ),
    (
        "",
        "PersistentVolumeClaim",
        "Name@|Status|Volume|Capacity|Access Modes|StorageClass|VolumeAttributesClass|Age|VolumeMode+",
    ),
    (
        "",
        "PersistentVolume",
        "Name@|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|VolumeAttributesClass|Reason|Age|VolumeMode+",
    ),
    ("", "Pod", "Name@|Ready|Status|Restarts|Age|IP+|Node+|Nominated Node+|Readiness Gates+"),
    ("", "PodTemplate", "Name@|Containers|Images|Pod Labels"),
    (
        "",
        "ReplicationController",
        "Name@|Desired/integer|Current/integer|Ready/integer|Age|Containers+|Images+|Selector+",
    ),
    ("", "ResourceQuota", "Name@|Request|Limit|Age"),
    ("", "Secret", "Name@|Type|Data|Age"),
    ("", "ServiceAccount", "Name@|Age"),
    ("", "Service", "Name@|Type|Cluster-IP|External-IP|Port(s)|Age|Selector+"),
    ("apiregistration.k8s.io", "APIService", "Name@|Service|Available|Age"),
    ("apps", "ControllerRevision", "Name@|Controller|Revision|Age"),
    (
        "apps",
        "DaemonSet",
        "Name@|Desired/integer|Current/integer|Ready/integer|Up-to-date/integer|Available/integer|Node Selector|Age|Containers+|Images+|Selector+",
    ),
    ("apps", "Deployment", "Name@|Ready|Up-to-date|Available|Age|Containers+|Images+|Selector+"),
    (
        "apps",
        "ReplicaSet",
        "Name@|Desired/integer|Current/integer|Ready/integer|Age|Containers+|Images+|Selector+",
    ),
    ("apps", "StatefulSet", "Name@|Ready|Age|Containers+|Images+"),
    (
        "events.k8s.io",
        "Event",
        "Last Seen|Type|Reason|Object|Subobject+|Source+|Message|First Seen+|Count+|Name@+",
    ),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        "Name@|Reference|Targets|MinPods|MaxPods|Replicas|Age",
    ),
    (
        "autoscaling",
        "HorizontalPodAutoscaler",
        "Name@|Reference|Targets|MinPods|MaxPods|Replicas|Age",
    ),
    (
        "batch",
        "CronJob",
        "Name@|Schedule|Timezone|Suspend/boolean|Active/integer|Last Schedule|Age|Containers+|Images+|Selector+",
    ),
    ("batch", "Job", "Name@|Status|Completions|Duration|Age|Containers+|Images+|Selector+"),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "Name@|Age|SignerName|Requestor|RequestedDuration|Condition",
    ),
    ("certificates.k8s.io", "ClusterTrustBundle", "Name@|SignerName"),
    (
        "certificates.k8s.io",
        "PodCertificateRequest",
        "Name@|PodName|ServiceAccountName|NodeName|SignerName|State|UnverifiedUserAnnotations",
    ),
    ("networking.k8s.io", "IngressClass", "Name@|Controller|Parameters|Age"),
    ("networking.k8s.io", "Ingress", "Name@|Class|Hosts|Address|Ports|Age"),
    ("networking.k8s.io", "IPAddress", "Name@|ParentRef"),
    ("networking.k8s.io", "NetworkPolicy", "Name@|Pod-Selector|Age"),
    ("networking.k8s.io", "ServiceCIDR", "Name@|CIDRs|Age"),
    (
        "policy",
        "PodDisruptionBudget",
        "Name@|Min Available|Max Unavailable|Allowed Disruptions/integer|Age",
    ),
    (
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        "Name@|Role|Age|Users+|Groups+|ServiceAccounts+",
    ),
    ("rbac.authorization.k8s.io", "ClusterRole", "Name@|Created At/date"),
    ("rbac.authorization.k8s.io", "RoleBinding", "Name@|Role|Age|Users+|Groups+|ServiceAccounts+"),
    ("rbac.authorization.k8s.io", "Role", "Name@|Created At/date"),
    (
        "storage.k8s.io",
        "CSIDriver",
        "Name@|AttachRequired/boolean|PodInfoOnMount/boolean|StorageCapacity/boolean|TokenRequests|RequiresRepublish/boolean|Modes|Age",
    ),
    ("storage.k8s.io", "CSINode", "Name@|Drivers/integer|Age"),
    ("storage.k8s.io", "CSIStorageCapacity", "Name@|Created At/date"),
    (
        "storage.k8s.io",
        "StorageClass",
        "Name@|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age",
    ),
    ("storage.k8s.io", "VolumeAttachment", "Name@|Attacher@|PV|Node|Attached/boolean|Age"),
    ("storage.k8s.io", "VolumeAttributesClass", "Name@|DriverName|Age"),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        "Name@|Mutations/integer|ParamKind|Age",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        "Name@|PolicyName|ParamRef|Age",
    ),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "Name@|Webhooks/integer|Age"),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        "Name@|Validations/integer|ParamKind|Age",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        "Name@|PolicyName|ParamRef|Age",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "Name@|Webhooks/integer|Age",
    ),
    (
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "Name@|Scope|Versions|Created At/date|Group+|Kind+|ShortNames+|Established/boolean+",
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        "Name@|Value/integer|Global-Default/boolean|Age|PreemptionPolicy",
    ),
    ("coordination.k8s.io", "Lease", "Name@|Holder|Age"),
    ("autoscaling", "Scale", "Name|Desired/integer|Available/integer|Age"),
    ("node.k8s.io", "RuntimeClass", "Name@|Handler|Age"),
    ("discovery.k8s.io", "EndpointSlice", "Name@|AddressType|Ports|Endpoints|Age"),
    ("resource.k8s.io", "DeviceClass", "Name@|Age"),
    ("resource.k8s.io", "DeviceTaintRule", "Name@|Key|Value|Effect|TimeAdded|Age"),
    ("resource.k8s.io", "ResourceClaim", "Name@|State|Age"),
    ("resource.k8s.io", "ResourceClaimTemplate", "Name@|Age"),
    ("resource.k8s.io", "ResourceSlice", "Name@|Node|Driver|Pool|Age"),
    (
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        "Name@|PriorityLevel|MatchingPrecedence|DistinguisherMethod|Age|MissingPL",
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        "Name@|Type|NominalConcurrencyShares|Queues|HandSize|QueueLengthLimit|Age",
    ),
    ("storagemigration.k8s.io", "StorageVersionMigration", "Name|Resource|Status"),
];

#[test]
fn columns_match_kube_apiserver() {
    for (group, kind, expected) in COLUMNS {
        let shown: Vec<String> = columns(&Gvk::new(group, "v1", kind))
            .iter()
            .map(|c| {
                let kind = if c.kind == "string" { String::new() } else { format!("/{}", c.kind) };
                format!(
                    "{}{kind}{}{}",
                    c.name,
                    if c.format == "name" { "@" } else { "" },
                    if c.priority == 0 { "" } else { "+" }
                )
            })
            .collect();
        assert_eq!(shown.join("|"), *expected, "{group} {kind}");
    }
}

#[test]
fn a_row_has_a_cell_for_each_column() {
    let object = json!({"metadata":{"name":"x"}});
    for (group, kind, expected) in COLUMNS {
        // Upstream's IPAddress has one cell more than columns.
        let extra = usize::from(*kind == "IPAddress");
        let row = row(&Gvk::new(group, "v1", kind), &object, now());
        assert_eq!(row.len(), expected.split('|').count() + extra, "{group} {kind}");
    }
}

#[test]
fn human_duration_formats_like_upstream() {
    for (seconds, expected) in [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (179 * 60, "179m"),
        (180 * 60, "3h"),
        (190 * 60, "3h10m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (2 * 365 * 86400, "2y"),
        (3 * 365 * 86400 + 86400, "3y1d"),
        (9 * 365 * 86400, "9y"),
    ] {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}

fn pod(spec: Value, status: Value) -> Value {
    json!({"metadata":{"name":"p","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":spec,"status":status})
}

/// Ready, status and restarts of a pod.
fn state(pod: &Value) -> String {
    let row = cells("", "Pod", pod);
    format!(
        "{} {} {}",
        row[1].as_str().unwrap(),
        row[2].as_str().unwrap(),
        row[3].as_str().unwrap()
    )
}

#[test]
fn pod_status_shows_phase_and_containers() {
    let two = json!({"containers":[{},{}]});
    let running = json!({"ready":true,"restartCount":3,"state":{"running":{}}});
    let done = json!({"restartCount":0,"state":{"terminated":{"reason":"Completed","exitCode":0}}});
    let ready = json!([{"type":"Ready","status":"True"}]);
    let rows = [
        (two.clone(), json!({"phase":"Pending"}), "0/2 Pending 0"),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[running.clone(),{"restartCount":3}]}),
            "1/2 Running 6",
        ),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[running.clone(),{"state":{"waiting":{"reason":"ImagePullBackOff"}},"restartCount":3}]}),
            "1/2 ImagePullBackOff 6",
        ),
        (
            two.clone(),
            json!({"phase":"Running","conditions":ready.clone(),"containerStatuses":[done.clone(),running.clone()]}),
            "1/2 Running 3",
        ),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[done.clone(),running.clone()]}),
            "1/2 NotReady 3",
        ),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[{"state":{"terminated":{"exitCode":2}},"restartCount":0}]}),
            "0/2 ExitCode:2 0",
        ),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[{"state":{"terminated":{"signal":9,"exitCode":137}},"restartCount":0}]}),
            "0/2 Signal:9 0",
        ),
        (two.clone(), json!({"phase":"Failed","reason":"Evicted"}), "0/2 Evicted 0"),
        (
            two.clone(),
            json!({"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}]}),
            "0/2 SchedulingGated 0",
        ),
        (
            two.clone(),
            json!({"phase":"Running","containerStatuses":[{"ready":true,"restartCount":2,"state":{"running":{}},"lastState":{"terminated":{"finishedAt":"2026-01-01T00:55:00Z"}}}]}),
            "1/2 Running 2 (5m ago)",
        ),
    ];
    for (spec, status, expected) in rows {
        assert_eq!(state(&pod(spec, status.clone())), expected, "{status}");
    }
}

#[test]
fn pod_status_shows_init_containers_until_they_are_done() {
    let running = json!({"ready":true,"restartCount":3,"state":{"running":{}}});
    let rows = [
        (
            json!({"containers":[{}],"initContainers":[{"name":"a"},{"name":"b"}]}),
            json!({"phase":"Pending","initContainerStatuses":[{"name":"a","state":{"terminated":{"exitCode":0}}},{"name":"b","state":{"running":{}}}]}),
            "0/1 Init:1/2 0",
        ),
        (
            json!({"containers":[{}],"initContainers":[{"name":"a"}]}),
            json!({"phase":"Pending","initContainerStatuses":[{"name":"a","restartCount":2,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}),
            "0/1 Init:CrashLoopBackOff 2",
        ),
        (
            json!({"containers":[{}],"initContainers":[{"name":"a"}]}),
            json!({"phase":"Pending","initContainerStatuses":[{"name":"a","state":{"terminated":{"exitCode":2}}}]}),
            "0/1 Init:ExitCode:2 0",
        ),
        (
            json!({"containers":[{}],"initContainers":[{"name":"side","restartPolicy":"Always"}]}),
            json!({"phase":"Running","initContainerStatuses":[{"name":"side","started":true,"ready":true,"restartCount":1,"state":{"running":{}}}],
                "containerStatuses":[running]}),
            "2/2 Running 4",
        ),
    ];
    for (spec, status, expected) in rows {
        assert_eq!(state(&pod(spec, status.clone())), expected, "{status}");
    }
}

#[test]
fn pod_status_of_a_deleted_pod_is_terminating_or_unknown() {
    let mut leaving = pod(json!({"containers":[{},{}]}), json!({"phase":"Running"}));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:30:00Z");
    assert_eq!(state(&leaving), "0/2 Terminating 0");
    leaving["status"]["reason"] = json!("NodeLost");
    assert_eq!(state(&leaving), "0/2 Unknown 0");
}

#[test]
fn pods_have_wide_cells() {
    let p = pod(
        json!({"containers":[{}],"nodeName":"n1","readinessGates":[{"conditionType":"a"},{"conditionType":"b"}]}),
        json!({"phase":"Running","podIPs":[{"ip":"10.0.0.5"}],"conditions":[{"type":"a","status":"True"}]}),
    );
    assert_eq!(
        cells("", "Pod", &p),
        json!(["p", "0/1", "Running", "0", "60m", "10.0.0.5", "n1", "<none>", "1/2"])
    );
}

fn meta(name: &str) -> Value {
    json!({"name":name,"creationTimestamp":"2026-01-01T00:00:00Z"})
}

#[test]
fn lists_render_with_partial_objects() {
    let options = Options {
        include: IncludeObject::Metadata,
        no_headers: false,
        list: true,
        custom: None,
        now: now(),
    };
    let object = json!({"apiVersion":"v1","kind":"ConfigMap","metadata":meta("a"),"data":{}});
    let list = Map::from_iter([("resourceVersion".to_owned(), json!("7"))]);
    let table = render(
        &Gvk::new("", "v1", "ConfigMap"),
        std::slice::from_ref(&object),
        list.clone(),
        &options,
    );
    assert_eq!(
        table["columnDefinitions"][0],
        json!({"name":"Name","type":"string","format":"name","priority":0,"description":describe("Name")})
    );
    assert_eq!(
        table["rows"],
        json!([{"cells":["a",0,"60m"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":meta("a")}}])
    );
    assert_eq!(
        (&table["kind"], &table["metadata"]),
        (&json!("Table"), &json!({"resourceVersion":"7"}))
    );
    let options = Options { include: IncludeObject::None, no_headers: true, ..options };
    let table = render(&Gvk::new("", "v1", "ConfigMap"), &[object], list, &options);
    assert_eq!(
        (&table["columnDefinitions"], &table["rows"][0]["object"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        IncludeObject::parse("x").unwrap_err().to_string(),
        "unrecognized includeObject value: \"x\""
    );
}

#[test]
fn the_default_class_and_finished_pods_are_marked() {
    let class = |name: &str, time: &str| json!({"metadata":{"name":name,"creationTimestamp":time,"annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"x"});
    let classes = [
        class("b", "2026-01-01T00:00:00Z"),
        class("a", "2026-01-01T00:00:00Z"),
        class("c", "2025-01-01T00:00:00Z"),
    ];
    let options = Options {
        include: IncludeObject::None,
        no_headers: true,
        list: true,
        custom: None,
        now: now(),
    };
    let table =
        render(&Gvk::new("storage.k8s.io", "v1", "StorageClass"), &classes, Map::new(), &options);
    let names: Vec<&str> =
        table["rows"].as_array().unwrap().iter().map(|r| r["cells"][0].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "a (default)", "c"]);
    let table = render(
        &Gvk::new("", "v1", "Pod"),
        &[pod(json!({}), json!({"phase":"Succeeded"}))],
        Map::new(),
        &options,
    );
    assert_eq!(
        table["rows"][0]["conditions"],
        json!([{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}])
    );
}
