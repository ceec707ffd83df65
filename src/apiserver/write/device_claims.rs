//! Authorization of writes to ResourceClaims in addition to validation: admin access requires a
//! labelled namespace (`AuthorizedForAdmin`, `AuthorizedForAdminStatus`), and allocations and
//! device status require separate permissions (`AuthorizedForBinding`, `AuthorizedForDeviceStatus`
//! in `pkg/registry/resource/utils.go`, feature `DRAResourceClaimGranularStatusAuthorization`).

use std::collections::{BTreeSet, HashMap, HashSet};

use api::field::{Error, ErrorList, Path};
use api::value::{at, bool_at, get, items, semantic_equal, str_at};
use serde::Deserialize;
use serde_json::Value;
use sorting::CollectOrdered as _;

use crate::authz::{Attributes, Authorizer, Decision, chain};
use crate::request::context::Context;
use crate::request::user::User;
use lookup::Lookup;

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
const LABEL: &str = "resource.kubernetes.io/admin-access";
/// Extra key of a service account token with the node of its pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The user and the claim that a write is checked for.
struct ClaimWrite<'a> {
    lookup: &'a dyn Lookup,
    authorizer: &'a dyn Authorizer,
    user: &'a User,
    verb: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
}

/// Errors of a write to a ResourceClaim or ResourceClaimTemplate; empty for other kinds. `old` is
/// the stored object of an update.
pub(crate) async fn authorization_errors(
    context: &Context,
    value: &Value,
    old: Option<&Value>,
) -> ErrorList {
    let gvr = &context.row.spec.gvr;
    if &*gvr.group != GROUP {
        return ErrorList::new();
    }
    let asked = ClaimWrite {
        lookup: context.server.objects.as_ref(),
        authorizer: context.server.parts.authorizer.as_ref(),
        user: &context.user,
        verb: context.info.verb,
        version: &gvr.version,
        resource: &gvr.resource,
        subresource: &context.info.subresource,
        namespace: context.namespace(),
    };
    asked.authorization_errors(value, old).await
}

