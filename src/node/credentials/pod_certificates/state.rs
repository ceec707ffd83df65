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
pub(super) struct Good {
    pub(super) credentials: Credentials,
    pub(super) refresh_at: i64,
    pub(super) ends_at: i64,
    told_overdue: bool,
    told_expired: bool,
}

impl Good {
    pub(super) fn new(credentials: Credentials, refresh_at: i64, ends_at: i64) -> Self {
        Self { credentials, refresh_at, ends_at, told_overdue: false, told_expired: false }
    }
}

/// A request that awaits the signer's decision.
#[derive(Clone)]
pub(super) struct Asked {
    /// The key of the request.
    pub(super) key: Arc<str>,
    /// The name of the request.
    pub(super) name: String,
    abandon_at: i64,
}

impl Asked {
    /// A request created at `now`; `jitter` spreads the requests of many pods.
    pub(super) fn new(key: String, name: String, now: i64, jitter: i64) -> Self {
        let abandon_at = now.saturating_add(ABANDON_AFTER).saturating_add(jitter);
        Self { key: key.into(), name, abandon_at }
    }
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asked({})", self.name)
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
                    return match (clean(chain), times) {
                        (Ok(chain), Some((refresh_at, ends_at))) => {
                            Self::Issued { chain, refresh_at, ends_at }
                        }
                        (Err(why), _) => Self::unusable(why),
                        (_, None) => Self::unusable("the status has no times".to_owned()),
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

/// Returns the certificates alone, without the text between them.
fn clean(chain: &str) -> Result<String, String> {
    let all = base::pki::certificates(chain)?;
    Ok(all.iter().map(|der| crate::credentials::trust_bundles::pem(der)).collect())
}

/// Reason and message of an event about the pod.
pub(super) type Event = (&'static str, String);

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// There will be no certificate, for this reason.
    Refused(String),
    /// Create a request.
    Ask,
    /// Wait for the signer.
    Wait,
    /// Do nothing before the refresh.
    Have,
}

/// One certificate of a pod.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) good: Option<Good>,
    pub(super) asked: Option<Asked>,
    pub(super) refused: Option<String>,
}

impl Entry {
    /// Applies the signer's `decision` (`None` while the request is not in the cache) and returns
    /// the next action at `now`. `jitter` (seconds) is added to the time of the refresh;
    /// `namespace` is the pod's, for events.
    pub(super) fn step(
        &mut self,
        found: Option<Decision>,
        namespace: &str,
        now: i64,
        jitter: i64,
    ) -> (Next, Vec<Event>) {
        let mut events = Vec::new();
        if let Some(asked) = self.asked.take() {
            let waits = match found {
                None => now <= asked.abandon_at,
                Some(Decision::Pending) => true,
                Some(Decision::Issued { chain, refresh_at, ends_at }) => {
                    let credentials =
                        Credentials { key: Arc::clone(&asked.key), chain: chain.into() };
                    let refresh_at = refresh_at.saturating_add(jitter);
                    self.good = Some(Good::new(credentials, refresh_at, ends_at));
                    false
                }
                Some(Decision::Denied { reason, message }) => {
                    let (reason, message) = (go_quote(&reason), go_quote(&message));
                    events.push((
                        "Denied",
                        format!(
                            "PodCertificateRequest {namespace}/{} was denied, reason={reason}, message={message}",
                            asked.name
                        ),
                    ));
                    self.refused = Some(format!(
                        "PodCertificateRequest was permanently denied: reason={reason} message={message}"
                    ));
                    false
                }
                Some(Decision::Failed { reason, message }) => {
                    let (reason, message) = (go_quote(&reason), go_quote(&message));
                    events.push((
                        "Failed",
                        format!(
                            "PodCertificateRequest {namespace}/{} failed, reason={reason}, message={message}",
                            asked.name
                        ),
                    ));
                    self.refused = Some(format!(
                        "PodCertificateRequest was permanently failed: reason={reason} message={message}"
                    ));
                    false
                }
            };
            if waits {
                self.asked = Some(asked);
            }
        }
        if let Some(why) = &self.refused {
            return (Next::Refused(why.clone()), events);
        }
        if let Some(good) = &mut self.good {
            if now > good.refresh_at.saturating_add(OVERDUE_AFTER) && !good.told_overdue {
                good.told_overdue = true;
                events.push((
                    "CertificateOverdueForRefresh",
                    "PodCertificate refresh overdue".to_owned(),
                ));
            }
            if now > good.ends_at && !good.told_expired {
                good.told_expired = true;
                events.push(("CertificateExpired", "PodCertificate expired".to_owned()));
            }
        }
        let next = match (&self.asked, &self.good) {
            (Some(_), _) => Next::Wait,
            (None, Some(good)) if now < good.refresh_at => Next::Have,
            (None, _) => Next::Ask,
        };
        (next, events)
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

    fn asked() -> Entry {
        let asked = Asked::new("key".to_owned(), "req-1".to_owned(), NOW, 60);
        Entry { asked: Some(asked), ..Entry::default() }
    }

    fn issued() -> Decision {
        Decision::Issued { chain: "chain".to_owned(), refresh_at: NOW + 3600, ends_at: NOW + 7200 }
    }

    #[test]
    fn a_certificate_is_asked_for_waited_for_and_had() {
        let mut entry = Entry::default();
        assert_eq!(entry.step(None, "n", NOW, 0), (Next::Ask, vec![]));
        let mut entry = asked();
        assert_eq!(entry.step(None, "n", NOW, 0), (Next::Wait, vec![]));
        assert_eq!(entry.step(Some(Decision::Pending), "n", NOW, 0), (Next::Wait, vec![]));
        assert_eq!(entry.step(Some(issued()), "n", NOW, 30), (Next::Have, vec![]));
        let good = entry.good.as_ref().unwrap();
        assert_eq!((&*good.credentials.key, &*good.credentials.chain), ("key", "chain"));
        assert_eq!((good.refresh_at, good.ends_at), (NOW + 3630, NOW + 7200));
        assert_eq!(entry.step(None, "n", NOW + 3629, 0).0, Next::Have);
        assert_eq!(entry.step(None, "n", NOW + 3630, 0).0, Next::Ask);
    }

    #[test]
    fn a_request_that_nobody_sees_was_deleted() {
        let mut entry = asked();
        assert_eq!(entry.step(None, "n", NOW + 660, 0).0, Next::Wait);
        assert_eq!(entry.step(None, "n", NOW + 661, 0).0, Next::Ask);
        // A request in the cache is awaited without a limit.
        let mut entry = asked();
        assert_eq!(entry.step(Some(Decision::Pending), "n", NOW + 9999, 0).0, Next::Wait);
    }

    #[test]
    fn what_was_denied_or_failed_stays_so() {
        let words = ("Why".to_owned(), "say \"no\"".to_owned());
        let mut entry = asked();
        let (reason, message) = words.clone();
        let denied = "PodCertificateRequest was permanently denied: reason=\"Why\" message=\"say \\\"no\\\"\"";
        let event =
            "PodCertificateRequest n/req-1 was denied, reason=\"Why\", message=\"say \\\"no\\\"\"";
        assert_eq!(
            entry.step(Some(Decision::Denied { reason, message }), "n", NOW, 0),
            (Next::Refused(denied.to_owned()), vec![("Denied", event.to_owned())])
        );
        assert_eq!(
            entry.step(None, "n", NOW + 9999, 0),
            (Next::Refused(denied.to_owned()), vec![])
        );
        let (reason, message) = words;
        let failed = "PodCertificateRequest was permanently failed: reason=\"Why\" message=\"say \\\"no\\\"\"";
        let event =
            "PodCertificateRequest n/req-1 failed, reason=\"Why\", message=\"say \\\"no\\\"\"";
        assert_eq!(
            asked().step(Some(Decision::Failed { reason, message }), "n", NOW, 0),
            (Next::Refused(failed.to_owned()), vec![("Failed", event.to_owned())])
        );
    }

    #[test]
    fn the_old_certificate_stays_until_the_new_one_is_there_and_lateness_is_told_once() {
        let mut entry = asked();
        entry.step(Some(issued()), "n", NOW, 0);
        entry.asked = Some(Asked::new("new".to_owned(), "req-2".to_owned(), NOW + 3600, 0));
        assert_eq!(entry.step(Some(Decision::Pending), "n", NOW + 3600, 0), (Next::Wait, vec![]));
        let overdue = ("CertificateOverdueForRefresh", "PodCertificate refresh overdue".to_owned());
        let late = entry.step(Some(Decision::Pending), "n", NOW + 4201, 0);
        assert_eq!(late, (Next::Wait, vec![overdue]));
        assert_eq!(entry.step(Some(Decision::Pending), "n", NOW + 4202, 0), (Next::Wait, vec![]));
        let expired = ("CertificateExpired", "PodCertificate expired".to_owned());
        let late = entry.step(Some(Decision::Pending), "n", NOW + 7201, 0);
        assert_eq!(late, (Next::Wait, vec![expired]));
        assert_eq!(&*entry.good.as_ref().unwrap().credentials.key, "key");
        let fresh = Decision::Issued {
            chain: "fresh".to_owned(),
            refresh_at: NOW + 9000,
            ends_at: NOW + 10_000,
        };
        assert_eq!(entry.step(Some(fresh), "n", NOW + 7300, 0), (Next::Have, vec![]));
        assert_eq!(&*entry.good.as_ref().unwrap().credentials.key, "new");
    }

    fn request(status: Value) -> Decision {
        let value = json!({"metadata": {"name": "r"}, "spec": {"maxExpirationSeconds": 3600,
            "nodeName": "a", "nodeUID": "u", "podName": "p", "podUID": "p", "serviceAccountName": "s",
            "serviceAccountUID": "s", "signerName": "a.b/c", "stubPKCS10Request": ""}, "status": status});
        Decision::of(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn decisions_are_read_from_conditions_and_chains_are_cleaned() {
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
    fn a_bundle_is_a_key_and_certificates() {
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(split(&format!("{key}chain")), Some((key, "chain")));
        assert_eq!(split("chain"), None);
    }
}
