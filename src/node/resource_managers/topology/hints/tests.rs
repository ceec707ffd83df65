//! Cases of upstream's `policy_test.go` and `numa_info_test.go`.

use super::*;

/// Parses hints such as `{0}p {01} {}p`: a mask by its nodes, `{}` for no mask, `p` if preferred.
pub(crate) fn hints(text: &str) -> Vec<TopologyHint> {
    let hint = |part: &str| {
        let (nodes, preferred) = match part.strip_suffix('p') {
            Some(nodes) => (nodes, true),
            None => (part, false),
        };
        let digits = nodes.trim_start_matches('{').trim_end_matches('}');
        let mask = NumaMask::new(digits.chars().map(|c| c.to_digit(10).unwrap() as usize));
        TopologyHint { mask: (!digits.is_empty()).then_some(mask), preferred }
    };
    text.split_whitespace().map(hint).collect()
}

/// Writes hints in the form that [`hints`] parses.
pub(crate) fn text(hints: &[TopologyHint]) -> String {
    let one = |hint: &TopologyHint| {
        let nodes = hint.mask.into_iter().flat_map(NumaMask::nodes);
        let nodes: String = nodes.map(|node| node.to_string()).collect();
        format!("{{{nodes}}}{}", if hint.preferred { "p" } else { "" })
    };
    hints.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn merger(policy: TopologyPolicy, nodes: usize) -> HintMerger {
    let numa = NumaDistances { nodes: NumaMask::new(0..nodes), distances: BTreeMap::new() };
    HintMerger { policy, prefer_closest: false, numa }
}

/// One resource of one provider: `-` for no preference, otherwise a list.
fn provider(text: &str) -> ProviderHints {
    match text {
        "none" => ProviderHints::new(),
        "-" => ProviderHints::from([("r".to_owned(), None)]),
        list => ProviderHints::from([("r".to_owned(), Some(hints(list)))]),
    }
}

fn merged(merger: &HintMerger, lists: &[&str]) -> String {
    let providers: Vec<ProviderHints> = lists.iter().map(|list| provider(list)).collect();
    let (hint, admits) = merger.merge(&providers);
    let always = merger.policy == TopologyPolicy::BestEffort;
    assert_eq!(admits, always || hint.preferred);
    text(&[hint])
}

#[test]
fn best_effort_and_restricted_merge_hints_of_all_providers() {
    for (lists, want) in [
        (&["{0}p", "{0}p"][..], "{0}p"),
        (&["{1}p", "{1}p"], "{1}p"),
        (&["{0}p", "none"], "{0}p"),
        (&["{0}p {1}p", "{0}p"], "{0}p"),
        (&["{0}p {1}p {01}", "{0}p {1}p {01}"], "{0}p"),
        (&["{1}p {01}", "{0}p {1}p {01}"], "{1}p"),
        (&["{01}p {02}p", "{01}p {02}p"], "{01}p"),
        (&[], "{0123}p"),
        (&["none"], "{0123}p"),
        (&["-"], "{0123}p"),
        (&[""], "{0123}"),
        (&["{}p"], "{0123}p"),
        (&["{}"], "{0123}"),
        (&["{0}p", "{1}p"], "{0123}"),
        (&["{0}p", "{0}"], "{0}"),
        (&["{0}p", "{01}p"], "{0}"),
        (&["{0123} {01}", "{01}"], "{01}"),
        (&["{0123} {01}", "{03}"], "{03}"),
        (&["{0123} {01}", "{12}"], "{12}"),
        (&["{0123} {01}", "{23}"], "{23}"),
        (&["{0123} {01}", "{12} {23}"], "{12}"),
        (&["{0123} {01}", "{123} {12} {13} {23}"], "{12}"),
    ] {
        for policy in [TopologyPolicy::BestEffort, TopologyPolicy::Restricted] {
            assert_eq!(merged(&merger(policy, 4), lists), want, "{lists:?}");
        }
    }
}

#[test]
fn a_single_node_is_required() {
    let single = merger(TopologyPolicy::SingleNumaNode, 2);
    for (lists, want) in [
        (&["{0}p", "{0}p"][..], "{0}p"),
        (&["{0}p", "none"], "{0}p"),
        (&["{1}p {01}", "{0}p {1}p {01}"], "{1}p"),
        (&[], "{}p"),
        (&["-"], "{}p"),
        (&[""], "{}"),
        (&["{}p"], "{}p"),
        (&["{}"], "{}"),
        (&["{0}p", "{1}p"], "{}"),
        (&["{0}p", "{0}"], "{}"),
        (&["{01}p", "{0}p {1}p {01}"], "{}"),
    ] {
        assert_eq!(merged(&single, lists), want, "{lists:?}");
    }
}

#[test]
fn close_nodes_are_preferred_with_the_option() {
    // Nodes 0 and 4, 1 and 5, 2 and 3 are close; those of one half are nearer than of the other.
    let row = |from: usize| -> Vec<u64> {
        (0..8)
            .map(|to| {
                if from == to {
                    10
                } else if from % 4 == to % 4 {
                    12
                } else {
                    20
                }
            })
            .collect()
    };
    let mut best = merger(TopologyPolicy::BestEffort, 8);
    best.numa.distances = (0..8).map(|node| (node, row(node))).collect();
    best.prefer_closest = true;
    assert_eq!(merged(&best, &["{02}p {04}p"]), "{04}p");
    assert_eq!(merged(&best, &["{02}p {4}p"]), "{4}p");
    assert_eq!(merged(&best, &["{02} {04}", "{02} {04}"]), "{04}");
    best.prefer_closest = false;
    assert_eq!(merged(&best, &["{02}p {04}p"]), "{02}p");
}

#[test]
fn the_average_distance_includes_each_node_itself() {
    let rows: [&[u64]; 4] =
        [&[10, 11, 12, 12], &[11, 10, 12, 12], &[12, 12, 10, 11], &[12, 12, 11, 10]];
    let distances = rows.iter().map(|row| row.to_vec()).enumerate().collect();
    let numa = NumaDistances { nodes: NumaMask::new(0..4), distances };
    for (nodes, want) in [
        (&[0][..], 10.0),
        (&[3], 10.0),
        (&[0, 1], 10.5),
        (&[0, 2], 11.0),
        (&[0, 1, 2], 100.0 / 9.0),
        (&[], 0.0),
    ] {
        let average = numa.average(NumaMask::new(nodes.iter().copied()));
        assert!((average - want).abs() < 1e-9, "{nodes:?}: {average}");
    }
}

#[test]
fn the_largest_of_the_narrowest_masks_is_the_target() {
    for (lists, want) in [
        (&[][..], 0),
        (&["{}p"], 0),
        (&["{0}p"], 1),
        (&["{01}p"], 2),
        (&["{0}p {01}", "{01}p {012}"], 2),
        (&["{01}p {0123}", "{012}"], 3),
        (&["{012}", "{}", "{0}"], 3),
    ] {
        let lists: Vec<Vec<TopologyHint>> = lists.iter().map(|list| hints(list)).collect();
        assert_eq!(max_of_min_counts(&lists), want);
    }
}

#[test]
fn masks_near_the_target_size_are_better_without_preference() {
    let rules = merger(TopologyPolicy::BestEffort, 8);
    let mask = |nodes: std::ops::Range<usize>| (NumaMask::new(nodes), false);
    // Sizes of the current and the candidate mask, the target, and whether the candidate is better.
    for (current, candidate, target, is_better) in [
        (4, 3, 2, true),
        (3, 4, 2, false),
        (3, 2, 2, true),
        (3, 1, 2, true),
        (2, 1, 2, false),
        (2, 3, 2, false),
        (1, 3, 2, false),
        (1, 2, 2, true),
        (1, 2, 3, true),
        (2, 1, 3, false),
    ] {
        let (current, candidate) = (mask(0..current), mask(0..candidate));
        let best = rules.compare(current, candidate, target);
        assert_eq!(best == candidate, is_better, "{current:?} {candidate:?} {target}");
    }
    let (p, n) = ((NumaMask::new(0..3), true), (NumaMask::new(0..1), false));
    assert_eq!((rules.compare(p, n, 1), rules.compare(n, p, 1)), (p, p));
}
