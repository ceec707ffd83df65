//! A Job's decisions over pods in every state.

use super::fields::{FAILURES, INDEX};
use super::*;
use crate::fake_api::Cluster;
use serde_json::Value;

fn job(spec: Value, status: Value) -> Job {
    let mut job =
        json!({"metadata": {"name": "j", "uid": "j"}, "spec": {"template": {}}, "status": status});
    if let (Some(to), Some(from)) = (job["spec"].as_object_mut(), spec.as_object()) {
        to.extend(from.clone());
    }
    serde_json::from_value(job).unwrap()
}

fn pod(name: &str, phase: &str, index: Option<i32>) -> Pod {
    let mut pod = json!({"metadata": {"name": name, "uid": name, "finalizers": [FINALIZER],
        "creationTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": phase}});
    if let Some(index) = index {
        pod["metadata"]["annotations"][INDEX] = index.to_string().into();
    }
    serde_json::from_value(pod).unwrap()
}

fn later() -> Timestamp {
    Timestamp::from_second(100_000).unwrap()
}

fn with_view<R>(job: &Job, pods: Vec<Pod>, test: impl FnOnce(&View<'_>) -> R) -> R {
    let status = job.status.clone().unwrap_or_default();
    let spec = job.spec.as_ref().unwrap();
    test(&View::new(job, spec, &status, pods, HashSet::new(), BackOff::default(), later()))
}

#[test]
fn as_many_pods_run_as_are_still_needed() {
    let j = job(json!({"completions": 3, "parallelism": 2}), json!({"succeeded": 1}));
    with_view(&j, vec![], |v| assert_eq!(v.next(true), (Next::Create(2), None)));
    with_view(&j, vec![pod("a", "Succeeded", None), pod("b", "Running", None)], |v| {
        assert_eq!((v.succeeded, v.next(true).0), (2, Next::Nothing));
    });
    let less = job(json!({"completions": 3, "parallelism": 1}), json!({}));
    with_view(&less, vec![pod("a", "Running", None), pod("b", "Pending", None)], |v| {
        assert_eq!(v.next(true).0, Next::Delete(vec![pod("b", "Pending", None)]));
        assert_eq!(v.next(false).0, Next::Nothing);
    });
}

#[test]
fn a_failed_pod_waits_out_the_back_off_and_ends_the_job_at_the_limit() {
    let j = job(json!({"completions": 1, "parallelism": 1, "backoffLimit": 1}), json!({}));
    let recent = Timestamp::from_second(4).unwrap();
    let status = JobStatus::default();
    let spec = j.spec.as_ref().unwrap();
    let one = View::new(
        &j,
        spec,
        &status,
        vec![pod("a", "Failed", None)],
        HashSet::new(),
        BackOff::default(),
        recent,
    );
    assert_eq!(one.next(true), (Next::Nothing, Some(6)));
    with_view(&j, vec![pod("a", "Failed", None), pod("b", "Failed", None)], |v| {
        let reason = v.finished.as_ref().unwrap();
        assert_eq!(
            (reason.type_.as_str(), reason.reason.as_deref()),
            ("FailureTarget", Some("BackoffLimitExceeded"))
        );
        assert_eq!(v.next(true).0, Next::End);
        let mut status = JobStatus::default();
        let accounted = tracking::track_finished(v, &mut status, v.finished.clone());
        assert_eq!(accounted.release.len(), 2);
        assert!(!tracking::finish(&mut status, &accounted));
        tracking::remove_counted(&mut status, &HashSet::new());
        assert_eq!(status.failed, Some(2));
        assert!(tracking::finish(&mut status, &accounted));
        let kinds: Vec<_> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["FailureTarget", "Failed"]);
    });
}

#[test]
fn indexes_are_filled_and_fail_one_by_one() {
    let spec = json!({"completionMode": "Indexed", "completions": 4, "parallelism": 4,
        "backoffLimitPerIndex": 0, "backoffLimit": 99});
    let j = job(spec, json!({"completedIndexes": "0", "succeeded": 1}));
    let pods = vec![pod("b", "Running", Some(1)), pod("c", "Failed", Some(2))];
    with_view(&j, pods, |v| {
        assert_eq!(v.next(true).0, Next::CreateIndexes(vec![(3, (0, 0))]));
        let mut status = JobStatus::default();
        let accounted = tracking::track_finished(v, &mut status, None);
        assert_eq!(accounted.release.len(), 1);
        assert_eq!(
            (status.failed_indexes.as_deref(), status.completed_indexes.as_deref()),
            (Some("2"), Some("0"))
        );
    });
    let over = vec![
        pod("b", "Succeeded", Some(1)),
        pod("c", "Failed", Some(2)),
        pod("d", "Succeeded", Some(3)),
    ];
    with_view(&j, over, |v| {
        assert_eq!(v.finished.as_ref().unwrap().reason.as_deref(), Some("FailedIndexes"));
    });
    let twice = vec![
        pod("x", "Pending", Some(1)),
        pod("y", "Running", Some(1)),
        pod("z", "Running", Some(2)),
        pod("w", "Running", Some(3)),
    ];
    with_view(&j, twice, |v| {
        assert_eq!(v.next(true).0, Next::Delete(vec![pod("x", "Pending", Some(1))]))
    });
}

