//! Validation of the images that containers and volumes name.

use crate::field::{Error, Path};
use crate::validation::one_of;

/// Validates `imagePullPolicy` (`validatePullPolicy`).
pub(super) fn pull_policy(policy: &str, path: &Path) -> Option<Error> {
    if policy.is_empty() {
        Some(Error::required(path, ""))
    } else {
        one_of(policy, &["Always", "IfNotPresent", "Never"], path)
    }
}
