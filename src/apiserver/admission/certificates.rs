//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction.

use std::sync::Arc;

use api::Status;
use api::field::{Error, Path, go_quote};
use api::value::{at, get, semantic_equal, str_in};
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::{Operation, Plugin, Request};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::request::user::User;

const GROUP: &str = "certificates.k8s.io";

/// `spec.request` is not a certificate request.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsrError {
    #[error(transparent)]
    Base64(#[from] base64::DecodeError),
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error(transparent)]
    Der(#[from] x509_parser::nom::Err<x509_parser::error::X509Error>),
}

/// A node must not create this certificate request. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeCsrError {
    #[error("unable to parse csr: {0}")]
    Parse(#[from] CsrError),
    #[error("can only create a node CSR with CN={common_name}")]
    CommonName { common_name: String },
}

/// The common name and the organizations of the certificate request in `spec.request`.
fn subject(object: &Value) -> Result<(String, Vec<String>), CsrError> {
    let pem = STANDARD.decode(str_in(object, &["spec", "request"]))?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem).map_err(|_| CsrError::Pem)?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(CsrError::Pem);
    }
    let (_, request) = X509CertificationRequest::from_der(&block.contents)?;
    let subject = &request.certification_request_info.subject;
    let name = subject
        .iter_common_name()
        .next()
        .and_then(|n| n.as_str().ok())
        .unwrap_or_default()
        .to_owned();
    let organizations =
        subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    Ok((name, organizations))
}

/// Checks that a node requests certificates for its own name only.
pub(super) fn check_node_request(node: &str, object: &Value) -> Result<(), NodeCsrError> {
    let signer = str_in(object, &["spec", "signerName"]);
    if !matches!(
        signer,
        "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet"
    ) {
        return Ok(());
    }
    let (name, _) = subject(object)?;
    let common_name = format!("system:node:{node}");
    if name == common_name { Ok(()) } else { Err(NodeCsrError::CommonName { common_name }) }
}

/// Whether the user may do this for the signer, or for all signers of its domain.
async fn may(authorizer: &dyn Authorizer, user: &User, verb: &str, signer: &str) -> bool {
    let wildcard = signer.split_once('/').map(|(domain, _)| format!("{domain}/*"));
    for name in std::iter::once(signer).chain(wildcard.as_deref()) {
        let attributes = Attributes {
            verb,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            ..Attributes::default()
        };
        if matches!(authorizer.authorize(user, &attributes).await, Decision::Allow(_)) {
            return true;
        }
    }
    false
}

/// CertificateApproval: approving a request requires `approve` on its signer.
pub struct CertificateApproval(pub Arc<dyn Authorizer>);

/// CertificateSigning: signing a request requires `sign` on its signer.
pub struct CertificateSigning(pub Arc<dyn Authorizer>);

/// CertificateSubjectRestriction: rejects requests for the group `system:masters`.
pub struct CertificateSubjectRestriction;

fn is_csr(request: &Request<'_>, subresource: &str, operation: Operation) -> bool {
    request.is(GROUP, "certificatesigningrequests")
        && request.subresource == subresource
        && request.operation == operation
}

/// Whether the request is a signer's decision about a PodCertificateRequest.
fn is_decision_for_pod(request: &Request<'_>) -> bool {
    request.is(GROUP, "podcertificaterequests")
        && request.subresource == "status"
        && request.operation == Operation::Update
}

