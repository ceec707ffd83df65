//! Claims are written to a server in memory; the cases are those of upstream's `TestPlugin`.

use std::collections::BTreeMap;

use api::Status;
use async_trait::async_trait;
use base::Tasks;
use bytes::Bytes;
use client::{Scope, Transport, WatchStream};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::devices::binding::ClaimToBind;
use crate::profile::DEFAULT_SCHEDULER;

const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";

/// Claims by path, and what else was written.
#[derive(Debug, Default)]
struct FakeApi {
    claims: Mutex<BTreeMap<String, Value>>,
    others: Mutex<Vec<(String, Value)>>,
    /// Number of writes that will conflict.
    conflicts: Mutex<usize>,
}

fn failure(status: &Status) -> Response<Bytes> {
    let mut answer = Response::new(serde_json::to_vec(status).unwrap().into());
    *answer.status_mut() = StatusCode::from_u16(status.code).unwrap();
    answer
}

impl FakeApi {
    fn write(&self, path: &str, mut new: Value) -> Response<Bytes> {
        let (path, is_status) = match path.strip_suffix("/status") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let mut conflicts = self.conflicts.lock();
        if *conflicts > 0 {
            *conflicts -= 1;
            let (group, resource) = ("resource.k8s.io", "resourceclaims");
            return failure(&Status::conflict(group, resource, "c", "changed"));
        }
        let mut claims = self.claims.lock();
        let old = claims.get(path).cloned().unwrap_or_default();
        let version = new["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        new["metadata"]["resourceVersion"] =
            (version.parse::<u64>().unwrap() + 1).to_string().into();
        if !is_status {
            new["status"] = old["status"].clone();
        }
        claims.insert(path.to_owned(), new.clone());
        Response::new(new.to_string().into())
    }
}

#[async_trait]
impl Transport for FakeApi {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let path = request.uri().path().to_owned();
        let body = serde_json::from_slice::<Value>(request.body()).unwrap_or_default();
        let missing = || failure(&Status::not_found("resource.k8s.io", "resourceclaims", "c"));
        Ok(match *request.method() {
            Method::GET => match self.claims.lock().get(&path) {
                Some(claim) => Response::new(claim.to_string().into()),
                None => missing(),
            },
            Method::PUT => self.write(&path, body),
            Method::POST if path == CLAIMS => {
                let mut claim = body;
                claim["metadata"]["name"] = "p-extended-resources-abc".into();
                claim["metadata"]["uid"] = "created".into();
                self.write(&format!("{CLAIMS}/p-extended-resources-abc"), claim)
            }
            Method::DELETE => match self.claims.lock().remove(&path) {
                Some(claim) => Response::new(claim.to_string().into()),
                None => missing(),
            },
            _ => {
                self.others.lock().push((path, body));
                Response::new(Bytes::from_static(b"{\"metadata\": {}}"))
            }
        })
    }

    async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        Err(Error::Transport("no watches".into()))
    }
}

struct World {
    api: Arc<FakeApi>,
    writer: ClaimWriter,
    pod: PodInfo,
    changes: Arc<Mutex<usize>>,
}

fn world(claims: &[Value]) -> World {
    let api = Arc::new(FakeApi::default());
    let devices = Arc::<Devices>::default();
    for claim in claims {
        let name = claim["metadata"]["name"].as_str().unwrap();
        api.claims.lock().insert(format!("{CLAIMS}/{name}"), claim.clone());
        devices.observe_claim(serde_json::from_value(claim.clone()).unwrap());
    }
    let client = Client::new(Arc::new(Arc::clone(&api)), "test");
    let tasks = Tasks::new(base::Shutdown::new());
    let changes = Arc::new(Mutex::new(0));
    let count = Arc::clone(&changes);
    let writer = ClaimWriter {
        recorder: EventRecorder::new(client.clone(), DEFAULT_SCHEDULER, "", &tasks),
        client,
        devices,
        on_change: Arc::new(move |_, _| *count.lock() += 1),
    };
    let pod = PodInfo {
        namespace: "default".into(),
        name: "p".into(),
        uid: "u".into(),
        ..PodInfo::default()
    };
    World { api, writer, pod, changes }
}

fn claim() -> Value {
    json!({"metadata": {"namespace": "default", "name": "c", "uid": "cu", "resourceVersion": "1"},
        "spec": {}, "status": {}})
}

fn chosen(conditions: Value) -> Value {
    json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x",
        "bindingConditions": conditions, "bindingFailureConditions": ["Failed"]}]}})
}

