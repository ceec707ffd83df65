//! One look at an autoscaler, against an API that answers as others' do.

use std::collections::BTreeMap;

use api::{Object, WatchEvent};
use async_trait::async_trait;
use base::{Shutdown, Tasks};
use bytes::Bytes;
use client::{Informers, Scope, Transport, WatchStream};
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

/// What is served, by path, and what was written.
#[derive(Debug, Default)]
struct Api {
    objects: Vec<Value>,
    served: Mutex<BTreeMap<String, Value>>,
    written: Mutex<Vec<(String, Value)>>,
}

const SCALE: &str = "/apis/apps/v1/namespaces/a/deployments/web/scale";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods";

#[async_trait]
impl Transport for Api {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let path = request.uri().path().to_owned();
        if request.method() != Method::GET {
            let body: Value = serde_json::from_slice(request.body()).unwrap();
            self.written.lock().push((path, body));
            return Ok(Response::new(request.into_body()));
        }
        let mut answer = Response::default();
        match self.served.lock().get(&path) {
            Some(object) => *answer.body_mut() = object.to_string().into(),
            None => {
                *answer.status_mut() = http::StatusCode::NOT_FOUND;
                *answer.body_mut() = Bytes::from_static(b"404 page not found\n");
            }
        }
        Ok(answer)
    }

    async fn watch(&self, scope: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        let (tell, stream) = mpsc::channel(100);
        for object in &self.objects {
            let kind =
                if &*scope.gvr.resource == "pods" { "Pod" } else { "HorizontalPodAutoscaler" };
            if object["kind"] == kind {
                let object = Object::from_value(object.clone()).unwrap();
                tell.try_send(WatchEvent::Added(Arc::new(object))).unwrap();
            }
        }
        tell.try_send(WatchEvent::Bookmark { revision: 9, initial: true }).unwrap();
        // The watch stays open until the test ends.
        std::mem::forget(tell);
        Ok(stream)
    }
}

fn world() -> Api {
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1",
                "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
            "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True",
                "lastTransitionTime": "1970-01-01T00:00:10Z"}]}})
    };
    let autoscaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "a", "uid": "u", "resourceVersion": "2",
            "generation": 3},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 10,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    let usage = |name: &str| {
        json!({"metadata": {"name": name},
        "timestamp": "2026-01-01T00:00:00Z", "window": "20s",
        "containers": [{"name": "c", "usage": {"cpu": "200m"}}]})
    };
    let served = BTreeMap::from([
        (
            "/apis/apps/v1".to_owned(),
            json!({"resources": [{"name": "deployments/scale", "kind": "Scale"},
                {"name": "deployments", "kind": "Deployment"}]}),
        ),
        (
            SCALE.to_owned(),
            json!({"kind": "Scale", "spec": {"replicas": 2},
                "status": {"replicas": 2, "selector": "app=web"}}),
        ),
        (METRICS.to_owned(), json!({"items": [usage("p1"), usage("p2")]})),
    ]);
    Api {
        objects: vec![pod("p1"), pod("p2"), autoscaler],
        served: Mutex::new(served),
        ..Api::default()
    }
}

/// What one look writes: the scale's replicas, the status.
async fn look(api: Api) -> (Option<i64>, Value) {
    let api = Arc::new(api);
    let tasks = Tasks::new(Shutdown::new());
    let transport: Arc<dyn Transport> = Arc::clone(&api) as _;
    let client = Client::new(transport, "test");
    let informers = Informers::new(client.clone(), tasks.clone());
    let controller = Controller {
        recorder: EventRecorder::new(client.clone(), CONTROLLER, "", &tasks),
        client,
        autoscalers: informers.of(),
        pods: informers.of(),
        states: Mutex::default(),
        tuning: Autoscaling::default(),
    };
    controller.autoscalers.synced().await;
    controller.pods.synced().await;
    controller.count();
    let action = controller.reconcile(("a".into(), "web".into())).await.unwrap();
    assert_eq!(action, Action::After(Autoscaling::default().sync_period));
    let written = api.written.lock();
    let find =
        |end: &str| written.iter().find(|(path, _)| path.ends_with(end)).map(|(_, body)| body);
    let replicas = find("/scale").and_then(|scale| scale["spec"]["replicas"].as_i64());
    let status = find("/status").map(|body| body["status"].clone()).unwrap_or_default();
    (replicas, status)
}