impl CertificateSigning {
    /// Writing the status of a PodCertificateRequest requires `sign` on its signer. Upstream checks
    /// this in the strategy and reports a validation error
    /// (`pkg/registry/certificates/podcertificaterequest`).
    async fn decision_for_pod(
        &self,
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(old), Some(new)) = (request.old, object) else { return Ok(()) };
        let signer = str_in(old, &["spec", "signerName"]);
        if semantic_equal(get(old, "status"), get(new, "status"))
            || may(&*self.0, request.user, "sign", signer).await
        {
            return Ok(());
        }
        let (user, signer) = (go_quote(&request.user.name), go_quote(signer));
        let error = Error::forbidden(
            &Path::new("spec").child("signerName"),
            format!("User {user} is not permitted to \"sign\" for signer {signer}"),
        );
        Err(Status::invalid(GROUP, &request.gvk.kind, request.name, &[error]))
    }
}

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(old) = request.old.filter(|_| is_csr(request, "approval", Operation::Update))
        else {
            return Ok(());
        };
        let signer = str_in(old, &["spec", "signerName"]);
        if may(&*self.0, request.user, "approve", signer).await {
            return Ok(());
        }
        Err(request.forbidden(
            object,
            &format!("user not permitted to approve requests with signerName {}", go_quote(signer)),
        ))
    }
}

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        if is_decision_for_pod(request) {
            return self.decision_for_pod(request, object).await;
        }
        let (Some(old), Some(new)) =
            (request.old.filter(|_| is_csr(request, "status", Operation::Update)), object)
        else {
            return Ok(());
        };
        let same = |field: &str| at(old, &["status", field]) == at(new, &["status", field]);
        let signer = str_in(old, &["spec", "signerName"]);
        if same("certificate") && same("conditions")
            || may(&*self.0, request.user, "sign", signer).await
        {
            return Ok(());
        }
        Err(request.forbidden(
            object,
            &format!("user not permitted to sign requests with signerName {}", go_quote(signer)),
        ))
    }
}

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
        let Some(csr) = object.filter(|_| is_csr(request, "", Operation::Create)) else {
            return Ok(());
        };
        if str_in(csr, &["spec", "signerName"]) != SIGNER {
            return Ok(());
        }
        let why = match subject(csr) {
            Ok((_, groups)) if groups.iter().any(|g| g == "system:masters") => {
                format!("use of {SIGNER} signer with system:masters group is not allowed")
            }
            Ok(_) => return Ok(()),
            Err(why) => format!("failed to parse CSR: {why}"),
        };
        Err(request.forbidden(object, &why))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ask, admit, creates};
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use serde_json::json;

    fn csr(signer: &str, name: &str, group: &str) -> Value {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"metadata": {"name": "r"}, "spec": {"signerName": signer, "request": STANDARD.encode(pem)}})
    }

    #[tokio::test]
    async fn client_certificates_of_system_masters_are_rejected() {
        let gvr = api::Gvr::new(GROUP, "v1", "certificatesigningrequests");
        let ask = |object| {
            admit(
                &CertificateSubjectRestriction,
                creates(&gvr, "CertificateSigningRequest"),
                object,
            )
        };
        let refused = ask(csr("kubernetes.io/kube-apiserver-client", "jane", "system:masters"))
            .await
            .unwrap_err();
        assert_eq!(
            refused.message,
            "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
        );
        assert!(ask(csr("kubernetes.io/kube-apiserver-client", "jane", "dev")).await.is_ok());
        assert!(ask(csr("example.com/x", "jane", "system:masters")).await.is_ok());
    }

    #[test]
    fn a_node_requests_certificates_of_its_own_name_only() {
        let check = |common_name: &str| {
            let csr = csr("kubernetes.io/kubelet-serving", common_name, "system:nodes");
            check_node_request("n1", &csr).map_err(|e| e.to_string())
        };
        assert_eq!(check("system:node:n1"), Ok(()));
        assert_eq!(
            check("system:node:n2"),
            Err("can only create a node CSR with CN=system:node:n1".into())
        );
    }

    /// Allows `sign` for `a.b/c` only.
    struct OneSigner;

    #[async_trait]
    impl Authorizer for OneSigner {
        async fn authorize(&self, user: &User, a: &Attributes<'_>) -> Decision {
            if (&*user.name, a.verb, a.resource, a.name) == ("ann", "sign", "signers", "a.b/c") {
                Decision::Allow(String::new())
            } else {
                Decision::NoOpinion(String::new())
            }
        }
    }

    #[tokio::test]
    async fn pod_certificates_need_the_permission_to_sign_for_the_signer() {
        let gvr = api::Gvr::new(GROUP, "v1", "podcertificaterequests");
        let decide = async |user: &str, signer: &str, status: Value| {
            let old = json!({"metadata": {"name": "r"}, "spec": {"signerName": signer}});
            let mut new = old.clone();
            new["status"] = status;
            let ask = Ask {
                operation: Operation::Update,
                subresource: "status",
                user: User::authenticated(user, &[]),
                old: Some(old),
                ..creates(&gvr, "PodCertificateRequest")
            };
            admit(&CertificateSigning(Arc::new(OneSigner)), ask, new).await.map(|_| ())
        };
        let denied = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        assert!(decide("ann", "a.b/c", denied.clone()).await.is_ok());
        assert!(decide("bob", "a.b/c", json!({})).await.is_ok());
        let refused = decide("bob", "a.b/c", denied.clone()).await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (422, "Invalid"));
        assert_eq!(
            refused.message,
            "PodCertificateRequest.certificates.k8s.io \"r\" is invalid: spec.signerName: Forbidden: User \"bob\" is not permitted to \"sign\" for signer \"a.b/c\""
        );
        assert!(decide("ann", "a.b/d", denied).await.is_err());
    }
}
