//! ServiceCIDRs: ready when protected, and not deleted while addresses of Services lie in them
//! alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::networking::v1::{IPAddress, ServiceCIDR};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, Client, Error, EventRecorder, Informer, Patch};
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::ip_prefix::Prefix;
use crate::framework::keyed::{Key, Keyed, settled};

const MANAGER: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
/// Time for allocators to learn of a deletion (`deletionGracePeriod`).
const GRACE_SECONDS: i64 = 10;

struct Controller {
    client: Client,
    recorder: EventRecorder,
    cidrs: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
}

/// Starts the controller. There are few ServiceCIDRs: a change of one, or of an address in it,
/// wakes those concerned.
pub(crate) fn start(context: &Context) {
    let client = context.client("service-cidrs-controller");
    let recorder = context.recorder(&client, MANAGER);
    let (cidrs, addresses) =
        (context.informers.of::<ServiceCIDR>(), context.informers.of::<IPAddress>());
    let mut keyed = Keyed::new();
    let known = cidrs.clone();
    keyed.watches(&cidrs, move |change| {
        let mut keys: Vec<Key> = known
            .cache()
            .list("")
            .iter()
            .map(|o| (String::new(), o.key.name.to_string()))
            .collect();
        keys.push((String::new(), change.object().key.name.to_string()));
        keys
    });
    let known = cidrs.clone();
    keyed.watches(&addresses, move |change| {
        let object = change.object();
        let address = object.key.name.parse::<IpAddr>().ok();
        let ours = object.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
        let Some(address) = address.filter(|_| ours) else { return Vec::new() };
        let deleting = known.list("").into_iter().filter(|c| {
            // Others do not depend on addresses.
            c.metadata.deletion_timestamp.is_some() && prefixes(c).any(|p| p.contains(address))
        });
        deleting.filter_map(|c| Some((String::new(), c.metadata.name?))).collect()
    });
    let controller = Arc::new(Controller { client, recorder, cidrs, addresses });
    keyed.run(&context.tasks, MANAGER, 1, move |(_, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    });
}

fn prefixes(cidr: &ServiceCIDR) -> impl Iterator<Item = Prefix> {
    let all = cidr.spec.as_ref().and_then(|s| s.cidrs.as_deref()).unwrap_or_default();
    all.iter().filter_map(|text| text.parse().ok())
}

/// Every address that would be left without a ServiceCIDR has another one.
fn can_go(cidr: &ServiceCIDR, all: &[ServiceCIDR], addresses: &[IpAddr]) -> bool {
    let others: Vec<Prefix> =
        all.iter().filter(|c| c.metadata.name != cidr.metadata.name).flat_map(prefixes).collect();
    if prefixes(cidr).all(|p| others.iter().any(|o| o.covers(&p))) {
        return true;
    }
    let orphan = |a: &IpAddr| {
        prefixes(cidr).any(|p| p.contains(*a)) && !others.iter().any(|o| o.contains(*a))
    };
    !addresses.iter().any(orphan)
}

/// Status, reason and message of the condition `Ready`.
type Ready = (&'static str, &'static str, &'static str);
const READY: Ready = ("True", "", "Kubernetes Service CIDR is ready");
const BLOCKED: Ready = (
    "False",
    "Terminating",
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
        ServiceCIDR",
);

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<Action, Error> {
        let Some(cidr) = self.cidrs.get("", name) else { return Ok(Action::Done) };
        let protected = cidr.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
        let Some(Time(deleted)) = cidr.metadata.deletion_timestamp.clone() else {
            if !protected {
                self.finalizer(name, json!({"finalizers": [FINALIZER]})).await?;
            }
            let told = self.tell(&cidr, READY).await;
            if told.is_err() {
                let text = "The ServiceCIDR Status can not be set to Ready=True";
                self.recorder.event(&cidr, EventType::Warning, "KubernetesServiceCIDRError", text);
            }
            return told.map(|()| Action::Done);
        };
        let addresses: Vec<IpAddr> = self
            .addresses
            .cache()
            .list("")
            .iter()
            .filter(|o| o.label(MANAGED_BY.0) == Some(MANAGED_BY.1))
            .filter_map(|o| o.key.name.parse().ok())
            .collect();
        if !can_go(&cidr, &self.cidrs.list(""), &addresses) {
            self.tell(&cidr, BLOCKED).await?;
            return Ok(Action::Done);
        }
        let left = deleted.as_second() + GRACE_SECONDS - Timestamp::now().as_second();
        if let Ok(seconds @ 1..) = u64::try_from(left) {
            return Ok(Action::After(Duration::from_secs(seconds)));
        }
        if protected {
            self.finalizer(name, json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]}))
                .await?;
        }
        Ok(Action::Done)
    }

    async fn finalizer(&self, name: &str, metadata: serde_json::Value) -> Result<(), Error> {
        let patch = json!({"metadata": metadata});
        settled(self.client.patch::<ServiceCIDR>("", name, "", &Patch::Strategic(&patch)).await)
    }

    async fn tell(
        &self,
        cidr: &ServiceCIDR,
        (status, reason, message): Ready,
    ) -> Result<(), Error> {
        let conditions = cidr.status.as_ref().and_then(|s| s.conditions.as_deref());
        let same = conditions.unwrap_or_default().iter().any(|c| {
            c.type_ == "Ready" && c.status == status && c.reason == reason && c.message == message
        });
        if same {
            return Ok(());
        }
        let name = cidr.metadata.name.as_deref().unwrap_or_default();
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "status": {"conditions": [{
                "type": "Ready", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": Time(Timestamp::now()),
            }]},
        });
        let patch = Patch::Apply { object: &object, manager: MANAGER, force: true };
        settled(self.client.patch::<ServiceCIDR>("", name, "status", &patch).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(name: &str, of: &[&str]) -> ServiceCIDR {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": of}})).unwrap()
    }

    #[test]
    fn a_range_goes_when_a_larger_one_covers_it_or_no_address_is_left_in_it() {
        let (small, large) = (cidr("small", &["10.0.1.0/24"]), cidr("large", &["10.0.0.0/16"]));
        let both = [small.clone(), large.clone()];
        let inside = ["10.0.1.5".parse().unwrap()];
        assert!(can_go(&small, &both, &inside));
        assert!(!can_go(&small, std::slice::from_ref(&small), &inside));
        assert!(can_go(&small, std::slice::from_ref(&small), &["10.0.2.5".parse().unwrap()]));
        assert!(can_go(&large, &both, &inside), "the small one still holds the address");
        assert!(!can_go(&large, &both, &["10.0.2.5".parse().unwrap()]));
    }
}
