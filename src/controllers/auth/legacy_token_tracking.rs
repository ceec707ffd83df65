//! Keeps the ConfigMap that has the day since which the API server labels the Secrets of service
//! account tokens with their last use (`legacytokentracking` of upstream's API server, whose part
//! this is: it runs whatever controllers do).

use api::Gvr;
use api::k8s::jiff::Timestamp;
use api::k8s::jiff::civil::Date;
use api::k8s::jiff::tz::TimeZone;
use base::Tasks;
use client::{Action, Client, Error, Informer, Informers, Scope};
use serde_json::{Value, json};

use crate::framework::edit;
use crate::framework::keyed::{Keyed, settled};

/// The namespace of the ConfigMap.
pub(super) const NAMESPACE: &str = "kube-system";
/// Its name.
pub(super) const CONFIG_MAP: &str = "kube-apiserver-legacy-service-account-token-tracking";
/// Its key.
const KEY: &str = "since";
/// Name of the tasks.
const NAME: &str = "legacy-token-tracking";

/// The resource of ConfigMaps.
pub(super) fn gvr() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

/// The day of a time in UTC, as `2026-01-31`.
pub(super) fn day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).date().to_string()
}

/// The begin of a day in UTC; `None` for text of another form.
pub(super) fn parse(day: &str) -> Option<Timestamp> {
    let date: Date = day.parse().ok().filter(|_| day.len() == 10)?;
    date.to_zoned(TimeZone::UTC).ok().map(|start| start.timestamp())
}

/// The begin of the day that the ConfigMap has.
pub(super) fn since(map: &Value) -> Option<Timestamp> {
    parse(api::value::str_in(map, &["data", KEY]))
}

/// Starts it; `client` acts as the API server.
pub fn start(tasks: &Tasks, informers: &Informers, client: Client) {
    let mut scope = Scope::all(gvr()).fields(format!("metadata.name={CONFIG_MAP}"));
    NAMESPACE.clone_into(&mut scope.namespace);
    let maps: Informer<()> = informers.scoped(scope);
    let mut keyed = Keyed::new();
    keyed.watches(&maps, |_| vec![Default::default()]);
    // Without the ConfigMap there is no event.
    keyed.queue.add(Default::default());
    keyed.run(tasks, NAME, 1, move |_| {
        let (client, maps) = (client.clone(), maps.clone());
        async move {
            let map = maps.cache().get(NAMESPACE, CONFIG_MAP);
            let map = map.map(|map| edit::value(&map)).transpose()?;
            match wanted(map, Timestamp::now()) {
                Some(map) if map.pointer("/metadata/resourceVersion").is_some() => {
                    settled(edit::put(&client, &gvr(), "", &map).await)?;
                }
                Some(map) => match client.post_value(&gvr(), NAMESPACE, "", "", &map).await {
                    Err(error) if error.is_already_exists() => {}
                    other => drop(other?),
                },
                None => {}
            }
            Ok::<_, Error>(Action::Done)
        }
    });
}

/// The ConfigMap to write; `None` when it has a day.
fn wanted(map: Option<Value>, now: Timestamp) -> Option<Value> {
    if map.as_ref().and_then(since).is_some() {
        return None;
    }
    let mut map = map.unwrap_or_else(|| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": NAMESPACE, "name": CONFIG_MAP}})
    });
    if let Some(data) = api::value::ensure_object(&mut map, "data") {
        data[KEY] = day(now).into();
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_day_is_written_once() {
        let now: Timestamp = "2026-01-31T23:59:59Z".parse().unwrap();
        let created = wanted(None, now).unwrap();
        assert_eq!(created["data"], json!({"since": "2026-01-31"}));
        for (data, want) in [
            (json!({"since": "2025-01-01"}), None),
            (json!({"since": "2025-01-01-1"}), Some(json!({"since": "2026-01-31"}))),
            (json!({"since": "20250101"}), Some(json!({"since": "2026-01-31"}))),
            (json!({"a": "b"}), Some(json!({"a": "b", "since": "2026-01-31"}))),
            (Value::Null, Some(json!({"since": "2026-01-31"}))),
        ] {
            let map = json!({"metadata": {"resourceVersion": "7"}, "data": data});
            let written = wanted(Some(map), now);
            assert!(written.iter().all(|map| map["metadata"]["resourceVersion"] == "7"));
            assert_eq!(written.map(|map| map["data"].clone()), want, "{data}");
        }
    }
}