fn with_allocation(mut claim: Value) -> Value {
    claim["status"]["allocation"] = chosen(Value::Null);
    claim
}

impl World {
    /// The writes for a claim, with an allocation unless it is null.
    fn writes(&self, claim: &Value, allocation: Value) -> Vec<PreBind> {
        let claim: Arc<ResourceClaim> = Arc::new(serde_json::from_value(claim.clone()).unwrap());
        let allocation: Option<AllocationResult> = serde_json::from_value(allocation).unwrap();
        if let Some(allocation) = &allocation {
            self.writer.devices.signal_allocation(&claim, allocation, false).unwrap();
        }
        let claims = vec![ClaimToBind { claim, allocation }];
        vec![PreBind::BindClaims(Arc::new(ClaimsToBind { claims, extended: None }))]
    }

    async fn bind(&self, reserved: &mut ReservedClaims) -> Result<(), String> {
        let bound = self.writer.bind(&self.pod, "node", reserved).await;
        bound.map_err(|error| error.to_string())
    }

    fn stored(&self, name: &str) -> Option<ResourceClaim> {
        let claims = self.api.claims.lock();
        let claim = claims.get(&format!("{CLAIMS}/{name}"))?;
        Some(serde_json::from_value(claim.clone()).unwrap())
    }
}

