//! Approves certificates of kubelets whose users may have such (`sarapprove.go`): what bootstrap
//! tokens and nodes ask for.

use super::*;
use api::{Gvr, Typed};
use client::{Action, Client, Error, Informer, gvr_of};
use serde_json::{Value, json};

use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::{Keyed, settled};

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let requests: Informer<CertificateSigningRequest> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&requests);
    let state = Arc::new((client, requests));
    keyed.run(&context.tasks, "certificate-approver", WORKERS, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &name).await }
    });
}

/// The rights of which one is enough, and what is said of a request that is approved by it.
fn rights(request: &CertificateSigningRequest) -> Vec<(&'static str, &'static str)> {
    let decided = ["Approved", "Denied"].iter().any(|kind| condition(request, kind).is_some());
    if decided
        || certificate(request).is_some()
        || Signer::of(request) != Some(Signer::KubeletClient)
    {
        return Vec::new();
    }
    let Ok(asked) = CsrSubject::parse(&request.spec.request.0) else { return Vec::new() };
    if Signer::KubeletClient.check(&asked, usages(request)).is_err() {
        return Vec::new();
    }
    let own = (
        "selfnodeclient",
        "Auto approving self kubelet client certificate after SubjectAccessReview.",
    );
    let any =
        ("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.");
    let is_own = request.spec.username.as_deref() == Some(&asked.common_name);
    [own].into_iter().filter(|_| is_own).chain([any]).collect()
}

fn review(request: &CertificateSigningRequest, subresource: &str) -> Value {
    let spec = &request.spec;
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
        "resourceAttributes": {"group": "certificates.k8s.io", "version": "*", "verb": "create",
            "resource": "certificatesigningrequests", "subresource": subresource}}})
}

async fn reconcile(
    client: &Client,
    requests: &Informer<CertificateSigningRequest>,
    name: &str,
) -> Result<Action, Error> {
    let Some(object) = requests.cache().get("", name) else { return Ok(Action::Done) };
    let mut request: CertificateSigningRequest = object.decode()?;
    let reviews = Gvr::new("authorization.k8s.io", "v1", "subjectaccessreviews");
    for (subresource, message) in rights(&request) {
        let asked = review(&request, subresource);
        let answer = client.post_value(&reviews, "", "", "", &asked).await?;
        if answer.pointer("/status/allowed").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        add_condition(&mut request, "Approved", "AutoApproved", message);
        let gvr = gvr_of::<CertificateSigningRequest>();
        settled(edit::put(client, &gvr, "approval", &request.to_value()?).await)?;
        break;
    }
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use api::k8s::ByteString;
    use base::pki::{Profile, request as pki};

    #[test]
    fn a_node_may_ask_for_itself() {
        let mut of = request("kube-apiserver-client-kubelet", json!({}));
        let key = pki::new_key().unwrap();
        let node = Profile::client("system:node:a", Some("system:nodes"));
        of.spec.request = ByteString(pki::request(&node, &key).unwrap().into_bytes());
        of.spec.usages = Some(vec!["digital signature".into(), "client auth".into()]);
        let asked = |of: &CertificateSigningRequest| {
            rights(of).into_iter().map(|(right, _)| right).collect::<Vec<_>>()
        };
        of.spec.username = Some("system:bootstrap:x".into());
        assert_eq!(asked(&of), ["nodeclient"]);
        of.spec.username = Some("system:node:a".into());
        assert_eq!(asked(&of), ["selfnodeclient", "nodeclient"]);
        assert_eq!(
            review(&of, "nodeclient")["spec"]["resourceAttributes"]["subresource"],
            "nodeclient"
        );
        of.spec.signer_name = "kubernetes.io/kube-apiserver-client".into();
        assert!(asked(&of).is_empty());
        of.spec.signer_name = "kubernetes.io/kube-apiserver-client-kubelet".into();
        of.status =
            request("", json!({"conditions": [{"type": "Denied", "status": "True"}]})).status;
        assert!(asked(&of).is_empty());
    }
}
