//! Which pods are bound, by one watch of the pods that have a node.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::cluster::Cluster;

/// Pods that have a node: the server sends one event of each binding, and none of a creation.
const PATH: &str = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D";
/// An event of a pod that is larger is an error.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Labels that a pod must have.
pub(crate) type Selector = BTreeMap<String, String>;

/// An event of the watch, of which only these parts are read.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: PodPart<'a>,
}

#[derive(Deserialize)]
struct PodPart<'a> {
    #[serde(borrow, default)]
    metadata: MetaPart<'a>,
    #[serde(borrow, default)]
    spec: SpecPart<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetaPart<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    labels: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecPart<'a> {
    #[serde(borrow)]
    node_name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ListPart<'a> {
    #[serde(borrow)]
    metadata: MetaPart<'a>,
    #[serde(borrow, default)]
    items: Vec<PodPart<'a>>,
}

/// The bindings of a measurement.
pub(crate) struct Counter {
    namespaces: HashSet<String>,
    selector: Selector,
    pub(crate) scheduled: Cell<u64>,
    /// When the binding of each pod arrived, by `namespace/name`.
    pub(crate) bound: RefCell<Vec<(String, Instant)>>,
}

impl Counter {
    pub(crate) fn new(namespaces: &[String], selector: &Selector) -> Rc<Self> {
        Rc::new(Self {
            namespaces: namespaces.iter().cloned().collect(),
            selector: selector.clone(),
            scheduled: Cell::new(0),
            bound: RefCell::default(),
        })
    }
}

/// The pods that are bound now, with their labels in JSON.
#[derive(Default)]
pub(crate) struct Bindings {
    pods: RefCell<HashMap<String, HashMap<String, Box<str>>>>,
    counters: RefCell<Vec<Rc<Counter>>>,
    /// A namespace of which each binding is sent on.
    followed: RefCell<Option<(String, mpsc::Sender<String>)>>,
    error: RefCell<Option<String>>,
}

impl Bindings {
    /// Adds a measurement.
    pub(crate) fn count(&self, counter: &Rc<Counter>) {
        self.counters.borrow_mut().push(Rc::clone(counter));
    }

    /// Ends a measurement.
    pub(crate) fn stop_counting(&self, counter: &Rc<Counter>) {
        self.counters.borrow_mut().retain(|other| !Rc::ptr_eq(other, counter));
    }

