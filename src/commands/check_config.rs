//! `kube-lite check-config`: checks that this machine meets the requirements of a node.

use super::{Command, Environment, Output};
use crate::error_catalogue::CommandError;
use crate::preflight::{self, Programs, Verdict};

/// The command, which has no arguments.
pub(super) struct CheckConfig;

impl Command for CheckConfig {
    fn run(self, environment: &Environment<'_>) -> Result<Output, CommandError> {
        let programs = Programs {
            bin_dir: environment.data_dir(None).join("bin"),
            path: environment.variable("PATH").unwrap_or_default(),
        };
        let findings = preflight::check(None, &programs, false);
        let mut text = String::new();
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Pass => "ok",
                Verdict::Warning => "warning",
                Verdict::Fail => "FAIL",
            };
            text.push_str(&format!("{mark:<8}{:<10}{}\n", finding.check, finding.detail));
            if finding.verdict != Verdict::Pass {
                text.push_str(&format!(
                    "        {} fix: {}\n",
                    finding.entry.id, finding.entry.fix
                ));
            }
        }
        let has_failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
        Ok(Output { text, code: u8::from(has_failed) })
    }
}
