//! The cases of upstream's `capping_test.go`.

use serde_json::{Value, json};

use super::super::testing::*;
use super::*;

fn item(value: &Value) -> Option<LimitItem> {
    LimitRanges::merge([json!({"spec": {"limits": [value]}})].iter()).container.or_else(|| {
        let merged = LimitRanges::merge([json!({"spec": {"limits": [value]}})].iter());
        merged.pod
    })
}

fn capped(
    spec: Value,
    recommendations: Value,
    pod: &PodView,
    container: Value,
    of_pod: Value,
) -> Option<Capped> {
    let ranges = LimitRanges { container: item(&container), pod: item(&of_pod) };
    cap(&recommending(spec, recommendations), pod, &ranges)
}

#[test]
fn a_recommendation_for_another_container_is_left_out() {
    let pod = pod_of(json!([{"name": "ctr-name"}]), json!([]));
    let other = json!([{"containerName": "ctr-name-other",
        "target": {"cpu": "100m", "memory": "50000Mi"}}]);
    let found = capped(json!({}), other, &pod, json!({}), json!({})).unwrap();
    assert_eq!(found, Capped::default());
}

#[test]
fn requests_alone_are_capped_to_the_limits_of_the_container() {
    let limits = ["30", "70000"];
    let plain = pod_of(json!([container("ctr-name", ["", ""], limits)]), json!([]));
    let status = json!([{"name": "ctr-name", "resources": resources(["", ""], ["2.5", "60000"])}]);
    let with_status = pod_of(json!([container("ctr-name", ["", ""], limits)]), status);
    let recommendation = json!([{"containerName": "ctr-name",
        "target": {"cpu": "20", "memory": "80000"},
        "upperBound": {"cpu": "100", "memory": "90000"}}]);
    let of = |values: &str| policies(json!([{"containerName": "*", "controlledValues": values}]));
    for (pod, spec, target, upper, is_noted) in [
        (&plain, policies(json!([])), ["20", "80k"], ["100", "90k"], false),
        (&plain, of("RequestsAndLimits"), ["20", "80k"], ["100", "90k"], false),
        (&plain, of("RequestsOnly"), ["20", "70k"], ["30", "70k"], true),
        (&with_status, of("RequestsOnly"), ["2500m", "60k"], ["2500m", "60k"], true),
    ] {
        let found = capped(spec, recommendation.clone(), pod, json!({}), json!({})).unwrap();
        assert_eq!(texts(&found.containers[0].target), target);
        assert_eq!(texts(&found.containers[0].upper), upper);
        let note = "memory capped to container limit".to_owned();
        let notes = found.notes.get("ctr-name");
        assert_eq!(notes.is_some_and(|notes| notes.contains(&note)), is_noted);
        assert_eq!(notes.is_some(), is_noted);
    }
}

#[test]
fn targets_and_bounds_are_capped_to_the_policy() {
    let pod = pod_of(json!([{"name": "ctr-name"}]), json!([]));
    let spec = policies(json!([{"containerName": "ctr-name",
        "minAllowed": {"cpu": "400", "memory": "40000"},
        "maxAllowed": {"cpu": "450", "memory": "45000"}}]));
    let recommendation = json!([{"containerName": "ctr-name",
        "target": {"cpu": "300", "memory": "50000"},
        "lowerBound": {"cpu": "200", "memory": "43000"},
        "upperBound": {"cpu": "500", "memory": "55000"}}]);
    let found = capped(spec, recommendation, &pod, json!({}), json!({})).unwrap();
    let one = &found.containers[0];
    assert_eq!(texts(&one.target), ["400", "45k"]);
    assert_eq!(texts(&one.lower), ["400", "43k"]);
    assert_eq!(texts(&one.upper), ["450", "45k"]);
    let notes = ["cpu capped to minAllowed", "memory capped to maxAllowed"];
    assert_eq!(found.notes["ctr-name"], notes);
}

#[test]
fn without_recommendation_and_policy_there_is_no_result() {
    let pod = pod_of(json!([{"name": "ctr-name"}]), json!([]));
    assert_eq!(capped(json!({}), Value::Null, &pod, json!({}), json!({})), None);
    let policy = policies(json!([]));
    assert_eq!(capped(policy, Value::Null, &pod, json!({}), json!({})), Some(Capped::default()));
    let recommendation = json!([{"containerName": "ctr-name",
        "target": {"cpu": "50", "memory": "100"},
        "lowerBound": {"cpu": "500", "memory": "1000"},
        "upperBound": {"cpu": "1500", "memory": "2000"}}]);
    let found = capped(json!({}), recommendation, &pod, json!({}), json!({})).unwrap();
    assert_eq!(texts(&found.containers[0].target), ["50", "100"]);
    assert_eq!(texts(&found.containers[0].lower), ["500", "1k"]);
    assert_eq!(texts(&found.containers[0].upper), ["1500", "2k"]);
}