    /// The names of the pods of a namespace that get bound from now on. `bound` is how many
    /// names may wait for the receiver.
    pub(crate) fn follow(&self, namespace: &str, bound: usize) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(bound.max(1));
        *self.followed.borrow_mut() = Some((namespace.to_owned(), sender));
        receiver
    }

    /// Ends [`Self::follow`].
    pub(crate) fn unfollow(&self) {
        *self.followed.borrow_mut() = None;
    }

    /// How many pods of a namespace are bound that have these labels.
    ///
    /// # Errors
    ///
    /// The watch has failed.
    pub(crate) fn scheduled(&self, namespace: &str, selector: &Selector) -> anyhow::Result<usize> {
        if let Some(error) = self.error.borrow().as_ref() {
            bail!("watching the bound pods: {error}");
        }
        let pods = self.pods.borrow();
        let Some(pods) = pods.get(namespace) else { return Ok(0) };
        if selector.is_empty() {
            return Ok(pods.len());
        }
        Ok(pods.values().filter(|labels| has_labels(labels, selector)).count())
    }

    fn set(&self, pod: &PodPart<'_>) {
        let meta = &pod.metadata;
        if pod.spec.node_name.is_empty() {
            return;
        }
        let now = Instant::now();
        let labels = meta.labels.map_or("{}", RawValue::get);
        let mut pods = self.pods.borrow_mut();
        let known = match pods.get_mut(&*meta.namespace) {
            Some(known) => known,
            None => pods.entry(meta.namespace.to_string()).or_default(),
        };
        if known.insert(meta.name.to_string(), labels.into()).is_some() {
            return;
        }
        for counter in &*self.counters.borrow() {
            let counts = counter.namespaces.contains(&*meta.namespace);
            if counts && has_labels(labels, &counter.selector) {
                counter.scheduled.set(counter.scheduled.get() + 1);
                let name = format!("{}/{}", meta.namespace, meta.name);
                counter.bound.borrow_mut().push((name, now));
            }
        }
        if let Some((namespace, sender)) = &*self.followed.borrow() {
            if *namespace == meta.namespace && sender.try_send(meta.name.to_string()).is_err() {
                let text = format!("more pods of {namespace} were bound than created");
                self.error.borrow_mut().get_or_insert(text);
            }
        }
    }

    /// Applies a line of the watch. Returns the version of the object; `None` if the server has
    /// ended the watch with an error, such as that the version is too old.
    fn apply(&self, line: &[u8]) -> anyhow::Result<Option<String>> {
        let event: Event<'_> = serde_json::from_slice(line).context("an event of a pod")?;
        let meta = &event.object.metadata;
        match &*event.kind {
            "ADDED" | "MODIFIED" => self.set(&event.object),
            "DELETED" => {
                if let Some(pods) = self.pods.borrow_mut().get_mut(&*meta.namespace) {
                    pods.remove(&*meta.name);
                }
            }
            "BOOKMARK" => {}
            _ => return Ok(None),
        }
        Ok(Some(meta.resource_version.to_string()))
    }

    /// Replaces the state by a list and returns its version.
    fn replace(&self, body: &[u8]) -> anyhow::Result<String> {
        let list: ListPart<'_> = serde_json::from_slice(body).context("the list of pods")?;
        let listed: HashSet<(&str, &str)> =
            list.items.iter().map(|pod| (&*pod.metadata.namespace, &*pod.metadata.name)).collect();
        for (namespace, pods) in &mut *self.pods.borrow_mut() {
            pods.retain(|name, _| listed.contains(&(namespace.as_str(), name.as_str())));
        }
        for pod in &list.items {
            self.set(pod);
        }
        Ok(list.metadata.resource_version.to_string())
    }

    /// Watches until the task is dropped; an error shows in [`Self::scheduled`].
    pub(crate) async fn watch(self: Rc<Self>, cluster: Rc<Cluster>) {
        if let Err(error) = self.follow_server(&cluster).await {
            *self.error.borrow_mut() = Some(format!("{error:#}"));
        }
    }

    async fn follow_server(&self, cluster: &Cluster) -> anyhow::Result<()> {
        loop {
            let list = cluster.must(Method::GET, PATH, Bytes::new()).await?;
            let mut version = Some(self.replace(&list)?);
            while let Some(from) = version {
                version = self.watch_from(cluster, &from).await?;
            }
        }
    }

    /// Watches from a version until the server ends the watch. Returns the version to go on from;
    /// `None` if the pods must be listed again.
    async fn watch_from(&self, cluster: &Cluster, from: &str) -> anyhow::Result<Option<String>> {
        let mut sender = cluster.target().connect().await?;
        let path = format!("{PATH}&watch=1&timeoutSeconds=3600&resourceVersion={from}");
        let request = cluster.target().request(Method::GET, &path, Bytes::new())?;
        let response = sender.send_request(request).await?;
        match response.status().as_u16() {
            200 => {}
            410 => return Ok(None),
            status => bail!("status {status}"),
        }
        let mut version = from.to_owned();
        let mut body = response.into_body();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            rest.extend_from_slice(&data);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                match self.apply(&line)? {
                    Some(new) => version = new,
                    None => return Ok(None),
                }
            }
            if rest.len() > EVENT_BYTES_MAX {
                bail!("an event has more than {EVENT_BYTES_MAX} bytes");
            }
        }
        Ok(Some(version))
    }
}

