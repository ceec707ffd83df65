//! Cycles and bindings with extenders that are servers in this process.

use std::convert::Infallible;
use std::net::SocketAddr;

use base::{Kind, Shutdown, Tasks, clock};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;

use super::tests::{Objects, extenders};
use super::*;
use crate::pod_info::PodInfo;
use crate::state::{CycleResult, NextCycle, State};

/// An extender on the loopback address, and the calls that it got.
struct Server {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    connections: Arc<Mutex<usize>>,
    tasks: Tasks,
}

/// The answer to a path: the code and the body; `None` never answers.
type Answer = fn(&str, &Value) -> Option<(u16, String)>;

impl Server {
    async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            calls: Arc::default(),
            connections: Arc::default(),
            tasks: Tasks::new(Shutdown::new()),
        };
        let (calls, tasks) = (Arc::clone(&server.calls), server.tasks.clone());
        let connections = Arc::clone(&server.connections);
        server.tasks.spawn(Kind::Request, "extender", async move {
            while let Ok((io, _)) = listener.accept().await {
                *connections.lock() += 1;
                let calls = Arc::clone(&calls);
                tasks.spawn(Kind::Request, "extender-connection", async move {
                    let service = service_fn(|request: Request<Incoming>| async {
                        assert_eq!(request.method(), "POST");
                        assert_eq!(request.headers()["content-type"], "application/json");
                        let path = request.uri().to_string();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let answered = answer(&path, &body);
                        calls.lock().push((path, body));
                        let Some((code, body)) = answered else {
                            return std::future::pending().await;
                        };
                        let mut response = Response::new(Full::new(Bytes::from(body)));
                        *response.status_mut() = code.try_into().unwrap();
                        Ok::<_, Infallible>(response)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(io), service)
                        .await;
                    Ok::<(), Infallible>(())
                });
            }
            Ok::<(), Infallible>(())
        });
        server
    }

    /// An extender of the configuration at this server.
    fn extender(&self, more: Value) -> Value {
        let mut extender = more;
        extender["urlPrefix"] = format!("http://{}/scheduler/", self.address).into();
        extender
    }
}

/// A cluster of nodes of one CPU with one pod that waits.
struct World {
    state: State,
    clients: ExtenderClients,
    objects: Arc<Objects>,
}

impl World {
    fn new(list: Value, nodes: &[&str], tasks: &Tasks) -> Self {
        let extenders = extenders(list);
        let configuration = crate::config::Configuration {
            extenders: extenders.clone(),
            ..crate::config::Configuration::default()
        };
        let mut state = State::new(&configuration, Arc::default());
        let mut objects = Objects::default();
        for name in nodes {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "110"}}});
            state.set_node(&serde_json::from_value(node.clone()).unwrap(), clock::now());
            objects.nodes.insert((*name).into(), Arc::new(Object::from_value(node).unwrap()));
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]}});
        let info = PodInfo::new(&serde_json::from_value(pod.clone()).unwrap());
        state.set_pod(info, false, clock::now());
        objects.pods.insert("p".into(), Arc::new(Object::from_value(pod).unwrap()));
        Self { state, clients: ExtenderClients::new(&extenders, tasks), objects: objects.into() }
    }

    async fn cycle(&mut self) -> CycleResult {
        let cycle = match self.state.next_cycle(&*self.objects, clock::now(), &|_| 0) {
            NextCycle::Done(result) => return result,
            NextCycle::Detached(cycle) => cycle,
        };
        let (objects, clients) = (Arc::clone(&self.objects), self.clients.clone());
        let pod = Arc::clone(cycle.pod());
        let decision = base::tasks::blocking(move || cycle.run(&*objects, &|_| 0, &clients));
        let decision = decision.await.unwrap();
        self.state.finish_cycle(pod, decision, clock::now())
    }
}

