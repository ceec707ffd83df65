//! What upstream asks of those who write claims of devices, beside the rules of the kinds: admin
//! access is for namespaces that carry the label for it (`AuthorizedForAdmin`,
//! `AuthorizedForAdminStatus`), and allocations and what drivers say of devices have rights of
//! their own (`AuthorizedForBinding`, `AuthorizedForDeviceStatus` of
//! `pkg/registry/resource/utils.go`, feature `DRAResourceClaimGranularStatusAuthorization`).

use std::collections::{BTreeSet, HashMap, HashSet};

use api::field::{Error, ErrorList, Path};
use api::value::{at, bool_at, get, items, semantic_equal, str_at};
use serde::Deserialize;
use serde_json::Value;

use crate::authz::{Attributes, Authorizer, Decision, chain};
use crate::registry::lookup;
use crate::registry::lookup::Lookup;
use crate::request::context::Context;
use crate::request::user::User;

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
const LABEL: &str = "resource.kubernetes.io/admin-access";
/// Where the token of a pod says on which node it is.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Who writes, and what.
struct Asked<'a> {
    lookup: &'a dyn Lookup,
    authorizer: &'a dyn Authorizer,
    user: &'a User,
    verb: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
}

/// The faults of a write to a claim or a template of claims; none of other kinds. `old` is what is
/// changed.
pub(crate) async fn faults(context: &Context, value: &Value, old: Option<&Value>) -> ErrorList {
    let gvr = &context.row.spec.gvr;
    if &*gvr.group != GROUP {
        return ErrorList::new();
    }
    let asked = Asked {
        lookup: context.server.objects.as_ref(),
        authorizer: context.server.parts.authorizer.as_ref(),
        user: &context.user,
        verb: context.info.verb,
        version: &gvr.version,
        resource: &gvr.resource,
        subresource: &context.info.subresource,
        namespace: context.namespace(),
    };
    asked.faults(value, old).await
}

impl Asked<'_> {
    async fn faults(&self, value: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = match (self.resource, old) {
            (CLAIMS, None) => of_requests(get(value, "spec")),
            // The path is a claim's there, too.
            ("resourceclaimtemplates", None) => of_requests(at(value, &["spec", "spec"])),
            (CLAIMS, Some(old)) if self.subresource == "status" => {
                // An allocation stays as it is: what was granted is not asked again.
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
        // Without an allocation nothing is kept of the devices.
        if get(new, "allocation").is_object() {
            for driver in drivers(new, old) {
                errors.extend(self.driver(new, driver).await);
            }
        }
        errors
    }

    async fn admin(&self, path: &Path) -> Option<Error> {
        // As upstream, the store is asked and not the cache.
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
        let why = self.refusal(self.verb, "binding", "", "").await?;
        let text = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{}\" permission: {why}",
            self.verb
        );
        Some(Error::forbidden(&Path::new("status").child("allocation"), text))
    }

    /// The right to write what a driver says: of a service account on the claim's node that for its
    /// node is enough.
    async fn driver(&self, status: &Value, driver: &str) -> Option<Error> {
        let mut verbs = vec![format!("arbitrary-node:{}", self.verb)];
        if on_node(self.user, allocated_node(get(status, "allocation"))) {
            verbs.insert(0, format!("associated-node:{}", self.verb));
        }
        let mut first = None;
        for verb in &verbs {
            let why = self.refusal(verb, "driver", self.namespace, driver).await?;
            first.get_or_insert(why);
        }
        let text = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {}",
            verbs.join(" "),
            first.unwrap_or_default()
        );
        Some(Error::forbidden(&Path::new("status").child("devices"), text))
    }

    /// Why the writer may not do this to a part of claims; nothing when it may.
    async fn refusal(
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

/// Drivers of whose devices something was added, changed or taken away.
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
    changed.chain(gone).map(|device| str_at(device, "driver")).collect()
}

