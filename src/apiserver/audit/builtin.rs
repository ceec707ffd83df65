//! The presets of `--audit`: policies and log settings without a policy file. They record metadata
//! of requests, never bodies.

use std::path::Path;

use super::{AuditConfig, AuditError, AuditFlags, FlagError, load};

/// A preset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Every request, when its response is complete.
    Metadata,
    /// Changes, reads of Secrets and issued tokens, without the periodic reports of nodes. It suits
    /// storage that wears out: events are written in batches, to few small files.
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

impl Preset {
    fn policy(self) -> &'static str {
        match self {
            Self::Metadata => METADATA,
            Self::Compact => COMPACT,
        }
    }

    /// The flags that differ from upstream's defaults. `Metadata` has the sizes of the CIS
    /// benchmark (1.2.16 to 1.2.19).
    fn flags(self) -> &'static [&'static str] {
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

    /// The flags of this preset with a log at `path`; `arguments` take precedence.
    ///
    /// # Errors
    /// As [`AuditFlags::parse`].
    pub fn with_arguments(
        self,
        path: &Path,
        arguments: &[String],
    ) -> Result<AuditFlags, FlagError> {
        let mut all = vec![format!("audit-log-path={}", path.display())];
        all.extend(self.flags().iter().map(|text| (*text).to_owned()));
        all.extend_from_slice(arguments);
        AuditFlags::parse(&all)
    }

    /// The configuration of these flags with the policy of this preset.
    ///
    /// # Errors
    /// As [`AuditConfig::read`].
    pub fn config(self, flags: &AuditFlags) -> Result<Option<AuditConfig>, AuditError> {
        let policy = load::policy(self.policy().as_bytes()).map_err(AuditError::PresetPolicy)?;
        AuditConfig::with_policy(policy, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::flags::Mode;

    /// C3.12
    #[test]
    fn presets_have_sizes_and_arguments_take_precedence() {
        let path = Path::new("/var/lib/kube-lite/server/logs/audit.log");
        let log = |preset: Preset, arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            let flags = preset.with_arguments(path, &arguments).unwrap();
            assert!(preset.config(&flags).unwrap().is_some());
            flags.log.unwrap()
        };
        let all = log(Preset::Metadata, &[]);
        assert_eq!((all.max_age, all.max_backup, all.max_bytes), (30, 10, 100 << 20));
        assert_eq!((all.path.as_deref(), all.output.mode), (Some(path), Mode::Blocking));
        let compact = log(Preset::Compact, &[]);
        assert_eq!((compact.max_backup, compact.max_bytes, compact.compress), (3, 4 << 20, true));
        assert_eq!(compact.output.mode, Mode::Batch);
        let own = log(Preset::Metadata, &["audit-log-path=/a", "audit-log-maxage=7"]);
        assert_eq!(
            (own.path.as_deref(), own.max_age, own.max_backup),
            (Some(Path::new("/a")), 7, 10)
        );
    }
}
