//! Single requests: objects, patches, apply, subresources, discovery, and the errors that programs
//! distinguish.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{
    Api, DeleteParams, DynamicObject, EvictParams, ListParams, LogParams, Patch, PatchParams,
    PostParams, Preconditions, ResourceExt, ValidationDirective,
};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Discovery, Scope};
use kube::{Client, Error};
use serde_json::json;

use crate::{Outcome, refused, want};

fn config_map(name: &str, value: &str) -> Result<ConfigMap, serde_json::Error> {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"by": "rust"}}, "data": {"k": value}}),
    )
}

fn deployment(name: &str, replicas: i32) -> serde_json::Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
}

/// Create, read, list with pages, replace, delete, and the four refusals.
pub async fn objects(client: Client, namespace: &str) -> Outcome {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let post = PostParams::default();
    let made = maps.create(&post, &config_map("a", "1")?).await?;
    want("the value", maps.get("a").await?.data.unwrap_or_default()["k"].as_str(), "1")?;
    let mut newer = made.clone();
    newer.data = Some([("k".to_owned(), "2".to_owned())].into());
    maps.replace("a", &post, &newer).await?;
    refused("replacing an old state", maps.replace("a", &post, &made).await, 409, "Conflict")?;
    refused(
        "creating it again",
        maps.create(&post, &config_map("a", "1")?).await,
        409,
        "AlreadyExists",
    )?;
    let status = refused("reading what is not there", maps.get("none").await, 404, "NotFound")?;
    want("the message", status.message.as_str(), "configmaps \"none\" not found")?;
    want("what is optional", maps.get_opt("none").await?.is_none(), true)?;
    let status = refused(
        "an invalid name",
        maps.create(&post, &config_map("Not_A_Name", "")?).await,
        422,
        "Invalid",
    )?;
    let field = status.details.and_then(|d| d.causes.into_iter().next()).map(|c| c.field);
    want("the field at fault", field.as_deref(), Some("metadata.name"))?;
    for i in 0..5 {
        maps.create(&post, &config_map(&format!("page-{i}"), "")?).await?;
    }
    let mut names = Vec::new();
    let mut page = ListParams::default().labels("by=rust").limit(2);
    loop {
        let list = maps.list(&page).await?;
        names.extend(list.items.iter().map(ResourceExt::name_any));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    want("pages of two", names.join(" ").as_str(), "a page-0 page-1 page-2 page-3 page-4")?;
    let heads = maps.list_metadata(&ListParams::default().labels("by=rust")).await?;
    want("heads alone", heads.items.len(), 6)?;
    let other = Preconditions { uid: Some("of-another".to_owned()), resource_version: None };
    let delete = DeleteParams { preconditions: Some(other), ..DeleteParams::default() };
    refused("deleting another's uid", maps.delete("a", &delete).await, 409, "Conflict")?;
    maps.delete("a", &DeleteParams::default()).await?;
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("by=rust"))
        .await?;
    want(
        "after deleting a collection",
        maps.list(&ListParams::default().labels("by=rust")).await?.items.len(),
        0,
    )?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps.create(&dry, &config_map("dry", "")?).await?;
    want("a dry run leaves nothing", maps.get_opt("dry").await?.is_none(), true)
}

/// The kinds of patch and server-side apply.
pub async fn apply(client: Client, namespace: &str) -> Outcome {
    let sets: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let one = PatchParams::apply("one");
    let made = sets.patch("web", &one, &Patch::Apply(deployment("web", 0))).await?;
    want("a default", made.spec.revision_history_limit, Some(10))?;
    let two = PatchParams::apply("two");
    let status = refused(
        "another's field",
        sets.patch("web", &two, &Patch::Apply(deployment("web", 3))).await,
        409,
        "Conflict",
    )?;
    let causes: Vec<String> =
        status.details.map(|d| d.causes.into_iter().map(|c| c.field).collect()).unwrap_or_default();
    want("the fields in conflict", causes.join(" ").as_str(), ".spec.replicas")?;
    let forced =
        sets.patch("web", &two.clone().force(), &Patch::Apply(deployment("web", 3))).await?;
    want("by force", forced.spec.replicas, Some(3))?;
    let side =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "y"}]}}}});
    let merged = sets.patch("web", &PatchParams::default(), &Patch::Strategic(&side)).await?;
    want("merged by name", merged.spec.template.spec.map(|s| s.containers.len()), Some(2))?;
    let replaced = sets.patch("web", &PatchParams::default(), &Patch::Merge(&side)).await?;
    want("replaced as a list", replaced.spec.template.spec.map(|s| s.containers.len()), Some(1))?;
    let strict = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let unknown = json!({"spec": {"replicos": 1}});
    refused(
        "an unknown field",
        sets.patch("web", &strict, &Patch::Merge(&unknown)).await,
        // A create says 400, a patch this (the recorded answer scenario-patches/14).
        422,
        "Invalid",
    )?;
    let heads = sets
        .patch_metadata(
            "web",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})),
        )
        .await?;
    want("the head's label", heads.labels().get("a").map(String::as_str), Some("b"))
}

