//! The cases of upstream's `controller_fetcher_test.go`.

use super::*;
use api::Status;
use serde_json::json;
use std::collections::HashMap;

const WELL_KNOWN: [&str; 4] = ["CronJob", "Deployment", "Job", "ReplicaSet"];

#[derive(Default)]
struct FakeControllers {
    objects: HashMap<(String, String), Arc<Object>>,
    scales: HashMap<String, Value>,
}

impl FakeControllers {
    /// Adds a controller with an owner, `apiVersion/kind/name`.
    fn with(
        mut self,
        kind: &str,
        name: &str,
        owner: Option<(&str, &str, &str)>,
        spec: Value,
    ) -> Self {
        let mut object = json!({"kind": kind, "metadata": {"namespace": "n", "name": name},
            "spec": spec});
        if let Some((api_version, kind, name)) = owner {
            object["metadata"]["ownerReferences"] = json!([
                {"apiVersion": "v1", "kind": "Other", "name": "other", "uid": "1"},
                {"apiVersion": api_version, "kind": kind, "name": name, "uid": "2",
                    "controller": true}]);
        }
        let object = Arc::new(Object::from_value(object).unwrap());
        self.objects.insert((kind.to_owned(), name.to_owned()), object);
        self
    }

    fn with_scale(mut self, name: &str, scale: Value) -> Self {
        self.scales.insert(name.to_owned(), scale);
        self
    }
}

impl Controllers for FakeControllers {
    fn is_well_known(&self, kind: &str) -> bool {
        WELL_KNOWN.contains(&kind)
    }

    fn get(&self, key: &ControllerKey) -> Option<Arc<Object>> {
        self.objects.get(&(key.kind.clone(), key.name.clone())).cloned()
    }

    async fn scale(&self, key: &ControllerKey) -> Result<Value, ScaleError> {
        if key.kind == "Unserved" {
            return Err(ScaleError::NoMatch { kind: key.kind.clone(), group: "foo".to_owned() });
        }
        let not_found = || Status::failure(404, "NotFound", "no scale".to_owned());
        Ok(self.scales.get(&key.name).cloned().ok_or_else(|| client::Error::from(not_found()))?)
    }
}