impl ClaimWrite<'_> {
    async fn authorization_errors(&self, value: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = match (self.resource, old) {
            (CLAIMS, None) => of_requests(get(value, "spec")),
            // Upstream uses the path of a claim for templates, too.
            ("resourceclaimtemplates", None) => of_requests(at(value, &["spec", "spec"])),
            (CLAIMS, Some(old)) if self.subresource == "status" => {
                // An unchanged allocation is not checked again.
                of_results(value).filter(|_| of_results(old).is_none())
            }
            _ => return errors,
        };
        if let Some(path) = path {
            errors.extend(self.admin(&path).await);
        }
        let Some(old) = old else { return errors };
        let (new, old) = (get(value, "status"), get(old, "status"));
        let same = |key: &str| semantic_equal(get(new, key), get(old, key));
        if !(same("allocation") && same("reservedFor")) {
            errors.extend(self.binding().await);
        }
        // The device status is dropped together with the allocation.
        if get(new, "allocation").is_object() {
            for driver in drivers(new, old) {
                errors.extend(self.driver(new, driver).await);
            }
        }
        errors
    }

    async fn admin(&self, path: &Path) -> Option<Error> {
        // Reads from the store instead of the cache, as `AuthorizedForAdmin` does.
        let name = self.namespace;
        match self.lookup.get_live(&lookup::NAMESPACES, "", name).await {
            Ok(Some(namespace)) if is_marked(&namespace) => None,
            Ok(Some(_)) => Some(Error::forbidden(
                path,
                format!(
                    "admin access to devices requires the `{LABEL}: true` label on the containing namespace"
                ),
            )),
            Ok(None) => Some(Error::internal(
                path,
                format!(
                    "could not retrieve namespace to verify admin access: namespaces \"{name}\" not found"
                ),
            )),
            Err(error) => Some(Error::internal(
                path,
                format!("could not retrieve namespace to verify admin access: {}", error.message),
            )),
        }
    }

    async fn binding(&self) -> Option<Error> {
        let why = self.check_permission(self.verb, "binding", "", "").await?;
        let text = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{}\" permission: {why}",
            self.verb
        );
        Some(Error::forbidden(&Path::new("status").child("allocation"), text))
    }

    /// Permission to write the device status of a driver. For a service account on the claim's
    /// node, the permission for its own node is sufficient.
    async fn driver(&self, status: &Value, driver: &str) -> Option<Error> {
        let mut verbs = vec![format!("arbitrary-node:{}", self.verb)];
        if on_node(self.user, allocated_node(get(status, "allocation"))) {
            verbs.insert(0, format!("associated-node:{}", self.verb));
        }
        let mut first = None;
        for verb in &verbs {
            let why = self.check_permission(verb, "driver", self.namespace, driver).await?;
            first.get_or_insert(why);
        }
        let text = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {}",
            verbs.join(" "),
            first.unwrap_or_default()
        );
        Some(Error::forbidden(&Path::new("status").child("devices"), text))
    }

    /// The error when the user lacks a permission on a subresource of claims; `None` when it is
    /// allowed.
    async fn check_permission(
        &self,
        verb: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<String> {
        let attributes = Attributes {
            verb,
            group: GROUP,
            version: self.version,
            resource: self.resource,
            subresource,
            namespace,
            name,
            ..Attributes::default()
        };
        let why = match self.authorizer.authorize(self.user, &attributes).await {
            Decision::Allow(_) => return None,
            Decision::Deny(reason) | Decision::NoOpinion(reason) => reason,
            Decision::Failed(failure) if failure.reason.is_empty() => failure.error,
            Decision::Failed(failure) => format!("{}: {}", failure.error, failure.reason),
        };
        Some(chain::forbidden(self.user, &attributes, &why).message)
    }
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

/// Drivers whose device status was added, changed or removed.
fn drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let key = |device: &'a Value| {
        ["driver", "pool", "device", "shareID"].map(|part| str_at(device, part))
    };
    let (now, before) = (items(new, "devices"), items(old, "devices"));
    let mut known: HashMap<[&str; 4], Vec<&Value>> = HashMap::new();
    for device in before {
        known.entry(key(device)).or_default().push(device);
    }
    let same = |device: &'a Value| {
        let others = known.get(&key(device)).into_iter().flatten();
        others.into_iter().any(|other| semantic_equal(other, device))
    };
    let kept: HashSet<[&str; 4]> = now.iter().map(key).collect();
    let changed = now.iter().filter(|device| !same(device));
    let gone = before.iter().filter(|device| !kept.contains(&key(device)));
    changed.chain(gone).map(|device| str_at(device, "driver")).collect_set()
}

/// The node of an allocation that is restricted to a single node.
fn allocated_node(allocation: &Value) -> Option<&str> {
    let [term] = items(get(allocation, "nodeSelector"), "nodeSelectorTerms") else { return None };
    let ([field], []) = (items(term, "matchFields"), items(term, "matchExpressions")) else {
        return None;
    };
    let [node] = items(field, "values") else { return None };
    let by_name = str_at(field, "key") == "metadata.name" && str_at(field, "operator") == "In";
    node.as_str().filter(|_| by_name)
}

