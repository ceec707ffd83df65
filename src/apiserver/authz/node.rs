//! The Node authorizer: a node reads the objects that its own pods need, and writes its own
//! objects.

mod ingress;

use std::sync::Arc;

use api::{Gvr, Object, Status};
use async_trait::async_trait;
use serde_json::Value;

use super::rule::Rule;
use super::{Attributes, Authorizer, Decision, Failure, UserRules};
use crate::request::user::User;
use lookup::Lookup;

/// The node name of this user, if it is a node.
pub fn identity(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix("system:node:")?;
    user.in_group("system:nodes").then_some(name)
}

/// Authorizes users `system:node:<name>` in the group `system:nodes`.
///
/// There is no graph in memory: relationships are resolved from the pods of the node, by an index
/// of the watch cache.
pub struct Node {
    lookup: Arc<dyn Lookup>,
    /// The permissions of every node: the rules of the bootstrap role `system:node`.
    rules: Vec<Rule>,
}

type Refused = Result<(), Decision>;

fn refuse(why: impl Into<String>) -> Refused {
    Err(Decision::NoOpinion(why.into()))
}

/// An object that may establish the relationship cannot be read: an error lets the node retry,
/// whereas a denial would be final.
fn unreadable(error: Status) -> Decision {
    let error = format!("cannot look for pods of the node that use this object: {}", error.message);
    Decision::Failed(Failure { error, ..Failure::default() })
}

impl Node {
    /// Creates the authorizer; `rules` are those of the bootstrap role `system:node`
    /// ([`crate::bootstrap::node_rules`]).
    pub fn new(lookup: Arc<dyn Lookup>, rules: Vec<Rule>) -> Self {
        Self { lookup, rules }
    }