fn key(kind: &str, name: &str) -> ControllerKey {
    let api_version = if WELL_KNOWN.contains(&kind) { "apps/v1" } else { "foo/v1" };
    ControllerKey {
        namespace: "n".to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

async fn top(controllers: FakeControllers, of: ControllerKey) -> Result<Option<String>, String> {
    let found = topmost(&controllers, &of).await.map_err(|error| error.to_string())?;
    Ok(found.map(|key| format!("{} {}", key.kind, key.name)))
}

#[tokio::test]
async fn the_top_most_well_known_or_scalable_controller_is_found() {
    let owned = |kind: &str, name: &str, owner| {
        FakeControllers::default().with(kind, name, owner, json!({}))
    };
    let deployment = ("apps/v1", "Deployment", "d");
    let found = |text: &str| Ok(Some(text.to_owned()));
    let fails = |text: &str| Err(text.to_owned());
    for (controllers, of, expected) in [
        (
            FakeControllers::default(),
            key("Deployment", "d"),
            fails("Deployment n/d does not exist"),
        ),
        (owned("Deployment", "d", None), key("Deployment", "d"), found("Deployment d")),
        (
            owned("Deployment", "d", None).with("ReplicaSet", "r", Some(deployment), json!({})),
            key("ReplicaSet", "r"),
            found("Deployment d"),
        ),
        (
            owned("ReplicaSet", "r", Some(deployment)),
            key("ReplicaSet", "r"),
            fails("Deployment n/d does not exist"),
        ),
        (
            owned("CronJob", "c", None).with(
                "Job",
                "j",
                Some(("batch/v1", "CronJob", "c")),
                json!({}),
            ),
            key("Job", "j"),
            found("CronJob c"),
        ),
        (
            owned("Deployment", "d", Some(deployment)),
            key("Deployment", "d"),
            fails("cycle detected in ownership chain"),
        ),
        (
            owned("Deployment", "d", Some(("foo/v1", "NotScalable", "x"))),
            key("Deployment", "d"),
            found("Deployment d"),
        ),
        (
            owned("Deployment", "d", Some(("foo/v1", "Scalable", "x"))).with_scale("x", json!({})),
            key("Deployment", "d"),
            found("Scalable x"),
        ),
        (
            owned("Deployment", "d", Some(("v1", "Node", "node"))),
            key("Deployment", "d"),
            fails("unhandled targetRef v1 / Node / node, last error node is not a valid owner"),
        ),
        (FakeControllers::default(), key("NotScalable", "x"), Ok(None)),
        (
            FakeControllers::default(),
            key("Unserved", "x"),
            fails(
                "unhandled targetRef foo/v1 / Unserved / x, last error no matches for kind \
                 \"Unserved\" in group \"foo\"",
            ),
        ),
    ] {
        let name = format!("{of:?}");
        // Keys of owners have the `apiVersion` of the reference.
        assert_eq!(top(controllers, of).await, expected, "{name}");
    }
}

#[tokio::test]
async fn a_selector_is_that_of_the_controller_or_of_its_scale() {
    let labels = json!({"a": "b", "c": "d"});
    let template = json!({"template": {"metadata": {"labels": labels}}});
    let controllers = FakeControllers::default()
        .with("Deployment", "d", None, json!({"selector": {"matchLabels": labels}}))
        .with("Deployment", "everything", None, json!({"selector": {}}))
        .with("Job", "without", None, json!({}))
        .with("CronJob", "c", None, json!({"jobTemplate": {"spec": template}}))
        .with_scale("s", json!({"status": {"selector": "a=b,c in (d)"}}))
        .with_scale("empty", json!({"status": {}}))
        .with_scale("invalid", json!({"status": {"selector": "a b"}}));
    let unhandled = |name: &str, why: &str| {
        Err(format!("unhandled targetRef foo/v1 / Scalable / {name}, last error {why}"))
    };
    for (of, expected) in [
        (key("Deployment", "d"), Ok("a=b,c=d")),
        (key("CronJob", "c"), Ok("a=b,c=d")),
        (key("Scalable", "s"), Ok("a=b,c in (d)")),
        (key("Deployment", "everything"), Ok("")),
        (key("Deployment", "x"), Err("Deployment n/x does not exist".to_owned())),
        (
            key("Scalable", "empty"),
            unhandled("empty", "resource n/empty has an empty selector for scale sub-resource"),
        ),
        (
            key("Scalable", "invalid"),
            unhandled("invalid", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ),
        (key("Scalable", "x"), unhandled("x", "no scale")),
    ] {
        let found = selector(&controllers, &of).await;
        let found = found.map(|found| found.to_string()).map_err(|error| error.to_string());
        match expected {
            Ok(expected) => assert_eq!(found.as_deref(), Ok(expected), "{of:?}"),
            Err(expected) if of.name == "invalid" => {
                let error = found.unwrap_err();
                assert!(error.contains("found 'b', expected: in, notin"), "{error} {expected}");
            }
            Err(expected) => assert_eq!(found, Err(expected), "{of:?}"),
        }
    }
    assert!(selector(&controllers, &key("Job", "without")).await.unwrap().is_nothing());
}

#[test]
fn a_replication_controller_has_a_map_of_labels() {
    let of = |spec: Value| {
        let object = json!({"kind": "ReplicationController", "metadata": {}, "spec": spec});
        selector_of("ReplicationController", &Object::from_value(object).unwrap()).unwrap()
    };
    assert_eq!(of(json!({"selector": {"a": "b"}})).to_string(), "a=b");
    assert!(of(json!({})).is_nothing());
}
