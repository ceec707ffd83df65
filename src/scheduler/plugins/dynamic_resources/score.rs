//! Scores of nodes: earlier subrequests of prioritized lists are better.

use api::k8s::api::resource::v1::AllocationResult;

use crate::devices::allocated::results;
use crate::devices::request::Request;
use crate::framework::MAX_NODE_SCORE;

/// Most subrequests of a request (`FirstAvailableDeviceRequestMaxSize`).
const SUBREQUESTS_MAX: usize = 8;

/// The points of one claim: for each prioritized list, more for an earlier subrequest.
pub(super) fn points(requests: &[Request], allocation: &AllocationResult) -> i64 {
    let chosen = |name: &str| results(allocation).iter().any(|result| result.request == name);
    let lists = requests.iter().filter(|request| request.is_prioritized_list);
    let points = lists.map(|list| {
        let index = list.alternatives.iter().position(|one| chosen(&one.full_name));
        index.map_or(0, |index| SUBREQUESTS_MAX.saturating_sub(index))
    });
    i64::try_from(points.sum::<usize>()).unwrap_or(i64::MAX)
}

/// Scales scores so that the highest becomes the maximum, unless all are 0.
pub(super) fn normalize(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    if max == 0 {
        return;
    }
    for score in scores {
        *score = *score * MAX_NODE_SCORE / max;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rows of upstream's `TestComputeScore`.
    #[test]
    fn earlier_subrequests_have_more_points() {
        let names: Vec<String> = (0..8).map(|at| format!("sub-{at}")).collect();
        let list = |name: &str| {
            let list = names.iter().map(|n| json!({"name": n, "deviceClassName": "c"}));
            let list: Vec<_> = list.collect();
            Request::new(
                &serde_json::from_value(json!({"name": name, "firstAvailable": list})).unwrap(),
            )
        };
        let exact = Request::new(
            &serde_json::from_value(json!({"name": "x", "exactly": {"deviceClassName": "c"}}))
                .unwrap(),
        );
        for (requests, chosen, expected) in [
            (vec![exact], vec!["x"], 0),
            (vec![list("a")], vec!["a/sub-0"], 8),
            (vec![list("a")], vec!["a/sub-7"], 1),
            (vec![list("a"), list("b")], vec!["a/sub-3", "b/sub-4"], 9),
            (vec![list("a"), list("b")], vec!["a/sub-7", "b/sub-0"], 9),
        ] {
            let results = chosen
                .iter()
                .map(|name| json!({"request": name, "driver": "d", "pool": "p", "device": "x"}));
            let results: Vec<_> = results.collect();
            let allocation = json!({"devices": {"results": results}});
            let allocation = serde_json::from_value(allocation).unwrap();
            assert_eq!(points(&requests, &allocation), expected, "{chosen:?}");
        }
    }

    /// Rows of upstream's `TestNormalizeScore`.
    #[test]
    fn scores_are_relative_to_the_highest() {
        let max = i64::from(i32::MAX);
        for (scores, expected) in [
            (vec![], vec![]),
            (vec![42], vec![100]),
            (vec![0, 0], vec![0, 0]),
            (vec![max, max], vec![100, 100]),
            (vec![99, 98, 97], vec![100, 98, 97]),
            (vec![max, max - 1, 1, 0], vec![100, 99, 0, 0]),
            (vec![15, 13], vec![100, 86]),
        ] {
            let mut scores = scores;
            normalize(&mut scores);
            assert_eq!(scores, expected);
        }
    }
}
