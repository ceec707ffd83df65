//! The configuration file beside what upstream's kube-scheduler makes of it.

use serde_json::{Value, json};

use super::*;
use crate::plugin_args::ScoringStrategy;

fn parsed(more: Value) -> Result<Configuration, String> {
    let mut file = json!({"apiVersion": VERSION, "kind": KIND});
    let (Value::Object(file), Value::Object(more)) = (&mut file, more) else { unreachable!() };
    file.extend(more);
    parse(Value::Object(file.clone()).to_string().as_bytes()).map_err(|error| error.to_string())
}

fn profile(more: Value) -> Result<Profile, String> {
    let configuration = parsed(json!({"profiles": [more]}))?;
    let profile = configuration.profiles.of(DEFAULT_SCHEDULER).unwrap();
    let same = Profile {
        scheduler_name: profile.scheduler_name.clone(),
        percentage_of_nodes_to_score: profile.percentage_of_nodes_to_score,
        args: profile.args.clone(),
        pre_enqueue: profile.pre_enqueue.clone(),
        filters: profile.filters.clone(),
        post_filters: profile.post_filters.clone(),
        scores: profile.scores.clone(),
        ..Profile::default()
    };
    Ok(same)
}

fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
    profile.scores.iter().map(|(plugin, weight)| (plugin.name, *weight)).collect()
}

#[test]
fn an_empty_file_has_the_default_profile() {
    let default = Profile::default();
    let read = profile(json!({"plugins": {}})).unwrap();
    let names = |list: &[&'static crate::framework::Registration]| {
        list.iter().map(|plugin| plugin.name).collect::<Vec<_>>()
    };
    let filters = names(&read.filters);
    let order: Vec<&str> =
        names(&default.filters).into_iter().filter(|name| filters.contains(name)).collect();
    assert_eq!(filters, order, "the first rejection decides the message");
    // VolumeBinding scores no node.
    assert_eq!(scores(&read).len(), 9);
    for score in scores(&default) {
        assert!(scores(&read).contains(&score), "{score:?}");
    }
}

/// Cases of upstream's `TestMergePlugins` and `TestNewFramework` with multiPoint.
#[test]
fn plugins_are_enabled_disabled_and_weighed() {
    let fit = |plugins: Value| scores(&profile(json!({"plugins": plugins})).unwrap());
    let heavy = fit(json!({"score": {"enabled": [{"name": "ImageLocality", "weight": 5}]}}));
    assert_eq!(heavy[0], ("ImageLocality", 5), "overridden plugins come first");
    let only = json!({"preScore": {"disabled": [{"name": "*"}]},
        "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality"}]}});
    assert_eq!(fit(only), [("ImageLocality", 1)]);
    let multi = json!({"multiPoint": {"enabled": [{"name": "NodeResourcesFit", "weight": 9}],
        "disabled": [{"name": "TaintToleration"}]}});
    let multi = fit(multi);
    assert!(multi.contains(&("NodeResourcesFit", 9)));
    assert!(!multi.iter().any(|(name, _)| *name == "TaintToleration"));
    let none = profile(json!({"plugins": {"postFilter": {"disabled": [{"name": "*"}]}}})).unwrap();
    assert!(none.post_filters.is_empty());
}

#[test]
fn several_profiles_have_names_of_their_own() {
    let configuration = parsed(json!({"percentageOfNodesToScore": 40, "profiles": [
        {"schedulerName": "default-scheduler"},
        {"schedulerName": "packing", "percentageOfNodesToScore": 70, "pluginConfig": [
            {"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}}}]},
    ]}));
    let profiles = configuration.unwrap().profiles;
    let packing = profiles.of("packing").unwrap();
    assert_eq!(packing.args.scoring_strategy, ScoringStrategy::MostAllocated);
    assert_eq!(packing.percentage_of_nodes_to_score, 70);
    assert_eq!(profiles.of("").unwrap().percentage_of_nodes_to_score, 40);
    assert!(profiles.of("other").is_none());
}

/// The texts are those of upstream's validation where it has the rule.
#[test]
fn invalid_files_are_rejected_by_field() {
    let plugins = |plugins: Value| json!({"profiles": [{"plugins": plugins}]});
    for (file, want) in [
        (json!({"nope": 1}), "unknown field \"nope\""),
        (json!({"parallelism": 0}), "should be an integer value greater than zero"),
        (json!({"percentageOfNodesToScore": 101}), "not in valid range [0-100]"),
        (json!({"podInitialBackoffSeconds": 0}), "must be greater than 0"),
        (json!({"podInitialBackoffSeconds": 11}), "must be greater than or equal to"),
        (json!({"extenders": [{"urlPrefix": "http://x"}]}), "kube-lite calls no extenders"),
        (
            json!({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}),
            "profiles[1].schedulerName: Duplicate value",
        ),
        (json!({"profiles": [{}, {"schedulerName": "a"}]}), "profiles[0].schedulerName: Required"),
        (plugins(json!({"filter": {"enabled": [{"name": "Nope"}]}})), "Not found: \"Nope\""),
        (
            plugins(json!({"score": {"enabled": [{"name": "NodeName"}]}})),
            "plugin \"NodeName\" does not extend score",
        ),
        (
            plugins(json!({"filter": {"disabled": [{"name": "NodePorts"}]}})),
            "kube-lite runs preFilter of NodePorts together with its filter",
        ),
        (
            plugins(json!({"bind": {"disabled": [{"name": "*"}]}})),
            "kube-lite needs the plugin DefaultBinder",
        ),
    ] {
        let error = parsed(file.clone()).map(drop).unwrap_err();
        assert!(error.contains(want), "{file}: {error}");
    }
}

/// The texts are those of upstream's validation where it has the rule.
#[test]
fn invalid_arguments_are_rejected_by_field() {
    let args = |name: &str, args: Value| json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]});
    for (file, want) in [
        (
            args("NodeResourcesFit", json!({"scoringStrategy": {"type": "Best"}})),
            "Unsupported value: \"Best\"",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "MostAllocated",
                "resources": [{"name": "cpu", "weight": 101}]}}),
            ),
            "resource weight of cpu not in valid range (0, 100]",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {
                "type": "RequestedToCapacityRatio"}}),
            ),
            "must be specified when type is RequestedToCapacityRatio",
        ),
        (
            args("InterPodAffinity", json!({"hardPodAffinityWeight": 101})),
            "not in valid range [0, 100]",
        ),
        (
            args(
                "PodTopologySpread",
                json!({"defaultingType": "List", "defaultConstraints": [
                {"maxSkew": 0, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}]}),
            ),
            "not in valid range (0, inf)",
        ),
        (
            args(
                "DefaultPreemption",
                json!({"minCandidateNodesPercentage": 0,
                "minCandidateNodesAbsolute": 0}),
            ),
            "cannot be zero at the same time as minCandidateNodesAbsolute",
        ),
        (args("NodeName", json!({"x": 1})), "unknown field \"profiles[0].pluginConfig[0].args.x\""),
        (args("Nope", json!({})), "Not found: \"Nope\""),
    ] {
        let error = parsed(file.clone()).map(drop).unwrap_err();
        assert!(error.contains(want), "{file}: {error}");
    }
}

#[test]
fn fields_without_effect_are_named() {
    let configuration = parsed(json!({"leaderElection": {"leaderElect": true}})).unwrap();
    let want = ["--kube-scheduler-arg=config: leaderElection: the leader is that of the store"];
    assert_eq!(configuration.without_effect, want);
    assert!(parse(b"kind: Policy").is_err());
}
