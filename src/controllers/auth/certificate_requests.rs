//! CertificateSigningRequests of the signers that Kubernetes itself defines: requests of kubelets
//! are approved if the requesting user is authorized, approved requests are signed by the CAs of
//! the cluster, and old requests are deleted.

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
use base::pki::csr_signing::CsrSubject;
use sorting::CompactSort as _;

use crate::framework::signing::Signer;

/// Service account of all three controllers, as upstream.
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

    /// Checks a request against the rules of this signer (upstream's `apis/certificates/helpers.go`
    /// and `signer.go`).
    ///
    /// # Errors
    ///
    /// The first rule that the request violates.
    fn check(self, asked: &CsrSubject, usages: &[String]) -> Result<(), InvalidRequest> {
        let is_serving = match self {
            Self::Client => return check_client_usages(usages),
            Self::KubeletClient => false,
            Self::KubeletServing => true,
        };
        if asked.organizations != ["system:nodes"] {
            Err(InvalidRequest::OrganizationNotNodes)
        } else if is_serving && asked.dns.is_empty() && asked.ips.is_empty() {
            Err(InvalidRequest::DnsOrIpRequired)
        } else if !is_serving && !asked.dns.is_empty() {
            Err(InvalidRequest::SanNotAllowed("DNS"))
        } else if !asked.emails.is_empty() {
            Err(InvalidRequest::SanNotAllowed("Email"))
        } else if !is_serving && !asked.ips.is_empty() {
            Err(InvalidRequest::SanNotAllowed("IP"))
        } else if !asked.uris.is_empty() {
            Err(InvalidRequest::SanNotAllowed("URI"))
        } else {
            // Upstream checks a kubelet's usages before its name.
            check_kubelet_usages(if is_serving { "server auth" } else { "client auth" }, usages)?;
            if !asked.common_name.starts_with("system:node:") {
                return Err(InvalidRequest::CommonNameNotSystemNode);
            }
            Ok(())
        }
    }
}

/// A rule of a signer that a request violates; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum InvalidRequest {
    #[error("subject organization is not system:nodes")]
    OrganizationNotNodes,
    #[error("subject common name does not begin with system:node:")]
    CommonNameNotSystemNode,
    #[error("DNS or IP subjectAltName is required")]
    DnsOrIpRequired,
    /// A kind of subject alternative name that the signer does not sign.
    #[error("{0} subjectAltNames are not allowed")]
    SanNotAllowed(&'static str),
    /// The usages that a kubelet's request must have, sorted.
    #[error("usages did not match [{}]", .0.join(" "))]
    UsagesDoNotMatch(Vec<&'static str>),
    #[error("invalid usage for client certificate: {0}")]
    InvalidClientUsage(String),
    #[error("missing required usage for client certificate: client auth")]
    MissingClientAuth,
}

/// Checks the usages of a kubelet's request; `key encipherment` is optional.
fn check_kubelet_usages(needed: &'static str, usages: &[String]) -> Result<(), InvalidRequest> {
    let mut requested: Vec<&str> = usages.iter().map(String::as_str).collect();
    requested.compact_sort();
    requested.dedup();
    let mut all = vec!["digital signature", "key encipherment", needed];
    all.compact_sort();
    let mut required = vec!["digital signature", needed];
    required.compact_sort();
    if requested == all || requested == required {
        Ok(())
    } else {
        Err(InvalidRequest::UsagesDoNotMatch(all))
    }
}

fn check_client_usages(usages: &[String]) -> Result<(), InvalidRequest> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(InvalidRequest::InvalidClientUsage(other.clone()));
    }
    if usages.iter().any(|usage| usage == "client auth") {
        Ok(())
    } else {
        Err(InvalidRequest::MissingClientAuth)
    }
}

fn usages(request: &CertificateSigningRequest) -> &[String] {
    request.spec.usages.as_deref().unwrap_or_default()
}

/// The condition of a type, if present.
fn condition<'a>(
    request: &'a CertificateSigningRequest,
    kind: &str,
) -> Option<&'a CertificateSigningRequestCondition> {
    let conditions = request.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Adds a condition with the status `True`.
fn add_condition(request: &mut CertificateSigningRequest, kind: &str, reason: &str, message: &str) {
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

/// The issued certificate (PEM), if any.
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

    /// The texts are those of upstream's `helpers.go`.
    #[test]
    fn kubelets_request_certificates_for_their_own_name_only() {
        let node = || CsrSubject {
            common_name: "system:node:a".into(),
            organizations: vec!["system:nodes".into()],
            ..CsrSubject::default()
        };
        let check = |signer: Signer, asked: CsrSubject, usages: &[&str], expected: &str| {
            let usages: Vec<String> = usages.iter().map(|usage| (*usage).to_owned()).collect();
            let outcome = signer.check(&asked, &usages);
            assert_eq!(outcome.map_or_else(|e| e.to_string(), |()| String::new()), expected);
        };
        let client = ["key encipherment", "digital signature", "client auth"];
        let kubelet = Signer::KubeletClient;
        check(kubelet, node(), &client, "");
        check(kubelet, node(), &client[1..], "");
        check(
            kubelet,
            node(),
            &client[..2],
            "usages did not match [client auth digital signature key encipherment]",
        );
        let master = CsrSubject { organizations: vec!["system:masters".into()], ..node() };
        check(kubelet, master, &client, "subject organization is not system:nodes");
        let named = CsrSubject { dns: vec!["a".into()], ..node() };
        check(kubelet, named.clone(), &client, "DNS subjectAltNames are not allowed");
        let serving = ["digital signature", "server auth"];
        check(Signer::KubeletServing, named, &serving, "");
        check(Signer::KubeletServing, node(), &serving, "DNS or IP subjectAltName is required");
        let other = CsrSubject { common_name: "a".into(), ..node() };
        let wrong_name = "subject common name does not begin with system:node:";
        check(kubelet, other.clone(), &client, wrong_name);
        check(Signer::Client, other.clone(), &client, "");
        check(
            Signer::Client,
            other.clone(),
            &["server auth"],
            "invalid usage for client certificate: server auth",
        );
        check(
            Signer::Client,
            other,
            &["digital signature"],
            "missing required usage for client certificate: client auth",
        );
    }
}
