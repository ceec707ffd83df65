//! The runtime of controllers: watchers that list or stream, reflectors with a store, a controller
//! with owner and finalizer.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Secret};
use kube::api::{
    Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, ResourceExt,
};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt, reflector as reflect, watcher as watch};
use kube::{Client, Resource};
use serde_json::json;
use tokio::time::timeout;

use crate::{Outcome, PATIENCE, want};

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("by".to_owned(), "rust".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([("k".to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// Takes events until one is the wanted; gives all it took.
async fn until<T, E: std::error::Error + 'static>(
    what: &str,
    events: &mut (impl Stream<Item = Result<T, E>> + Unpin),
    wanted: impl Fn(&T) -> bool,
) -> Result<Vec<T>, Box<dyn std::error::Error>> {
    let mut taken = Vec::new();
    loop {
        let event = timeout(PATIENCE, events.try_next())
            .await
            .map_err(|_| format!("{what} did not come"))??
            .ok_or("the stream ended")?;
        let is_wanted = wanted(&event);
        taken.push(event);
        if is_wanted {
            return Ok(taken);
        }
    }
}

/// The first state by listing in pages and by streaming, then every change in order.
pub async fn watcher(client: Client, namespace: &str) -> Outcome {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    for i in 0..5 {
        maps.create(&PostParams::default(), &config_map(&format!("before-{i}"), "")).await?;
    }
    let listed = watch::Config::default().labels("by=rust").page_size(2);
    let streamed = watch::Config::default().labels("by=rust").streaming_lists();
    for (how, config) in [("listed", listed), ("streamed", streamed)] {
        let mut events = watch(maps.clone(), config).boxed();
        let first =
            until("the first state", &mut events, |e| matches!(e, watch::Event::InitDone)).await?;
        want(
            "the first state's size",
            first.iter().filter(|e| matches!(e, watch::Event::InitApply(_))).count(),
            5,
        )?;
        let name = format!("live-{how}");
        maps.create(&PostParams::default(), &config_map(&name, "0")).await?;
        for value in ["1", "2", "3"] {
            maps.patch(
                &name,
                &PatchParams::default(),
                &Patch::Merge(json!({"data": {"k": value}})),
            )
            .await?;
        }
        maps.delete(&name, &DeleteParams::default()).await?;
        let changes = until(
            "the deletion",
            &mut events,
            |e| matches!(e, watch::Event::Delete(m) if m.name_any() == name),
        )
        .await?;
        let values: Vec<String> = changes
            .iter()
            .filter_map(|e| match e {
                watch::Event::Apply(m) if m.name_any() == name => {
                    m.data.clone().unwrap_or_default().remove("k")
                }
                _ => None,
            })
            .collect();
        want("the changes in order", values.join(" ").as_str(), "0 1 2 3")?;
    }
    Ok(())
}

/// A store that follows the server, and waiting for a condition.
pub async fn reflector(client: Client, namespace: &str) -> Outcome {
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    maps.create(&PostParams::default(), &config_map("before", "0")).await?;
    let (reader, writer) = reflect::store::<ConfigMap>();
    let mut events = reflect(writer, watch(maps.clone(), watch::Config::default()))
        .default_backoff()
        .applied_objects()
        .boxed();
    until("what was there before", &mut events, |m| m.name_any() == "before").await?;
    maps.create(&PostParams::default(), &config_map("live", "1")).await?;
    until("what is new", &mut events, |m| m.name_any() == "live").await?;
    let key = ObjectRef::<ConfigMap>::new("live").within(namespace);
    let stored = reader.get(&key).ok_or("the store lacks what the watch brought")?;
    want("the stored value", stored.data.clone().unwrap_or_default()["k"].as_str(), "1")?;
    let changed = |value: &'static str| {
        move |m: Option<&ConfigMap>| {
            m.and_then(|m| m.data.as_ref()).is_some_and(|d| d.get("k").is_some_and(|v| v == value))
        }
    };
    let (plain, delete) = (PatchParams::default(), DeleteParams::default());
    let newer = Patch::Merge(json!({"data": {"k": "2"}}));
    let (waited, patched) = futures::join!(
        timeout(PATIENCE, await_condition(maps.clone(), "live", changed("2"))),
        maps.patch("live", &plain, &newer),
    );
    let uid = patched?.uid().unwrap_or_default();
    want("the awaited condition", waited??.is_some(), true)?;
    let (gone, deleted) = futures::join!(
        timeout(PATIENCE, await_condition(maps.clone(), "live", conditions::is_deleted(&uid))),
        maps.delete("live", &delete),
    );
    deleted?;
    gone??;
    Ok(())
}

#[derive(Debug)]
struct Failed(String);
impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Failed {}
impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        Failed(error.to_string())
    }
}