    async fn decide(&self, node: &str, a: &Attributes<'_>) -> Refused {
        match (a.group, a.resource) {
            // The ingress on each node serves with the certificates of all Ingresses.
            ("", "secrets")
                if matches!(a.verb, "list" | "watch")
                    && selects(a.field_selector, "type", "kubernetes.io/tls") =>
            {
                Ok(())
            }
            ("", "secrets" | "configmaps") => {
                read_one(a)?;
                self.related(node, a).await
            }
            ("", "persistentvolumeclaims") if a.subresource == "status" => {
                if !matches!(a.verb, "update" | "patch") {
                    return refuse("can only get/update/patch this type");
                }
                self.related(node, a).await
            }
            ("", "persistentvolumeclaims" | "persistentvolumes")
            | ("resource.k8s.io", "resourceclaims")
            | ("storage.k8s.io", "volumeattachments") => {
                get_one(a)?;
                self.related(node, a).await
            }
            ("", "serviceaccounts") => {
                if a.verb == "get" && a.subresource.is_empty() {
                    read_one(a)?;
                } else if a.verb != "create" || a.name.is_empty() {
                    return refuse("can only create tokens for individual service accounts");
                } else if a.subresource != "token" {
                    return refuse("can only create token subresource of serviceaccount");
                }
                self.related(node, a).await
            }
            ("coordination.k8s.io", "leases") => lease(node, a),
            ("storage.k8s.io", "csinodes") => csi_node(node, a),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, a).await,
            ("certificates.k8s.io", "podcertificaterequests") => {
                self.pod_certificate_request(node, a).await
            }
            ("", "nodes") => own_node(node, a),
            ("", "pods") => self.pod(node, a).await,
            _ if self.rules.iter().any(|rule| rule.allows(a)) => Ok(()),
            _ => refuse(""),
        }
    }

    async fn pod(&self, node: &str, a: &Attributes<'_>) -> Refused {
        match (a.subresource, a.verb) {
            ("", "get") => self.related(node, a).await,
            ("", "list" | "watch") => {
                if selects(a.field_selector, "spec.nodeName", node) {
                    Ok(())
                } else if a.name.is_empty() {
                    refuse("can only list/watch pods with spec.nodeName field selector")
                } else {
                    self.related(node, a).await
                }
            }
            // NodeRestriction limits these to the node's own pods.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Ok(())
            }
            _ => refuse(""),
        }
    }

    /// NodeRestriction limits creates to the node's own pods.
    async fn pod_certificate_request(&self, node: &str, a: &Attributes<'_>) -> Refused {
        if !a.subresource.is_empty() {
            return refuse("nodes may not access the status subresource of PodCertificateRequests");
        }
        match a.verb {
            "create" => Ok(()),
            "get" => self.related(node, a).await,
            "list" | "watch" if selects(a.field_selector, "spec.nodeName", node) => Ok(()),
            "list" | "watch" => {
                refuse("can only list/watch podcertificaterequests with nodeName field selector")
            }
            verb => refuse(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    /// A node writes the ResourceSlices that name it; admission checks those that it creates.
    async fn resource_slice(&self, node: &str, a: &Attributes<'_>) -> Refused {
        if !a.subresource.is_empty() {
            return refuse("cannot authorize ResourceSlice subresources");
        }
        match a.verb {
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(node, a).await,
            "watch" | "list" | "deletecollection"
                if selects(a.field_selector, "spec.nodeName", node) =>
            {
                Ok(())
            }
            "watch" | "list" | "deletecollection" => refuse(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, \
                 create, update, patch, delete, deletecollection",
            ),
        }
    }

    /// Whether a pod of the node references the object.
    async fn related(&self, node: &str, a: &Attributes<'_>) -> Refused {
        if a.name.is_empty() {
            return refuse("No Object name found");
        }
        let found = match a.resource {
            "persistentvolumes" => self.volume_of(node, a.name).await,
            "volumeattachments" => {
                self.names_node(&lookup::VOLUME_ATTACHMENTS, "", a.name, node).await
            }
            "resourceslices" => self.names_node(&lookup::RESOURCE_SLICES, "", a.name, node).await,
            "podcertificaterequests" => {
                let gvr = &lookup::POD_CERTIFICATE_REQUESTS;
                self.names_node(gvr, a.namespace, a.name, node).await
            }
            "secrets" => match self.any_pod(node, a).await {
                Ok(false) => match self.secret_of_volume(node, a).await {
                    Ok(false) => ingress::names_secret(&*self.lookup, a.namespace, a.name).await,
                    found => found,
                },
                found => found,
            },
            _ => self.any_pod(node, a).await,
        };
        if found.map_err(unreadable)? {
            Ok(())
        } else {
            refuse(format!("no relationship found between node '{node}' and this object"))
        }
    }

    async fn any_pod(&self, node: &str, a: &Attributes<'_>) -> Result<bool, Status> {
        let pods = self.lookup.pods_on_node(node).await?;
        Ok(pods.iter().filter(|pod| &*pod.key.namespace == a.namespace).any(|pod| {
            if a.resource == "pods" {
                return &*pod.key.name == a.name;
            }
            pod.value().is_ok_and(|pod| refers(&pod, a.resource, a.name))
        }))
    }

    /// Whether the object exists and names this node.
    async fn names_node(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        node: &str,
    ) -> Result<bool, Status> {
        let found = self.lookup.get(gvr, namespace, name).await.and_then(lookup::value)?;
        Ok(found.is_some_and(|o| text(&o, "/spec/nodeName") == node))
    }

    /// Whether the volume is bound to a claim that a pod of the node uses.
    async fn volume_of(&self, node: &str, name: &str) -> Result<bool, Status> {
        let found = self.lookup.get(&lookup::PERSISTENT_VOLUMES, "", name).await;
        let Some(volume) = found.and_then(lookup::value)? else { return Ok(false) };
        let claim = Attributes {
            resource: "persistentvolumeclaims",
            namespace: text(&volume, "/spec/claimRef/namespace"),
            name: text(&volume, "/spec/claimRef/name"),
            ..Attributes::default()
        };
        self.any_pod(node, &claim).await
    }

    /// Whether a volume in use on the node references the Secret.
    async fn secret_of_volume(&self, node: &str, a: &Attributes<'_>) -> Result<bool, Status> {
        for volume in self.lookup.list(&lookup::PERSISTENT_VOLUMES, "").await? {
            if volume_names_secret(&volume, a.namespace, a.name)
                && self.volume_of(node, &volume.key.name).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl Authorizer for Node {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = identity(user) else { return Decision::NoOpinion(String::new()) };
        if node.is_empty() {
            return Decision::NoOpinion(format!(
                "unknown node for user {}",
                api::field::go_quote(&user.name)
            ));
        }
        match self.decide(node, attributes).await {
            Ok(()) => Decision::Allow(String::new()),
            Err(decision) => decision,
        }
    }

    fn rules(&self, user: &User, _: &str) -> UserRules {
        if identity(user).is_none() {
            return UserRules::default();
        }
        let error = "node authorizer does not support user rule resolution";
        UserRules { incomplete: true, errors: vec![error.to_owned()], ..UserRules::default() }
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'v>(value: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Allows `get` of one object.
fn get_one(a: &Attributes<'_>) -> Refused {
    if a.verb != "get" {
        return refuse("can only get individual resources of this type");
    }
    if a.subresource.is_empty() { Ok(()) } else { refuse("cannot get subresource") }
}

/// Allows `get`, and `list` and `watch` of one object.
fn read_one(a: &Attributes<'_>) -> Refused {
    if !matches!(a.verb, "get" | "list" | "watch") {
        return refuse("can only read resources of this type");
    }
    if !a.subresource.is_empty() {
        return refuse("cannot read subresource");
    }
    if a.namespace.is_empty() {
        refuse("can only read namespaced object of this type")
    } else {
        Ok(())
    }
}

fn lease(node: &str, a: &Attributes<'_>) -> Refused {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a node lease");
    }
    if a.namespace != "kube-node-lease" {
        return refuse("can only access leases in the \"kube-node-lease\" system namespace");
    }
    if a.verb != "create" && a.name != node {
        return refuse("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

fn csi_node(node: &str, a: &Attributes<'_>) -> Refused {
    if !a.subresource.is_empty() {
        return refuse("cannot authorize CSINode subresources");
    }
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if a.verb != "create" && a.name != node {
        return refuse("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

fn own_node(node: &str, a: &Attributes<'_>) -> Refused {
    match (a.subresource, a.verb) {
        // NodeRestriction limits writes to the node's own object.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") if a.name == node => Ok(()),
        ("", "get" | "list" | "watch") if a.name.is_empty() => {
            refuse(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            refuse(format!("node '{node}' cannot read '{}', only its own Node object", a.name))
        }
        _ => refuse(""),
    }
}

/// Whether `field=value` is one of the terms of a field selector.
fn selects(selector: &str, field: &str, value: &str) -> bool {
    selector.split(',').any(|term| match term.split_once('=') {
        Some((left, right)) => left == field && right.strip_prefix('=').unwrap_or(right) == value,
        None => false,
    })
}

/// Whether the pod references this object of its namespace.
fn refers(pod: &Value, resource: &str, name: &str) -> bool {
    // A mirror pod grants access to nothing, because its node created it.
    if pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some() {
        return false;
    }
    match resource {
        "serviceaccounts" => {
            let account = text(pod, "/spec/serviceAccountName");
            (if account.is_empty() { "default" } else { account }) == name
        }
        "persistentvolumeclaims" => {
            items(pod, "/spec/volumes").any(|v| claim_of(pod, v).is_some_and(|claim| claim == name))
        }
        "resourceclaims" => {
            items(pod, "/spec/resourceClaims").any(|c| text(c, "/resourceClaimName") == name)
                || items(pod, "/status/resourceClaimStatuses")
                    .any(|c| text(c, "/resourceClaimName") == name)
                || text(pod, "/status/extendedResourceClaimStatus/resourceClaimName") == name
        }
        "configmaps" => {
            names_config(pod, "configMap", "configMapRef", "configMapKeyRef", "/name", name)
        }
        "secrets" => {
            names_config(pod, "secret", "secretRef", "secretKeyRef", "/secretName", name)
                || items(pod, "/spec/imagePullSecrets").any(|s| text(s, "/name") == name)
                || items(pod, "/spec/volumes").any(|v| volume_source_secrets(v).any(|s| s == name))
        }
        _ => false,
    }
}

fn claim_of(pod: &Value, volume: &Value) -> Option<String> {
    if let Some(claim) = volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str)
    {
        return Some(claim.to_owned());
    }
    volume.get("ephemeral")?;
    Some(format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name")))
}

/// Whether environment or volumes of the pod reference the ConfigMap or Secret.
fn names_config(
    pod: &Value,
    volume: &str,
    env_from: &str,
    key_ref: &str,
    volume_name: &str,
    name: &str,
) -> bool {
    let container = |c: &Value| {
        items(c, "/envFrom").any(|e| text(e, &format!("/{env_from}/name")) == name)
            || items(c, "/env").any(|e| text(e, &format!("/valueFrom/{key_ref}/name")) == name)
    };
    ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"]
        .iter()
        .any(|list| items(pod, list).any(container))
        || items(pod, "/spec/volumes").any(|v| {
            text(v, &format!("/{volume}{volume_name}")) == name
                || items(v, "/projected/sources")
                    .any(|s| text(s, &format!("/{volume}/name")) == name)
        })
}

/// The Secrets that an inline volume of a pod references.
fn volume_source_secrets(volume: &Value) -> impl Iterator<Item = &str> {
    const DRIVERS: [&str; 9] = [
        "cephfs",
        "flexVolume",
        "rbd",
        "scaleIO",
        "iscsi",
        "storageos",
        "csi",
        "azureFile",
        "cinder",
    ];
    DRIVERS.iter().filter_map(|driver| volume.get(driver)).flat_map(|source| {
        ["/secretRef/name", "/nodePublishSecretRef/name", "/secretName"]
            .into_iter()
            .map(|pointer| text(source, pointer))
            .filter(|s| !s.is_empty())
    })
}

fn volume_names_secret(volume: &Object, namespace: &str, name: &str) -> bool {
    // Secrets of the controller are not readable by nodes.
    const CSI: [&str; 3] = ["nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];
    let Ok(volume) = volume.value() else { return false };
    let claim_namespace = text(&volume, "/spec/claimRef/namespace");
    let is = |reference: Option<&Value>| {
        reference.is_some_and(|r| {
            let of = text(r, "/namespace");
            text(r, "/name") == name
                && (if of.is_empty() { claim_namespace } else { of }) == namespace
        })
    };
    CSI.iter().any(|field| is(volume.pointer(&format!("/spec/csi/{field}"))))
        || ["cephfs", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"]
            .iter()
            .any(|d| is(volume.pointer(&format!("/spec/{d}/secretRef"))))
        || text(&volume, "/spec/azureFile/secretName") == name && claim_namespace == namespace
}

#[cfg(test)]
mod tests;
