//! A node requests certificates only for its own pods, for the pods' service accounts, and from
//! signers that the pods name.

use api::field::go_quote;
use api::value::{at, get, has, items, str_at, str_in};
use serde_json::Value;

use super::{NodeRestriction, Rejection, Verdict, no};
use crate::admission::{Operation, Request};
use crate::authz::{Attributes, Decision};
use crate::response::status::unmapped;

/// An error that a retry can resolve, because the node's cache or ours is stale. Upstream returns a
/// plain error, 500.
fn later(why: String) -> Rejection {
    Rejection::Answer(Box::new(unmapped(500, why)))
}

impl NodeRestriction {
    pub(super) async fn pod_certificate(
        &self,
        node: &str,
        r: &Request<'_>,
        request: &Value,
    ) -> Verdict {
        let operation = match r.operation {
            Operation::Create => "",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        };
        if !operation.is_empty() {
            return no(format!("unexpected operation {operation}"));
        }
        if !r.subresource.is_empty() {
            return no(format!("unexpected subresource {}", r.subresource));
        }
        let spec = get(request, "spec");
        let pod_name = go_quote(&format!("{}/{}", r.namespace, str_at(spec, "podName")));
        self.names_itself(node, spec, &pod_name).await?;
        let (pod, account) = self.pod_of(node, r, spec, &pod_name).await?;
        let claimed = str_at(spec, "serviceAccountUID");
        if claimed != account {
            return Err(later(format!(
                "PodCertificateRequest for pod {pod_name} names service account UID {}, which differs from the running service account ({})",
                go_quote(claimed),
                go_quote(&account)
            )));
        }
        self.may_ask(r, spec, &pod, &pod_name).await
    }

    async fn names_itself(&self, node: &str, spec: &Value, pod_name: &str) -> Verdict {
        let named = str_at(spec, "nodeName");
        let quoted = go_quote(named);
        if named != node {
            return no(format!(
                "PodCertificateRequest.Spec.NodeName={quoted}, which is not the requesting node {}",
                go_quote(node)
            ));
        }
        let own = self.existing(&lookup::NODES, "", named).await.map_err(|error| {
            format!(
                "while retrieving node {quoted} named in the PodCertificateRequest: {}",
                error.message
            )
        })?;
        let own = own.ok_or_else(|| {
            later(format!(
                "while retrieving node {quoted} named in the PodCertificateRequest: node {quoted} not found"
            ))
        })?;
        let (uid, claimed) = (str_in(&own, &["metadata", "uid"]), str_at(spec, "nodeUID"));
        if uid == claimed {
            return Ok(());
        }
        Err(later(format!(
            "PodCertificateRequest for pod {pod_name} names node UID {}, inconsistent with the running node ({})",
            go_quote(claimed),
            go_quote(uid)
        )))
    }

    /// The pod, which must run on this node, and the UID of its service account.
    async fn pod_of(
        &self,
        node: &str,
        r: &Request<'_>,
        spec: &Value,
        pod_name: &str,
    ) -> Result<(Value, String), Rejection> {
        let because = |why: String| Err(Rejection::Because(why));
        let pod = self.existing(&lookup::PODS, r.namespace, str_at(spec, "podName")).await;
        let pod = pod.map_err(|error| {
            format!(
                "while retrieving pod {pod_name} named in the PodCertificateRequest: {}",
                error.message
            )
        })?;
        let pod = pod.ok_or_else(|| {
            later(format!(
                "while retrieving pod {pod_name} named in the PodCertificateRequest: pod {} not found",
                go_quote(str_at(spec, "podName"))
            ))
        })?;
        let (uid, claimed) = (str_in(&pod, &["metadata", "uid"]), str_at(spec, "podUID"));
        if uid != claimed {
            return Err(later(format!(
                "PodCertificateRequest for pod {pod_name} contains pod UID ({}) which differs from running pod {}",
                go_quote(claimed),
                go_quote(uid)
            )));
        }
        if str_in(&pod, &["spec", "nodeName"]) != node {
            return because(format!(
                "pod {pod_name} is not running on node {} named in the PodCertificateRequest",
                go_quote(node)
            ));
        }
        if has(at(&pod, &["metadata", "annotations"]), "kubernetes.io/config.mirror") {
            return because(format!("pod {pod_name} is a mirror pod"));
        }
        let account = str_at(spec, "serviceAccountName");
        let own = str_in(&pod, &["spec", "serviceAccountName"]);
        if account != own {
            return because(format!(
                "PodCertificateRequest for pod {pod_name} contains serviceAccountName ({}) that differs from running pod ({})",
                go_quote(account),
                go_quote(own)
            ));
        }
        let full = go_quote(&format!("{}/{account}", r.namespace));
        let found = self.existing(&lookup::SERVICE_ACCOUNTS, r.namespace, account).await;
        let found = found.map_err(|error| {
            format!(
                "while retrieving service account {full} named in the PodCertificateRequest: {}",
                error.message
            )
        })?;
        let found = found.ok_or_else(|| {
            later(format!(
                "while retrieving service account {full} named in the PodCertificateRequest: serviceaccount {} not found",
                go_quote(account)
            ))
        })?;
        let uid = str_in(&found, &["metadata", "uid"]).to_owned();
        Ok((pod, uid))
    }

    /// The pod has a volume with this signer, or the node is authorized without one.
    async fn may_ask(&self, r: &Request<'_>, spec: &Value, pod: &Value, pod_name: &str) -> Verdict {
        let signer = str_at(spec, "signerName");
        let volumes = items(get(pod, "spec"), "volumes").iter();
        let mut sources = volumes.flat_map(|v| items(get(v, "projected"), "sources"));
        if sources.any(|s| {
            has(s, "podCertificate") && str_in(s, &["podCertificate", "signerName"]) == signer
        }) {
            return Ok(());
        }
        // A resource name has no slash: the signer's name is escaped as in the names of trust
        // bundles.
        let resource = signer.replace('/', ":");
        let attributes = Attributes {
            verb: "request-serviceaccounts-podcertificate-signer",
            group: &r.gvr.group,
            version: &r.gvr.version,
            resource: &resource,
            namespace: r.namespace,
            name: str_at(spec, "serviceAccountName"),
            ..Attributes::default()
        };
        match self.authorizer.authorize(r.user, &attributes).await {
            Decision::Allow(_) => Ok(()),
            _ => no(format!(
                "pod {pod_name} does not mount a podCertificate projected volume for signer {}",
                go_quote(signer)
            )),
        }
    }
}
