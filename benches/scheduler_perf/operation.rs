//! The operations of a test case.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

/// An operation; upstream's `realOp` with the same name has the same fields.
#[derive(Deserialize)]
#[serde(tag = "opcode", rename_all = "camelCase")]
pub(crate) enum Operation {
    CreateNodes(CreateNodes),
    CreateNamespaces(CreateNamespaces),
    CreatePods(CreatePods),
    CreatePodSets(CreatePodSets),
    CreateAny(CreateAny),
    UpdateAny(UpdateAny),
    DeletePods(DeletePods),
    AllocResourceClaims(AllocResourceClaims),
    Churn(Churn),
    Barrier(Barrier),
    Sleep(Sleep),
    StartCollectingMetrics(StartCollectingMetrics),
    StopCollectingMetrics(StopCollectingMetrics),
}

/// Operations of upstream that this program does not have, and why.
const REFUSED: [(&str, &str); 4] = [
    ("createPodGroups", "pod groups are an API that is off by default"),
    ("createResourceClaims", "no workload with a threshold creates them so; use createAny"),
    ("startCollectingProfile", "it profiles the process of upstream's test"),
    ("stopCollectingProfile", "it profiles the process of upstream's test"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNodes {
    #[serde(default)]
    pub(crate) count: usize,
    pub(crate) count_param: Option<String>,
    pub(crate) node_template_path: Option<String>,
    pub(crate) node_allocatable_strategy: Option<NodeAllocatable>,
    pub(crate) label_node_prepare_strategy: Option<LabelNodes>,
    pub(crate) unique_node_label_strategy: Option<UniqueLabel>,
    #[serde(default)]
    pub(crate) template_params: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NodeAllocatable {
    /// Upstream patches the status through the Node, which changes no status.
    #[serde(default, rename = "nodeAllocatable")]
    _node_allocatable: BTreeMap<String, Value>,
    #[serde(default)]
    pub(crate) csi_node_allocatable: BTreeMap<String, Value>,
    #[serde(default)]
    pub(crate) migrated_plugins: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LabelNodes {
    pub(crate) label_key: String,
    pub(crate) label_values: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UniqueLabel {
    pub(crate) label_key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateNamespaces {
    pub(crate) prefix: String,
    #[serde(default)]
    pub(crate) count: usize,
    pub(crate) count_param: Option<String>,
    pub(crate) namespace_template_path: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreatePods {
    /// Present in the operation of a set only; elsewhere the tag.
    #[serde(rename = "opcode")]
    _opcode: Option<String>,
    pub(crate) count: usize,
    pub(crate) count_param: Option<String>,
    pub(crate) count_multiplier_param: Option<String>,
    pub(crate) steady_state: bool,
    pub(crate) steady_state_param: Option<String>,
    pub(crate) duration: Option<String>,
    pub(crate) duration_param: Option<String>,
    pub(crate) collect_metrics: bool,
    pub(crate) namespace: Option<String>,
    pub(crate) pod_template_path: Option<String>,
    pub(crate) skip_wait_to_completion: bool,
    pub(crate) persistent_volume_template_path: Option<String>,
    pub(crate) persistent_volume_claim_template_path: Option<String>,
    pub(crate) template_params: BTreeMap<String, Value>,
    pub(crate) signature_batch_size: usize,
    pub(crate) signature_batch_size_param: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreatePodSets {
    #[serde(default)]
    pub(crate) count: usize,
    pub(crate) count_param: Option<String>,
    pub(crate) namespace_prefix: String,
    pub(crate) create_pods_op: CreatePods,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CreateAny {
    pub(crate) namespace: Option<String>,
    pub(crate) template_path: String,
    pub(crate) count: Option<usize>,
    pub(crate) count_param: Option<String>,
    #[serde(default)]
    pub(crate) template_params: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UpdateAny {
    pub(crate) namespace: Option<String>,
    pub(crate) template_path: String,
    pub(crate) count: Option<usize>,
    pub(crate) count_param: Option<String>,
    #[serde(default)]
    pub(crate) update_per_second: u32,
    #[serde(default)]
    pub(crate) subresources: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DeletePods {
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) skip_wait_to_completion: bool,
    #[serde(default)]
    pub(crate) delete_pods_per_second: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AllocResourceClaims {
    pub(crate) namespace: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ChurnMode {
    Create,
    Recreate,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Churn {
    pub(crate) mode: ChurnMode,
    #[serde(default)]
    pub(crate) number: usize,
    #[serde(default)]
    pub(crate) interval_milliseconds: u64,
    pub(crate) namespace: Option<String>,
    pub(crate) template_paths: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Stage {
    #[default]
    Scheduled,
    Attempted,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Barrier {
    #[serde(default)]
    pub(crate) namespaces: Vec<String>,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) stage_requirement: Stage,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Sleep {
    pub(crate) duration: Option<String>,
    pub(crate) duration_param: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StartCollectingMetrics {
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) namespaces: Vec<String>,
    #[serde(default)]
    pub(crate) label_selector: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopCollectingMetrics {}

/// Parses the operations of a test case.
///
/// # Errors
///
/// An operation is none of upstream's, has a field that upstream's does not have, or is refused;
/// the error names its position and the reason.
pub(crate) fn parse(template: &[Value]) -> anyhow::Result<Vec<Operation>> {
    template
        .iter()
        .enumerate()
        .map(|(index, value)| parse_one(value).with_context(|| format!("op {index}")))
        .collect()
}

fn parse_one(value: &Value) -> anyhow::Result<Operation> {
    let opcode = value.get("opcode").and_then(Value::as_str).unwrap_or_default();
    if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == opcode) {
        bail!("the operation {opcode} is not supported: {reason}");
    }
    let operation =
        Operation::deserialize(value).with_context(|| format!("the operation {opcode}"))?;
    check(&operation)?;
    Ok(operation)
}

/// The rules of upstream's `isValid`.
fn check(operation: &Operation) -> anyhow::Result<()> {
    match operation {
        Operation::CreatePods(pods) => check_pods(pods),
        Operation::CreatePodSets(sets) => check_pods(&sets.create_pods_op),
        Operation::Churn(churn) if churn.mode == ChurnMode::Recreate && churn.number == 0 => {
            bail!("number cannot be 0 when mode is recreate")
        }
        Operation::Churn(churn) if churn.template_paths.is_empty() => {
            bail!("at least one template spec file needs to be specified")
        }
        Operation::StartCollectingMetrics(start) if start.namespaces.is_empty() => {
            bail!("namespaces cannot be empty")
        }
        _ => Ok(()),
    }
}

fn check_pods(pods: &CreatePods) -> anyhow::Result<()> {
    if pods.collect_metrics && pods.skip_wait_to_completion {
        bail!("collectMetrics and skipWaitToCompletion cannot be true at the same time");
    }
    if pods.skip_wait_to_completion && pods.steady_state {
        bail!("skipWaitToCompletion and steadyState cannot be true at the same time");
    }
    let volume = pods.persistent_volume_template_path.is_some();
    if volume != pods.persistent_volume_claim_template_path.is_some() {
        bail!(
            "persistentVolumeTemplatePath and persistentVolumeClaimTemplatePath must be set together"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(value: Value) -> String {
        format!("{:#}", parse(&[json!({"opcode": "sleep"}), value]).err().unwrap())
    }

    #[test]
    fn unsupported_operation_is_refused_by_name_with_its_reason() {
        assert_eq!(
            error(json!({"opcode": "createPodGroups", "count": 1})),
            "op 1: the operation createPodGroups is not supported: \
             pod groups are an API that is off by default"
        );
        assert!(error(json!({"opcode": "nope"})).contains("unknown variant `nope`"));
    }

    #[test]
    fn unknown_field_of_an_operation_is_refused() {
        let text = error(json!({"opcode": "createNodes", "countParm": "$n"}));
        assert!(text.contains("unknown field `countParm`"), "{text}");
    }

    #[test]
    fn operations_of_sets_have_an_opcode_of_their_own() {
        let set = json!({"opcode": "createPodSets", "namespacePrefix": "n", "count": 2,
            "createPodsOp": {"opcode": "createPods", "count": 3}});
        let parsed = parse(&[set]).unwrap();
        let Some(Operation::CreatePodSets(set)) = parsed.first() else { panic!("not a set") };
        assert_eq!((set.count, set.create_pods_op.count), (2, 3));
    }

    #[test]
    fn rules_of_upstream_hold() {
        let text = error(json!({"opcode": "createPods", "count": 1, "collectMetrics": true,
            "skipWaitToCompletion": true}));
        assert!(text.ends_with("cannot be true at the same time"), "{text}");
        let text = error(json!({"opcode": "churn", "mode": "recreate", "templatePaths": ["x"]}));
        assert!(text.ends_with("number cannot be 0 when mode is recreate"), "{text}");
    }
}
