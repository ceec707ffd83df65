//! The ConfigMap `local-path-config`: read when it changes, and the last valid one applies.

use std::sync::Arc;

use api::k8s::api::core::v1::ConfigMap;
use api::local_path::{CONFIG_MAP, KEY, LocalPathConfig, LocalPathConfigError, NAMESPACE};
use arc_swap::ArcSwap;
use client::events::EventType;
use client::informer::decode;
use client::{Change, EventRecorder};

/// What applies.
#[derive(Debug)]
enum CurrentConfig {
    /// There is no ConfigMap: each node uses its own directory.
    Absent,
    Valid(LocalPathConfig),
    /// The first one that was read is invalid.
    Invalid(LocalPathConfigError),
}

/// The settings of the provisioner.
#[derive(Debug)]
pub(super) struct ProvisionerSettings {
    current: ArcSwap<CurrentConfig>,
    recorder: EventRecorder,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[error("no valid config available in ConfigMap {NAMESPACE}/{CONFIG_MAP}: {0}")]
pub(super) struct NoConfig(String);

impl ProvisionerSettings {
    pub(super) fn new(recorder: EventRecorder) -> Self {
        Self { current: ArcSwap::from_pointee(CurrentConfig::Absent), recorder }
    }

    /// Calls `use_config` with the configuration; `None` without a ConfigMap.
    ///
    /// # Errors
    /// The ConfigMap has been invalid since the start of this process.
    pub(super) fn with<T>(
        &self,
        use_config: impl FnOnce(Option<&LocalPathConfig>) -> T,
    ) -> Result<T, NoConfig> {
        match &**self.current.load() {
            CurrentConfig::Absent => Ok(use_config(None)),
            CurrentConfig::Valid(config) => Ok(use_config(Some(config))),
            CurrentConfig::Invalid(error) => Err(NoConfig(error.to_string())),
        }
    }

    /// Reads a changed ConfigMap; returns whether it is the provisioner's.
    pub(super) fn apply(&self, change: &Change) -> bool {
        let key = &change.object().key;
        if &*key.namespace != NAMESPACE || &*key.name != CONFIG_MAP {
            return false;
        }
        if let Change::Deleted(_) = change {
            self.current.store(Arc::new(CurrentConfig::Absent));
        } else if let Some(map) = decode::<ConfigMap>(change.object()) {
            self.read(&map);
        }
        true
    }

    fn read(&self, map: &ConfigMap) {
        let text = |key: &str| map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
        for (name, script) in [("setup", text("setup")), ("teardown", text("teardown"))] {
            if script.is_some_and(|script| !is_default_script(script)) {
                self.not_run(map, name);
            }
        }
        match LocalPathConfig::parse(text(KEY).unwrap_or_default()) {
            Ok(config) => {
                for command in &config.commands {
                    self.not_run(map, command);
                }
                self.current.store(Arc::new(CurrentConfig::Valid(config)));
            }
            Err(error) => {
                let has_former = matches!(&**self.current.load(), CurrentConfig::Valid(_));
                let applies =
                    if has_former { "the former configuration applies" } else { "none applies" };
                let text = format!("{error}; {applies}");
                self.recorder.event(map, EventType::Warning, "InvalidConfig", text);
                if !has_former {
                    self.current.store(Arc::new(CurrentConfig::Invalid(error)));
                }
            }
        }
    }

    fn not_run(&self, map: &ConfigMap, name: &str) {
        let text = format!(
            "{name} is not run: the node makes and removes the directories of volumes itself, with \
             mode 0777"
        );
        self.recorder.event(map, EventType::Warning, "UnsupportedSetting", text);
    }
}

/// Whether a script does no more than the node: the scripts that k3s and rancher's provisioner
/// deploy.
fn is_default_script(script: &str) -> bool {
    const KNOWN: [&str; 5] = [
        "set -eu",
        "mkdir -m 0777 -p $VOL_DIR",
        "chmod 700 $VOL_DIR/..",
        "chmod 701 $VOL_DIR/..",
        "rm -rf $VOL_DIR",
    ];
    script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).all(
        |line| KNOWN.contains(&line.replace('"', "").replace("${VOL_DIR}", "$VOL_DIR").as_str()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_do_more_than_the_node_are_recognized() {
        for script in [
            "",
            "#!/bin/sh\nset -eu\nmkdir -m 0777 -p \"${VOL_DIR}\"\nchmod 700 \"${VOL_DIR}/..\"\n",
            "#!/bin/sh\nset -eu\nrm -rf \"$VOL_DIR\"",
        ] {
            assert!(is_default_script(script), "{script}");
        }
        for script in ["xfs_quota -x", "#!/bin/sh\nmkdir -m 0700 -p \"$VOL_DIR\""] {
            assert!(!is_default_script(script), "{script}");
        }
    }
}