fn conditions(status: &Value) -> Vec<String> {
    let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
    let all = status["conditions"].as_array().unwrap().iter();
    all.map(|c| format!("{} {} {}", text(c, "type"), text(c, "status"), text(c, "reason")))
        .collect()
}

#[tokio::test]
async fn use_above_the_aim_scales_up_and_the_status_says_why() {
    let (replicas, status) = look(world()).await;
    // 200 % of 50 % of two pods are eight; an autoscaler without rules at most doubles.
    assert_eq!(replicas, Some(4));
    assert_eq!(
        (&status["currentReplicas"], &status["desiredReplicas"], &status["observedGeneration"]),
        (&json!(2), &json!(4), &json!(3))
    );
    assert_eq!(
        status["currentMetrics"],
        json!([{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 200, "averageValue": "200m"}}}])
    );
    assert_eq!(
        conditions(&status),
        [
            "AbleToScale True SucceededRescale",
            "ScalingActive True ValidMetricFound",
            "ScalingLimited True ScaleUpLimit",
            "ScaledToZero False NotScaledToZero"
        ]
    );
    assert!(status["lastScaleTime"].is_string());
}

/// Reconciles with these labels, and computations with these and the type of the metric.
fn measured(action: &str, error: &str, kind: &str) -> [f64; 2] {
    let name = "horizontal_pod_autoscaler_controller";
    let counts = [
        ("reconciliations_total", "reconciliation_duration_seconds", vec![action, error]),
        (
            "metric_computation_total",
            "metric_computation_duration_seconds",
            vec![action, error, kind],
        ),
    ];
    counts.map(|(total, duration, labels)| {
        let total = crate::metrics::read(&format!("{name}_{total}"), &labels);
        let duration = crate::metrics::read(&format!("{name}_{duration}"), &labels);
        assert!(total >= 1.0 && duration >= 1.0, "{labels:?}");
        total
    })
}

#[tokio::test]
async fn reconciles_are_measured_by_what_they_did() {
    look(world()).await;
    // The status does not have the current number of replicas yet.
    measured("scale_up", "none", "Resource");
    let api = world();
    api.served.lock().remove(METRICS);
    look(api).await;
    measured("none", "internal", "Resource");
    let mut api = world();
    let autoscaler = &mut api.objects[2];
    autoscaler["spec"]["scaleTargetRef"]["apiVersion"] = "a/b/c".into();
    look(api).await;
    let total = "horizontal_pod_autoscaler_controller_reconciliations_total";
    assert_eq!(crate::metrics::read(total, &["none", "spec"]), 1.0);
    let mut api = world();
    let autoscaler = &mut api.objects[2];
    autoscaler["spec"]["metrics"][0]["type"] = "OfThisTest".into();
    autoscaler["metadata"]["name"] = "web".into();
    autoscaler["status"] = json!({"desiredReplicas": 7, "currentReplicas": 2});
    look(api).await;
    measured("none", "internal", "Resource");
    let kind = ["none", "spec", "OfThisTest"];
    let total = "horizontal_pod_autoscaler_controller_metric_computation_total";
    assert_eq!(crate::metrics::read(total, &kind), 1.0);
    let name = "horizontal_pod_autoscaler_controller";
    // Every look of these tests counts one autoscaler.
    let number = format!("{name}_num_horizontal_pod_autoscalers");
    assert_eq!(crate::metrics::read(&number, &[]), 1.0);
}

#[tokio::test]
async fn without_figures_nothing_is_scaled() {
    let api = world();
    api.served.lock().remove(METRICS);
    let (replicas, status) = look(api).await;
    assert_eq!(replicas, None);
    assert_eq!(
        conditions(&status),
        ["AbleToScale True SucceededGetScale", "ScalingActive False FailedGetResourceMetric"]
    );
    assert_eq!(
        status["conditions"][1]["message"],
        "the HPA was unable to compute the replica count: failed to get cpu utilization: unable \
            to get metrics for resource cpu: unable to fetch metrics from resource metrics API: \
            the server could not find the requested resource (get pods.metrics.k8s.io)"
    );
}

#[tokio::test]
async fn nothing_is_done_about_what_is_scaled_to_zero() {
    let api = world();
    api.served.lock().insert(
        SCALE.to_owned(),
        json!({"spec": {"replicas": 0}, "status": {"replicas": 0, "selector": "app=web"}}),
    );
    let (replicas, status) = look(api).await;
    assert_eq!(replicas, None);
    assert_eq!(
        conditions(&status),
        ["AbleToScale True SucceededGetScale", "ScalingActive False ScalingDisabled"]
    );
}