fn on_node(user: &User, node: Option<&str>) -> bool {
    let account = user.name.strip_prefix("system:serviceaccount:");
    let own = user.extra.get(NODE_NAME).map(Vec::as_slice);
    match (account, own, node) {
        (Some(_), Some([own]), Some(node)) => own == node && !node.is_empty(),
        _ => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use lookup::testing::Fixed;
    use serde_json::json;

    /// Allows the listed `verb resource/subresource namespace name` entries.
    struct AllowList(&'static [&'static str]);

    #[async_trait]
    impl Authorizer for AllowList {
        async fn authorize(&self, _: &User, a: &Attributes<'_>) -> Decision {
            let asked = [a.verb, &format!("{}/{}", a.resource, a.subresource), a.namespace, a.name];
            match self.0.contains(&asked.join(" ").as_str()) {
                true => Decision::Allow(String::new()),
                false => Decision::NoOpinion(String::new()),
            }
        }
    }

    async fn errors(
        (resource, subresource, namespace): (&str, &str, &str),
        (user, rights): (&User, &'static [&'static str]),
        value: &Value,
        old: Option<&Value>,
    ) -> Vec<String> {
        let marked =
            |name: &str, value: &str| json!({"metadata": {"name": name, "labels": {LABEL: value}}});
        let lookup = Fixed::new(&[
            (&lookup::NAMESPACES, marked("a", "false")),
            (&lookup::NAMESPACES, marked("b", "true")),
        ]);
        let write = ClaimWrite {
            lookup: lookup.as_ref(),
            authorizer: &AllowList(rights),
            user,
            verb: if old.is_some() { "update" } else { "create" },
            version: "v1",
            resource,
            subresource,
            namespace,
        };
        write.authorization_errors(value, old).await.iter().map(ToString::to_string).collect()
    }

    const BINDS: &[&str] = &["update resourceclaims/binding  "];

    /// The first text is a response of kube-apiserver 1.37.1 to a status write.
    #[tokio::test]
    async fn admin_access_requires_a_labelled_namespace() {
        let user = User::default();
        let claim = json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": [{}, {"adminAccess": true}]}}}});
        let writes = |namespace| (CLAIMS, "status", namespace);
        assert_eq!(
            errors(writes("a"), (&user, BINDS), &claim, Some(&json!({}))).await,
            [
                "status.allocation.devices.results[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
            ]
        );
        assert!(errors(writes("b"), (&user, BINDS), &claim, Some(&json!({}))).await.is_empty());
        assert!(errors(writes("a"), (&user, BINDS), &claim, Some(&claim)).await.is_empty());

        let devices =
            json!({"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": true}}]}});
        let template = json!({"metadata": {"name": "t"}, "spec": {"spec": devices}});
        let found =
            errors(("resourceclaimtemplates", "", "a"), (&user, &[]), &template, None).await;
        assert!(found[0].starts_with("spec.devices.requests[0].adminAccess: Forbidden: "));
        let claim = json!({"spec": devices});
        let found = errors((CLAIMS, "", "none"), (&user, &[]), &claim, None).await;
        assert!(found[0].contains("Internal error: could not retrieve namespace"), "{found:?}");
    }

    /// Responses of kube-apiserver 1.37.1 to a user that may only update `resourceclaims/status`.
    #[tokio::test]
    async fn allocations_and_device_status_require_separate_permissions() {
        let user = User::authenticated("bob", &[]);
        let status_write = (CLAIMS, "status", "a");
        let terms =
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        let allocated = json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}});
        let claim = json!({"status": allocated});
        assert_eq!(
            errors(status_write, (&user, &[]), &claim, Some(&json!({}))).await,
            [
                "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"update\" permission: resourceclaims.resource.k8s.io is forbidden: User \"bob\" cannot update resource \"resourceclaims/binding\" in API group \"resource.k8s.io\" at the cluster scope"
            ]
        );
        let mut reported = claim.clone();
        reported["status"]["devices"] =
            json!([{"driver": "d.example.com", "pool": "p", "device": "g"}]);
        assert_eq!(
            errors(status_write, (&user, BINDS), &reported, Some(&claim)).await,
            [
                "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[arbitrary-node:update]\" permission: resourceclaims.resource.k8s.io \"d.example.com\" is forbidden: User \"bob\" cannot arbitrary-node:update resource \"resourceclaims/driver\" in API group \"resource.k8s.io\" in the namespace \"a\""
            ]
        );
        let rights = &["associated-node:update resourceclaims/driver a d.example.com"];
        assert_eq!(errors(status_write, (&user, rights), &reported, Some(&claim)).await.len(), 1);
        let mut account = User::authenticated("system:serviceaccount:a:driver", &[]);
        account.extra.insert(NODE_NAME.into(), vec!["n".into()]);
        assert!(errors(status_write, (&account, rights), &reported, Some(&claim)).await.is_empty());
        assert!(errors(status_write, (&user, &[]), &claim, Some(&claim)).await.is_empty());
        // A removed device status counts as a change.
        assert_eq!(errors(status_write, (&user, &[]), &claim, Some(&reported)).await.len(), 1);
    }
}
