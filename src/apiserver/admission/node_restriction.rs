//! NodeRestriction: a node writes only its own objects, and only the fields that it owns.

mod audience;
mod pod_certificate;

use std::sync::Arc;

use api::field::go_quote;
use api::node_labels::reserved;
use api::value::{at, bool_at, entries, get, has, is_empty, items, remove, str_at, str_in};
use api::{Gvr, Status};
use async_trait::async_trait;
use serde_json::Value;
use sorting::CompactSort as _;

use super::{Operation, Plugin, Request};
use crate::authz::node::identity;
use crate::authz::{Attributes, Authorizer, Decision};
use lookup::Lookup;

/// The NodeRestriction plugin.
pub struct NodeRestriction {
    lookup: Arc<dyn Lookup>,
    authorizer: Arc<dyn Authorizer>,
}

/// A rejection: a reason for 403, or a complete status.
enum Rejection {
    Because(String),
    Answer(Box<Status>),
}

impl From<String> for Rejection {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

type Verdict = Result<(), Rejection>;

fn no(why: impl Into<String>) -> Verdict {
    Err(Rejection::Because(why.into()))
}

impl NodeRestriction {
    /// Creates the plugin; `authorizer` decides whether a node may request tokens for an audience
    /// that no volume of the pod names.
    pub fn new(lookup: Arc<dyn Lookup>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { lookup, authorizer }
    }

    async fn decide(&self, node: &str, r: &Request<'_>, object: Option<&Value>) -> Verdict {
        let quoted = go_quote(node);
        let object = object.unwrap_or(&Value::Null);
        match (&*r.gvr.group, &*r.gvr.resource, r.subresource) {
            ("", "pods", "") => self.pod(node, r, object).await,
            ("", "pods", "status") => pod_status(&quoted, node, r, object),
            ("", "pods", "eviction") => {
                let name =
                    if r.name.is_empty() { str_in(object, &["metadata", "name"]) } else { r.name };
                let pod = self.existing_pod(r.namespace, name).await?;
                if str_in(&pod, &["spec", "nodeName"]) == node {
                    return Ok(());
                }
                no(format!("node {node} can only evict pods with spec.nodeName set to itself"))
            }
            ("", "pods", other) => no(format!(
                "unexpected pod subresource {}, only 'status' and 'eviction' are allowed",
                go_quote(other)
            )),
            ("", "nodes", _) => own_node(&quoted, node, r, object),
            ("", "persistentvolumeclaims", "status") => claim_status(&quoted, r, object),
            ("", "persistentvolumeclaims", _) => no("may only update PVC status"),
            ("", "serviceaccounts", "token") if r.operation == Operation::Create => {
                self.token(node, r, object).await
            }
            ("coordination.k8s.io", "leases", _) => {
                if r.namespace != "kube-node-lease" {
                    return no(
                        "can only access leases in the \"kube-node-lease\" system namespace",
                    );
                }
                same_name(
                    node,
                    r,
                    object,
                    "can only access node lease with the same name as the requesting node",
                )
            }
            ("storage.k8s.io", "csinodes", _) => same_name(
                node,
                r,
                object,
                "can only access CSINode with the same name as the requesting node",
            ),
            ("resource.k8s.io", "resourceslices", _) => resource_slice(node, r, object),
            ("certificates.k8s.io", "certificatesigningrequests", "")
                if r.operation == Operation::Create =>
            {
                super::certificates::check_node_request(node, object)
                    .map_err(|error| Rejection::Because(error.to_string()))
            }
            ("certificates.k8s.io", "podcertificaterequests", _) => {
                self.pod_certificate(node, r, object).await
            }
            _ => Ok(()),
        }
    }

    async fn existing_pod(&self, namespace: &str, name: &str) -> Result<Value, Rejection> {
        let found = self.existing(&lookup::PODS, namespace, name).await;
        found
            .map_err(|error| Rejection::Because(error.message))?
            .ok_or_else(|| Rejection::Answer(Box::new(Status::not_found("", "pods", name))))
    }

