//! The metrics of the publishers of CA bundles, with upstream's names, labels and texts.

use base::clock;
use base::metrics::Family;
use client::Error;
use tokio::time::Instant;

use crate::framework::collectors::SYNC_BOUNDS;

const LABELS: &[&str] = &["code"];

static BUNDLE_DURATION: Family = Family::histogram(
    "clustertrustbundle_publisher_sync_duration_seconds",
    "[ALPHA] The time it took to sync a cluster trust bundle.",
    LABELS,
    &SYNC_BOUNDS,
);

static BUNDLE_SYNCS: Family = Family::counter(
    "clustertrustbundle_publisher_sync_total",
    "[ALPHA] Number of syncs that occurred in cluster trust bundle publisher.",
    LABELS,
);

// The text is upstream's, although it is that of the counter.
static ROOT_CA_DURATION: Family = Family::histogram(
    "root_ca_cert_publisher_sync_duration_seconds",
    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
    LABELS,
    &SYNC_BOUNDS,
);

static ROOT_CA_SYNCS: Family = Family::counter(
    "root_ca_cert_publisher_sync_total",
    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
    LABELS,
);

/// The families, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 4] =
    [&BUNDLE_DURATION, &BUNDLE_SYNCS, &ROOT_CA_DURATION, &ROOT_CA_SYNCS];

/// Records a sync of the ClusterTrustBundle that has ended.
pub(super) fn bundle_synced<T>(began: Instant, result: &Result<T, Error>) {
    synced(&BUNDLE_SYNCS, &BUNDLE_DURATION, began, result.as_ref().err());
}

/// Records a sync of the ConfigMap of a namespace that has ended.
pub(super) fn root_ca_synced<T>(began: Instant, result: &Result<T, Error>) {
    synced(&ROOT_CA_SYNCS, &ROOT_CA_DURATION, began, result.as_ref().err());
}

/// Records a sync under the status code of its error, 200 without an error.
fn synced(syncs: &Family, duration: &Family, began: Instant, error: Option<&Error>) {
    let took = clock::now().saturating_duration_since(began);
    let status = error.and_then(Error::status).map(|status| status.code);
    let text;
    let code = match (error, status) {
        (None, _) => "200",
        (Some(_), None | Some(0)) => "500",
        (Some(_), Some(code)) => {
            text = code.to_string();
            &text
        }
    };
    syncs.inc(&[code]);
    duration.took(&[code], took);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of syncs with a status code, of the bundle and of the ConfigMaps.
    fn syncs(code: &str) -> [f64; 4] {
        ALL.map(|family| family.read(&[code]))
    }

    #[test]
    fn syncs_have_the_status_code_of_their_error() {
        let refused: Error = api::Status::failure(418, "", "refused".to_owned()).into();
        bundle_synced(clock::now(), &Err::<(), _>(refused));
        assert_eq!(syncs("418"), [1.0, 1.0, 0.0, 0.0]);
        let before = syncs("500");
        root_ca_synced(clock::now(), &Err::<(), _>(Error::Transport("refused".to_owned())));
        assert_eq!(syncs("500")[2..], [before[2] + 1.0, before[3] + 1.0]);
    }
}
