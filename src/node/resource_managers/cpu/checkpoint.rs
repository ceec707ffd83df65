//! The file `cpu_manager_state` (`pkg/kubelet/cm/cpumanager/state`, version 4).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::super::checkpoint::{CheckpointError, StateFile, to_json};
use super::super::cpu_set::CpuSet;

/// CPU sets of containers: by uid of the pod and name.
pub(crate) type Assignments = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// What the file keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CpuState {
    /// The CPUs of all containers without an assignment.
    pub(crate) default: CpuSet,
    pub(crate) assignments: Assignments,
}

/// The state as text, in the order of upstream's fields.
#[derive(Debug, Default, Serialize)]
struct WrittenState {
    #[serde(rename = "policyName")]
    policy: String,
    #[serde(rename = "defaultCpuSet")]
    default: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

/// The state as it is read, with keys in lower case. Entries of pods belong to a feature that is
/// off, and are ignored.
#[derive(Debug, Default, Deserialize)]
struct ReadState {
    #[serde(default, rename = "policyname")]
    policy: String,
    #[serde(default, rename = "defaultcpuset")]
    default: String,
    #[serde(default)]
    entries: Option<BTreeMap<String, BTreeMap<String, String>>>,
}

impl ReadState {
    fn entries(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        self.entries.clone().unwrap_or_default()
    }
}

impl CpuState {
    /// Parses a file for a policy.
    ///
    /// # Errors
    ///
    /// The file is invalid, or of another policy.
    pub(crate) fn parse(text: &[u8], policy: &'static str) -> Result<Self, CheckpointError> {
        let file = StateFile::parse(text)?;
        let state: ReadState = match file.newest("cpu", "v4")? {
            Some(state) => state,
            None => file.earlier(|state: &ReadState| {
                earlier_dumps(&state.policy, &state.default, &state.entries())
            })?,
        };
        if state.policy != policy {
            let found = state.policy;
            return Err(CheckpointError::Policy { prefix: "", configured: policy, found });
        }
        let text = state.default.clone();
        let default =
            CpuSet::parse(&text).map_err(|source| CheckpointError::DefaultSet { text, source })?;
        let mut assignments = Assignments::new();
        for (pod, containers) in state.entries.unwrap_or_default() {
            for (container, text) in containers {
                let set = CpuSet::parse(&text).map_err(|source| CheckpointError::Set {
                    text: text.clone(),
                    container: container.clone(),
                    pod: pod.clone(),
                    source,
                })?;
                assignments.entry(pod.clone()).or_default().insert(container, set);
            }
        }
        Ok(Self { default, assignments })
    }

