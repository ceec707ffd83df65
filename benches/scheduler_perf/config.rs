//! The files of scheduler_perf: test cases, their workloads and thresholds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

/// The name of the files with test cases.
const FILE_NAME: &str = "performance-config.yaml";
/// Folders within each other that are searched for them.
const DEPTH_MAX: usize = 8;

/// A test case: operations, and workloads that play them with their own parameters. Upstream's
/// `testCase`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TestCase {
    pub(crate) name: String,
    #[serde(default)]
    feature_gates: BTreeMap<String, bool>,
    /// The metrics that upstream's test collects from its process.
    #[serde(default, rename = "metricsCollectorConfig")]
    _metrics_collector_config: Value,
    /// The operations, which [`crate::operation::parse`] reads.
    pub(crate) workload_template: Vec<Value>,
    pub(crate) workloads: Vec<Workload>,
    scheduler_config_path: Option<String>,
    pub(crate) default_pod_template_path: Option<String>,
    #[serde(default)]
    labels: Vec<String>,
    default_threshold_metric_selector: Option<Value>,
}

/// A workload of a test case. Upstream's `Workload`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Workload {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) params: BTreeMap<String, Value>,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    threshold: Value,
    threshold_metric_selector: Option<Value>,
    #[serde(default)]
    feature_gates: BTreeMap<String, bool>,
}

/// A file of test cases.
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) test_cases: Vec<TestCase>,
}

/// Reads a YAML file.
///
/// # Errors
///
/// The file is not readable or not YAML.
pub(crate) fn read_yaml(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    api::codec::yaml::parse(&text).with_context(|| path.display().to_string())
}

/// Reads the test cases of a file.
///
/// # Errors
///
/// The file is not readable, not YAML, or has a field that upstream's reader does not have.
pub(crate) fn read(path: &Path) -> anyhow::Result<ConfigFile> {
    let test_cases = serde_json::from_value(read_yaml(path)?)
        .with_context(|| format!("the test cases of {}", path.display()))?;
    Ok(ConfigFile { path: path.to_owned(), test_cases })
}

/// Finds the files with test cases below a folder, sorted.
///
/// # Errors
///
/// A folder is not readable.
pub(crate) fn find_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("reading the folder {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() && depth < DEPTH_MAX {
                open.push((path, depth + 1));
            } else if path.file_name().is_some_and(|name| name == FILE_NAME) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

impl ConfigFile {
    /// The test case and the workload of these names.
    ///
    /// # Errors
    ///
    /// There is none; the error lists those that there are.
    pub(crate) fn find(
        &self,
        test_case: &str,
        workload: &str,
    ) -> anyhow::Result<(&TestCase, &Workload)> {
        let Some(case) = self.test_cases.iter().find(|case| case.name == test_case) else {
            let names: Vec<&str> = self.test_cases.iter().map(|case| case.name.as_str()).collect();
            bail!("{} has no test case {test_case}: {}", self.path.display(), names.join(", "));
        };
        let Some(found) = case.workloads.iter().find(|found| found.name == workload) else {
            let names: Vec<&str> = case.workloads.iter().map(|load| load.name.as_str()).collect();
            bail!("test case {test_case} has no workload {workload}: {}", names.join(", "));
        };
        Ok((case, found))
    }

    /// A path that a test case names: upstream's tests run in the folder of the file.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new(".")).join(path)
    }

    /// The name by which thresholds are chosen: that of the file's folder, as in the calls of
    /// upstream's `RunBenchmarkPerfScheduling`.
    fn topic(&self) -> Option<&str> {
        self.path.parent()?.file_name()?.to_str()
    }

    /// The pods per second below which upstream's benchmark fails; `None` without a threshold, or
    /// with one for another metric.
    pub(crate) fn threshold(&self, case: &TestCase, workload: &Workload) -> Option<f64> {
        let selector = workload.threshold_metric_selector.as_ref();
        if selector.or(case.default_threshold_metric_selector.as_ref()).is_some() {
            return None;
        }
        let value = match &workload.threshold {
            Value::Object(by_topic) => by_topic.get(self.topic()?)?,
            value => value,
        };
        value.as_f64().filter(|threshold| *threshold > 0.0)
    }

    /// Describes a workload for the program that starts the servers.
    ///
    /// # Errors
    ///
    /// The configuration of the scheduler is not readable.
    pub(crate) fn describe(&self, case: &TestCase, workload: &Workload) -> anyhow::Result<Value> {
        let config = case.scheduler_config_path.as_ref();
        let config = config.map(|path| read_yaml(&self.resolve(path))).transpose()?;
        let labels: Vec<&String> = case.labels.iter().chain(&workload.labels).collect();
        let refused = crate::operation::parse(&case.workload_template).err();
        Ok(serde_json::json!({
            "config": self.path, "test_case": case.name, "workload": workload.name,
            "labels": labels, "threshold": self.threshold(case, workload),
            "feature_gates": feature_gates(case, workload), "scheduler_config": config,
            "refused": refused.map(|error| format!("{error:#}")),
        }))
    }
}

/// The feature gates of a workload, which override those of its test case.
pub(crate) fn feature_gates(case: &TestCase, workload: &Workload) -> BTreeMap<String, bool> {
    let mut gates = case.feature_gates.clone();
    gates.extend(workload.feature_gates.iter().map(|(name, on)| (name.clone(), *on)));
    gates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &str, text: &str) -> ConfigFile {
        let value = api::codec::yaml::parse(text.as_bytes()).unwrap();
        let path = Path::new(folder).join(FILE_NAME);
        ConfigFile { path, test_cases: serde_json::from_value(value).unwrap() }
    }

    const TEXT: &str = "
- name: A
  featureGates: {Shared: true, Own: true}
  workloadTemplate: [{opcode: sleep}]
  workloads:
  - {name: plain, threshold: 680, featureGates: {Own: false}}
  - {name: topic, threshold: {dra: 56, dra_experimental: 70}}
  - {name: none}
  - {name: other, threshold: 5, thresholdMetricSelector: {name: x, dataBucket: Perc99}}
";

    #[test]
    fn thresholds_are_numbers_or_chosen_by_topic() {
        let file = file("scheduler_perf/dra", TEXT);
        let threshold = |name| {
            let (case, workload) = file.find("A", name).unwrap();
            file.threshold(case, workload)
        };
        assert_eq!(threshold("plain"), Some(680.0));
        assert_eq!(threshold("topic"), Some(56.0));
        assert_eq!(threshold("none"), None);
        assert_eq!(threshold("other"), None);
    }

    #[test]
    fn feature_gates_of_a_workload_override_those_of_its_test_case() {
        let file = file("misc", TEXT);
        let (case, workload) = file.find("A", "plain").unwrap();
        let gates = feature_gates(case, workload);
        assert_eq!(
            gates.into_iter().collect::<Vec<_>>(),
            [("Own".to_owned(), false), ("Shared".to_owned(), true)]
        );
    }

    #[test]
    fn unknown_workload_is_refused_with_the_names_that_there_are() {
        let error = file("misc", TEXT).find("A", "nope").err().unwrap();
        assert_eq!(
            error.to_string(),
            "test case A has no workload nope: plain, topic, none, other"
        );
    }
}
