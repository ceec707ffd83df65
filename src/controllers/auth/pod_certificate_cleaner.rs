//! Deletes PodCertificateRequests that are old: every exchange with a signer is over by then, one
//! way or the other.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::certificates::v1::PodCertificateRequest;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use client::{Action, Client, DeleteOptions, Error, Informer};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

/// Service account.
const CONTROLLER: &str = "podcertificaterequestcleaner";
/// Upstream has one; a request is at most one deletion.
const WORKERS: usize = 1;
/// Age at which a request goes, in seconds (`newPodCertificateRequestCleanerController`).
const AGE_MAX: i64 = 15 * 60;

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let requests: Informer<PodCertificateRequest> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&requests);
    let state = Arc::new((client, requests));
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &namespace, &name).await }
    });
}

/// Seconds until the request goes (0 is now); `None` when the server has not said when it was made.
fn seconds_left(request: &PodCertificateRequest, now: Timestamp) -> Option<u64> {
    let Time(created) = request.metadata.creation_timestamp.as_ref()?;
    let left = created.as_second().saturating_add(AGE_MAX).saturating_sub(now.as_second());
    Some(u64::try_from(left).unwrap_or(0))
}

async fn reconcile(
    client: &Client,
    requests: &Informer<PodCertificateRequest>,
    namespace: &str,
    name: &str,
) -> Result<Action, Error> {
    let Some(request) = requests.get(namespace, name) else { return Ok(Action::Done) };
    match seconds_left(&request, Timestamp::now()) {
        None => return Ok(Action::Done),
        Some(0) => {}
        Some(seconds) => return Ok(Action::After(Duration::from_secs(seconds))),
    }
    let options = DeleteOptions::with_uid(request.metadata.uid.as_deref().unwrap_or_default());
    let deleted = client.delete::<PodCertificateRequest>(namespace, name, &options).await;
    settled(deleted)?;
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_goes_a_quarter_of_an_hour_after_it_was_made() {
        let request: PodCertificateRequest = serde_json::from_value(json!({
            "metadata": {"name": "r", "creationTimestamp": "1970-01-01T00:00:10Z"},
            "spec": {"maxExpirationSeconds": 3600, "nodeName": "a", "nodeUID": "u", "podName": "p",
                "podUID": "p", "serviceAccountName": "s", "serviceAccountUID": "s",
                "signerName": "a.b/c", "stubPKCS10Request": ""}}))
        .unwrap();
        let at = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(seconds_left(&request, at(10)), Some(900));
        assert_eq!(seconds_left(&request, at(909)), Some(1));
        assert_eq!(seconds_left(&request, at(910)), Some(0));
        assert_eq!(seconds_left(&request, at(5000)), Some(0));
    }
}
