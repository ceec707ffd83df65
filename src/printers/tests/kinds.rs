//! Rows of kinds other than pods.

use serde_json::json;

use super::super::*;
use super::{cells, meta};

/// Checks the cells of objects of the core group: kind, object, cells.
fn check_core<const N: usize>(rows: [(&str, Value, Value); N]) {
    check(rows.map(|(kind, object, expected)| ("", kind, object, expected)));
}

/// Checks the cells of objects: group, kind, object, cells.
fn check<const N: usize>(rows: [(&str, &str, Value, Value); N]) {
    for (group, kind, object, expected) in rows {
        assert_eq!(cells(group, kind, &object), expected, "{object}");
    }
}

#[test]
fn prints_configuration_and_namespaces() {
    check_core([
        (
            "ConfigMap",
            json!({"metadata":meta("c"),"data":{"a":"1"},"binaryData":{"b":""}}),
            json!(["c", 2, "60m"]),
        ),
        (
            "Secret",
            json!({"metadata":meta("s"),"type":"Opaque","data":{"a":""}}),
            json!(["s", "Opaque", 1, "60m"]),
        ),
        (
            "Namespace",
            json!({"metadata":{"name":"n"},"status":{"phase":"Active"}}),
            json!(["n", "Active", "<unknown>"]),
        ),
    ]);
}

#[test]
fn prints_services_and_endpoints() {
    check_core([
        (
            "Service",
            json!({"metadata":meta("a"),"spec":{"type":"ClusterIP","clusterIPs":["10.43.0.9"],"ports":[{"port":80,"protocol":"TCP"}],"selector":{"a":"b"}}}),
            json!(["a", "ClusterIP", "10.43.0.9", "<none>", "80/TCP", "60m", "a=b"]),
        ),
        (
            "Service",
            json!({"metadata":meta("a"),"spec":{"type":"LoadBalancer","ports":[{"port":80,"nodePort":30080,"protocol":"TCP"}],"externalIPs":["9.9.9.9"]},
            "status":{"loadBalancer":{"ingress":[{"ip":"2.2.2.2"},{"hostname":"h"}]}}}),
            json!([
                "a",
                "LoadBalancer",
                "<none>",
                "2.2.2.2,h,9.9.9.9",
                "80:30080/TCP",
                "60m",
                "<none>"
            ]),
        ),
        (
            "Service",
            json!({"metadata":meta("a"),"spec":{"type":"ExternalName","externalName":"x.y"}}),
            json!(["a", "ExternalName", "<none>", "x.y", "<none>", "60m", "<none>"]),
        ),
        (
            "Endpoints",
            json!({"metadata":meta("e"),"subsets":[{"addresses":[{"ip":"1.1.1.1"},{"ip":"1.1.1.2"}],"ports":[{"port":1},{"port":2}]}]}),
            json!(["e", "1.1.1.1:1,1.1.1.2:1,1.1.1.1:2 + 1 more...", "60m"]),
        ),
    ]);
}

#[test]
fn prints_volumes_and_quotas() {
    check_core([
        (
            "PersistentVolumeClaim",
            json!({"metadata":meta("c"),"spec":{"volumeName":"v","storageClassName":"s","volumeMode":"Filesystem"},
            "status":{"phase":"Bound","accessModes":["ReadOnlyMany","ReadWriteOnce"],"capacity":{"storage":"4Gi"}}}),
            json!(["c", "Bound", "v", "4Gi", "RWO,ROX", "s", "<unset>", "60m", "Filesystem"]),
        ),
        (
            "PersistentVolume",
            json!({"metadata":meta("v"),"spec":{"capacity":{"storage":"4Gi"},"accessModes":["ReadWriteOncePod"],"persistentVolumeReclaimPolicy":"Retain",
            "claimRef":{"namespace":"n","name":"c"}},"status":{"phase":"Bound"}}),
            json!([
                "v", "4Gi", "RWOP", "Retain", "Bound", "n/c", "", "<unset>", "", "60m", "<unset>"
            ]),
        ),
        (
            "ResourceQuota",
            json!({"metadata":meta("q"),"status":{"hard":{"limits.cpu":"2","pods":"10","requests.cpu":"1"},"used":{"pods":"3","limits.cpu":"500m"}}}),
            json!(["q", "pods: 3/10, requests.cpu: 0/1", "limits.cpu: 500m/2", "60m"]),
        ),
    ]);
}