#[test]
fn targets_are_capped_to_the_limit_range_of_containers() {
    let pod = pod_of(json!([container("container", ["1", "1G"], ["1", "1G"])]), json!([]));
    let range = json!({"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "500M"}});
    let recommendation =
        json!([{"containerName": "container", "target": {"cpu": "2", "memory": "200M"}}]);
    let found = capped(json!({}), recommendation, &pod, range, json!({})).unwrap();
    assert_eq!(texts(&found.containers[0].target), ["1", "500M"]);
    let notes = [
        "cpu capped to fit Max in container LimitRange",
        "memory capped to fit Min in container LimitRange",
    ];
    assert_eq!(found.notes["container"], notes);
}

/// One container with 1 CPU, 50M of requested memory and this limit of memory.
fn one_container(name: &str, limit: &str) -> Value {
    container(name, ["1", "50M"], ["1", limit])
}

/// `TestApplyLimitRangeMinToRequest`.
#[test]
fn minimums_of_limit_ranges_apply_to_requests() {
    let min = json!({"type": "Container", "min": {"memory": "500M"}});
    let of_pod = json!({"type": "Pod", "min": {"memory": "500M"}});
    let values = |v: &str| policies(json!([{"containerName": "*", "controlledValues": v}]));
    let target = |names: &[&str]| {
        let all = names
            .iter()
            .map(|name| json!({"containerName": name, "target": {"cpu": "1", "memory": "200M"}}));
        Value::Array(all.collect())
    };
    let check = |pod: &PodView,
                 (spec, names): (Value, &[&str]),
                 (container, of_pod): (&Value, &Value),
                 targets: &[[&str; 2]],
                 notes: &[&str]| {
        let found = capped(spec, target(names), pod, container.clone(), of_pod.clone()).unwrap();
        let found_targets: Vec<_> = found.containers.iter().map(|one| texts(&one.target)).collect();
        assert_eq!(found_targets, targets);
        assert_eq!(found.notes.into_values().flatten().collect::<Vec<_>>(), notes);
    };
    let none = json!({});
    let fits_min = "memory capped to fit Min in container LimitRange";
    let fits_limit = "memory capped to container limit";

    let high = pod_of(json!([one_container("container", "600M")]), json!([]));
    let one: &[&str] = &["container"];
    check(&high, (json!({}), one), (&min, &none), &[["1", "500M"]], &[fits_min]);
    let low = pod_of(json!([one_container("container", "100M")]), json!([]));
    let only = (values("RequestsOnly"), one);
    check(&low, only, (&min, &none), &[["1", "100M"]], &[fits_min, fits_limit]);
    let only = (values("RequestsOnly"), one);
    check(&low, only, (&none, &of_pod), &[["1", "100M"]], &[fits_limit]);

    let actual = resources(["5m", "50M"], ["5m", "100M"]);
    let status = json!([{"name": "container", "resources": actual}]);
    let resized = pod_of(json!([container("container", ["10", "1G"], ["10", "1G"])]), status);
    let both = json!({"type": "Pod", "min": {"memory": "500M", "cpu": "2"}});
    let notes = ["cpu capped to container limit", fits_limit];
    check(&resized, (values("RequestsOnly"), one), (&none, &both), &[["5m", "100M"]], &notes);

    let pair = json!([one_container("container1", "100M"), one_container("container2", "100M")]);
    let pair = pod_of(pair, json!([]));
    let all = || values("RequestsAndLimits");
    let one: &[&str] = &["container1"];
    check(&pair, (all(), one), (&none, &of_pod), &[["1", "400M"], ["1", "100M"]], &[]);
    let two: &[&str] = &["container1", "container2"];
    check(&pair, (all(), two), (&none, &of_pod), &[["1", "250M"], ["1", "250M"]], &[]);
}

/// `TestCapPodMemoryWithUnderByteSplit`.
#[test]
fn memory_of_a_pod_is_split_into_whole_bytes() {
    let containers =
        ["container-1", "container-2"].map(|name| container(name, ["", "50M"], ["", "50M"]));
    let pod = pod_of(json!(containers), json!([]));
    let recommendation = json!([
        {"containerName": "container-1", "target": {"memory": "1Gi"}},
        {"containerName": "container-2", "target": {"memory": "2Gi"}}]);
    for (range, expected) in [
        (json!({"type": "Pod", "max": {"memory": "1Gi"}}), [357_913_941, 715_827_882]),
        (json!({"type": "Pod", "min": {"memory": "4Gi"}}), [1_431_655_765, 2_863_311_530]),
    ] {
        let found = capped(json!({}), recommendation.clone(), &pod, json!({}), range).unwrap();
        let found: Vec<i64> = found.containers.iter().map(|c| c.target["memory"].value()).collect();
        assert_eq!(found, expected);
    }
}

/// `TestHasLowerResourceRecommendation`.
#[test]
fn lower_targets_are_found_per_container() {
    let of = |name: &str, cpu: &str, memory: &str| {
        let target = resources([cpu, memory], ["", ""]);
        let target = amounts(field(&target, "requests"));
        vec![Recommended { container: name.to_owned(), target, ..Recommended::default() }]
    };
    for (last, new, expected) in [
        (vec![], vec![], false),
        (vec![], of("a", "100m", ""), false),
        (of("a", "100m", ""), vec![], false),
        (of("a", "200m", ""), of("a", "100m", ""), true),
        (of("a", "", "512Mi"), of("a", "", "256Mi"), true),
        (of("a", "100m", "256Mi"), of("a", "200m", "512Mi"), false),
        (of("a", "100m", "256Mi"), of("a", "100m", "256Mi"), false),
        (of("a", "100m", ""), of("b", "50m", ""), false),
        (of("a", "200m", "256Mi"), of("a", "100m", "512Mi"), true),
        (of("a", "100m", "512Mi"), of("a", "200m", "256Mi"), true),
    ] {
        assert_eq!(has_lower_target(&last, &new), expected, "{last:?} {new:?}");
    }
}
