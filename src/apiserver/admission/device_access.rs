//! Admin access to devices: only in namespaces that carry the label for it (`AuthorizedForAdmin` and `AuthorizedForAdminStatus` of
//! upstream's `pkg/registry/resource`).

use std::sync::Arc;

use api::Status;
use api::field::{Error, Path};
use api::value::{at, bool_at, get, items};
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::lookup::{self, Lookup};

const GROUP: &str = "resource.k8s.io";
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// No plugin upstream but part of how claims are stored.
pub struct DeviceAdminAccess(pub Arc<dyn Lookup>);

/// The first place at which admin access is asked for.
fn asked(request: &Request<'_>, object: &Value) -> Option<Path> {
    let create = request.operation == Operation::Create && request.subresource.is_empty();
    if create && request.is(GROUP, "resourceclaims") {
        return of_requests(get(object, "spec"));
    }
    if create && request.is(GROUP, "resourceclaimtemplates") {
        // The path is a claim's there, too.
        return of_requests(at(object, &["spec", "spec"]));
    }
    let status = request.operation == Operation::Update && request.subresource == "status";
    if !status || !request.is(GROUP, "resourceclaims") {
        return None;
    }
    // An allocation stays as it is: what was granted is not asked again.
    let granted = request.old.and_then(of_results);
    of_results(object).filter(|_| granted.is_none())
}

fn of_requests(spec: &Value) -> Option<Path> {
    let mut requests = items(get(spec, "devices"), "requests").iter();
    let index = requests.position(|request| bool_at(get(request, "exactly"), "adminAccess"))?;
    let path = Path::new("spec").child("devices").child("requests").index(index);
    Some(path.child("adminAccess"))
}

fn of_results(claim: &Value) -> Option<Path> {
    let devices = at(claim, &["status", "allocation", "devices"]);
    let index =
        items(devices, "results").iter().position(|result| bool_at(result, "adminAccess"))?;
    let path = Path::new("status").child("allocation").child("devices").child("results");
    Some(path.index(index).child("adminAccess"))
}

fn is_marked(namespace: &api::Object) -> bool {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Only {
        metadata: Metadata,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Metadata {
        labels: std::collections::HashMap<String, String>,
    }
    serde_json::from_slice::<Only>(namespace.raw())
        .is_ok_and(|only| only.metadata.labels.get(LABEL).is_some_and(|value| value == "true"))
}

#[async_trait]
impl Plugin for DeviceAdminAccess {
    fn name(&self) -> &'static str {
        "DeviceAdminAccess"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(path) = object.and_then(|object| asked(request, object)) else { return Ok(()) };
        // As upstream, the store is asked and not the cache.
        let name = request.namespace;
        let error = match self.0.get_live(&lookup::NAMESPACES, "", name).await {
            Some(namespace) if is_marked(&namespace) => return Ok(()),
            Some(_) => Error::forbidden(
                &path,
                format!(
                    "admin access to devices requires the `{LABEL}: true` label on the containing namespace"
                ),
            ),
            None => Error::internal(
                &path,
                format!(
                    "could not retrieve namespace to verify admin access: namespaces \"{name}\" not found"
                ),
            ),
        };
        let own = object.map_or("", |object| api::value::str_in(object, &["metadata", "name"]));
        Err(Status::invalid(GROUP, &request.gvk.kind, own, &[error]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use crate::lookup::testing::Fixed;
    use api::Gvr;
    use serde_json::json;

    /// The first text is an answer of kube-apiserver 1.37.1 about a status.
    #[tokio::test]
    async fn admin_access_needs_a_marked_namespace() {
        let namespace =
            |name: &str, value: &str| json!({"metadata": {"name": name, "labels": {LABEL: value}}});
        let plugin = DeviceAdminAccess(Fixed::new(&[
            (&lookup::NAMESPACES, namespace("a", "false")),
            (&lookup::NAMESPACES, namespace("b", "true")),
        ]));
        let claims = Gvr::new(GROUP, "v1", "resourceclaims");
        let writes = |namespace: &'static str, old: Value| Ask {
            operation: Operation::Update,
            subresource: "status",
            namespace,
            old: Some(old),
            ..creates(&claims, "ResourceClaim")
        };
        let claim = json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": [{}, {"adminAccess": true}]}}}});
        let refused = admit(&plugin, writes("a", json!({})), claim.clone()).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                422,
                "ResourceClaim.resource.k8s.io \"c\" is invalid: status.allocation.devices.results[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
            )
        );
        assert!(admit(&plugin, writes("b", json!({})), claim.clone()).await.is_ok());
        assert!(admit(&plugin, writes("a", claim.clone()), claim).await.is_ok());

        let templates = Gvr::new(GROUP, "v1", "resourceclaimtemplates");
        let devices =
            json!({"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": true}}]}});
        let template = json!({"metadata": {"name": "t"}, "spec": {"spec": devices}});
        let ask = creates(&templates, "ResourceClaimTemplate");
        let refused = admit(&plugin, ask, template).await.unwrap_err();
        assert!(
            refused.message.contains(": spec.devices.requests[0].adminAccess: Forbidden: "),
            "{}",
            refused.message
        );
        let ask = Ask { namespace: "none", ..creates(&claims, "ResourceClaim") };
        let refused = admit(&plugin, ask, json!({"spec": devices})).await.unwrap_err();
        assert!(refused.message.contains("Internal error: could not retrieve namespace"));
    }
}
