//! Signs approved requests.

use super::*;
use api::k8s::ByteString;
use client::{Action, Client, Error, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::framework::signing::{SignRequest, SigningError};

/// Minimum validity of a certificate.
const VALID_MIN: Duration = Duration::from_secs(10 * 60);

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let requests: Informer<CertificateSigningRequest> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&requests);
    let state = Arc::new((client, requests, context.config.sign_request.clone()));
    let longest = context.config.tuning.signing_duration;
    keyed.run(&context.tasks, "certificate-signer", WORKERS, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, (&state.2, longest), &name).await }
    });
}

/// How long the certificate is valid; `longest` is the default and the maximum.
fn validity(request: &CertificateSigningRequest, longest: Duration) -> Duration {
    let seconds = request.spec.expiration_seconds.map(|s| u64::try_from(s).unwrap_or(0));
    let least = VALID_MIN.min(longest);
    seconds.map_or(longest, |s| Duration::from_secs(s).clamp(least, longest))
}

/// Why an approved request gets no certificate.
#[derive(Debug, thiserror::Error)]
enum SignError {
    /// The request is not a valid PKCS #10 request.
    #[error("{0}")]
    Malformed(String),
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    Signing(#[from] SigningError),
}

/// Signs a request that is approved and has neither a certificate nor failed; `None` for other
/// requests and signers.
fn outcome(
    request: &CertificateSigningRequest,
    (sign, longest): (&SignRequest, Duration),
) -> Option<Result<String, SignError>> {
    let is_due = certificate(request).is_none()
        && condition(request, "Approved").is_some()
        && condition(request, "Failed").is_none();
    let signer = Signer::of(request).filter(|_| is_due)?;
    Some(issue(signer, request, (sign, longest)))
}

fn issue(
    signer: Signer,
    request: &CertificateSigningRequest,
    (sign, longest): (&SignRequest, Duration),
) -> Result<String, SignError> {
    let asked = CsrSubject::parse(&request.spec.request.0)
        .map_err(|error| SignError::Malformed(error.to_string()))?;
    signer.check(&asked, usages(request))?;
    Ok(sign.sign(signer, &asked, usages(request), validity(request, longest))?)
}

async fn reconcile(
    client: &Client,
    requests: &Informer<CertificateSigningRequest>,
    sign: (&SignRequest, Duration),
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
        Err(error) => {
            let message = error.to_string();
            add_condition(&mut request, "Failed", "SignerValidationFailure", &message);
        }
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

    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    #[test]
    fn an_approved_request_is_signed_once() {
        let signer = SignRequest::new(|signer, asked, usages, valid| {
            Ok(format!("{signer:?} {} {usages:?} {}", asked.common_name, valid.as_secs()))
        });
        let sign = (&signer, YEAR);
        let approved = json!({"conditions": [{"type": "Approved", "status": "True"}]});
        let pem = |user: &str| {
            let key = pki::new_key().unwrap();
            ByteString(pki::request(&Profile::client(user, None), &key).unwrap().into_bytes())
        };
        let mut of = request("kube-apiserver-client", json!({}));
        of.spec.request = pem("jane");
        assert!(outcome(&of, sign).is_none());
        of.status = request("", approved.clone()).status;
        let signed = "Client jane [\"client auth\"] 31536000".to_owned();
        assert_eq!(outcome(&of, sign).unwrap().unwrap(), signed);
        of.spec.expiration_seconds = Some(600);
        assert_eq!(validity(&of, YEAR).as_secs(), 600);
        of.spec.expiration_seconds = Some(i32::MAX);
        assert_eq!(validity(&of, YEAR).as_secs(), 31_536_000);
        assert_eq!(validity(&of, Duration::from_secs(3600)).as_secs(), 3600);
        of.spec.signer_name = "kubernetes.io/kubelet-serving".into();
        let error = outcome(&of, sign).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "subject organization is not system:nodes");
        of.spec.signer_name = "example.com/own".into();
        assert!(outcome(&of, sign).is_none());
        let failed = json!({"conditions": [{"type": "Approved", "status": "True"},
            {"type": "Failed", "status": "True"}]});
        assert!(outcome(&request("kube-apiserver-client", failed), sign).is_none());
        let done = json!({"certificate": "eA==", "conditions": approved["conditions"]});
        assert!(outcome(&request("kube-apiserver-client", done), sign).is_none());
    }
}