    async fn pod(&self, node: &str, r: &Request<'_>, pod: &Value) -> Verdict {
        let quoted = go_quote(node);
        match r.operation {
            Operation::Create => self.mirror_pod(node, &quoted, pod).await,
            Operation::Delete => {
                let pod = self.existing_pod(r.namespace, r.name).await?;
                if str_in(&pod, &["spec", "nodeName"]) == node {
                    return Ok(());
                }
                no(format!("node {quoted} can only delete pods with spec.nodeName set to itself"))
            }
            _ => no(format!(
                "unexpected operation \"UPDATE\", node {quoted} can only create and delete mirror pods"
            )),
        }
    }

    async fn mirror_pod(&self, node: &str, quoted: &str, pod: &Value) -> Verdict {
        if !has(at(pod, &["metadata", "annotations"]), "kubernetes.io/config.mirror") {
            return no(format!(
                "pod does not have \"kubernetes.io/config.mirror\" annotation, node {quoted} can only create mirror pods"
            ));
        }
        if str_in(pod, &["spec", "nodeName"]) != node {
            return no(format!(
                "node {quoted} can only create pods with spec.nodeName set to itself"
            ));
        }
        let owner = match items(get(pod, "metadata"), "ownerReferences") {
            [one] => one,
            [] => {
                return no(format!(
                    "node {quoted} can only create pods with an owner reference set to itself"
                ));
            }
            _ => {
                return no(format!(
                    "node {quoted} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        if str_at(owner, "apiVersion") != "v1"
            || str_at(owner, "kind") != "Node"
            || str_at(owner, "name") != node
        {
            return no(format!(
                "node {quoted} can only create pods with an owner reference set to itself"
            ));
        }
        if !bool_at(owner, "controller") {
            return no(format!(
                "node {quoted} can only create pods with a controller owner reference set to itself"
            ));
        }
        if bool_at(owner, "blockOwnerDeletion") {
            return no(format!(
                "node {quoted} must not set blockOwnerDeletion on an owner reference"
            ));
        }
        let own = self.lookup.get(&lookup::NODES, "", node).await.map_err(|error| {
            format!("error looking up node {node} to verify uid: {}", error.message)
        })?;
        let Some(own) = own else {
            return Err(Rejection::Answer(Box::new(Status::not_found("", "nodes", node))));
        };
        if str_at(owner, "uid") != &*own.uid {
            return no(format!(
                "node {node} UID mismatch: expected {} got {}",
                str_at(owner, "uid"),
                own.uid
            ));
        }
        match references(pod) {
            Some(what) => no(format!("node {quoted} can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    async fn token(&self, node: &str, r: &Request<'_>, request: &Value) -> Verdict {
        let reference = at(request, &["spec", "boundObjectRef"]);
        if str_at(reference, "apiVersion") != "v1"
            || str_at(reference, "kind") != "Pod"
            || is_empty(reference, "name")
        {
            return no("node requested token not bound to a pod");
        }
        let uid = str_at(reference, "uid");
        if uid.is_empty() {
            return no("node requested token with a pod binding without a uid");
        }
        let pod = self.existing_pod(r.namespace, str_at(reference, "name")).await?;
        if str_in(&pod, &["metadata", "uid"]) != uid {
            return no(format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ));
        }
        if str_in(&pod, &["spec", "nodeName"]) != node {
            return no("node requested token bound to a pod scheduled on a different node");
        }
        let audience = match items(get(request, "spec"), "audiences") {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return no("node may only request 0 or 1 audiences"),
        };
        let named = self.names_audience(r.namespace, &pod, audience).await;
        if named.map_err(|e| format!("error validating audience {}: {e}", go_quote(audience)))? {
            return Ok(());
        }
        let attributes = Attributes {
            verb: "request-serviceaccounts-token-audience",
            version: "v1",
            resource: audience,
            namespace: r.namespace,
            name: r.name,
            ..Attributes::default()
        };
        match self.authorizer.authorize(r.user, &attributes).await {
            Decision::Allow(_) => Ok(()),
            _ => no(format!(
                "{} is not authorized to request tokens for audience {}",
                r.user.name,
                go_quote(audience)
            )),
        }
    }

    async fn existing(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Status> {
        self.lookup.get(gvr, namespace, name).await.and_then(lookup::value)
    }
}

fn same_name(node: &str, r: &Request<'_>, object: &Value, why: &str) -> Verdict {
    let name = if r.operation == Operation::Create {
        str_in(object, &["metadata", "name"])
    } else {
        r.name
    };
    if name == node { Ok(()) } else { no(why) }
}

/// A node creates and deletes ResourceSlices that name it. The authorizer checks other requests.
fn resource_slice(node: &str, r: &Request<'_>, slice: &Value) -> Verdict {
    let (slice, verb) = match r.operation {
        Operation::Create => (slice, "create"),
        Operation::Delete => (r.old.unwrap_or(&Value::Null), "delete"),
        _ => return Ok(()),
    };
    if str_in(slice, &["spec", "nodeName"]) == node {
        return Ok(());
    }
    no(format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
}

fn pod_status(quoted: &str, node: &str, r: &Request<'_>, pod: &Value) -> Verdict {
    let Some(old) = r.old.filter(|_| r.operation == Operation::Update) else {
        return no("unexpected operation");
    };
    if str_in(old, &["spec", "nodeName"]) != node {
        return no(format!(
            "node {quoted} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let differs = |path: &[&str]| {
        let (a, b) = (at(old, path), at(pod, path));
        let empty = |v: &Value| {
            v.is_null()
                || v.as_object().is_some_and(serde_json::Map::is_empty)
                || v.as_array().is_some_and(Vec::is_empty)
        };
        a != b && !(empty(a) && empty(b))
    };
    if differs(&["metadata", "labels"]) {
        return no(format!("node {quoted} cannot update labels through pod status"));
    }
    if differs(&["status", "resourceClaimStatuses"]) {
        return no(format!("node {quoted} cannot update resource claim statues"));
    }
    if differs(&["status", "extendedResourceClaimStatus"]) {
        return no(format!("node {quoted} cannot update extended resource claim status"));
    }
    Ok(())
}

/// The taints that the node lifecycle controller applied from the node's flags. It removes no other
/// taints, so a node must not be able to add to this list.
const APPLIED_FLAG_TAINTS: &str = "kube-lite.io/applied-flag-taints";

fn own_node(quoted: &str, node: &str, r: &Request<'_>, object: &Value) -> Verdict {
    // For a create, the name is in the object.
    let name = if r.name.is_empty() { str_in(object, &["metadata", "name"]) } else { r.name };
    if name != node {
        return no(format!("node {quoted} is not allowed to modify node {}", go_quote(name)));
    }
    let source = at(object, &["spec", "configSource"]);
    match (r.operation, r.old) {
        (Operation::Create, _) => {
            if !source.is_null() {
                return no(format!(
                    "node {quoted} is not allowed to create pods with a non-nil configSource"
                ));
            }
            let forbidden = forbidden_labels(object, &Value::Null);
            if !forbidden.is_empty() {
                return no(format!(
                    "node {quoted} is not allowed to set the following labels: {}",
                    forbidden.join(", ")
                ));
            }
        }
        (Operation::Update, Some(old)) => {
            if !source.is_null() && source != at(old, &["spec", "configSource"]) {
                return no(format!(
                    "node {quoted} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if items(get(object, "spec"), "taints") != items(get(old, "spec"), "taints") {
                return no(format!("node {quoted} is not allowed to modify taints"));
            }
            let note = |object| get(at(object, &["metadata", "annotations"]), APPLIED_FLAG_TAINTS);
            if note(object) != note(old) {
                return no(format!(
                    "node {quoted} is not allowed to modify the annotation {APPLIED_FLAG_TAINTS}"
                ));
            }
            if items(get(object, "metadata"), "ownerReferences")
                != items(get(old, "metadata"), "ownerReferences")
            {
                return no(format!("node {quoted} is not allowed to modify ownerReferences"));
            }
            let forbidden = forbidden_labels(object, old);
            if !forbidden.is_empty() {
                return no(format!("is not allowed to modify labels: {}", forbidden.join(", ")));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The labels that differ and that a node must not set, sorted.
fn forbidden_labels(new: &Value, old: &Value) -> Vec<String> {
    let (new, old) = (get(new, "metadata"), get(old, "metadata"));
    let changed = entries(new, "labels").filter(|(k, v)| get(get(old, "labels"), k) != *v);
    let gone = entries(old, "labels").filter(|(k, _)| !has(get(new, "labels"), k));
    let mut out: Vec<String> =
        changed.chain(gone).map(|(k, _)| k.clone()).filter(|k| reserved(k).is_some()).collect();
    out.compact_sort();
    out.dedup();
    out
}

fn claim_status(quoted: &str, r: &Request<'_>, claim: &Value) -> Verdict {
    let Some(old) = r.old else { return no("unexpected operation") };
    let rest = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value.get_mut("metadata") {
            remove(meta, "resourceVersion");
            remove(meta, "managedFields");
        }
        if let Some(status) = value.get_mut("status") {
            for field in
                ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"]
            {
                remove(status, field);
            }
        }
        value
    };
    if rest(old) == rest(claim) {
        return Ok(());
    }
    no(format!(
        "node {quoted} is not allowed to update fields other than status.quantity and status.conditions"
    ))
}

/// The kind of API object that the pod references, if any.
pub(super) fn references(pod: &Value) -> Option<&'static str> {
    let spec = get(pod, "spec");
    if !is_empty(spec, "serviceAccountName") {
        return Some("serviceaccounts");
    }
    let containers = || {
        ["containers", "initContainers", "ephemeralContainers"]
            .iter()
            .flat_map(|list| items(spec, list))
    };
    let volumes = items(spec, "volumes");
    let env = |field: &str| {
        containers().any(|c| items(c, "env").iter().any(|e| has(get(e, "valueFrom"), field)))
    };
    let env_from =
        |field: &str| containers().any(|c| items(c, "envFrom").iter().any(|e| has(e, field)));
    let projected = |field: &str| {
        volumes.iter().any(|v| items(get(v, "projected"), "sources").iter().any(|s| has(s, field)))
    };
    let volume = |field: &str| volumes.iter().any(|v| has(v, field));
    let driver = |v: &Value| {
        ["azureFile", "cephfs", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos", "cinder"]
            .iter()
            .any(|d| has(get(v, d), "secretRef") || has(get(v, d), "secretName"))
            || has(get(v, "csi"), "nodePublishSecretRef")
    };
    if !is_empty(spec, "imagePullSecrets")
        || env("secretKeyRef")
        || env_from("secretRef")
        || volume("secret")
        || projected("secret")
        || volumes.iter().any(driver)
    {
        return Some("secrets");
    }
    if env("configMapKeyRef")
        || env_from("configMapRef")
        || volume("configMap")
        || projected("configMap")
    {
        return Some("configmaps");
    }
    if projected("clusterTrustBundle") {
        return Some("clustertrustbundles");
    }
    if projected("serviceAccountToken") {
        return Some("serviceaccounts");
    }
    if projected("podCertificate") {
        return Some("podcertificates");
    }
    if volume("persistentVolumeClaim") || volume("ephemeral") {
        return Some("persistentvolumeclaims");
    }
    (!is_empty(spec, "resourceClaims")).then_some("resourceclaims")
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let Some(node) = identity(request.user) else { return Ok(()) };
        if request.operation == Operation::Connect {
            return Ok(());
        }
        let object = object.as_ref();
        let verdict = if node.is_empty() {
            no(format!("could not determine node from user {}", go_quote(&request.user.name)))
        } else {
            self.decide(node, request, object).await
        };
        match verdict {
            Ok(()) => Ok(()),
            Err(Rejection::Answer(status)) => Err(*status),
            Err(Rejection::Because(why)) => Err(request.forbidden(object, &why)),
        }
    }
}

#[cfg(test)]
mod tests;