fn names(body: &Value) -> Vec<&str> {
    body["NodeNames"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_extender_filters_scores_and_binds_over_one_connection() {
    let server = Server::start(|path, body| {
        Some((
            200,
            match path {
                "/scheduler/filter" => {
                    let passed: Vec<&str> = names(body).into_iter().filter(|n| *n != "a").collect();
                    json!({"NodeNames": passed, "FailedNodes": {"a": "too hot"}}).to_string()
                }
                "/scheduler/prioritize" => json!([{"Host": "c", "Score": 10}]).to_string(),
                "/scheduler/bind" => json!({"Error": ""}).to_string(),
                other => panic!("{other}"),
            },
        ))
    })
    .await;
    let extender = server.extender(json!({"filterVerb": "filter", "prioritizeVerb": "prioritize",
        "weight": 5, "bindVerb": "bind", "nodeCacheCapable": true}));
    let mut world = World::new(json!([extender]), &["a", "b", "c"], &server.tasks);
    let CycleResult::Bind(_, pod, node, _) = world.cycle().await else { panic!("it fits") };
    assert_eq!(node, "c");
    let clients = &world.clients;
    let binder = clients.extenders().binders(|| None).next().unwrap();
    clients.bind(binder, &pod, &node).await.unwrap();
    let calls = server.calls.lock();
    let paths: Vec<&str> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/scheduler/filter", "/scheduler/prioritize", "/scheduler/bind"]);
    assert_eq!(
        calls[2].1,
        json!({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "c"})
    );
    assert_eq!(*server.connections.lock(), 1);
}

#[tokio::test]
async fn whole_nodes_go_to_an_extender_without_nodes_of_its_own() {
    let server = Server::start(|_, body| {
        let items = body["Nodes"]["items"].as_array().unwrap();
        let big = items.iter().filter(|node| node["status"]["allocatable"]["cpu"] == "1");
        Some((200, json!({"nodes": {"items": big.collect::<Vec<_>>()}}).to_string()))
    })
    .await;
    let extender = server.extender(json!({"filterVerb": "filter"}));
    let mut world = World::new(json!([extender]), &["a"], &server.tasks);
    assert!(matches!(world.cycle().await, CycleResult::Bind(_, _, node, _) if node == "a"));
}

#[tokio::test]
async fn failures_of_an_extender_have_upstreams_texts() {
    async fn failure(answer: Answer, more: Value) -> String {
        let server = Server::start(answer).await;
        let mut extender = more;
        extender["filterVerb"] = "filter".into();
        let extender = server.extender(extender);
        let mut world = World::new(json!([extender]), &["a", "b"], &server.tasks);
        match world.cycle().await {
            CycleResult::Failed(_, _, text) => text.replace(&server.address.to_string(), "ADDRESS"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        failure(|_, _| Some((404, "no".into())), json!({})).await,
        "failed filter with extender at URL http://ADDRESS/scheduler/filter, code 404"
    );
    assert_eq!(
        failure(|_, _| None, json!({"httpTimeout": "50ms"})).await,
        "Post \"http://ADDRESS/scheduler/filter\": context deadline exceeded (Client.Timeout \
         exceeded while awaiting headers)"
    );
    let long = failure(|_, _| Some((200, " ".repeat(2 << 20))), json!({})).await;
    let head = "the answer of the extender at URL http://ADDRESS/scheduler/filter ends early or has \
                more than ";
    assert!(long.starts_with(head), "{long}");
}

#[tokio::test]
async fn an_extender_that_is_away_fails_the_cycle_unless_it_may_be_ignored() {
    let tasks = Tasks::new(Shutdown::new());
    let extender = json!({"urlPrefix": "http://127.0.0.1:1", "filterVerb": "filter"});
    let mut world = World::new(json!([extender.clone()]), &["a"], &tasks);
    let CycleResult::Failed(_, _, text) = world.cycle().await else { panic!("it is away") };
    assert_eq!(
        text,
        "Post \"http://127.0.0.1:1/filter\": dial tcp 127.0.0.1:1: connect: connection refused"
    );
    let mut extender = extender;
    extender["ignorable"] = true.into();
    let mut world = World::new(json!([extender.clone()]), &["a"], &tasks);
    assert!(matches!(world.cycle().await, CycleResult::Bind(..)));
    tasks.shutdown().request();
    extender["ignorable"] = false.into();
    let mut world = World::new(json!([extender]), &["a"], &tasks);
    assert!(matches!(world.cycle().await, CycleResult::Failed(..)));
}

#[tokio::test]
async fn a_binding_that_the_extender_refuses_is_its_error() {
    let server = Server::start(|_, _| Some((200, json!({"Error": "no device"}).to_string()))).await;
    let extender = server.extender(json!({"bindVerb": "bind"}));
    let mut world = World::new(json!([extender]), &["a"], &server.tasks);
    let CycleResult::Bind(_, pod, node, _) = world.cycle().await else { panic!("it fits") };
    assert!(server.calls.lock().is_empty(), "it takes no part in the cycle");
    let binder = world.clients.extenders().binders(|| None).next().unwrap();
    let error = world.clients.bind(binder, &pod, &node).await.unwrap_err();
    assert_eq!(error.to_string(), "no device");
}

/// The server of the test has a certificate for another name than its address.
#[tokio::test]
async fn certificates_are_verified_against_the_ca_and_the_server_name() {
    let hook = webhook::testing::hook(|_, body| {
        let answer = json!({"NodeNames": body["NodeNames"]});
        webhook::testing::body(200, "application/json", answer.to_string())
    })
    .await;
    let cycle = async |tls: Value, enable: bool| {
        let extender = json!({"urlPrefix": format!("https://{}", hook.address), "tlsConfig": tls,
            "filterVerb": "f", "nodeCacheCapable": true, "enableHTTPS": enable});
        let mut world = World::new(json!([extender]), &["a"], &hook.tasks);
        match world.cycle().await {
            CycleResult::Bind(..) => Ok(()),
            CycleResult::Failed(_, _, text) => Err(text),
            other => panic!("{other:?}"),
        }
    };
    let ca = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        hook.ca.cert_pem().as_bytes(),
    );
    assert_eq!(cycle(json!({"caData": ca, "serverName": "s.n.svc"}), true).await, Ok(()));
    let other = cycle(json!({"caData": ca}), false).await.unwrap_err();
    assert!(other.contains("x509") || other.contains("tls"), "{other}");
    assert!(cycle(json!({"serverName": "s.n.svc"}), false).await.is_err(), "an unknown CA");
    assert_eq!(cycle(json!({"insecure": true}), false).await, Ok(()));
    assert_eq!(cycle(json!(null), true).await, Ok(()), "as upstream: enableHTTPS without a CA");
}