    /// Serializes the state of a policy.
    ///
    /// # Errors
    ///
    /// The serializer's.
    pub(crate) fn to_json(&self, policy: &str) -> Result<Vec<u8>, serde_json::Error> {
        let texts = |sets: &BTreeMap<String, CpuSet>| {
            sets.iter().map(|(name, set)| (name.clone(), set.to_string())).collect()
        };
        let entries = self.assignments.iter().map(|(pod, sets)| (pod.clone(), texts(sets)));
        let state = WrittenState {
            policy: policy.to_owned(),
            default: self.default.to_string(),
            entries: entries.collect(),
        };
        to_json(&state, &dump(&state.policy, &state.default, &state.entries))
    }
}

/// The text whose hash is the checksum of the earlier form: the struct as Go's spew prints it.
fn dump(
    policy: &str,
    default: &str,
    entries: &BTreeMap<String, BTreeMap<String, String>>,
) -> String {
    dump_of("CPUManagerCheckpoint", policy, default, entries, "")
}

/// The texts of which one has the checksum of a file: those of version 2 without and of version 3
/// with entries of pods, which are empty as long as their feature is off; each version under the
/// two names that its type had.
fn earlier_dumps(
    policy: &str,
    default: &str,
    entries: &BTreeMap<String, BTreeMap<String, String>>,
) -> Vec<String> {
    const NO_PODS: &str = " PodEntries:(state.PodCPUAssignments)map[]";
    let variants = [
        ("CPUManagerCheckpoint", ""),
        ("CPUManagerCheckpointV2", ""),
        ("CPUManagerCheckpoint", NO_PODS),
        ("CPUManagerCheckpointV3", NO_PODS),
    ];
    variants.map(|(name, pods)| dump_of(name, policy, default, entries, pods)).into()
}

fn dump_of(
    name: &str,
    policy: &str,
    default: &str,
    entries: &BTreeMap<String, BTreeMap<String, String>>,
    pods: &str,
) -> String {
    let mut out = format!(
        "(*state.{name}){{PolicyName:(string){policy} DefaultCPUSet:(string){default} \
         Entries:(map[string]map[string]string)map["
    );
    for (index, (pod, containers)) in entries.iter().enumerate() {
        let pairs: Vec<String> = containers.iter().map(|(k, v)| format!("{k}:{v}")).collect();
        let between = if index > 0 { " " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(out, "{between}{pod}:map[{}]", pairs.join(" "));
    }
    out.push(']');
    out.push_str(pods);
    out.push_str(" Checksum:(checksum.Checksum)0}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource_managers::cpu_set::tests::set;

    /// The file with this inner text and its checksum, and a wrong checksum of the earlier form.
    fn file(data: &str, checksum: u64) -> Vec<u8> {
        let value = serde_json::json!({"policyName": "ignored", "defaultCpuSet": "",
            "checksum": 1234, "data": data, "dataChecksum": checksum});
        serde_json::to_vec(&value).unwrap()
    }

    fn error(text: &[u8], policy: &'static str) -> String {
        CpuState::parse(text, policy).unwrap_err().to_string()
    }

    #[test]
    fn states_of_the_kubelet_are_read() {
        let none = CpuState::parse(
            &file(r#"{"policyName":"none","defaultCPUSet":"4-6"}"#, 657_950_972),
            "none",
        );
        assert_eq!(none.unwrap().default, set("4-6"));
        let two = concat!(
            r#"{"policyName":"static","defaultCPUSet":"7-9","entries":"#,
            r#"{"pod":{"container1":"4-6","container2":"1-3"}}}"#
        );
        let state = CpuState::parse(&file(two, 1_420_829_534), "static").unwrap();
        assert_eq!(state.assignments["pod"]["container2"], set("1-3"));
        let unknown = r#"{"policyName":"none","defaultCPUSet":"4-6","unknownField":"value"}"#;
        assert!(CpuState::parse(&file(unknown, 3_492_408_555), "none").is_ok());
        let differs = error(&file(two, 1_420_829_534), "none");
        let want = "configured policy \"none\" differs from state checkpoint policy \"static\"";
        assert_eq!(differs, want);
        let invalid = r#"{"policyName":"none","defaultCPUSet":"1.3"}"#;
        assert!(
            error(&file(invalid, 3_033_143_655), "none")
                .starts_with("could not parse default CPU set \"1.3\": strconv.Atoi")
        );
        let invalid = concat!(
            r#"{"policyName":"static","defaultCPUSet":"1-3","entries":"#,
            r#"{"pod":{"container1":"4-6","container2":"asd"}}}"#
        );
        assert!(error(&file(invalid, 3_794_806_925), "static").starts_with(
            "could not parse cpuset \"asd\" for container \"container2\" in pod \"pod\": "
        ));
        assert_eq!(
            error(&file(two, 1), "static"),
            "could not load v4 checkpoint: checkpoint is corrupted"
        );
        let begun = error(&file("{", 1), "static");
        let want =
            "could not load v4 checkpoint: failed to deserialize cpu manager checkpoint data";
        assert!(begun.starts_with(want), "{begun}");
        assert!(CpuState::parse(b"{", "none").is_err());
    }

    #[test]
    fn states_of_earlier_kubelets_are_read() {
        let static_ = |default: &str, entries: &str, checksum: u64| {
            let begin = format!(r#"{{"policyName":"static","defaultCPUSet":"{default}","#);
            let text = format!(r#"{begin}{entries}"checksum":{checksum}}}"#);
            CpuState::parse(text.as_bytes(), "static")
        };
        let entries = r#""entries":{"pod":{"container1":"4-6","container2":"1-3"}},"#;
        // Of upstream's tests, of kubelets up to 1.35, and without a checksum.
        for checksum in [1_942_532_442, 964_019_483, 0] {
            let state = static_("7-9", entries, checksum).unwrap();
            assert_eq!(state.assignments["pod"]["container1"], set("4-6"));
        }
        let error = static_("7-9", entries, 101_010).unwrap_err().to_string();
        assert_eq!(error, "checkpoint is corrupted");
        let of_containers = r#""entries":{"containerID1":"4-6"},"#;
        assert!(static_("1-3", of_containers, 2_026_311_253).is_err());
    }

    #[test]
    fn a_written_state_is_read_again() {
        let sets = BTreeMap::from([("c".to_owned(), set("4-6"))]);
        let state = CpuState {
            default: set("1-3"),
            assignments: Assignments::from([("pod".to_owned(), sets)]),
        };
        let text = state.to_json("static").unwrap();
        assert_eq!(CpuState::parse(&text, "static").unwrap(), state);
        let text = String::from_utf8(text).unwrap();
        let begin =
            r#"{"policyName":"static","defaultCpuSet":"1-3","entries":{"pod":{"c":"4-6"}},"#;
        assert!(text.starts_with(begin), "{text}");
        assert!(!CpuState::default().to_json("none").unwrap().is_empty());
        assert_eq!(
            dump("none", "1-3", &BTreeMap::new()),
            "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string)1-3 \
             Entries:(map[string]map[string]string)map[] Checksum:(checksum.Checksum)0}"
        );
    }
}
