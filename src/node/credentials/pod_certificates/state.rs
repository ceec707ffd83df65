//! The state of one pod certificate and its transitions, as pure functions.

use std::sync::Arc;

use api::field::go_quote;
use api::k8s::api::certificates::v1::PodCertificateRequest;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;

/// A request that is not in the cache after this many seconds was deleted
/// (`assumeDeletedThreshold`).
const ABANDON_AFTER: i64 = 10 * 60;
/// A refresh is overdue this many seconds after it was due (`refreshOverdueDuration`).
const OVERDUE_AFTER: i64 = 10 * 60;

/// A key and its certificate chain, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) key: Arc<str>,
    pub(crate) chain: Arc<str>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(***)")
    }
}

/// Credentials in use; times are seconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CurrentCertificate {
    pub(super) credentials: Credentials,
    pub(super) refresh_at: i64,
    pub(super) ends_at: i64,
    reported_overdue: bool,
    reported_expired: bool,
}

impl CurrentCertificate {
    pub(super) fn new(credentials: Credentials, refresh_at: i64, ends_at: i64) -> Self {
        Self { credentials, refresh_at, ends_at, reported_overdue: false, reported_expired: false }
    }
}

/// A request that awaits the signer's decision.
#[derive(Clone)]
pub(super) struct PendingRequest {
    /// The key of the request.
    pub(super) key: Arc<str>,
    /// The name of the request.
    pub(super) name: String,
    abandon_at: i64,
}

impl PendingRequest {
    /// A request created at `now`; `jitter` spreads the requests of many pods.
    pub(super) fn new(key: String, name: String, now: i64, jitter: i64) -> Self {
        let abandon_at = now.saturating_add(ABANDON_AFTER).saturating_add(jitter);
        Self { key: key.into(), name, abandon_at }
    }
}

impl std::fmt::Debug for PendingRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingRequest({})", self.name)
    }
}

/// The signer's decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Pending,
    Issued { chain: String, refresh_at: i64, ends_at: i64 },
    Denied { reason: String, message: String },
    Failed { reason: String, message: String },
}

fn seconds(time: Option<&Time>) -> Option<i64> {
    time.map(|Time(at)| at.as_second())
}

impl Decision {
    pub(super) fn of(request: &PodCertificateRequest) -> Self {
        let Some(status) = &request.status else { return Self::Pending };
        for condition in status.conditions.iter().flatten() {
            let (reason, message) = (condition.reason.clone(), condition.message.clone());
            match condition.type_.as_str() {
                "Denied" => return Self::Denied { reason, message },
                "Failed" => return Self::Failed { reason, message },
                "Issued" => {
                    let chain = status.certificate_chain.as_deref().unwrap_or_default();
                    let times = seconds(status.begin_refresh_at.as_ref())
                        .zip(seconds(status.not_after.as_ref()));
                    return match (normalize_chain(chain), times) {
                        (Ok(chain), Some((refresh_at, ends_at))) => {
                            Self::Issued { chain, refresh_at, ends_at }
                        }
                        (Err(error), _) => Self::unusable(error.to_string()),
                        (_, None) => {
                            Self::unusable("the status lacks beginRefreshAt or notAfter".to_owned())
                        }
                    };
                }
                _ => {}
            }
        }
        Self::Pending
    }

    /// A status that the API server's validation should have rejected.
    fn unusable(message: String) -> Self {
        Self::Failed { reason: "InvalidStatus".to_owned(), message }
    }
}

/// A chain that contains text that is not a PEM certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct InvalidChain(String);

/// Returns the certificates alone, without the text between them.
fn normalize_chain(chain: &str) -> Result<String, InvalidChain> {
    let all = base::pki::certificates(chain).map_err(|error| InvalidChain(error.to_string()))?;
    Ok(all.iter().map(|der| crate::credentials::trust_bundles::pem(der)).collect())
}