/// Keeps a Secret of the same name beside each config map, and says so by an event.
async fn reconcile(owner: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, Failed> {
    let namespace = owner.namespace().unwrap_or_default();
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), &namespace);
    let secrets: Api<Secret> = Api::namespaced((*client).clone(), &namespace);
    let recorder = Recorder::new((*client).clone(), Reporter::from("kube-client"));
    let done = finalizer(&maps, "example.com/rust", owner, |event| async {
        match event {
            Finalizer::Apply(owner) => {
                let secret = Secret {
                    metadata: ObjectMeta {
                        name: owner.metadata.name.clone(),
                        owner_references: owner.controller_owner_ref(&()).map(|r| vec![r]),
                        ..ObjectMeta::default()
                    },
                    string_data: Some(owner.data.clone().unwrap_or_default()),
                    ..Secret::default()
                };
                secrets
                    .patch(
                        &owner.name_any(),
                        &PatchParams::apply("rust").force(),
                        &Patch::Apply(&secret),
                    )
                    .await?;
                let note = Event {
                    type_: EventType::Normal,
                    reason: "Kept".into(),
                    note: Some("the secret is there".into()),
                    action: "Keep".into(),
                    secondary: None,
                };
                recorder.publish(&note, &owner.object_ref(&())).await?;
                Ok::<_, Failed>(Action::await_change())
            }
            Finalizer::Cleanup(_) => Ok(Action::await_change()),
        }
    });
    done.await.map_err(|error| Failed(error.to_string()))
}

/// A controller with owner, finalizer, events and the garbage collector behind it.
pub async fn controller(client: Client, namespace: &str) -> Outcome {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let running = Controller::new(maps.clone(), watch::Config::default().labels("by=rust"))
        .owns(secrets.clone(), watch::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(200)),
            Arc::new(client.clone()),
        )
        .for_each(|_| ready(()));
    let story = async {
        maps.create(&PostParams::default(), &config_map("owner", "red")).await?;
        let holds = |value: &'static str| {
            move |s: Option<&Secret>| {
                s.and_then(|s| s.data.as_ref()).is_some_and(|d: &BTreeMap<_, _>| {
                    d.get("k").is_some_and(|v| v.0 == value.as_bytes())
                })
            }
        };
        timeout(PATIENCE, await_condition(secrets.clone(), "owner", holds("red")))
            .await
            .map_err(|_| "the secret did not come")??;
        maps.patch("owner", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "blue"}})))
            .await?;
        let secret = timeout(PATIENCE, await_condition(secrets.clone(), "owner", holds("blue")))
            .await
            .map_err(|_| "the new colour did not come")??;
        let uid = secret.and_then(|s| s.uid()).unwrap_or_default();
        maps.delete("owner", &DeleteParams::background()).await?;
        timeout(PATIENCE, await_condition(secrets.clone(), "owner", conditions::is_deleted(&uid)))
            .await
            .map_err(|_| "the owned secret was not collected")??;
        let events = Api::<CoreEvent>::namespaced(client.clone(), namespace)
            .list(&ListParams::default().fields("reason=Kept"))
            .await?;
        want("events about the owner", !events.items.is_empty(), true)
    };
    tokio::select! {
        outcome = story => outcome,
        () = running => Err("the controller ended".into()),
    }
}