#[test]
fn prints_events_and_nodes() {
    check_core([
        (
            "Event",
            json!({"metadata":meta("e"),"type":"Normal","reason":"Pulled","message":" done \n","count":4,"firstTimestamp":"2026-01-01T00:00:00Z","lastTimestamp":"2026-01-01T00:59:00Z",
            "involvedObject":{"kind":"Pod","name":"p","fieldPath":"spec.containers{c}"},"source":{"component":"kubelet","host":"n"}}),
            json!([
                "60s",
                "Normal",
                "Pulled",
                "pod/p",
                "spec.containers{c}",
                "kubelet, n",
                "done",
                "60m",
                4,
                "e"
            ]),
        ),
        (
            "Node",
            json!({"metadata":{"name":"n","labels":{"node-role.kubernetes.io/master":"","kubernetes.io/role":"edge"}},"spec":{"unschedulable":true},
            "status":{"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"1.2.3.4"}],
            "nodeInfo":{"kubeletVersion":"v1.37.1","kernelVersion":"6.1","architecture":"arm64","osImage":"Debian","containerRuntimeVersion":"containerd://2"}}}),
            json!([
                "n",
                "Ready,SchedulingDisabled",
                "edge,master",
                "<unknown>",
                "v1.37.1",
                "1.2.3.4",
                "<none>",
                "Debian",
                "6.1 (arm64)",
                "containerd://2"
            ]),
        ),
    ]);
}

#[test]
fn prints_workloads_and_jobs() {
    let template = json!({"spec":{"containers":[{"name":"a","image":"i"},{"name":"b","image":"j"}],"nodeSelector":{"x":"y"}}});
    let chosen = json!({"matchLabels":{"app":"x"}});
    let deployment = json!({"metadata":meta("d"),"spec":{"replicas":5,"template":template,"selector":chosen},"status":{"readyReplicas":1,"updatedReplicas":2,"availableReplicas":1}});
    assert_eq!(
        cells("apps", "Deployment", &deployment),
        json!(["d", "1/5", 2, 1, "60m", "a,b", "i,j", "app=x"])
    );
    let set = json!({"metadata":meta("d"),"spec":{"template":template,"selector":chosen},"status":{"desiredNumberScheduled":2,"currentNumberScheduled":2,"numberReady":1}});
    assert_eq!(
        cells("apps", "DaemonSet", &set),
        json!(["d", 2, 2, 1, 0, 0, "x=y", "60m", "a,b", "i,j", "app=x"])
    );
    let revision = json!({"metadata":{"name":"r","ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","controller":true}]},"revision":3});
    assert_eq!(
        cells("apps", "ControllerRevision", &revision),
        json!(["r", "daemonset.apps/d", 3, "<unknown>"])
    );
    let job = json!({"metadata":meta("j"),"spec":{"completions":4,"template":template,"selector":chosen},
        "status":{"succeeded":4,"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:20:00Z","conditions":[{"type":"Complete","status":"True"}]}});
    assert_eq!(
        cells("batch", "Job", &job),
        json!(["j", "Complete", "4/4", "20m", "60m", "a,b", "i,j", "app=x"])
    );
    let job = json!({"metadata":meta("j"),"spec":{"parallelism":3},"status":{}});
    assert_eq!(
        cells("batch", "Job", &job),
        json!(["j", "Running", "0/1 of 3", "", "60m", "", "", "<none>"])
    );
    let cron = json!({"metadata":meta("c"),"spec":{"schedule":"0/5 * * * ?","suspend":false},"status":{"active":[{}],"lastScheduleTime":"2026-01-01T00:58:00Z"}});
    assert_eq!(
        cells("batch", "CronJob", &cron),
        json!(["c", "0/5 * * * ?", "<none>", "False", 1, "2m", "60m", "", "", "<none>"])
    );
}

#[test]
fn prints_autoscalers() {
    let target = |metrics: Value, current: Value| {
        json!({"metadata":meta("h"),"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"minReplicas":2,"maxReplicas":10,"metrics":metrics},
        "status":{"currentReplicas":4,"currentMetrics":current}})
    };
    let cpu =
        json!({"type":"Resource","resource":{"name":"cpu","target":{"averageUtilization":80}}});
    let pods = json!({"type":"Pods","pods":{"target":{"averageValue":"100m"}}});
    let shown = |o: &Value| cells("autoscaling", "HorizontalPodAutoscaler", o)[2].clone();
    assert_eq!(
        cells(
            "autoscaling",
            "HorizontalPodAutoscaler",
            &target(
                json!([cpu]),
                json!([{"type":"Resource","resource":{"current":{"averageUtilization":50}}}])
            )
        ),
        json!(["h", "Deployment/d", "cpu: 50%/80%", "2", 10, 4, "60m"])
    );
    assert_eq!(
        shown(&target(json!([cpu, pods, cpu]), json!([]))),
        "cpu: <unknown>/80%, <unknown>/100m + 1 more..."
    );
    let external = json!({"type":"External","external":{"target":{"averageValue":"50"}}});
    assert_eq!(shown(&target(json!([external]), json!([]))), "<unknown>/50 (avg)");
    assert_eq!(shown(&target(json!([]), json!([]))), "<none>");
    let first = json!({"spec":{"targetCPUUtilizationPercentage":80},"status":{"currentCPUUtilizationPercentage":50}});
    assert_eq!(shown(&first), "cpu: 50%/80%");
}

