//! Cases of upstream's `topology_hints_test.go`.

use serde_json::json;

use super::super::records::Allocation;
use super::super::state::tests::{devices, with_devices};
use super::*;
use crate::pods::pod::tests::pod;
use crate::resource_managers::topology::hints::tests::text;

const RESOURCE: &str = "example.com/foo";

/// Hints for `count` devices of this list, of which the pod has some and may reuse others.
fn hints(
    list: &[(&str, bool, &[i64])],
    count: usize,
    allocated: &[&str],
    reusable: &[&str],
) -> String {
    let mut state = with_devices(RESOURCE, devices(list));
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    let taken = ids(allocated).union(&ids(reusable)).cloned().collect::<Vec<_>>();
    let allocation = Allocation { ids_by_node: [(0, taken)].into(), ..Allocation::default() };
    state.records.insert("u", "init", RESOURCE, allocation);
    text(&resource_hints(&state, RESOURCE, count, &ids(allocated), &ids(reusable), &[0, 1]))
}

#[test]
fn hints_name_the_nodes_with_enough_devices() {
    let two: &[(&str, bool, &[i64])] = &[("a", true, &[0]), ("b", true, &[1])];
    let four: &[(&str, bool, &[i64])] =
        &[("a", true, &[0]), ("b", true, &[0]), ("c", true, &[1]), ("d", true, &[1])];
    for (list, count, allocated, reusable, want) in [
        (two, 1, &[][..], &[][..], "{0}p {1}p {01}"),
        (two, 2, &[], &[], "{01}p"),
        (two, 3, &[], &[], ""),
        (four, 2, &[], &[], "{0}p {1}p {01}"),
        (four, 3, &[], &[], "{01}p"),
        (four, 2, &["a", "b"], &[], "{0}p {01}"),
        (four, 2, &["a", "c"], &[], "{01}"),
        (four, 1, &["a", "b"], &[], ""),
        (four, 2, &[], &["a"], "{0}p {01}"),
        (four, 2, &[], &["a", "c"], "{01}"),
        (four, 4, &[], &["a", "b"], "{01}p"),
        (&[("a", true, &[0]), ("b", false, &[1])], 1, &[], &[], "{0}p {01}"),
        (&[("a", true, &[1])], 1, &[], &[], "{1}p"),
        (&[("a", true, &[7])], 1, &[], &[], ""),
        (&[("a", true, &[0, 1]), ("b", true, &[])], 1, &[], &[], "{0}p {1}p {01}"),
    ] {
        assert_eq!(hints(list, count, allocated, reusable), want, "{count} of {list:?}");
    }
}

#[test]
fn the_request_of_a_pod_is_the_maximum_of_its_phases() {
    let container = |name: &str, count: u32, is_sidecar: bool| {
        let mut out = json!({"name": name,
            "resources": {"limits": {RESOURCE: count.to_string()}}});
        if is_sidecar {
            out["restartPolicy"] = "Always".into();
        }
        out
    };
    let pod = pod(json!({
        "initContainers": [container("i", 1, false), container("s", 2, true),
            container("j", 5, false)],
        "containers": [container("c", 1, false), container("d", 2, false)],
    }));
    assert_eq!(pod_limits(&pod), BTreeMap::from([(RESOURCE.to_owned(), 7)]));
    assert_eq!(container_limits(&pod, &pod.containers[1])[RESOURCE], 2);
}
