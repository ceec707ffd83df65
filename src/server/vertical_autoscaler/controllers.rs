//! The controllers of a new pod, read from the API server's caches.

use api::Gvr;
use api::selector::LabelSelector;
use api::value::{at, get, items, str_at, str_in};
use async_trait::async_trait;
use lookup::Lookup;
use serde_json::Value;
use vertical_autoscaler::admission::matching::{TargetError, Targets};
use vertical_autoscaler::policy::pod::{ControllerRef, controller_of};

/// Kinds whose pods upstream finds without their scale subresource, with group and resource.
const WELL_KNOWN: [(&str, &str, &str); 7] = [
    ("CronJob", "batch", "cronjobs"),
    ("DaemonSet", "apps", "daemonsets"),
    ("Deployment", "apps", "deployments"),
    ("Job", "batch", "jobs"),
    ("ReplicaSet", "apps", "replicasets"),
    ("ReplicationController", "", "replicationcontrollers"),
    ("StatefulSet", "apps", "statefulsets"),
];

/// Owners above a pod that are followed; more are a cycle.
const CHAIN_MAX: usize = 16;

/// A controller with its object.
struct Controller {
    object: Value,
    /// The path of the selector in a custom resource; `None` for a well-known kind.
    selector_path: Option<String>,
}

/// Reads controllers from the caches.
pub(super) struct LookupControllers<'a> {
    lookup: &'a dyn Lookup,
}

fn error(text: impl Into<String>) -> TargetError {
    TargetError(text.into())
}

impl<'a> LookupControllers<'a> {
    pub(super) fn new(lookup: &'a dyn Lookup) -> Self {
        Self { lookup }
    }

    /// A well-known controller, or a custom resource with a scale subresource; `None` for other
    /// kinds, and for a custom resource that does not exist.
    async fn read(
        &self,
        namespace: &str,
        controller: &ControllerRef,
    ) -> Result<Option<Controller>, TargetError> {
        let ControllerRef { kind, name, .. } = controller;
        let known = WELL_KNOWN.iter().find(|(known, ..)| known == kind);
        let (gvr, selector_path) = match known {
            Some((_, group, resource)) => (Gvr::new(group, "v1", resource), None),
            None => match self.scalable(controller).await? {
                Some((gvr, path)) => (gvr, Some(path)),
                None => return Ok(None),
            },
        };
        let found = self.lookup.find(&gvr, namespace, name).await.and_then(lookup::value);
        let found = found.map_err(|status| error(status.message))?;
        if found.is_none() && selector_path.is_none() {
            return Err(error(format!("{kind} {namespace}/{name} does not exist")));
        }
        Ok(found.map(|object| Controller { object, selector_path }))
    }

    /// The resource of a custom kind that has a scale subresource, and the path of its selector.
    async fn scalable(
        &self,
        controller: &ControllerRef,
    ) -> Result<Option<(Gvr, String)>, TargetError> {
        let Some((group, version)) = controller.api_version.split_once('/') else {
            return Ok(None);
        };
        let definitions = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let all = self.lookup.list(&definitions, "").await.map_err(|s| error(s.message))?;
        // Definitions are large: only those that contain the name of the kind are decoded.
        let named = all.iter().filter(|definition| {
            let text = std::str::from_utf8(definition.raw());
            text.is_ok_and(|text| text.contains(&*controller.kind))
        });
        for definition in named {
            let value = definition.value().map_err(|e| error(e.to_string()))?;
            let spec = get(&value, "spec");
            let names = get(spec, "names");
            if str_at(spec, "group") != group || str_at(names, "kind") != controller.kind {
                continue;
            }
            let versions = items(spec, "versions").iter();
            let scale = versions
                .filter(|one| str_at(one, "name") == version)
                .map(|one| at(one, &["subresources", "scale"]))
                .find(|scale| scale.is_object());
            return Ok(scale.map(|scale| {
                let gvr = Gvr::new(group, version, str_at(names, "plural"));
                (gvr, str_at(scale, "labelSelectorPath").to_owned())
            }));
        }
        Ok(None)
    }
}

#[async_trait]
impl Targets for LookupControllers<'_> {
    async fn top_most(
        &self,
        namespace: &str,
        owner: &ControllerRef,
    ) -> Result<Option<ControllerRef>, TargetError> {
        let (mut end, mut next) = (None, Some(owner.clone()));
        for _ in 0..CHAIN_MAX {
            let Some(controller) = next else { return Ok(end) };
            let Some(found) = self.read(namespace, &controller).await? else { return Ok(end) };
            next = controller_of(&found.object);
            end = Some(controller);
        }
        Err(error("cycle detected in ownership chain"))
    }

    async fn selector(
        &self,
        namespace: &str,
        target: &ControllerRef,
    ) -> Result<LabelSelector, TargetError> {
        let found = self.read(namespace, target).await?;
        let Some(Controller { object, selector_path }) = found else {
            let ControllerRef { api_version, kind, name } = target;
            return Err(error(format!("unhandled targetRef {api_version} / {kind} / {name}")));
        };
        let of_labels = |labels: &Value| {
            labels.as_object().map_or_else(LabelSelector::nothing, LabelSelector::from_map)
        };
        let selector = at(&object, &["spec", "selector"]);
        let parsed = match (selector_path, &*target.kind) {
            (Some(path), _) => {
                let path: Vec<&str> = path.split('.').filter(|part| !part.is_empty()).collect();
                match str_in(&object, &path) {
                    "" => {
                        let name = &target.name;
                        return Err(error(format!(
                            "resource {namespace}/{name} has an empty selector for scale \
                             sub-resource"
                        )));
                    }
                    text => LabelSelector::parse(text),
                }
            }
            (None, "CronJob") => {
                let template = at(&object, &["spec", "jobTemplate", "spec", "template"]);
                Ok(of_labels(at(template, &["metadata", "labels"])))
            }
            (None, "ReplicationController") => Ok(of_labels(selector)),
            (None, _) => LabelSelector::from_value(Some(selector).filter(|s| !s.is_null())),
        };
        parsed.map_err(|e| error(e.to_string()))
    }
}