#[test]
fn prints_network_kinds() {
    check([
        (
            "networking.k8s.io",
            "Ingress",
            json!({"metadata":meta("i"),"spec":{"ingressClassName":"c","tls":[{}],"rules":[{"host":"a"},{"host":"b"},{"host":"c"},{"host":"d"}]},
            "status":{"loadBalancer":{"ingress":[{"ip":"1.1.1.1"}]}}}),
            json!(["i", "c", "a,b,c + 1 more...", "1.1.1.1", "80, 443", "60m"]),
        ),
        (
            "networking.k8s.io",
            "IngressClass",
            json!({"metadata":{"name":"c","annotations":{"ingressclass.kubernetes.io/is-default-class":"true"}},
            "spec":{"controller":"x.io/y","parameters":{"apiGroup":"g","kind":"K","name":"n"}}}),
            json!(["c (default)", "x.io/y", "K.g/n", "<unknown>"]),
        ),
        (
            "networking.k8s.io",
            "IPAddress",
            json!({"metadata":meta("1.1.1.1"),"spec":{"parentRef":{"resource":"services","namespace":"n","name":"s"}}}),
            json!(["1.1.1.1", "services/n/s", "60m"]),
        ),
        (
            "discovery.k8s.io",
            "EndpointSlice",
            json!({"metadata":meta("s"),"addressType":"IPv4","ports":[{"port":80},{"name":"x"}],"endpoints":[{"addresses":["1.1.1.1"]},{"addresses":["1.1.1.2"]},{"addresses":["1.1.1.3"]},{"addresses":["1.1.1.4"]}]}),
            json!(["s", "IPv4", "80,x", "1.1.1.1,1.1.1.2,1.1.1.3 + 1 more...", "60m"]),
        ),
    ]);
}

#[test]
fn prints_policies_roles_and_certificates() {
    check([
        (
            "policy",
            "PodDisruptionBudget",
            json!({"metadata":meta("b"),"spec":{"minAvailable":1},"status":{"disruptionsAllowed":0}}),
            json!(["b", "1", "N/A", 0, "60m"]),
        ),
        (
            "rbac.authorization.k8s.io",
            "RoleBinding",
            json!({"metadata":meta("r"),"roleRef":{"kind":"Role","name":"x"},"subjects":[{"kind":"User","name":"u"},{"kind":"ServiceAccount","namespace":"n","name":"s"}]}),
            json!(["r", "Role/x", "60m", "u", "", "n/s"]),
        ),
        (
            "certificates.k8s.io",
            "CertificateSigningRequest",
            json!({"metadata":meta("c"),"spec":{"signerName":"s/n","username":"u","expirationSeconds":3600},
            "status":{"conditions":[{"type":"Approved"}],"certificate":"eA=="}}),
            json!(["c", "60m", "s/n", "u", "60m", "Approved,Issued"]),
        ),
    ]);
}

#[test]
fn prints_scheduling_storage_and_flow_control() {
    check([
        (
            "scheduling.k8s.io",
            "PriorityClass",
            json!({"metadata":meta("p"),"value":10,"preemptionPolicy":"Never"}),
            json!(["p", 10, false, "60m", "Never"]),
        ),
        (
            "flowcontrol.apiserver.k8s.io",
            "PriorityLevelConfiguration",
            json!({"metadata":meta("l"),"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":47,"limitResponse":{"queuing":{"queues":128,"handSize":6,"queueLengthLimit":50}}}}}),
            json!(["l", "Limited", 47, 128, 6, 50, "60m"]),
        ),
        (
            "storage.k8s.io",
            "CSIDriver",
            json!({"metadata":meta("d"),"spec":{"attachRequired":false,"tokenRequests":[{"audience":"a"}]}}),
            json!(["d", false, false, false, "a", false, "<none>", "60m"]),
        ),
    ]);
}

#[test]
fn prints_extension_kinds() {
    check([
        (
            "admissionregistration.k8s.io",
            "ValidatingAdmissionPolicyBinding",
            json!({"metadata":meta("b"),"spec":{"policyName":"p","paramRef":{"selector":{"matchLabels":{"a":"b"}}}}}),
            json!([
                "b",
                "p",
                "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}",
                "60m"
            ]),
        ),
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            json!({"metadata":meta("c"),"spec":{"scope":"Namespaced","group":"x.io","names":{"kind":"Foo","shortNames":["f"]},
            "versions":[{"name":"v2","served":true,"storage":true},{"name":"v1","served":true},{"name":"v0"}]},"status":{"conditions":[{"type":"Established","status":"True"}]}}),
            json!([
                "c",
                "Namespaced",
                "v1,v2(storage)",
                "2026-01-01T00:00:00Z",
                "x.io",
                "Foo",
                "f",
                true
            ]),
        ),
        (
            "apiregistration.k8s.io",
            "APIService",
            json!({"metadata":meta("v1."),"status":{"conditions":[{"type":"Available","status":"False","reason":"Why"}]}}),
            json!(["v1.", "Local", "False (Why)", "60m"]),
        ),
        (
            "resource.k8s.io",
            "ResourceClaim",
            json!({"metadata":meta("r"),"status":{"allocation":{},"reservedFor":[{}]}}),
            json!(["r", "allocated,reserved", "60m"]),
        ),
        (
            "rbac.authorization.k8s.io",
            "ClusterRole",
            json!({"metadata":meta("r")}),
            json!(["r", "2026-01-01T00:00:00Z"]),
        ),
    ]);
}
