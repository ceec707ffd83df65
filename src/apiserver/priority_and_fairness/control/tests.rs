//! Tests of classification, waiting, and changes of the objects.

use super::*;
use crate::request::Query;
use api::schema::Schema;
use serde_json::{Value, json};

fn control(seats: usize) -> Arc<Control> {
    let tasks = Tasks::default();
    let objects = Objects::new(store::open_memory_with(&tasks), None, Schema::builtin(), &tasks);
    Control::new(seats, objects, tasks)
}

fn bootstrap() -> (Vec<Value>, Vec<Value>) {
    let objects = crate::bootstrap::flow_objects();
    objects.partition(|o| o["kind"] == "PriorityLevelConfiguration")
}

fn get(path: &'static str) -> FlowAttributes<'static> {
    FlowAttributes { verb: "get", path, ..FlowAttributes::default() }
}

fn of(verb: &'static str, group: &'static str, resource: &'static str) -> FlowAttributes<'static> {
    let attributes = FlowAttributes {
        is_resource: true,
        verb,
        group,
        version: "v1",
        resource,
        ..FlowAttributes::default()
    };
    FlowAttributes { namespace: "n", ..attributes }
}

fn class(control: &Control, attributes: &FlowAttributes<'_>, user: &User) -> (String, String) {
    let class = control.classifier.load().class_of(attributes, user);
    (class.spec.name.to_string(), class.level.name.to_string())
}

async fn enter(
    control: &Arc<Control>,
    attributes: FlowAttributes<'_>,
    user: &User,
) -> Result<Seat, Rejected> {
    let query = Query::default();
    let limit = Some(Duration::from_secs(8));
    let entering = Entering { attributes, user, query: &query, arrived: base::clock::now(), limit };
    control.enter(&entering).await
}

/// The classification of kube-apiserver 1.37 with its bootstrap objects.
#[tokio::test]
async fn requests_are_classified_as_upstream() {
    let control = control(600);
    let admin = User::authenticated("admin", &["system:masters"]);
    let ann = User::authenticated("ann", &[]);
    let pair = |schema: &str, level: &str| (schema.to_owned(), level.to_owned());
    // Without objects there are the two mandatory ones.
    assert_eq!(class(&control, &get("/api"), &admin), pair("exempt", "exempt"));
    assert_eq!(class(&control, &get("/api"), &ann), pair("catch-all", "catch-all"));
    let (levels, schemas) = bootstrap();
    control.digest(&levels, &schemas);
    let node = User::authenticated("system:node:a", &["system:nodes"]);
    let groups = ["system:serviceaccounts", "system:serviceaccounts:n"];
    let account = User::authenticated("system:serviceaccount:n:default", &groups);
    let controller = User::authenticated("system:serviceaccount:kube-system:x", &groups);
    let scheduler = User::authenticated("system:kube-scheduler", &[]);
    let manager = User::authenticated("system:kube-controller-manager", &[]);
    let lease = of("update", "coordination.k8s.io", "leases");
    let nodes = FlowAttributes { subresource: "status", namespace: "", ..of("patch", "", "nodes") };
    for (attributes, user, schema, level) in [
        (of("list", "", "pods"), &admin, "exempt", "exempt"),
        (get("/healthz"), &User::anonymous(), "probes", "exempt"),
        (get("/readyz/ping"), &ann, "probes", "exempt"),
        (get("/metrics"), &ann, "global-default", "global-default"),
        (lease, &scheduler, "system-leader-election", "leader-election"),
        (lease, &manager, "system-leader-election", "leader-election"),
        (lease, &controller, "system-leader-election", "leader-election"),
        (lease, &node, "system-node-high", "node-high"),
        (nodes, &node, "system-node-high", "node-high"),
        (of("list", "", "pods"), &node, "system-nodes", "system"),
        (of("list", "", "pods"), &manager, "kube-controller-manager", "workload-high"),
        (of("list", "", "pods"), &scheduler, "kube-scheduler", "workload-high"),
        (of("list", "", "pods"), &controller, "kube-system-service-accounts", "workload-high"),
        (of("list", "", "pods"), &account, "service-accounts", "workload-low"),
        (lease, &account, "service-accounts", "workload-low"),
        (of("list", "", "pods"), &ann, "global-default", "global-default"),
        (of("list", "", "pods"), &User::anonymous(), "global-default", "global-default"),
        // A user without groups.
        (of("list", "", "pods"), &User::default(), "catch-all", "catch-all"),
    ] {
        assert_eq!(
            class(&control, &attributes, user),
            pair(schema, level),
            "{attributes:?} {user:?}"
        );
    }
    let state = control.state.lock();
    let nominal: Vec<(&str, i64)> =
        state.levels.iter().map(|state| (&*state.level.name, state.limits.nominal)).collect();
    assert_eq!(
        nominal,
        [
            ("catch-all", 13),
            ("exempt", 0),
            ("global-default", 49),
            ("leader-election", 25),
            ("node-high", 98),
            ("system", 74),
            ("workload-high", 98),
            ("workload-low", 245),
        ]
    );
}

/// Nominal and current seats of an idle kube-apiserver 1.37.1 with 100 seats and a level of one
/// share that neither lends nor borrows.
#[tokio::test(start_paused = true)]
async fn seats_are_those_of_a_real_server() {
    let control = control(100);
    let (mut levels, schemas) = bootstrap();
    levels.extend(one_seat(json!({"type": "Reject"})).0);
    control.digest(&levels, &schemas);
    tokio::time::advance(Duration::from_secs(21)).await;
    control.tick(control.now());
    let state = control.state.lock();
    let seats: Vec<(&str, i64, i64)> = state
        .levels
        .iter()
        .map(|state| (&*state.level.name, state.limits.nominal, state.current))
        .collect();
    assert_eq!(
        seats,
        [
            ("catch-all", 3, 7),
            ("exempt", 0, 0),
            ("global-default", 9, 9),
            ("leader-election", 5, 11),
            ("narrow", 1, 1),
            ("node-high", 17, 30),
            ("system", 13, 21),
            ("workload-high", 17, 18),
            ("workload-low", 41, 9),
        ]
    );
    assert!((state.fair - 2.282_608_695_652_174).abs() < 1e-12, "{}", state.fair);
}

fn one_seat(response: Value) -> (Vec<Value>, Vec<Value>) {
    let level = json!({"metadata": {"name": "narrow", "uid": "level-uid"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": response}}});
    let schema = json!({"metadata": {"name": "narrow", "uid": "schema-uid"}, "spec": {"matchingPrecedence": 100,
        "priorityLevelConfiguration": {"name": "narrow"}, "distinguisherMethod": {"type": "ByUser"},
        "rules": [{"subjects": [{"kind": "Group", "group": {"name": "narrow"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    (vec![level], vec![schema])
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_seat_get_upstreams_response() {
    let control = control(5);
    let (levels, schemas) = one_seat(json!({"type": "Reject"}));
    control.digest(&levels, &schemas);
    let ann = User::authenticated("ann", &["narrow"]);
    let first = enter(&control, get("/x"), &ann).await.unwrap();
    assert_eq!(control.in_flight(), (1, 0));
    let rejected = enter(&control, get("/x"), &ann).await.unwrap_err();
    let response = rejected.response();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    assert_eq!(response.status(), 429);
    assert_eq!(header("retry-after"), Some("1"));
    assert_eq!(header("x-kubernetes-pf-flowschema-uid"), Some("schema-uid"));
    assert_eq!(header("x-kubernetes-pf-prioritylevel-uid"), Some("level-uid"));
    assert_eq!(header("content-type"), Some("text/plain; charset=utf-8"));
    let status = rejected.status();
    assert_eq!((status.code, &*status.message), (429, TOO_MANY_TEXT));
    // Other levels are not affected, and administrators are exempt.
    assert!(enter(&control, get("/x"), &User::authenticated("bob", &[])).await.is_ok());
    let admin = User::authenticated("admin", &["narrow", "system:masters"]);
    assert!(enter(&control, get("/x"), &admin).await.is_ok());
    drop(first);
    assert!(enter(&control, get("/x"), &ann).await.is_ok());
    let mut metrics = String::new();
    control.render(&mut metrics);
    for line in [
        "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"narrow\",priority_level=\"narrow\",reason=\"concurrency-limit\"} 1\n",
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"narrow\",priority_level=\"narrow\"} 2\n",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"narrow\"} 1\n",
        "apiserver_flowcontrol_request_wait_duration_seconds_count{execute=\"false\",flow_schema=\"narrow\",priority_level=\"narrow\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

const TOO_MANY_TEXT: &str = "Too many requests, please try again later.";

fn queues(length: u32) -> Value {
    json!({"type": "Queue", "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": length}})
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_gets_the_seat_or_times_out_after_a_quarter_of_its_limit() {
    let control = control(5);
    let (levels, schemas) = one_seat(queues(10));
    control.digest(&levels, &schemas);
    let ann = User::authenticated("ann", &["narrow"]);
    let first = enter(&control, get("/x"), &ann).await.unwrap();
    let began = base::clock::now();
    let rejected = enter(&control, get("/x"), &ann).await;
    assert!(rejected.is_err());
    assert_eq!(began.elapsed().as_millis(), 2000);
    let dump =
        control.dump("/debug/api_priority_and_fairness/dump_priority_levels", false).unwrap();
    let line = dump.lines().find(|line| line.starts_with("narrow,")).unwrap();
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    assert_eq!(cells, ["narrow", "0", "false", "false", "0", "1", "1", "1", "0", "1"]);
    let mut waiting = std::pin::pin!(enter(&control, get("/x"), &ann));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert_eq!(control.in_queue(), (1, 0));
    let dump = control.dump("/debug/api_priority_and_fairness/dump_requests", true).unwrap();
    let cells: Vec<&str> = dump.lines().nth(1).unwrap().split(',').map(str::trim).collect();
    assert_eq!((cells[1], cells[3], cells[4], cells[6]), ("narrow", "0", "ann", "1"));
    assert_eq!(cells[10..14], ["ann", "get", "/x", ""]);
    drop(first);
    let seat = waiting.await.unwrap();
    assert_eq!((control.in_queue(), control.in_flight()), ((0, 0), (1, 0)));
    // A disconnected client leaves the queue and releases its seat, if it has one already.
    for _ in 0..2 {
        let mut gone = Box::pin(enter(&control, get("/x"), &ann));
        assert!(futures::poll!(gone.as_mut()).is_pending());
        drop(gone);
    }
    let mut late = Box::pin(enter(&control, get("/x"), &ann));
    assert!(futures::poll!(late.as_mut()).is_pending());
    drop(seat);
    drop(late);
    assert_eq!((control.in_queue(), control.in_flight()), ((0, 0), (0, 0)));
    assert!(enter(&control, get("/x"), &ann).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_level_without_object_is_removed_after_its_last_request() {
    let control = control(5);
    let (levels, schemas) = one_seat(queues(10));
    control.digest(&levels, &schemas);
    let ann = User::authenticated("ann", &["narrow"]);
    let first = enter(&control, get("/x"), &ann).await.unwrap();
    control.digest(&[], &schemas);
    let names = || -> Vec<String> {
        control.state.lock().levels.iter().map(|state| state.level.name.to_string()).collect()
    };
    assert_eq!(names(), ["catch-all", "exempt", "narrow"]);
    // The level of the schema does not exist anymore, so the schema matches nothing.
    assert_eq!(class(&control, &get("/x"), &ann).0, "catch-all");
    drop(first);
    control.changed.notified().await;
    control.digest(&[], &schemas);
    assert_eq!(names(), ["catch-all", "exempt"]);
    assert!(control.state.lock().flows.keys().all(|(level, _)| &**level != "narrow"));
}

/// Two levels of 10 seats; one needs 15, the other none: after ten seconds it has borrowed seats.
#[tokio::test(start_paused = true)]
async fn a_level_borrows_seats_at_the_next_adjustment() {
    let control = control(20);
    let level = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 100,
            "lendablePercent": 50, "limitResponse": queues(50)}}})
    };
    let (_, mut schemas) = one_seat(queues(1));
    schemas[0]["spec"]["priorityLevelConfiguration"]["name"] = json!("a");
    control.digest(&[level("a"), level("b")], &schemas);
    let ann = User::authenticated("ann", &["narrow"]);
    let mut seats = Vec::new();
    let query = Query::default();
    let entering = Entering {
        attributes: get("/x"),
        user: &ann,
        query: &query,
        arrived: base::clock::now(),
        limit: None,
    };
    // 100 of 205 shares of 20 seats are ten, of which half are lendable.
    for _ in 0..7 {
        seats.push(control.enter(&entering).await.unwrap());
    }
    let began = base::clock::now();
    let mut more = Vec::new();
    for _ in 0..8 {
        let mut one = Box::pin(control.enter(&entering));
        match futures::poll!(one.as_mut()) {
            std::task::Poll::Ready(seat) => seats.push(seat.unwrap()),
            std::task::Poll::Pending => more.push(one),
        }
    }
    assert!(!more.is_empty());
    for one in more {
        seats.push(one.await.unwrap());
    }
    assert_eq!(seats.len(), 15);
    assert_eq!(began.elapsed().as_secs(), 10);
}

/// Measures the cost of a request that gets a seat at once: `cargo test --release -p apiserver
/// a_seat_costs -- --nocapture` prints it.
#[tokio::test]
async fn a_seat_costs_little() {
    let control = control(600);
    let (levels, schemas) = bootstrap();
    control.digest(&levels, &schemas);
    let groups = ["system:serviceaccounts", "system:serviceaccounts:n"];
    for user in [
        User::authenticated("admin", &["system:masters"]),
        User::authenticated("system:serviceaccount:n:default", &groups),
        User::authenticated("ann", &[]),
    ] {
        let began = base::clock::now();
        let rounds = 20_000_u32;
        for _ in 0..rounds {
            let attributes = FlowAttributes { name: "x", ..of("get", "", "configmaps") };
            drop(enter(&control, attributes, &user).await.unwrap());
        }
        let each = began.elapsed() / rounds;
        tracing::info!(user = user.name, ?each, "a seat");
        assert!(each < Duration::from_micros(500), "{each:?}");
    }
}