/// The one node that an allocation is for.
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
    use crate::registry::lookup::testing::Fixed;
    use async_trait::async_trait;
    use serde_json::json;

    /// Allows what is listed as `verb resource/subresource namespace name`.
    struct Listed(&'static [&'static str]);

    #[async_trait]
    impl Authorizer for Listed {
        async fn authorize(&self, _: &User, a: &Attributes<'_>) -> Decision {
            let asked = [a.verb, &format!("{}/{}", a.resource, a.subresource), a.namespace, a.name];
            match self.0.contains(&asked.join(" ").as_str()) {
                true => Decision::Allow(String::new()),
                false => Decision::NoOpinion(String::new()),
            }
        }
    }

    async fn said(
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
        let asked = Asked {
            lookup: lookup.as_ref(),
            authorizer: &Listed(rights),
            user,
            verb: if old.is_some() { "update" } else { "create" },
            version: "v1",
            resource,
            subresource,
            namespace,
        };
        asked.faults(value, old).await.iter().map(ToString::to_string).collect()
    }

    const BINDS: &[&str] = &["update resourceclaims/binding  "];

    /// The first text is an answer of kube-apiserver 1.37.1 about a status.
    #[tokio::test]
    async fn admin_access_needs_a_marked_namespace() {
        let user = User::default();
        let claim = json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {"results": [{}, {"adminAccess": true}]}}}});
        let writes = |namespace| (CLAIMS, "status", namespace);
        assert_eq!(
            said(writes("a"), (&user, BINDS), &claim, Some(&json!({}))).await,
            [
                "status.allocation.devices.results[1].adminAccess: Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
            ]
        );
        assert!(said(writes("b"), (&user, BINDS), &claim, Some(&json!({}))).await.is_empty());
        assert!(said(writes("a"), (&user, BINDS), &claim, Some(&claim)).await.is_empty());

        let devices =
            json!({"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": true}}]}});
        let template = json!({"metadata": {"name": "t"}, "spec": {"spec": devices}});
        let told = said(("resourceclaimtemplates", "", "a"), (&user, &[]), &template, None).await;
        assert!(told[0].starts_with("spec.devices.requests[0].adminAccess: Forbidden: "));
        let claim = json!({"spec": devices});
        let told = said((CLAIMS, "", "none"), (&user, &[]), &claim, None).await;
        assert!(told[0].contains("Internal error: could not retrieve namespace"), "{told:?}");
    }

    /// Answers of kube-apiserver 1.37.1 to a user that may update `resourceclaims/status` alone.
    #[tokio::test]
    async fn allocations_and_devices_have_rights_of_their_own() {
        let user = User::authenticated("bob", &[]);
        let place = (CLAIMS, "status", "a");
        let terms =
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
        let allocated = json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}});
        let claim = json!({"status": allocated});
        assert_eq!(
            said(place, (&user, &[]), &claim, Some(&json!({}))).await,
            [
                "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"update\" permission: resourceclaims.resource.k8s.io is forbidden: User \"bob\" cannot update resource \"resourceclaims/binding\" in API group \"resource.k8s.io\" at the cluster scope"
            ]
        );
        let mut spoken = claim.clone();
        spoken["status"]["devices"] =
            json!([{"driver": "d.example.com", "pool": "p", "device": "g"}]);
        assert_eq!(
            said(place, (&user, BINDS), &spoken, Some(&claim)).await,
            [
                "status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[arbitrary-node:update]\" permission: resourceclaims.resource.k8s.io \"d.example.com\" is forbidden: User \"bob\" cannot arbitrary-node:update resource \"resourceclaims/driver\" in API group \"resource.k8s.io\" in the namespace \"a\""
            ]
        );
        let rights = &["associated-node:update resourceclaims/driver a d.example.com"];
        assert_eq!(said(place, (&user, rights), &spoken, Some(&claim)).await.len(), 1);
        let mut account = User::authenticated("system:serviceaccount:a:driver", &[]);
        account.extra.insert(NODE_NAME.into(), vec!["n".into()]);
        assert!(said(place, (&account, rights), &spoken, Some(&claim)).await.is_empty());
        assert!(said(place, (&user, &[]), &claim, Some(&claim)).await.is_empty());
        // What a driver took back is its word, too.
        assert_eq!(said(place, (&user, &[]), &claim, Some(&spoken)).await.len(), 1);
    }
}
