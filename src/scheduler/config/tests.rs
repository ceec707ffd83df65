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

fn extender(more: Value) -> Value {
    let mut extender = json!({"urlPrefix": "http://x/scheduler/", "prioritizeVerb": "prioritize",
        "weight": 1});
    for (key, value) in more.as_object().unwrap() {
        extender[key] = value.clone();
    }
    extender
}

/// The cases of extenders of `TestValidateKubeSchedulerConfiguration`; the texts are upstream's
/// where it has the rule.
#[test]
fn invalid_extenders_are_rejected_by_field() {
    let resources = |names: &[&str]| -> Value {
        let of = |name: &&str| json!({"name": name, "ignoredByScheduler": false});
        extender(json!({"managedResources": names.iter().map(of).collect::<Vec<_>>()}))
    };
    let tls = |tls: Value| extender(json!({"urlPrefix": "https://x", "tlsConfig": tls}));
    for (extenders, want) in [
        (
            json!([extender(json!({"weight": -1}))]),
            "extenders[0].weight: Invalid value: -1: must have a positive weight applied to it",
        ),
        (json!([extender(json!({"weight": null}))]), "extenders[0].weight: Invalid value: 0"),
        (
            json!([resources(&["example.com/foo", "example.com/foo"])]),
            "extenders[0].managedResources[1].name: Invalid value: \"example.com/foo\": duplicate \
             extender managed resource name",
        ),
        (json!([resources(&["cpu"])]), "\"cpu\": is an invalid extended resource name"),
        (json!([resources(&["a/b/c"])]), "extenders[0].managedResources[0].name: Invalid value"),
        (
            json!([extender(json!({"bindVerb": "foo"})), extender(json!({"bindVerb": "bar"}))]),
            "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender \
             can implement bind",
        ),
        (json!([{"filterVerb": "f"}]), "extenders[0].urlPrefix: Invalid value: \"\": must be"),
        (json!([extender(json!({"urlPrefix": "ftp://x"}))]), "must be an http:// or https:// URL"),
        (json!([extender(json!({"urlPrefix": "http://u:p@x"}))]), "without user"),
        (json!([extender(json!({"filterVerb": "a b"}))]), "must be a part of the path"),
        (json!([extender(json!({"httpTimeout": "5"}))]), "missing unit in duration"),
        (json!([extender(json!({"httpTimeout": "-1s"}))]), "calls without a limit"),
        (json!([extender(json!({"httpTimeout": 5}))]), "httpTimeout: must be a string"),
        (
            json!([extender(json!({"apiVersion": "v1"}))]),
            "unknown field \"extenders[0].apiVersion\"",
        ),
        (json!([tls(json!({"x": 1}))]), "unknown field \"extenders[0].tlsConfig.x\""),
        (
            json!([tls(json!({"insecure": true, "caData": "UEVN"}))]),
            "specifying a root certificates file with the insecure flag is not allowed",
        ),
        (json!([tls(json!({"certData": "UEVN"}))]), "add the missing one"),
        (json!([tls(json!({"caData": "%"}))]), "extenders[0].tlsConfig.caData: must be base64"),
        (json!([tls(json!({"caFile": "/nowhere/ca"}))]), "extenders[0].tlsConfig.caFile: Invalid"),
    ] {
        let error = parsed(json!({"extenders": extenders})).map(drop).unwrap_err();
        assert!(error.contains(want), "{extenders}: {error}");
    }
}

#[test]
fn fields_of_extenders_have_upstreams_defaults() {
    let list = json!([
        extender(json!({})),
        extender(json!({"urlPrefix": "https://[::1]",
        "httpTimeout": "1m30s", "tlsConfig": {"serverName": "other"}}))
    ]);
    let configuration = parsed(json!({"extenders": list})).unwrap();
    let clients = format!("{:?}", configuration.extenders);
    for want in [
        "endpoint: http://x/scheduler,",
        "timeout: 5s,",
        "timeout: 90s,",
        "endpoint: https://[::1],",
        "node_cache_capable: false",
        "ignorable: false",
    ] {
        assert!(clients.contains(want), "{want} in {clients}");
    }
    assert!(configuration.without_effect.is_empty());
    let plain = json!([
        extender(json!({"enableHTTPS": true})),
        extender(json!({"enableHTTPS": false, "tlsConfig": {"insecure": true}}))
    ]);
    let reason = "urlPrefix is an http:// URL, so the connection is not encrypted";
    let want = ["extenders[0].enableHTTPS", "extenders[1].tlsConfig"]
        .map(|field| format!("--kube-scheduler-arg=config: {field}: {reason}"));
    assert_eq!(parsed(json!({"extenders": plain})).unwrap().without_effect, want);
}

/// `TestBuildExtenders`: the resources take the place of those of the arguments.
#[test]
fn resources_that_the_scheduler_ignores_go_to_every_profile() {
    let managed = json!([{"name": "example.com/a", "ignoredByScheduler": true},
        {"name": "example.com/b"}]);
    let fit =
        json!([{"name": "NodeResourcesFit", "args": {"ignoredResources": ["example.com/c"]}}]);
    let file = |extenders: Value| {
        let profiles = json!([{"schedulerName": "a", "pluginConfig": fit}, {"schedulerName": "b"}]);
        let profiles =
            parsed(json!({"extenders": extenders, "profiles": profiles})).unwrap().profiles;
        ["a", "b"].map(|name| {
            let ignored = &profiles.of(name).unwrap().args.ignored_resources;
            ignored.iter().cloned().collect::<Vec<_>>().join(",")
        })
    };
    assert_eq!(file(json!([])), ["example.com/c", ""]);
    let ignoring = json!([extender(json!({"managedResources": managed}))]);
    assert_eq!(file(ignoring), ["example.com/a", "example.com/a"]);
}
