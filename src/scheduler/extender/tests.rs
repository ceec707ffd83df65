//! Cycles with extenders whose answers are functions, beside upstream's `extender_test.go`,
//! `TestFindNodesThatPassExtenders`.

mod preemption;

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::json;

use super::protocol::prioritize_answer;
use super::*;
use crate::framework::{CycleState, PostFilterOutcome, Snapshot};
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::nodes::Nodes;
use crate::pod_info::PodInfo;
use crate::profile::Profile;
use crate::rejection::FitError;
use crate::resources::Resources;

/// Pods and nodes by name.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) pods: HashMap<String, Arc<Object>>,
    pub(super) nodes: HashMap<String, Arc<Object>>,
}

impl Listers for Objects {
    fn pod_object(&self, _: &str, name: &str) -> Option<Arc<Object>> {
        self.pods.get(name).cloned()
    }

    fn node_object(&self, name: &str) -> Option<Arc<Object>> {
        self.nodes.get(name).cloned()
    }
}

/// The extenders of a configuration.
pub(super) fn extenders(list: Value) -> Extenders {
    let file = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "extenders": list});
    crate::config::parse(file.to_string().as_bytes()).unwrap().extenders
}

fn pod(name: &str, priority: i32) -> Value {
    let requests = json!({"cpu": "600m"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"),
            "resourceVersion": "7"},
        "spec": {"priority": priority,
            "containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn info(pod: &Value) -> PodInfo {
    PodInfo::new(&serde_json::from_value(pod.clone()).unwrap())
}

fn object(value: Value) -> Arc<Object> {
    Arc::new(Object::from_value(value).unwrap())
}

type Answer = Result<Value, u16>;
type Answers = Box<dyn Fn(&str, &Value) -> Answer>;

/// Answers calls by `urlPrefix` and verb, and keeps them.
struct Fake {
    answers: Answers,
    calls: Mutex<Vec<(String, Value)>>,
}

impl CallExtenders for Fake {
    fn call(&self, calls: Vec<ExtenderCall<'_>>) -> Vec<Result<Bytes, ExtenderError>> {
        let answer = |call: ExtenderCall<'_>| {
            let url = call.extender.url(call.verb);
            let name = url.strip_prefix("http://").unwrap().to_owned();
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            let answer = (self.answers)(&name, &body);
            self.calls.lock().push((name, body));
            match answer {
                Ok(answer) => Ok(Bytes::from(answer.to_string())),
                Err(code) => Err(ExtenderError::Code { verb: call.verb.to_owned(), url, code }),
            }
        };
        calls.into_iter().map(answer).collect()
    }
}

/// Nodes of one CPU, and the calls of extenders for the pod `p`.
struct World {
    nodes: Nodes,
    objects: Objects,
    pod: Arc<PodInfo>,
    fake: Fake,
    extenders: Vec<Arc<Extender>>,
}

impl World {
    fn new(
        list: Value,
        nodes: &[&str],
        answers: impl Fn(&str, &Value) -> Answer + 'static,
    ) -> Self {
        let node = |name: &&str| {
            let allocatable =
                Resources { milli_cpu: 1000, memory: 1 << 30, pods: 110, ..Resources::default() };
            NodeInfo { name: (*name).into(), allocatable, ..NodeInfo::default() }
        };
        let mut objects = Objects::default();
        for name in nodes {
            let node = json!({"metadata": {"name": name, "uid": name}});
            objects.nodes.insert((*name).into(), object(node));
        }
        let value = pod("p", 100);
        objects.pods.insert("p".into(), object(value.clone()));
        let extenders = extenders(list).of_cycle(|| objects.pods.get("p").cloned());
        Self {
            nodes: nodes.iter().map(node).collect(),
            objects,
            pod: Arc::new(info(&value)),
            fake: Fake { answers: Box::new(answers), calls: Mutex::default() },
            extenders,
        }
    }

    /// Puts a pod on a node.
    fn assign(&mut self, name: &str, node: &str, priority: i32) {
        let pod = pod(name, priority);
        self.nodes.add_pod(node, Arc::new(info(&pod)));
        self.objects.pods.insert(name.into(), object(pod));
    }

    fn with<T>(&self, run: impl FnOnce(&CycleState<'_>) -> T) -> T {
        let cycle = PodExtenders { extenders: &self.extenders, calls: &self.fake };
        let profile = Profile::default();
        let snapshot = Snapshot {
            pod: &self.pod,
            nodes: &self.nodes,
            listers: &self.objects,
            args: &profile.args,
            random: &|_| 0,
            nominated: &[],
            extenders: Some(&cycle),
        };
        run(&CycleState::new(snapshot, &profile))
    }

    /// The name of the chosen node.
    fn schedule(&self) -> Result<String, FitError> {
        self.with(|state| {
            let feasible = crate::cycle::find(state, 0)?;
            let index = crate::cycle::best(state, &feasible, &mut |_, _| {});
            Ok(self.nodes.get(index).unwrap().name.clone())
        })
    }

    fn preempt(&self) -> (FitError, PostFilterOutcome) {
        self.with(|state| {
            let fit = crate::cycle::find(state, 0).unwrap_err();
            let outcome = state.post_filter(&fit);
            (fit, outcome)
        })
    }

    fn calls(&self, name: &str) -> Vec<Value> {
        let calls = self.fake.calls.lock();
        calls.iter().filter(|(called, _)| called == name).map(|(_, body)| body.clone()).collect()
    }
}

/// The names of the nodes of a call.
fn names(body: &Value) -> Vec<String> {
    let own = |value: &Value| value.as_str().unwrap().to_owned();
    match body["NodeNames"].as_array() {
        Some(names) => names.iter().map(own).collect(),
        None => {
            let items = body["Nodes"]["items"].as_array().unwrap();
            items.iter().map(|node| own(&node["metadata"]["name"])).collect()
        }
    }
}

/// The answer of a filter that lets nodes pass for which `passes` returns true.
fn filtered(body: &Value, passes: impl Fn(&str) -> bool) -> Answer {
    let passed: Vec<String> = names(body).into_iter().filter(|name| passes(name)).collect();
    let failed: HashMap<String, String> = names(body)
        .into_iter()
        .filter(|name| !passes(name))
        .map(|name| (name.clone(), format!("FakeExtender: node {name:?} failed")))
        .collect();
    Ok(match body["NodeNames"].is_null() {
        false => json!({"NodeNames": passed, "FailedNodes": failed}),
        true => {
            let items: Vec<Value> =
                passed.iter().map(|name| json!({"metadata": {"name": name}})).collect();
            json!({"Nodes": {"items": items}, "FailedNodes": failed})
        }
    })
}

/// The answer with the score 10 for one node and 1 for the others.
fn prefers(body: &Value, node: &str) -> Answer {
    let score = |name: &String| if name == node { 10 } else { 1 };
    Ok(names(body).iter().map(|name| json!({"Host": name, "Score": score(name)})).collect())
}

fn no_answer(name: &str, _: &Value) -> Answer {
    panic!("{name} was called")
}

/// Cases 1 to 10 of `TestSchedulerWithExtenders`, with names and with objects of nodes.
#[test]
fn nodes_are_filtered_by_one_extender_after_the_other_and_scored_by_all() {
    for capable in [true, false] {
        let run = |verbs: Value, answers: fn(&str, &Value) -> Answer| {
            let mut list = verbs;
            for (index, extender) in list.as_array_mut().unwrap().iter_mut().enumerate() {
                extender["urlPrefix"] = format!("http://e{}", index + 1).into();
                extender["nodeCacheCapable"] = capable.into();
            }
            let world = World::new(list, &["node1", "node2"], answers);
            world.schedule().map_err(|fit| fit.error.clone().unwrap_or_else(|| fit.message()))
        };
        let two = || json!([{"filterVerb": "f"}, {"filterVerb": "f"}]);
        let error = run(two(), |name, body| match name {
            "e1/f" => filtered(body, |_| true),
            _ => Err(500),
        });
        assert_eq!(error.unwrap_err(), "failed f with extender at URL http://e2/f, code 500");
        let none = run(two(), |name, body| filtered(body, |_| name == "e1/f"));
        assert_eq!(
            none.unwrap_err(),
            "0/2 nodes are available: 1 FakeExtender: node \"node1\" failed, 1 FakeExtender: node \
             \"node2\" failed."
        );
        let one = run(two(), |name, body| filtered(body, |node| name == "e1/f" || node == "node1"));
        assert_eq!(one.as_deref(), Ok("node1"));
        let apart = run(two(), |name, body| match name {
            "e1/f" => filtered(body, |node| node == "node2"),
            _ => filtered(body, |node| node == "node1"),
        });
        assert!(apart.is_err());
        let ignored = run(json!([{"filterVerb": "f", "ignorable": true}, {"filterVerb": "f"}]), {
            |name, body| match name {
                "e1/f" => Err(503),
                _ => filtered(body, |node| node == "node1"),
            }
        });
        assert_eq!(ignored.as_deref(), Ok("node1"));
        let scores = json!([{"prioritizeVerb": "p", "weight": 1},
            {"prioritizeVerb": "p", "weight": 5}]);
        let scored = run(scores, |name, body| match name {
            "e1/p" => prefers(body, "node1"),
            _ => prefers(body, "node2"),
        });
        assert_eq!(scored.as_deref(), Ok("node2"));
        let failing = run(json!([{"prioritizeVerb": "p", "weight": 1}]), |_, _| Err(500));
        assert_eq!(failing.as_deref(), Ok("node1"), "the plugins' scores decide");
        let managed = json!([{"filterVerb": "f", "prioritizeVerb": "p", "weight": 1,
            "managedResources": [{"name": "example.com/gpu"}]}]);
        assert_eq!(run(managed, no_answer).as_deref(), Ok("node1"), "it is not interested");
    }
}

/// Cases of `TestFindNodesThatPassExtenders`: a node that plugins rejected keeps its message, and
/// an unresolvable rejection takes precedence.
#[test]
fn rejections_of_extenders_are_resolvable_or_not() {
    let list = json!([{"urlPrefix": "http://e", "filterVerb": "f", "nodeCacheCapable": true}]);
    let mut world = World::new(list, &["a", "b", "c", "d"], |_, _| {
        Ok(json!({"NodeNames": [], "FailedNodes": {"a": "later", "b": "never mind", "x": "?"},
            "FailedAndUnresolvableNodes": {"b": "never"}}))
    });
    world.assign("other", "d", 200);
    let fit = world.schedule().unwrap_err();
    assert_eq!(fit.message(), "0/4 nodes are available: 1 Insufficient cpu, 1 later, 1 never.");
    assert_eq!(fit.plugins(), ["Extender", "NodeResourcesFit"]);
    let unresolvable: Vec<(usize, bool)> =
        fit.rejections.iter().map(|(index, r)| (*index, r.unresolvable)).collect();
    assert_eq!(unresolvable, [(3, false), (1, true), (0, false)]);
    assert_eq!(names(&world.calls("e/f")[0]), ["a", "b", "c"]);
}

#[test]
fn a_node_that_an_extender_leaves_out_has_no_message() {
    let list = json!([{"urlPrefix": "http://e", "filterVerb": "f"}]);
    let world = World::new(list, &["a", "b"], |_, _| Ok(json!({"Nodes": null})));
    let fit = world.schedule().unwrap_err();
    assert_eq!(fit.message(), "0/2 nodes are available:");
    assert_eq!(fit.plugins(), ["Extender"]);
    assert!(crate::plugins::queueing_hint(
        crate::rejection::EXTENDER,
        &crate::event::Event::StorageClass,
        &world.pod
    ));
}

#[test]
fn errors_of_answers_end_the_cycle_with_upstreams_texts() {
    let error = |answer: Value| {
        let list = json!([{"urlPrefix": "http://e/", "filterVerb": "f", "nodeCacheCapable": true}]);
        let world = World::new(list, &["a"], move |_, _| Ok(answer.clone()));
        world.schedule().unwrap_err().error.unwrap()
    };
    assert_eq!(error(json!({"Error": "out of order"})), "out of order");
    assert_eq!(error(json!({"error": "out of order"})), "out of order", "as Go's decoder");
    assert_eq!(
        error(json!({"NodeNames": ["b"]})),
        "extender \"http://e/\" claims a filtered node \"b\" which is not found in the input node \
         list"
    );
    let text = error(json!({"NodeNames": "a"}));
    assert!(text.starts_with("the answer of the extender at URL http://e/f cannot be read: "));
    assert!(error(json!([1])).contains("cannot be read"));
}

/// The pod with its resource version goes to the extender; nodes by name or as a list.
#[test]
fn calls_have_the_fields_of_the_protocol() {
    for capable in [true, false] {
        let list = json!([{"urlPrefix": "http://e", "filterVerb": "f", "prioritizeVerb": "p",
            "weight": 1, "nodeCacheCapable": capable}]);
        let world = World::new(list, &["a", "b"], |name, body| match name {
            "e/f" => filtered(body, |_| true),
            _ => prefers(body, "b"),
        });
        assert_eq!(world.schedule().unwrap(), "b");
        for name in ["e/f", "e/p"] {
            let body = &world.calls(name)[0];
            assert_eq!(body["Pod"], pod("p", 100));
            let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
            assert_eq!(fields, ["NodeNames", "Nodes", "Pod"]);
            assert_eq!(body["NodeNames"].is_null(), !capable);
            assert_eq!(body["Nodes"].is_null(), capable);
            assert_eq!(names(body), ["a", "b"]);
        }
    }
}

/// Case 7 of `TestSchedulerWithExtenders`: 20 * 100 points of a plugin against 10 * 10.
#[test]
fn scores_are_weighted_scaled_and_added() {
    let list = json!([
        {"urlPrefix": "http://e1", "prioritizeVerb": "p", "weight": 1, "nodeCacheCapable": true},
        {"urlPrefix": "http://e2", "prioritizeVerb": "p", "weight": 3, "nodeCacheCapable": true},
        {"urlPrefix": "http://e3", "prioritizeVerb": "p", "weight": 9, "nodeCacheCapable": true}]);
    let world = World::new(list, &["node1", "node2"], |name, _| match name {
        "e1/p" => Ok(json!([{"Host": "node1", "Score": 100}, {"host": "node2", "score": 10}])),
        "e2/p" => Ok(json!([{"Host": "node2", "Score": 1}, {"Host": "x", "Score": 10}])),
        _ => Err(500),
    });
    world.with(|state| {
        let nodes: Vec<&NodeInfo> = world.nodes.iter().collect();
        let mut scores = [200, 2000];
        state.snapshot.extenders.unwrap().prioritize(&state.snapshot, &nodes, &mut scores);
        assert_eq!(scores, [200 + 1000, 2000 + 100 + 30]);
    });
    let extender = &world.extenders[0];
    assert!(prioritize_answer(extender, b"[{\"Host\": \"a\", \"Score\": 1.5}]").is_err());
    assert_eq!(prioritize_answer(extender, b"null").unwrap(), []);
    assert!(prioritize_answer(extender, b"").unwrap_err().to_string().ends_with("unexpected EOF"));
}

#[test]
fn a_nominated_node_that_an_extender_rejects_is_not_chosen() {
    let list = json!([{"urlPrefix": "http://e", "filterVerb": "f", "nodeCacheCapable": true}]);
    let mut world = World::new(list, &["a", "b"], |_, body| filtered(body, |node| node == "b"));
    world.pod = Arc::new(PodInfo { nominated: "a".into(), ..(*world.pod).clone() });
    assert_eq!(world.schedule().unwrap(), "b");
    let asked: Vec<Vec<String>> = world.calls("e/f").iter().map(names).collect();
    assert_eq!(asked, [vec!["a"], vec!["a", "b"]]);
}

/// `TestIsInterested`.
#[test]
fn an_extender_gets_the_pods_with_its_resources() {
    let managed: BTreeSet<String> = ["memory".to_owned()].into();
    let is = |spec: Value| {
        let all = extenders(json!([{"urlPrefix": "http://e", "filterVerb": "f"}]));
        let extender = Extender { managed_resources: managed.clone(), ..(*all.0[0]).clone() };
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        extender.is_interested(|| Some(object(pod)))
    };
    let with = |kind: &str| json!([{"name": "c", "resources": {kind: {"memory": "0"}}}]);
    assert!(!is(json!({"containers": [{"name": "app"}]})));
    assert!(is(json!({"containers": with("requests")})));
    assert!(is(json!({"containers": with("limits")})));
    assert!(is(json!({"containers": [{"name": "app"}], "initContainers": with("requests")})));
    let all = extenders(json!([{"urlPrefix": "http://e", "bindVerb": "b"}]));
    assert!(all.0[0].is_interested(|| None), "without managed resources it gets all");
    assert!(all.of_cycle(|| None).is_empty(), "it only binds");
    assert_eq!(all.binders(|| None).count(), 1);
}

#[test]
fn extenders_that_may_be_ignored_come_last() {
    let all = extenders(json!([{"urlPrefix": "http://1", "ignorable": true},
        {"urlPrefix": "http://2"}, {"urlPrefix": "http://3", "ignorable": true},
        {"urlPrefix": "http://4"}]));
    let order: Vec<(usize, &str)> =
        all.0.iter().map(|extender| (extender.index, extender.url_prefix.as_str())).collect();
    assert_eq!(order, [(0, "http://2"), (1, "http://4"), (2, "http://1"), (3, "http://3")]);
}
