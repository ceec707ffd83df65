//! APIServices of custom resources: one for each group version that a definition serves
//! (`crdregistration` and `autoregister` of upstream's API server, whose part this is: it runs
//! whatever controllers do).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Gvr;
use base::Tasks;
use client::{Action, Change, Client, DeleteOptions, Error, Informer, Informers};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::framework::edit;
use crate::framework::keyed::{Key, Keyed, settled};

const NAME: &str = "autoregister";

/// Says that an APIService is kept in step (`AutoRegisterManagedLabel`).
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// What definitions serve: group and versions by the name of the definition.
type Served = Arc<Mutex<BTreeMap<Arc<str>, (String, Vec<String>)>>>;

#[derive(Deserialize)]
struct Definition {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    group: String,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    served: bool,
}

/// Starts it; `client` acts as the API server.
pub fn start(tasks: &Tasks, informers: &Informers, client: Client) {
    let definitions =
        informers.of_gvr(Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"));
    let services_gvr = Gvr::new("apiregistration.k8s.io", "v1", "apiservices");
    let services = informers.of_gvr(services_gvr.clone());
    let served = Served::default();
    let mut keyed = Keyed::new();
    let noted = Arc::clone(&served);
    keyed.watches(&definitions, move |change| note(&noted, change));
    keyed.watches_self(&services);
    keyed.run(tasks, NAME, 1, move |(_, name)| {
        let (client, services, gvr) = (client.clone(), services.clone(), services_gvr.clone());
        let wanted = wanted(&served, &name);
        async move { reconcile(&client, &gvr, &services, &name, wanted).await }
    });
}

/// Takes a definition over; the APIServices of the versions that it had or has.
fn note(served: &Served, change: &Change) -> Vec<Key> {
    let object = change.object();
    let read = || serde_json::from_slice::<Definition>(object.raw()).ok();
    let now = (!matches!(change, Change::Deleted(_))).then(read).flatten().map(|definition| {
        let versions = definition.spec.versions.into_iter();
        let versions: Vec<String> = versions.filter(|v| v.served).map(|v| v.name).collect();
        (definition.spec.group, versions)
    });
    let mut served = served.lock();
    let before = match &now {
        Some(now) => served.insert(Arc::clone(&object.key.name), now.clone()),
        None => served.remove(&object.key.name),
    };
    let all = before.iter().chain(&now);
    let names = |(group, versions): &(String, Vec<String>)| -> Vec<String> {
        versions.iter().map(|version| format!("{version}.{group}")).collect()
    };
    all.flat_map(names).map(|name| (String::new(), name)).collect()
}

/// The specification of the APIService of this name, when a definition serves its group version.
fn wanted(served: &Served, name: &str) -> Option<Value> {
    let (version, group) = name.split_once('.')?;
    let is =
        |(g, versions): &(String, Vec<String>)| g == group && versions.iter().any(|v| v == version);
    served.lock().values().any(is).then(|| {
        // Definitions have a low priority; among themselves the form of their versions decides.
        json!({"group": group, "version": version, "groupPriorityMinimum": 1000,
            "versionPriority": 100})
    })
}

/// What has to be done about one APIService.
#[derive(Debug, PartialEq)]
enum Step {
    None,
    Create(Value),
    Update(Value),
    Delete { uid: String },
}

fn step(name: &str, current: Option<Value>, wanted: Option<Value>) -> Step {
    let Some(mut current) = current else {
        return wanted.map_or(Step::None, |spec| {
            Step::Create(json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": name, "labels": {MANAGED: "true"}}, "spec": spec,
            }))
        });
    };
    let managed = current.pointer("/metadata/labels").and_then(|labels| labels.get(MANAGED));
    // Objects that are only synced at the start, and those of users, are left alone.
    if managed.and_then(Value::as_str) != Some("true") {
        return Step::None;
    }
    match wanted {
        None => Step::Delete { uid: api::value::str_in(&current, &["metadata", "uid"]).to_owned() },
        Some(spec) if current.get("spec") == Some(&spec) => Step::None,
        Some(spec) => {
            current["spec"] = spec;
            Step::Update(current)
        }
    }
}

async fn reconcile(
    client: &Client,
    gvr: &Gvr,
    services: &Informer<()>,
    name: &str,
    wanted: Option<Value>,
) -> Result<Action, Error> {
    let current = services.cache().get("", name);
    let current = current.map(|object| edit::value(&object)).transpose()?;
    match step(name, current, wanted) {
        Step::None => {}
        Step::Create(object) => {
            match client.post_value(gvr, "", "", "", &object).await {
                // The event of the existing object reconciles the key again.
                Err(error) if error.is_already_exists() => {}
                other => drop(other?),
            }
        }
        Step::Update(object) => settled(edit::put(client, gvr, "", &object).await)?,
        Step::Delete { uid } => {
            settled(client.delete_gvr(gvr, "", name, &DeleteOptions::with_uid(&uid)).await)?;
        }
    }
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(managed: &str, spec: Value) -> Value {
        json!({"metadata": {"name": "v1.example.com", "uid": "u", "labels": {MANAGED: managed}},
            "spec": spec})
    }

    #[test]
    fn what_is_served_is_registered_and_what_is_not_goes() {
        let served = Served::default();
        served.lock().insert(
            "as.example.com".into(),
            ("example.com".into(), vec!["v1".into(), "v2".into()]),
        );
        assert_eq!(wanted(&served, "v3.example.com"), None);
        assert_eq!(wanted(&served, "v1.example.org"), None);
        let spec = wanted(&served, "v1.example.com").unwrap();
        // Numbers of crdregistration_controller.go.
        assert_eq!(
            spec,
            json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1000,
                "versionPriority": 100})
        );
        let step = |current, wanted| step("v1.example.com", current, wanted);
        assert_eq!(step(None, None), Step::None);
        let Step::Create(made) = step(None, Some(spec.clone())) else { panic!("it is not made") };
        assert_eq!(
            made["metadata"],
            json!({"name": "v1.example.com",
                "labels": {"kube-aggregator.kubernetes.io/automanaged": "true"}})
        );
        assert_eq!(step(Some(stored("true", spec.clone())), Some(spec.clone())), Step::None);
        let Step::Update(restored) =
            step(Some(stored("true", json!({"group": "x"}))), Some(spec.clone()))
        else {
            panic!("it is not restored")
        };
        assert_eq!(restored, stored("true", spec.clone()));
        assert_eq!(
            step(Some(stored("true", spec.clone())), None),
            Step::Delete { uid: "u".into() }
        );
        for somebodys in ["onstart", ""] {
            assert_eq!(step(Some(stored(somebodys, spec.clone())), None), Step::None);
            assert_eq!(step(Some(stored(somebodys, json!({}))), Some(spec.clone())), Step::None);
        }
    }
}
