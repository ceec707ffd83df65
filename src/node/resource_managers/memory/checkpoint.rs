//! The file `memory_manager_state` (`pkg/kubelet/cm/memorymanager/state`, version 3).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::super::checkpoint::{CheckpointError, StateFile, to_json};
use super::machine_state::{MachineState, MemoryAssignments, MemoryBlock};

/// What the file keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MemoryState {
    pub(crate) machine: MachineState,
    pub(crate) assignments: MemoryAssignments,
}

/// The state as text, in the order of upstream's fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenState<'a> {
    policy_name: &'a str,
    machine_state: &'a MachineState,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: &'a MemoryAssignments,
}

/// The state as it is read, with keys in lower case. Entries of pods belong to a feature that is
/// off, and are ignored.
#[derive(Debug, Default, Deserialize)]
struct ReadState {
    #[serde(default, rename = "policyname")]
    policy: String,
    #[serde(default, rename = "machinestate")]
    machine: Option<MachineState>,
    #[serde(default)]
    entries: Option<MemoryAssignments>,
}

impl MemoryState {
    /// Parses a file for a policy.
    ///
    /// # Errors
    ///
    /// The file is invalid, or of another policy.
    pub(crate) fn parse(text: &[u8], policy: &'static str) -> Result<Self, CheckpointError> {
        let file = StateFile::parse(text)?;
        let state: ReadState = match file.newest("memory", "v3")? {
            Some(state) => state,
            None => file.earlier(|state: &ReadState| {
                let machine = state.machine.clone().unwrap_or_default();
                let entries = state.entries.clone().unwrap_or_default();
                // Version 2 has entries of pods, which are empty as long as their feature is off.
                ["", " PodEntries:(state.PodMemoryAssignments)map[]"]
                    .map(|pods| dump_of(&state.policy, &machine, &entries, pods))
                    .into()
            })?,
        };
        if state.policy != policy {
            let (prefix, found) = ("[memorymanager] ", state.policy);
            return Err(CheckpointError::Policy { prefix, configured: policy, found });
        }
        Ok(Self {
            machine: state.machine.unwrap_or_default(),
            assignments: state.entries.unwrap_or_default(),
        })
    }

    /// Serializes the state of a policy.
    ///
    /// # Errors
    ///
    /// The serializer's.
    pub(crate) fn to_json(&self, policy: &str) -> Result<Vec<u8>, serde_json::Error> {
        let state = WrittenState {
            policy_name: policy,
            machine_state: &self.machine,
            entries: &self.assignments,
        };
        to_json(&state, &dump(policy, &self.machine, &self.assignments))
    }
}

/// Numbers as Go prints a slice of them.
fn list(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(" "))
}

/// The text whose hash is the checksum of the earlier form: the struct as Go's spew prints it.
fn dump(policy: &str, machine: &MachineState, assignments: &MemoryAssignments) -> String {
    dump_of(policy, machine, assignments, "")
}

fn dump_of(
    policy: &str,
    machine: &MachineState,
    assignments: &MemoryAssignments,
    pod_entries: &str,
) -> String {
    let node = |(number, node): (&usize, &super::machine_state::NodeState)| {
        let table = |(name, t): (&String, &super::machine_state::MemoryTable)| {
            format!(
                "{name}:<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} \
                 Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
                t.total, t.system_reserved, t.allocatable, t.reserved, t.free
            )
        };
        let tables: Vec<String> = node.memory.iter().map(table).collect();
        format!(
            "{number}:<*>{{NumberOfAssignments:(int){} \
             MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{}] Cells:([]int){}}}",
            node.assignments,
            tables.join(" "),
            list(&node.cells)
        )
    };
    let block = |block: &MemoryBlock| {
        format!(
            "{{NUMAAffinity:([]int){} Type:(v1.ResourceName){} Size:(uint64){}}}",
            list(&block.nodes),
            block.resource,
            block.size
        )
    };
    let pod = |(uid, containers): (&String, &BTreeMap<String, Vec<MemoryBlock>>)| {
        let container = |(name, blocks): (&String, &Vec<MemoryBlock>)| {
            let blocks: Vec<String> = blocks.iter().map(block).collect();
            format!("{name}:[{}]", blocks.join(" "))
        };
        let containers: Vec<String> = containers.iter().map(container).collect();
        format!("{uid}:map[{}]", containers.join(" "))
    };
    let nodes: Vec<String> = machine.0.iter().map(node).collect();
    let pods: Vec<String> = assignments.iter().map(pod).collect();
    let mut out = String::from("(*state.MemoryManagerCheckpoint)");
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "{{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{}] \
         Entries:(state.ContainerMemoryAssignments)map[{}]{pod_entries} Checksum:(checksum.Checksum)0}}",
        nodes.join(" "),
        pods.join(" ")
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = concat!(
        r#""machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"#,
        r#""systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}}"#
    );
    const ENTRIES: &str = concat!(
        r#""entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","#,
        r#""size":512}]}}"#
    );

    fn earlier(checksum: u64) -> Result<MemoryState, CheckpointError> {
        let text =
            format!(r#"{{"policyName":"static",{MACHINE},{ENTRIES},"checksum":{checksum}}}"#);
        MemoryState::parse(text.as_bytes(), "static")
    }

    #[test]
    fn states_of_the_kubelet_are_read() {
        let state = earlier(4_215_593_881).unwrap();
        assert_eq!(state.machine.0[&0].memory["memory"].free, 1024);
        assert_eq!(state.assignments["pod"]["container1"][0].size, 512);
        assert!(earlier(0).is_ok());
        assert_eq!(earlier(101_010).unwrap_err().to_string(), "checkpoint is corrupted");
        let data = format!(r#"{{"policyName":"static",{MACHINE},{ENTRIES}}}"#);
        let newest = |checksum: u64, policy| {
            let value = serde_json::json!({"policyName": "", "machineState": {}, "checksum": 1234,
                "data": data, "dataChecksum": checksum});
            MemoryState::parse(&serde_json::to_vec(&value).unwrap(), policy)
        };
        assert_eq!(newest(1_849_615_440, "static").unwrap(), state);
        assert_eq!(
            newest(1_849_615_440, "None").unwrap_err().to_string(),
            "[memorymanager] configured policy \"None\" differs from state checkpoint policy \
             \"static\""
        );
        assert_eq!(
            newest(1, "static").unwrap_err().to_string(),
            "could not load v3 checkpoint: checkpoint is corrupted"
        );
    }

    #[test]
    fn a_written_state_is_read_again() {
        let state = earlier(0).unwrap();
        let text = state.to_json("Static").unwrap();
        assert_eq!(MemoryState::parse(&text, "Static").unwrap(), state);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(r#"{"policyName":"Static","machineState":{"0":{"numberOf"#));
    }
}
