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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;

    /// `validatePullPolicy` of `pkg/apis/core/validation`.
    #[test]
    fn pull_policies_are_a_closed_set() {
        let check = |policy: &str, expected: &[&str]| {
            let found: Vec<Error> = pull_policy(policy, &Path::new("p")).into_iter().collect();
            same(&found, expected);
        };
        const KNOWN: &str = "supported values: \"Always\", \"IfNotPresent\", \"Never\"";
        check("Always", &[]);
        check("IfNotPresent", &[]);
        check("Never", &[]);
        check("", &["p: Required value"]);
        check("always", &[&format!("p: Unsupported value: \"always\": {KNOWN}")]);
        check("Other", &[&format!("p: Unsupported value: \"Other\": {KNOWN}")]);
    }
}