#[tokio::test]
async fn a_claim_is_allocated_and_reserved_and_taken_back_if_the_pod_is_not_bound() {
    let world = world(&[claim()]);
    let mut reserved = ReservedClaims::new(&world.writes(&claim(), chosen(Value::Null)));
    assert!(world.writer.devices.is_in_flight("cu"));
    world.bind(&mut reserved).await.unwrap();
    let stored = world.stored("c").unwrap();
    assert_eq!(stored.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
    assert!(is_reserved_for(&stored, "u"));
    assert!(allocation(&stored).unwrap().allocation_timestamp.is_some());
    assert!(!world.writer.devices.is_in_flight("cu"));
    let assumed = world.writer.devices.claim(&ClaimName::of(&stored)).unwrap();
    assert!(allocation(&assumed).is_some(), "known before the informer has it");
    assert_eq!(*world.changes.lock(), 1);
    world.writer.unreserve(&world.pod, &reserved).await;
    let (path, patch) = world.api.others.lock().pop().unwrap();
    assert_eq!(path, format!("{CLAIMS}/c/status"));
    assert_eq!(
        patch,
        json!({"metadata": {"uid": "cu"},
            "status": {"reservedFor": [{"$patch": "delete", "uid": "u"}]}})
    );
}

#[tokio::test]
async fn an_allocated_claim_is_only_reserved_and_a_reserved_one_is_not_written() {
    let world = world(&[with_allocation(claim())]);
    let mut reserved = ReservedClaims::new(&world.writes(&with_allocation(claim()), Value::Null));
    world.bind(&mut reserved).await.unwrap();
    let stored = world.stored("c").unwrap();
    assert!(is_reserved_for(&stored, "u"));
    assert_eq!(stored.metadata.finalizers, None);
    let version = stored.metadata.resource_version.clone();
    world.bind(&mut reserved).await.unwrap();
    assert_eq!(world.stored("c").unwrap().metadata.resource_version, version);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_tried_again_with_the_new_version() {
    let world = world(&[claim()]);
    let mut reserved = ReservedClaims::new(&world.writes(&claim(), chosen(Value::Null)));
    *world.api.conflicts.lock() = 4;
    world.bind(&mut reserved).await.unwrap();
    assert_eq!(*world.api.conflicts.lock(), 0);
    assert!(is_reserved_for(&world.stored("c").unwrap(), "u"));
    world.api.claims.lock().clear();
    *world.api.conflicts.lock() = 1;
    let mut reserved = ReservedClaims::new(&world.writes(&with_allocation(claim()), Value::Null));
    let error = world.bind(&mut reserved).await.unwrap_err();
    assert!(error.starts_with("get updated claim default/c after conflict: "), "{error}");
}

#[tokio::test]
async fn claims_that_changed_in_the_meantime_are_errors() {
    let mut deleted = claim();
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    for (claim, allocation, expected) in [
        (deleted, chosen(Value::Null), "claim default/c got deleted in the meantime"),
        (claim(), Value::Null, "claim default/c got deallocated elsewhere in the meantime"),
    ] {
        let world = world(std::slice::from_ref(&claim));
        let mut reserved = ReservedClaims::new(&world.writes(&claim, allocation));
        assert_eq!(world.bind(&mut reserved).await.unwrap_err(), expected);
    }
    let world = world(&[claim()]);
    let mut reserved = ReservedClaims::new(&world.writes(&claim(), chosen(Value::Null)));
    for reserved in &mut reserved.claims {
        reserved.claim.status.get_or_insert_default().allocation =
            Some(AllocationResult::default());
    }
    assert_eq!(
        world.bind(&mut reserved).await.unwrap_err(),
        "claim default/c got allocated elsewhere in the meantime"
    );
    world.writer.unreserve(&world.pod, &reserved).await;
    assert!(!world.writer.devices.is_in_flight("cu"));
}

#[tokio::test(start_paused = true)]
async fn the_pod_waits_until_its_devices_are_ready() {
    let condition = |name: &str| {
        json!([{"driver": "d", "pool": "p", "device": "x", "conditions": [
            {"type": name, "status": "True", "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]}])
    };
    for (name, expected) in [
        ("Ready", Ok(())),
        ("Failed", Err("device binding failed: claim=c, reason=R, message=\"m\"")),
        ("", Err("device binding timeout: context deadline exceeded")),
    ] {
        let world = world(&[claim()]);
        let mut reserved = ReservedClaims::new(&world.writes(&claim(), chosen(json!(["Ready"]))));
        let driver = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if !name.is_empty() {
                let mut newer = world.stored("c").unwrap();
                newer.metadata.resource_version = Some("9".into());
                newer.status.get_or_insert_default().devices =
                    serde_json::from_value(condition(name)).unwrap();
                world.writer.devices.observe_claim(newer);
            }
        };
        let (bound, ()) = tokio::join!(world.bind(&mut reserved), driver);
        assert_eq!(bound, expected.map_err(str::to_owned), "{name}");
        assert_eq!(world.writer.devices.is_in_flight("cu"), expected.is_err());
    }
}

#[tokio::test]
async fn the_claim_for_extended_resources_is_created_and_deleted_if_the_pod_is_not_bound() {
    let world = world(&[]);
    let in_memory: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": "<extended-resources>", "uid": "temporary",
            "generateName": "p-extended-resources-"},
        "spec": {"devices": {"requests": []}},
    }))
    .unwrap();
    let allocation: AllocationResult = serde_json::from_value(chosen(Value::Null)).unwrap();
    world.writer.devices.signal_allocation(&in_memory, &allocation, true).unwrap();
    let mapping = json!([{"containerName": "c", "resourceName": "example.com/gpu",
        "requestName": "container-0-request-0"}]);
    let extended = ExtendedClaim {
        claim: Arc::new(in_memory),
        mappings: serde_json::from_value(mapping.clone()).unwrap(),
    };
    let bind = ClaimsToBind { claims: Vec::new(), extended: Some((extended, allocation)) };
    let mut reserved = ReservedClaims::of(&bind);
    let informer = async {
        while world.stored("p-extended-resources-abc").is_none() {
            tokio::task::yield_now().await;
        }
        world.writer.devices.observe_claim(world.stored("p-extended-resources-abc").unwrap());
    };
    let (bound, ()) = tokio::join!(world.bind(&mut reserved), informer);
    bound.unwrap();
    let stored = world.stored("p-extended-resources-abc").unwrap();
    assert!(is_reserved_for(&stored, "u"));
    assert!(crate::devices::allocated::allocation(&stored).is_some());
    let (path, patch) = world.api.others.lock().pop().unwrap();
    assert_eq!(path, "/api/v1/namespaces/default/pods/p/status");
    assert_eq!(
        patch["status"]["extendedResourceClaimStatus"],
        json!({"requestMappings": mapping, "resourceClaimName": "p-extended-resources-abc"})
    );
    assert!(!world.writer.devices.is_in_flight("temporary"));
    world.writer.unreserve(&world.pod, &reserved).await;
    assert!(world.stored("p-extended-resources-abc").is_none());
}

#[tokio::test]
async fn a_released_claim_loses_its_allocation_or_is_deleted() {
    let mut allocated = with_allocation(claim());
    allocated["metadata"]["finalizers"] = json!([FINALIZER]);
    let world = world(&[allocated.clone()]);
    let claim: Arc<ResourceClaim> = Arc::new(serde_json::from_value(allocated).unwrap());
    world.writer.release(&ClaimRelease::Deallocate(Arc::clone(&claim))).await.unwrap();
    assert!(allocation(&world.stored("c").unwrap()).is_none());
    world.writer.release(&ClaimRelease::Delete(Arc::clone(&claim))).await.unwrap();
    assert!(world.stored("c").is_none());
}
