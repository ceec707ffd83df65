//! What is recorded where nobody has written a policy: who asked for what and what came of it,
//! never a body.

use std::path::Path;

use super::{Plan, Settings, load};

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Every request once, when it is answered.
    Metadata,
    /// What changes something, and who reads Secrets or is given tokens; without the steady reports
    /// of nodes. For storage that wears out: written in batches, in few small files.
    Compact,
}

const METADATA: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

const COMPACT: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts/token]}
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - {group: "", resources: [events]}
  - {group: events.k8s.io, resources: [events]}
  - {group: coordination.k8s.io, resources: [leases]}
- level: None
  userGroups: ["system:nodes"]
  resources:
  - {group: "", resources: [nodes/status, pods/status]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
  - {group: authorization.k8s.io, resources: [subjectaccessreviews]}
- level: Metadata
"#;

impl Form {
    fn policy(self) -> &'static str {
        match self {
            Self::Metadata => METADATA,
            Self::Compact => COMPACT,
        }
    }

    /// The settings that differ from upstream's defaults. `Metadata` has the sizes of the CIS
    /// benchmark (1.2.16 to 1.2.19).
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Metadata => {
                &["audit-log-maxage=30", "audit-log-maxbackup=10", "audit-log-maxsize=100"]
            }
            Self::Compact => &[
                "audit-log-maxage=30",
                "audit-log-maxbackup=3",
                "audit-log-maxsize=4",
                "audit-log-compress=true",
                "audit-log-mode=batch",
                "audit-log-batch-max-size=400",
                "audit-log-batch-max-wait=30s",
            ],
        }
    }

    /// The settings of this form with a log at `path`, and those that were given over them.
    ///
    /// # Errors
    /// As [`Settings::of`].
    pub fn over(self, path: &Path, given: &[String]) -> Result<Settings, super::Fault> {
        let mut all = vec![format!("audit-log-path={}", path.display())];
        all.extend(self.settings().iter().map(|text| (*text).to_owned()));
        all.extend_from_slice(given);
        Settings::of(&all)
    }

    /// A plan of these settings by this form's policy.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn plan(self, settings: &Settings) -> Result<Option<Plan>, String> {
        Plan::of(load::policy(self.policy().as_bytes())?, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::flags::Mode;

    /// C3.12
    #[test]
    fn each_form_has_its_sizes_and_what_is_given_goes_over_them() {
        let path = Path::new("/var/lib/kube-lite/server/logs/audit.log");
        let log = |form: Form, given: &[&str]| {
            let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
            let settings = form.over(path, &given).unwrap();
            assert!(form.plan(&settings).unwrap().is_some());
            settings.log.unwrap()
        };
        let all = log(Form::Metadata, &[]);
        assert_eq!((all.max_age, all.max_backup, all.max_bytes), (30, 10, 100 << 20));
        assert_eq!((all.path.as_deref(), all.output.mode), (Some(path), Mode::Blocking));
        let compact = log(Form::Compact, &[]);
        assert_eq!((compact.max_backup, compact.max_bytes, compact.compress), (3, 4 << 20, true));
        assert_eq!(compact.output.mode, Mode::Batch);
        let own = log(Form::Metadata, &["audit-log-path=/a", "audit-log-maxage=7"]);
        assert_eq!(
            (own.path.as_deref(), own.max_age, own.max_backup),
            (Some(Path::new("/a")), 7, 10)
        );
    }
}