/// Reason and message of an event about the pod.
pub(super) type Event = (&'static str, String);

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextAction {
    /// There will be no certificate, for this reason.
    Fail(String),
    /// Create a request.
    Request,
    /// Wait for the signer.
    Wait,
    /// Do nothing before the refresh.
    Keep,
}

/// One certificate of a pod.
#[derive(Debug, Default)]
pub(super) struct CertificateState {
    pub(super) current: Option<CurrentCertificate>,
    pub(super) pending: Option<PendingRequest>,
    pub(super) failure: Option<String>,
}

impl CertificateState {
    /// Applies the signer's `decision` (`None` while the request is not in the cache) and returns
    /// the next action at `now`. `jitter` (seconds) is added to the time of the refresh;
    /// `namespace` is the pod's, for events.
    pub(super) fn advance(
        &mut self,
        decision: Option<Decision>,
        namespace: &str,
        now: i64,
        jitter: i64,
    ) -> (NextAction, Vec<Event>) {
        let mut events = Vec::new();
        self.apply_decision(decision, namespace, now, jitter, &mut events);
        if let Some(why) = &self.failure {
            return (NextAction::Fail(why.clone()), events);
        }
        self.report_age(now, &mut events);
        let next = match (&self.pending, &self.current) {
            (Some(_), _) => NextAction::Wait,
            (None, Some(current)) if now < current.refresh_at => NextAction::Keep,
            (None, _) => NextAction::Request,
        };
        (next, events)
    }

    /// Ends the pending request if the signer has decided or the request has to be abandoned.
    fn apply_decision(
        &mut self,
        decision: Option<Decision>,
        namespace: &str,
        now: i64,
        jitter: i64,
        events: &mut Vec<Event>,
    ) {
        let Some(pending) = self.pending.take() else { return };
        let request = format!("PodCertificateRequest {namespace}/{}", pending.name);
        match decision {
            None if now > pending.abandon_at => {}
            None | Some(Decision::Pending) => self.pending = Some(pending),
            Some(Decision::Issued { chain, refresh_at, ends_at }) => {
                let credentials =
                    Credentials { key: Arc::clone(&pending.key), chain: chain.into() };
                let refresh_at = refresh_at.saturating_add(jitter);
                self.current = Some(CurrentCertificate::new(credentials, refresh_at, ends_at));
            }
            Some(Decision::Denied { reason, message }) => {
                let (reason, message) = (go_quote(&reason), go_quote(&message));
                let event = format!("{request} was denied, reason={reason}, message={message}");
                events.push(("Denied", event));
                self.failure = Some(format!(
                    "PodCertificateRequest was permanently denied: reason={reason} \
                     message={message}"
                ));
            }
            Some(Decision::Failed { reason, message }) => {
                let (reason, message) = (go_quote(&reason), go_quote(&message));
                let event = format!("{request} failed, reason={reason}, message={message}");
                events.push(("Failed", event));
                self.failure = Some(format!(
                    "PodCertificateRequest was permanently failed: reason={reason} \
                     message={message}"
                ));
            }
        }
    }

    /// Reports once that the current certificate is overdue for refresh, and once that it expired.
    fn report_age(&mut self, now: i64, events: &mut Vec<Event>) {
        let Some(current) = &mut self.current else { return };
        if now > current.refresh_at.saturating_add(OVERDUE_AFTER) && !current.reported_overdue {
            current.reported_overdue = true;
            let message = "PodCertificate refresh overdue".to_owned();
            events.push(("CertificateOverdueForRefresh", message));
        }
        if now > current.ends_at && !current.reported_expired {
            current.reported_expired = true;
            events.push(("CertificateExpired", "PodCertificate expired".to_owned()));
        }
    }
}

/// Splits a bundle into the key and the certificates after it.
pub(super) fn split(bundle: &str) -> Option<(&str, &str)> {
    const END: &str = "-----END PRIVATE KEY-----\n";
    let at = bundle.find(END)?.checked_add(END.len())?;
    bundle.split_at_checked(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: i64 = 1_000_000;

    fn pending() -> CertificateState {
        let pending = PendingRequest::new("key".to_owned(), "req-1".to_owned(), NOW, 60);
        CertificateState { pending: Some(pending), ..CertificateState::default() }
    }

    fn issued() -> Decision {
        Decision::Issued { chain: "chain".to_owned(), refresh_at: NOW + 3600, ends_at: NOW + 7200 }
    }

    #[test]
    fn a_certificate_is_requested_awaited_and_kept() {
        let mut entry = CertificateState::default();
        assert_eq!(entry.advance(None, "n", NOW, 0), (NextAction::Request, vec![]));
        let mut entry = pending();
        assert_eq!(entry.advance(None, "n", NOW, 0), (NextAction::Wait, vec![]));
        assert_eq!(entry.advance(Some(Decision::Pending), "n", NOW, 0), (NextAction::Wait, vec![]));
        assert_eq!(entry.advance(Some(issued()), "n", NOW, 30), (NextAction::Keep, vec![]));
        let current = entry.current.as_ref().unwrap();
        assert_eq!((&*current.credentials.key, &*current.credentials.chain), ("key", "chain"));
        assert_eq!((current.refresh_at, current.ends_at), (NOW + 3630, NOW + 7200));
        assert_eq!(entry.advance(None, "n", NOW + 3629, 0).0, NextAction::Keep);
        assert_eq!(entry.advance(None, "n", NOW + 3630, 0).0, NextAction::Request);
    }

    #[test]
    fn a_request_missing_from_the_cache_was_deleted() {
        let mut entry = pending();
        assert_eq!(entry.advance(None, "n", NOW + 660, 0).0, NextAction::Wait);
        assert_eq!(entry.advance(None, "n", NOW + 661, 0).0, NextAction::Request);
        // A request in the cache is awaited without a limit.
        let mut entry = pending();
        assert_eq!(entry.advance(Some(Decision::Pending), "n", NOW + 9999, 0).0, NextAction::Wait);
    }

    #[test]
    fn denied_and_failed_requests_are_final() {
        let words = ("Why".to_owned(), "say \"no\"".to_owned());
        let mut entry = pending();
        let (reason, message) = words.clone();
        let denied = "PodCertificateRequest was permanently denied: reason=\"Why\" \
            message=\"say \\\"no\\\"\"";
        let event =
            "PodCertificateRequest n/req-1 was denied, reason=\"Why\", message=\"say \\\"no\\\"\"";
        assert_eq!(
            entry.advance(Some(Decision::Denied { reason, message }), "n", NOW, 0),
            (NextAction::Fail(denied.to_owned()), vec![("Denied", event.to_owned())])
        );
        assert_eq!(
            entry.advance(None, "n", NOW + 9999, 0),
            (NextAction::Fail(denied.to_owned()), vec![])
        );
        let (reason, message) = words;
        let failed = "PodCertificateRequest was permanently failed: reason=\"Why\" \
            message=\"say \\\"no\\\"\"";
        let event =
            "PodCertificateRequest n/req-1 failed, reason=\"Why\", message=\"say \\\"no\\\"\"";
        assert_eq!(
            pending().advance(Some(Decision::Failed { reason, message }), "n", NOW, 0),
            (NextAction::Fail(failed.to_owned()), vec![("Failed", event.to_owned())])
        );
    }

    #[test]
    fn the_old_certificate_is_kept_until_the_new_one_and_overdue_is_reported_once() {
        let mut entry = pending();
        entry.advance(Some(issued()), "n", NOW, 0);
        entry.pending =
            Some(PendingRequest::new("new".to_owned(), "req-2".to_owned(), NOW + 3600, 0));
        assert_eq!(
            entry.advance(Some(Decision::Pending), "n", NOW + 3600, 0),
            (NextAction::Wait, vec![])
        );
        let overdue = ("CertificateOverdueForRefresh", "PodCertificate refresh overdue".to_owned());
        let late = entry.advance(Some(Decision::Pending), "n", NOW + 4201, 0);
        assert_eq!(late, (NextAction::Wait, vec![overdue]));
        assert_eq!(
            entry.advance(Some(Decision::Pending), "n", NOW + 4202, 0),
            (NextAction::Wait, vec![])
        );
        let expired = ("CertificateExpired", "PodCertificate expired".to_owned());
        let late = entry.advance(Some(Decision::Pending), "n", NOW + 7201, 0);
        assert_eq!(late, (NextAction::Wait, vec![expired]));
        assert_eq!(&*entry.current.as_ref().unwrap().credentials.key, "key");
        let fresh = Decision::Issued {
            chain: "fresh".to_owned(),
            refresh_at: NOW + 9000,
            ends_at: NOW + 10_000,
        };
        assert_eq!(entry.advance(Some(fresh), "n", NOW + 7300, 0), (NextAction::Keep, vec![]));
        assert_eq!(&*entry.current.as_ref().unwrap().credentials.key, "new");
    }

    fn request(status: Value) -> Decision {
        let value = json!({"metadata": {"name": "r"}, "spec": {"maxExpirationSeconds": 3600,
            "nodeName": "a", "nodeUID": "u", "podName": "p", "podUID": "p",
            "serviceAccountName": "s",
            "serviceAccountUID": "s", "signerName": "a.b/c", "stubPKCS10Request": ""},
            "status": status});
        Decision::of(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn decisions_are_parsed_from_conditions_and_chains_normalized() {
        let condition = |kind: &str| {
            json!([{"type": kind, "status": "True", "reason": "R", "message": "M",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let words = || ("R".to_owned(), "M".to_owned());
        assert_eq!(request(json!({})), Decision::Pending);
        let (reason, message) = words();
        assert_eq!(
            request(json!({"conditions": condition("Denied")})),
            Decision::Denied { reason, message }
        );
        let (reason, message) = words();
        assert_eq!(
            request(json!({"conditions": condition("Failed")})),
            Decision::Failed { reason, message }
        );
        let block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let status = json!({"conditions": condition("Issued"),
            "certificateChain": format!("leaf\n{block}issuer\n{block}"),
            "beginRefreshAt": "1970-01-01T00:00:10Z", "notAfter": "1970-01-01T00:00:20Z"});
        let chain = format!("{block}{block}");
        assert_eq!(request(status), Decision::Issued { chain, refresh_at: 10, ends_at: 20 });
    }

    #[test]
    fn a_bundle_is_split_into_key_and_certificates() {
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(split(&format!("{key}chain")), Some((key, "chain")));
        assert_eq!(split("chain"), None);
    }
}
