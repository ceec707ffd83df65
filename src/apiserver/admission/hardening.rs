//! DenyServiceExternalIPs, which upstream does not enable by default and `--profile=hardened`
//! enables.

use api::Status;
use api::value::{get, items};
use async_trait::async_trait;
use serde_json::Value;

use super::{Operation, Plugin, Request};

/// DenyServiceExternalIPs: users that can create Services must not redirect the traffic of
/// arbitrary addresses (CVE-2020-8554).
pub struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(service) =
            object.filter(|_| request.is("", "services") && request.subresource.is_empty())
        else {
            return Ok(());
        };
        let old = request.old.filter(|_| request.operation == Operation::Update);
        let had = old.map_or(&[] as &[Value], |old| items(get(old, "spec"), "externalIPs"));
        if items(get(service, "spec"), "externalIPs").iter().all(|ip| had.contains(ip)) {
            return Ok(());
        }
        Err(request.forbidden(object, "Use of external IPs is denied by admission control"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use api::Gvr;
    use serde_json::json;

    fn service(ips: &[&str]) -> Value {
        json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}})
    }

    /// C2.2, C3.9: CVE-2020-8554; upstream's message, and its exception for addresses that the old
    /// object has.
    #[tokio::test]
    async fn new_external_ips_are_rejected() {
        let gvr = Gvr::new("", "v1", "services");
        let plugin = DenyServiceExternalIps;
        let made = |ips: &[&str]| admit(&plugin, creates(&gvr, "Service"), service(ips));
        assert!(made(&[]).await.is_ok());
        let refusal = made(&["192.0.2.1"]).await.unwrap_err();
        assert_eq!(
            (refusal.code, refusal.message.as_str()),
            (
                403,
                "services \"s\" is forbidden: Use of external IPs is denied by admission control"
            )
        );
        let changed = |old: &[&str], new: &[&str]| {
            let ask = Ask {
                operation: Operation::Update,
                old: Some(service(old)),
                ..creates(&gvr, "Service")
            };
            admit(&plugin, ask, service(new))
        };
        assert!(changed(&["192.0.2.1", "192.0.2.2"], &["192.0.2.2"]).await.is_ok());
        assert!(changed(&["192.0.2.1"], &["192.0.2.1", "192.0.2.2"]).await.is_err());
    }
}
