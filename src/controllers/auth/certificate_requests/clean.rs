//! Deletes CertificateSigningRequests an hour after their approval, denial or failure, after a day
//! without either, and when their certificate has expired (`cleaner.go`).

use super::*;
use client::{Action, Client, DeleteOptions, Error, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

/// Seconds that a request stays which was signed, denied or failed, and one that waits.
const DONE: i64 = 60 * 60;
const WAITS: i64 = 24 * 60 * 60;

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(ACCOUNT);
    let requests: Informer<CertificateSigningRequest> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&requests);
    let state = Arc::new((client, requests));
    keyed.run(&context.tasks, "certificate-cleaner", 1, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &name).await }
    });
}

/// When the request goes, in seconds since the epoch; `None` where nothing says when.
fn end(request: &CertificateSigningRequest) -> Option<i64> {
    let at = |time: Option<&Time>| time.map(|Time(time)| time.as_second());
    let decided = |kind: &str| at(condition(request, kind)?.last_update_time.as_ref());
    let after = |time: Option<i64>, seconds: i64| time.map(|time| time.saturating_add(seconds));
    let issued = certificate(request);
    let expires = issued
        .and_then(|pem| base::pki::end_of(std::str::from_utf8(pem).ok()?))
        .filter(|_| condition(request, "Approved").is_some());
    let has_none = request
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_none_or(Vec::is_empty);
    let created = at(request.metadata.creation_timestamp.as_ref());
    [
        after(decided("Approved"), if issued.is_some() { DONE } else { WAITS }),
        after(decided("Denied"), DONE),
        after(decided("Failed"), DONE),
        after(created.filter(|_| has_none), WAITS),
        expires,
    ]
    .into_iter()
    .flatten()
    .min()
}

async fn reconcile(
    client: &Client,
    requests: &Informer<CertificateSigningRequest>,
    name: &str,
) -> Result<Action, Error> {
    let Some(request) = requests.get("", name) else { return Ok(Action::Done) };
    let Some(end) = end(&request) else { return Ok(Action::Done) };
    let left = end.saturating_sub(Timestamp::now().as_second());
    if let Some(seconds) = u64::try_from(left).ok().filter(|left| *left > 0) {
        return Ok(Action::After(Duration::from_secs(seconds)));
    }
    let options = DeleteOptions::with_uid(request.metadata.uid.as_deref().unwrap_or_default());
    settled(client.delete::<CertificateSigningRequest>("", name, &options).await)?;
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_goes_at_upstreams_time() {
        let ends = |status: Value| end(&request("kube-apiserver-client", status));
        let told = |kind: &str| {
            json!({"type": kind, "status": "True",
            "lastUpdateTime": "1970-01-01T01:00:00Z"})
        };
        assert_eq!(ends(json!({})), Some(86_400));
        assert_eq!(ends(json!({"conditions": [told("Denied")]})), Some(7_200));
        assert_eq!(ends(json!({"conditions": [told("Failed")]})), Some(7_200));
        assert_eq!(ends(json!({"conditions": [told("Approved")]})), Some(90_000));
        assert_eq!(
            ends(json!({"certificate": "eA==", "conditions": [told("Approved")]})),
            Some(7_200)
        );
    }
}