/// Whether labels, as JSON, have all of a selector's.
fn has_labels(labels: &str, selector: &Selector) -> bool {
    if selector.is_empty() {
        return true;
    }
    let labels: Selector = serde_json::from_str(labels).unwrap_or_default();
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, name: &str, node: &str) -> Vec<u8> {
        format!(
            r#"{{"type":"{kind}","object":{{"kind":"Pod","metadata":{{"name":"{name}","namespace":"a",
            "uid":"u","resourceVersion":"7","labels":{{"x":"{name}"}},"managedFields":[{{"f":{{}}}}]}},
            "spec":{{"containers":[{{"name":"c"}}],"nodeName":"{node}"}},"status":{{}}}}}}"#
        )
        .into_bytes()
    }

    fn all() -> Selector {
        Selector::new()
    }

    #[test]
    fn binding_is_counted_once_and_a_deleted_pod_is_no_longer_scheduled() {
        let bindings = Bindings::default();
        let counter = Counter::new(&["a".to_owned()], &all());
        bindings.count(&counter);
        for (kind, name, node) in [
            ("ADDED", "one", "n1"),
            ("MODIFIED", "one", "n1"),
            ("ADDED", "two", "n1"),
            ("ADDED", "three", ""),
        ] {
            let version = bindings.apply(&event(kind, name, node)).unwrap();
            assert_eq!(version.as_deref(), Some("7"));
        }
        assert_eq!(bindings.scheduled("a", &all()).unwrap(), 2);
        bindings.apply(&event("DELETED", "one", "n1")).unwrap();
        assert_eq!(bindings.scheduled("a", &all()).unwrap(), 1);
        assert_eq!((counter.scheduled.get(), bindings.scheduled("b", &all()).unwrap()), (2, 0));
        assert_eq!(counter.bound.borrow()[1].0, "a/two");
    }

    #[test]
    fn selectors_and_namespaces_restrict_what_is_counted() {
        let bindings = Bindings::default();
        let one = Selector::from([("x".to_owned(), "one".to_owned())]);
        let counters =
            [Counter::new(&["a".to_owned()], &one), Counter::new(&["b".to_owned()], &all())];
        counters.iter().for_each(|counter| bindings.count(counter));
        bindings.apply(&event("ADDED", "one", "n")).unwrap();
        bindings.apply(&event("ADDED", "two", "n")).unwrap();
        assert_eq!(counters.each_ref().map(|counter| counter.scheduled.get()), [1, 0]);
        assert_eq!(bindings.scheduled("a", &one).unwrap(), 1);
        bindings.stop_counting(&counters[0]);
        bindings.apply(&event("DELETED", "one", "n")).unwrap();
        bindings.apply(&event("ADDED", "one", "n")).unwrap();
        assert_eq!(counters[0].scheduled.get(), 1);
    }

    #[test]
    fn list_after_a_gap_adds_and_removes() {
        let bindings = Bindings::default();
        bindings.apply(&event("ADDED", "gone", "n")).unwrap();
        let list = br#"{"metadata":{"resourceVersion":"9"},"items":[
            {"metadata":{"name":"new","namespace":"a"},"spec":{"nodeName":"n"}}]}"#;
        assert_eq!(bindings.replace(list).unwrap(), "9");
        assert_eq!(bindings.scheduled("a", &all()).unwrap(), 1);
    }

    #[test]
    fn error_of_the_server_asks_for_a_new_list() {
        let line = br#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410}}"#;
        assert_eq!(Bindings::default().apply(line).unwrap(), None);
    }

    #[test]
    fn followed_bindings_arrive_in_their_order() {
        let bindings = Bindings::default();
        let mut names = bindings.follow("a", 2);
        bindings.apply(&event("ADDED", "one", "n")).unwrap();
        bindings.apply(&event("ADDED", "two", "n")).unwrap();
        assert_eq!(names.try_recv().unwrap(), "one");
        assert_eq!(names.try_recv().unwrap(), "two");
        bindings.unfollow();
        bindings.apply(&event("ADDED", "three", "n")).unwrap();
        assert!(names.try_recv().is_err());
    }
}