/// Scale, status, eviction, logs.
pub async fn subresources(client: Client, namespace: &str) -> Outcome {
    let sets: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    sets.create(&PostParams::default(), &serde_json::from_value(deployment("web", 0))?).await?;
    let scale = sets.get_scale("web").await?;
    want(
        "the scale's selector",
        scale.status.and_then(|s| s.selector).as_deref(),
        Some("app=web"),
    )?;
    let scale = sets
        .patch_scale(
            "web",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 1}})),
        )
        .await?;
    want("the new scale", scale.spec.and_then(|s| s.replicas), Some(1))?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "rust-node"}}))?,
        )
        .await?;
    let condition = json!({"status": {"conditions": [{"type": "Tested", "status": "True", "reason": "R", "message": "m"}]}, "spec": {"podCIDR": "not-taken"}});
    let node = nodes
        .patch_status("rust-node", &PatchParams::default(), &Patch::Strategic(condition))
        .await?;
    let tested = node
        .status
        .and_then(|s| s.conditions)
        .unwrap_or_default()
        .iter()
        .any(|c| c.type_ == "Tested");
    want("the patched status", tested, true)?;
    want(
        "a status writes no spec",
        node.spec.and_then(|s| s.pod_cidr).as_deref() == Some("not-taken"),
        false,
    )?;
    want(
        "the status alone",
        nodes.get_status("rust-node").await?.name_any().as_str(),
        "rust-node",
    )?;
    nodes.delete("rust-node", &DeleteParams::default()).await?;
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let pod = json!({"metadata": {"name": "alone"}, "spec": {"containers": [{"name": "c", "image": "x"}], "nodeName": "nowhere"}});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let ended = pods
        .patch_status(
            "alone",
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"phase": "Failed"}})),
        )
        .await?;
    want("the phase", ended.status.and_then(|s| s.phase).as_deref(), Some("Failed"))?;
    pods.evict("alone", &EvictParams::default()).await?;
    refused("logs of no pod", pods.logs("none", &LogParams::default()).await, 404, "NotFound")?;
    Ok(())
}

/// Discovery both ways, and objects of kinds found by it.
pub async fn discovery(client: Client, namespace: &str) -> Outcome {
    let version = client.apiserver_version().await?;
    want("the version", (version.major.as_str(), version.minor.as_str()), ("1", "37"))?;
    for found in [
        Discovery::new(client.clone()).run().await?,
        Discovery::new(client.clone()).run_aggregated().await?,
    ] {
        let (resource, capabilities) = found
            .resolve_gvk(&GroupVersionKind::gvk("apps", "v1", "StatefulSet"))
            .ok_or("StatefulSet was not found")?;
        want("its plural", resource.plural.as_str(), "statefulsets")?;
        want("its scope", capabilities.scope == Scope::Namespaced, true)?;
        want("its subresources", capabilities.subresources.len(), 2)?;
        want("groups", found.groups().count() > 15, true)?;
    }
    let (resource, capabilities) =
        discovery::pinned_kind(&client, &GroupVersionKind::gvk("", "v1", "ConfigMap")).await?;
    want("operations", capabilities.supports_operation(discovery::verbs::DELETE_COLLECTION), true)?;
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = DynamicObject::new("dynamic", &resource).data(json!({"data": {"k": "v"}}));
    maps.create(&PostParams::default(), &object).await?;
    want(
        "the dynamic object's data",
        maps.get("dynamic").await?.data["data"]["k"].as_str(),
        Some("v"),
    )?;
    maps.delete("dynamic", &DeleteParams::default()).await?;
    let group = discovery::group(&client, "batch").await?;
    want("batch's version", group.preferred_version(), Some("v1"))?;
    match discovery::group(&client, "no.such.group").await {
        Err(Error::Discovery(_)) => Ok(()),
        other => {
            Err(format!("a group that is not there gave {:?}", other.map(|g| g.name().to_owned()))
                .into())
        }
    }
}
