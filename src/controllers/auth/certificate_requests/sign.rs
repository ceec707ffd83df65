//! Signs what is approved.

use super::*;
use api::k8s::ByteString;
use client::{Action, Client, Error, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::framework::signing::SignRequest;

/// Default and maximum validity of a certificate (`--cluster-signing-duration`), and the minimum.
const VALID_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const VALID_MIN: Duration = Duration::from_secs(10 * 60);

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let requests: Informer<CertificateSigningRequest> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&requests);
    let state = Arc::new((client, requests, context.config.sign_request.clone()));
    keyed.run(&context.tasks, "certificate-signer", WORKERS, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &state.2, &name).await }
    });
}

/// The time that a certificate is good.
fn valid(request: &CertificateSigningRequest) -> Duration {
    let seconds = request.spec.expiration_seconds.map(|s| u64::try_from(s).unwrap_or(0));
    seconds.map_or(VALID_MAX, |s| Duration::from_secs(s).clamp(VALID_MIN, VALID_MAX))
}

/// The certificate, or why there will be none; `None` where nothing is to be done.
fn outcome(
    request: &CertificateSigningRequest,
    sign: &SignRequest,
) -> Option<Result<String, String>> {
    let due = certificate(request).is_none()
        && condition(request, "Approved").is_some()
        && condition(request, "Failed").is_none();
    let signer = Signer::of(request).filter(|_| due)?;
    let asked = match Asked::of(&request.spec.request.0) {
        Ok(asked) => asked,
        Err(why) => return Some(Err(why)),
    };
    if let Some(why) = signer.refuses(&asked, usages(request)) {
        return Some(Err(why));
    }
    Some(sign.sign(signer, &asked, usages(request), valid(request)))
}

async fn reconcile(
    client: &Client,
    requests: &Informer<CertificateSigningRequest>,
    sign: &SignRequest,
    name: &str,
) -> Result<Action, Error> {
    let Some(object) = requests.cache().get("", name) else { return Ok(Action::Done) };
    let mut request: CertificateSigningRequest = object.decode()?;
    let Some(outcome) = outcome(&request, sign) else { return Ok(Action::Done) };
    match outcome {
        Ok(certificate) => {
            let status = request.status.get_or_insert_default();
            status.certificate = Some(ByteString(certificate.into_bytes()));
        }
        Err(why) => conclude(&mut request, "Failed", "SignerValidationFailure", &why),
    }
    settled(client.update_status(&request).await)?;
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use base::pki::{Profile, request as pki};
    use serde_json::json;

    #[test]
    fn what_is_approved_is_signed_once() {
        let sign = SignRequest::new(|signer, asked, usages, valid| {
            Ok(format!("{signer:?} {} {usages:?} {}", asked.common_name, valid.as_secs()))
        });
        let approved = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        let pem = |user: &str| {
            let key = pki::new_key().unwrap();
            ByteString(pki::request(&Profile::client(user, None), &key).unwrap().into_bytes())
        };
        let mut of = request("kube-apiserver-client", json!({}));
        of.spec.request = pem("jane");
        assert_eq!(outcome(&of, &sign), None);
        of.status = request("", approved.clone()).status;
        let signed = "Client jane [\"client auth\"] 31536000".to_owned();
        assert_eq!(outcome(&of, &sign), Some(Ok(signed)));
        of.spec.expiration_seconds = Some(600);
        assert_eq!(valid(&of).as_secs(), 600);
        of.spec.expiration_seconds = Some(i32::MAX);
        assert_eq!(valid(&of).as_secs(), 31_536_000);
        of.spec.signer_name = "kubernetes.io/kubelet-serving".into();
        let refused = "subject organization is not system:nodes".to_owned();
        assert_eq!(outcome(&of, &sign), Some(Err(refused)));
        of.spec.signer_name = "example.com/own".into();
        assert_eq!(outcome(&of, &sign), None);
        let failed = json!({"conditions": [{"type": "Approved", "status": "True"},
            {"type": "Failed", "status": "True"}]});
        assert_eq!(outcome(&request("kube-apiserver-client", failed), &sign), None);
        let done = json!({"certificate": "eA==", "conditions": approved["conditions"]});
        assert_eq!(outcome(&request("kube-apiserver-client", done), &sign), None);
    }
}
