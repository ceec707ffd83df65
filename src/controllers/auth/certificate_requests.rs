//! CertificateSigningRequests of the signers that Kubernetes itself defines: kubelets' are approved
//! where their users may have such, what is approved is signed by the cluster's CAs, and old ones
//! are deleted.

pub(crate) mod approve;
pub(crate) mod clean;
pub(crate) mod sign;

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::pki::csr_signing::Asked;

use crate::framework::signing::Signer;

/// Service account of all three, as upstream.
const ACCOUNT: &str = "certificate-controller";
/// Upstream's `ConcurrentCSRSigningSyncs`.
const WORKERS: usize = 5;

impl Signer {
    fn of(request: &CertificateSigningRequest) -> Option<Self> {
        Some(match request.spec.signer_name.as_str() {
            "kubernetes.io/kube-apiserver-client" => Self::Client,
            "kubernetes.io/kube-apiserver-client-kubelet" => Self::KubeletClient,
            "kubernetes.io/kubelet-serving" => Self::KubeletServing,
            _ => return None,
        })
    }

    /// Why this signer does not sign such a request, in upstream's words
    /// (`apis/certificates/helpers.go`, `signer.go`).
    fn refuses(self, asked: &Asked, usages: &[String]) -> Option<String> {
        let (needed, whom) = match self {
            Self::Client => return refused_usage(usages),
            Self::KubeletClient => ("client auth", "client"),
            Self::KubeletServing => ("server auth", "serving"),
        };
        let text = if asked.organizations != ["system:nodes"] {
            "subject organization is not system:nodes".to_owned()
        } else if whom == "serving" && asked.dns.is_empty() && asked.ips.is_empty() {
            "DNS or IP subjectAltName is required".to_owned()
        } else if whom == "client" && !asked.dns.is_empty() {
            "DNS subjectAltNames are not allowed".to_owned()
        } else if !asked.emails.is_empty() {
            "Email subjectAltNames are not allowed".to_owned()
        } else if whom == "client" && !asked.ips.is_empty() {
            "IP subjectAltNames are not allowed".to_owned()
        } else if !asked.uris.is_empty() {
            "URI subjectAltNames are not allowed".to_owned()
        } else {
            let named = asked.common_name.starts_with("system:node:");
            let mut given: Vec<&str> = usages.iter().map(String::as_str).collect();
            given.sort_unstable();
            given.dedup();
            let mut all = vec!["digital signature", "key encipherment", needed];
            all.sort_unstable();
            let mut fewer = vec!["digital signature", needed];
            fewer.sort_unstable();
            // Upstream looks at a kubelet's usages before it looks at its name.
            if given != all && given != fewer {
                format!("usages did not match [{}]", all.join(" "))
            } else if !named {
                "subject common name does not begin with system:node:".to_owned()
            } else {
                return None;
            }
        };
        Some(text)
    }
}

fn refused_usage(usages: &[String]) -> Option<String> {
    let known = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !known.contains(&usage.as_str())) {
        return Some(format!("invalid usage for client certificate: {other}"));
    }
    let has = usages.iter().any(|usage| usage == "client auth");
    (!has).then(|| "missing required usage for client certificate: client auth".to_owned())
}

fn usages(request: &CertificateSigningRequest) -> &[String] {
    request.spec.usages.as_deref().unwrap_or_default()
}

/// The condition of a type, where it holds.
fn condition<'a>(
    request: &'a CertificateSigningRequest,
    kind: &str,
) -> Option<&'a CertificateSigningRequestCondition> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Adds a condition that holds from now on.
fn conclude(request: &mut CertificateSigningRequest, kind: &str, reason: &str, message: &str) {
    let status = request.status.get_or_insert_default();
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_update_time: Some(Time(Timestamp::now())),
        last_transition_time: None,
    });
}

/// The certificate, PEM; `None` as long as there is none.
fn certificate(request: &CertificateSigningRequest) -> Option<&[u8]> {
    let certificate = request.status.as_ref()?.certificate.as_ref()?;
    (!certificate.0.is_empty()).then_some(certificate.0.as_slice())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) fn request(signer: &str, status: Value) -> CertificateSigningRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "r", "uid": "u", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"signerName": format!("kubernetes.io/{signer}"), "request": "",
                "usages": ["client auth"]},
            "status": status}))
        .unwrap()
    }

    /// Upstream's own words.
    #[test]
    fn kubelets_ask_for_themselves_alone() {
        let node = || Asked {
            common_name: "system:node:a".into(),
            organizations: vec!["system:nodes".into()],
            ..Asked::default()
        };
        let said = |signer: Signer, asked: Asked, words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            signer.refuses(&asked, &words).unwrap_or_default()
        };
        let client = ["key encipherment", "digital signature", "client auth"];
        let kubelet = Signer::KubeletClient;
        assert_eq!(said(kubelet, node(), &client), "");
        assert_eq!(said(kubelet, node(), &client[1..]), "");
        assert_eq!(
            said(kubelet, node(), &client[..2]),
            "usages did not match [client auth digital signature key encipherment]"
        );
        let master = Asked { organizations: vec!["system:masters".into()], ..node() };
        assert_eq!(said(kubelet, master, &client), "subject organization is not system:nodes");
        let named = Asked { dns: vec!["a".into()], ..node() };
        assert_eq!(said(kubelet, named.clone(), &client), "DNS subjectAltNames are not allowed");
        let serving = ["digital signature", "server auth"];
        assert_eq!(said(Signer::KubeletServing, named, &serving), "");
        assert_eq!(
            said(Signer::KubeletServing, node(), &serving),
            "DNS or IP subjectAltName is required"
        );
        let other = Asked { common_name: "a".into(), ..node() };
        assert_eq!(
            said(kubelet, other.clone(), &client),
            "subject common name does not begin with system:node:"
        );
        assert_eq!(said(Signer::Client, other.clone(), &client), "");
        assert_eq!(
            said(Signer::Client, other.clone(), &["server auth"]),
            "invalid usage for client certificate: server auth"
        );
        assert_eq!(
            said(Signer::Client, other, &["digital signature"]),
            "missing required usage for client certificate: client auth"
        );
    }
}