#[test]
fn a_suspended_job_has_no_pods_and_a_late_one_is_ended() {
    let j = job(json!({"completions": 1, "suspend": true}), json!({}));
    with_view(&j, vec![pod("a", "Running", None)], |v| {
        assert_eq!(v.next(true).0, Next::Delete(vec![pod("a", "Running", None)]));
    });
    let late = job(
        json!({"completions": 1, "activeDeadlineSeconds": 10}),
        json!({"startTime": "1970-01-01T00:00:00Z"}),
    );
    with_view(&late, vec![pod("a", "Running", None)], |v| {
        assert_eq!(v.finished.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    });
}

#[test]
fn pods_of_an_index_know_it() {
    let j = job(
        json!({"backoffLimitPerIndex": 1, "template": {"spec": {"containers": [{"name": "c"}]}}}),
        json!({}),
    );
    let pod = new_pod(&j, j.spec.as_ref().unwrap(), Some((7, (1, 0))));
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("j-7"));
    assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, "JOB_COMPLETION_INDEX");
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("j-7-"));
    assert_eq!(pod.metadata.annotations.as_ref().unwrap()[FAILURES], "1");
    assert!(fields::is_tracked(&pod));
}

fn stored(name: &str, spec: Value) -> Value {
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"completions": 1, "parallelism": 1, "backoffLimit": 6,
            "selector": {"matchLabels": {"job": name}},
            "template": {"metadata": {"labels": {"job": name}}}}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        job["spec"][field] = value.clone();
    }
    job
}

/// The writes of Jobs and pods since the last time, and those of a status that changed nothing.
async fn writes(cluster: &Cluster, statuses: &mut Vec<Value>) -> (Vec<String>, usize) {
    let requests = cluster.requests().await;
    let written = cluster.statuses("jobs");
    let mut useless = 0;
    for status in written {
        useless += usize::from(statuses.last() == Some(&status));
        statuses.push(status);
    }
    (requests, useless)
}

#[tokio::test(start_paused = true)]
async fn each_write_of_a_status_changes_it() {
    let cluster = Cluster::new(&[stored("of-writes", json!({}))]);
    start(&cluster.context());
    let mut statuses = Vec::new();
    assert_eq!(
        writes(&cluster, &mut statuses).await,
        (vec!["POST pods".to_owned(), "PUT jobs/status".to_owned()], 0)
    );
    let name = cluster.list("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let pod = format!("n/{name}");
    // The scheduler and the kubelet change the pod, which changes nothing of the Job.
    cluster.edit("pods", &pod, |pod| pod["spec"]["nodeName"] = "a".into());
    cluster.edit("pods", &pod, |pod| pod["status"]["phase"] = "Pending".into());
    assert_eq!(writes(&cluster, &mut statuses).await, (Vec::new(), 0));
    let tracked = |event: &str| {
        let name = "job_controller_terminated_pods_tracking_finalizer_total";
        crate::metrics::read(name, &[event])
    };
    let before = (tracked("add"), tracked("delete"));
    cluster.edit("pods", &pod, |pod| pod["status"]["phase"] = "Succeeded".into());
    let end = ["PUT jobs/status", "PATCH pods", "PUT jobs/status"].map(str::to_owned).to_vec();
    assert_eq!(writes(&cluster, &mut statuses).await, (end, 0));
    assert_eq!(statuses.len(), 3);
    assert!(tracked("add") > before.0 && tracked("delete") > before.1);
    let conditions = statuses[2]["conditions"].as_array().unwrap();
    let kinds: Vec<_> = conditions.iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["SuccessCriteriaMet", "Complete"]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn created_pods_rules_and_other_controllers_are_counted() {
    let created = |reason: &str, status: &str| {
        crate::metrics::read("job_controller_job_pods_creation_total", &[reason, status])
    };
    let policy = json!({"podFailurePolicy": {"rules": [{"action": "Ignore",
        "onPodConditions": [{"type": "OfThisTest", "status": "True"}]}]},
        "podReplacementPolicy": "Failed"});
    let (failed, new) = (created("new", "failed"), created("new", "succeeded"));
    let external = json!({"managedBy": "example.com/of-this-test"});
    let cluster = Cluster::new(&[stored("of-policy", policy), stored("external", external)]);
    cluster.fail("POST pods", 500);
    start(&cluster.context());
    cluster.requests().await;
    assert!(created("new", "failed") > failed && created("new", "succeeded") > new);
    let name = "job_controller_jobs_by_external_controller_total";
    assert_eq!(crate::metrics::read(name, &["example.com/of-this-test"]), 1.0);
    let name = cluster.list("pods")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let action = || {
        let name = "job_controller_pod_failures_handled_by_failure_policy_total";
        crate::metrics::read(name, &["Ignore"])
    };
    let before = action();
    cluster.edit("pods", &format!("n/{name}"), |pod| {
        pod["status"] = json!({"phase": "Failed",
            "conditions": [{"type": "OfThisTest", "status": "True"}]});
    });
    cluster.requests().await;
    assert!(action() > before);
    cluster.stop().await;
}

#[tokio::test]
async fn a_sync_with_an_old_status_is_skipped_and_counted() {
    let cluster = Cluster::new(&[stored("of-skips", json!({}))]);
    let controller = Controller {
        control: PodControl { client: cluster.client.clone(), recorder: cluster.recorder.clone() },
        jobs: cluster.informers.of(),
        pods: cluster.informers.of(),
        expectations: Arc::default(),
        states: Arc::default(),
    };
    controller.jobs.synced().await;
    controller.pods.synced().await;
    let skips =
        || crate::metrics::read("job_controller_stale_sync_skips_total", &["batch", "jobs"]);
    let before = skips();
    controller.remember("n/of-skips", |state| state.written = 100);
    assert_eq!(controller.reconcile("n", "of-skips").await.unwrap(), Action::Done);
    assert!(skips() > before);
    assert!(cluster.requests().await.is_empty());
    cluster.stop().await;
}
