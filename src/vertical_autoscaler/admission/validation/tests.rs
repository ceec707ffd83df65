//! The cases of upstream's `validation_test.go`.

use serde_json::json;

use super::*;
use crate::policy::testing::policies;

const OFF: Features = Features { cpu_startup_boost: false, in_place: false, per_vpa_config: false };

fn errors(spec: Value, features: Features) -> Vec<String> {
    let validation = validate(&json!({"spec": spec}), None, features);
    validation.errors.iter().map(ToString::to_string).collect()
}

fn policy(policy: Value) -> Value {
    let mut policy = policy;
    if !has(&policy, "containerName") {
        policy["containerName"] = "loot box".into();
    }
    policies(json!([policy]))
}

const POLICY: &str = "spec.resourcePolicy.containerPolicies[0].";

#[test]
fn valid_autoscalers_pass() {
    let mode = |mode: &str| json!({"updatePolicy": {"updateMode": mode, "minReplicas": 1}});
    let boost = |boost: Value| json!({"startupBoost": {"cpu": boost}});
    let factor = || json!({"type": "Factor", "factor": 2});
    let quantity = || json!({"type": "Quantity", "quantity": "100m"});
    let bounds = json!({"mode": "Auto", "minAllowed": {"cpu": 10, "memory": "100Mi"},
        "maxAllowed": {"cpu": "100", "memory": "1Gi"}});
    let per_vpa = json!({"oomBumpUpRatio": 2, "oomMinBumpUp": "1", "mode": "Auto",
        "memoryAggregationIntervalSeconds": 3600, "memoryAggregationIntervalCount": 10});
    let mut oom = mode("Off");
    oom["updatePolicy"]["evictAfterOOMSeconds"] = 600.into();
    for spec in [
        json!({}),
        mode("InPlaceOrRecreate"),
        mode("InPlace"),
        mode("Off"),
        policy(bounds),
        boost(factor()),
        boost(quantity()),
        policy(json!({"startupBoost": {"cpu": factor()}})),
        policy(json!({"startupBoost": {"cpu": quantity()}})),
        json!({"startupBoost": {}}),
        policy(per_vpa),
        oom,
    ] {
        assert_eq!(errors(spec.clone(), Features::ALL), Vec::<String>::new(), "{spec}");
    }
}

#[test]
fn invalid_specs_are_refused_with_upstreams_texts() {
    let update = |update: Value| json!({"updatePolicy": update});
    for (spec, error) in [
        (
            update(json!({})),
            "updatePolicy.updateMode: Required value: updateMode is required if UpdatePolicy is \
             used",
        ),
        (
            update(json!({"updateMode": "bad"})),
            "updatePolicy.updateMode: Unsupported value: \"bad\": supported values: \"InPlace\", \
             \"InPlaceOrRecreate\", \"Initial\", \"Off\", \"Recreate\"",
        ),
        (
            update(json!({"updateMode": "Off", "minReplicas": 0})),
            "updatePolicy.minReplicas: Invalid value: 0: minReplicas has to be positive",
        ),
        (
            update(json!({"updateMode": "Off", "evictAfterOOMSeconds": -1})),
            "updatePolicy.evictAfterOOMSeconds: Invalid value: -1: must be greater than or equal \
             to 1",
        ),
        (
            policies(json!([{}])),
            "resourcePolicy.containerPolicies[0].containerName: Required value",
        ),
        (
            json!({"recommenders": [{"name": "test1"}, {"name": "test2"}]}),
            "recommenders: Too many: 2: must have at most 1 item",
        ),
    ] {
        assert_eq!(errors(spec, Features::ALL), [format!("spec.{error}")]);
    }
}

#[test]
fn invalid_container_policies_are_refused_with_upstreams_texts() {
    let least = "must be greater than or equal to";
    let milli = "must be a whole number of milli CPUs";
    let bytes = "must be a whole number of bytes";
    let seconds = "memoryAggregationIntervalSeconds: Invalid value";
    for (own, error) in [
        (
            json!({"mode": "bad"}),
            "mode: Unsupported value: \"bad\": supported values: \"Auto\", \"Off\"".to_owned(),
        ),
        (
            json!({"minAllowed": {"cpu": "100"}, "maxAllowed": {"cpu": "10"}}),
            "maxAllowed[cpu]: Invalid value: \"10\": max resource for cpu is lower than min of \
             \"100\""
                .to_owned(),
        ),
        (
            json!({"minAllowed": {"cpu": "187500u"}, "maxAllowed": {"cpu": "275m"}}),
            format!("minAllowed[cpu]: Invalid value: \"187500u\": {milli}"),
        ),
        (
            json!({"minAllowed": {"cpu": "1m", "memory": "100m"},
                "maxAllowed": {"cpu": "275m", "memory": "500M"}}),
            format!("minAllowed[memory]: Invalid value: \"100m\": {bytes}"),
        ),
        (
            json!({"minAllowed": {}, "maxAllowed": {"cpu": "187500u"}}),
            format!("maxAllowed[cpu]: Invalid value: \"187500u\": {milli}"),
        ),
        (
            json!({"maxAllowed": {"cpu": "275m", "memory": "500m"}}),
            format!("maxAllowed[memory]: Invalid value: \"500m\": {bytes}"),
        ),
        (
            json!({"mode": "Off", "controlledValues": "RequestsAndLimits"}),
            "controlledValues: Forbidden: controlledValues shouldn't be specified if container \
             scaling mode is off"
                .to_owned(),
        ),
        (
            json!({"oomBumpUpRatio": "-1", "oomMinBumpUp": "104857600"}),
            format!("oomBumpUpRatio: Invalid value: -1: {least} 1.0"),
        ),
        (
            json!({"oomBumpUpRatio": "0.5"}),
            format!("oomBumpUpRatio: Invalid value: 0.5: {least} 1.0"),
        ),
        (
            json!({"oomBumpUpRatio": "2", "oomMinBumpUp": "-1"}),
            format!("oomMinBumpUp: Invalid value: -1: {least} 0"),
        ),
        (json!({"memoryAggregationIntervalSeconds": 0}), format!("{seconds}: 0: {least} 1")),
        (json!({"memoryAggregationIntervalSeconds": -5}), format!("{seconds}: -5: {least} 1")),
        (
            json!({"memoryAggregationIntervalCount": -3}),
            format!("memoryAggregationIntervalCount: Invalid value: -3: {least} 1"),
        ),
        (
            json!({"controlledResources": ["cpu", "broken"]}),
            "controlledResources[1]: Unsupported value: \"broken\": supported values: \"cpu\", \
             \"memory\""
                .to_owned(),
        ),
    ] {
        assert_eq!(errors(policy(own), Features::ALL), [format!("{POLICY}{error}")]);
    }
}

#[test]
fn invalid_startup_boosts_are_refused_with_upstreams_texts() {
    for (boost, error) in [
        (json!({}), "type: Required value: must be either Factor or Quantity"),
        (
            json!({"type": "bad"}),
            "type: Unsupported value: \"bad\": supported values: \"Factor\", \"Quantity\"",
        ),
        (json!({"type": "Factor"}), "factor: Required value: required when type is Factor"),
        (
            json!({"type": "Factor", "factor": 0}),
            "factor: Invalid value: 0: must be >= 1 for type Factor",
        ),
        (json!({"type": "Quantity"}), "quantity: Required value: required when type is Quantity"),
        (
            json!({"type": "Quantity", "quantity": "187500u"}),
            "quantity: Invalid value: \"187500u\": must be a whole number of milli CPUs",
        ),
    ] {
        let spec = json!({"startupBoost": {"cpu": boost}});
        let of_spec = format!("spec.startupBoost.cpu.{error}");
        assert_eq!(errors(spec.clone(), Features::ALL), [of_spec]);
        let of_policy = format!("{POLICY}startupBoost.cpu.{error}");
        assert_eq!(errors(policy(spec), Features::ALL), [of_policy]);
    }
}

#[test]
fn features_that_are_off_are_refused() {
    let boost = "startupBoost: Forbidden: in order to use startupBoost, you must enable feature \
                 gate CPUStartupBoost in the admission-controller args";
    let per_vpa = "Forbidden: not supported when feature flag PerVPAConfig is disabled";
    let factor = json!({"cpu": {"factor": 2}});
    for (spec, error) in [
        (json!({"startupBoost": factor}), format!("spec.{boost}")),
        (policy(json!({"startupBoost": factor})), format!("{POLICY}{boost}")),
        (
            json!({"updatePolicy": {"updateMode": "InPlace"}}),
            "spec.updatePolicy.updateMode: Forbidden: in order to use UpdateMode InPlace, you must \
             enable feature gate InPlace in the admission-controller args"
                .to_owned(),
        ),
        (
            json!({"updatePolicy": {"updateMode": "Off", "evictAfterOOMSeconds": 600}}),
            format!("spec.updatePolicy.evictAfterOOMSeconds: {per_vpa}"),
        ),
    ] {
        assert_eq!(errors(spec, OFF), [error]);
    }
    for field in PER_VPA_FIELDS {
        let spec = policy(json!({field: 2}));
        assert_eq!(errors(spec, OFF), [format!("{POLICY}{field}: {per_vpa}")]);
    }
}

/// `TestAllowCPUBoost`, `TestAllowPerVPAConfig`.
#[test]
fn a_feature_that_the_old_object_uses_stays_allowed() {
    let of = |spec: Value| allowed_features(OFF, &json!({"spec": spec}));
    let boost = json!({"cpu": {"factor": 2}});
    assert_eq!(allowed_features(OFF, &Value::Null), OFF);
    assert_eq!(allowed_features(Features::ALL, &Value::Null), Features::ALL);
    assert!(of(json!({"startupBoost": boost})).cpu_startup_boost);
    assert!(of(policy(json!({"startupBoost": boost}))).cpu_startup_boost);
    assert_eq!(of(policy(json!({}))), OFF);
    assert_eq!(of(policies(json!([]))), OFF);
    assert_eq!(of(json!({"startupBoost": {}})), OFF);
    assert!(of(json!({"updatePolicy": {"updateMode": "InPlace"}})).in_place);
    assert!(of(json!({"updatePolicy": {"evictAfterOOMSeconds": 600}})).per_vpa_config);
    for field in PER_VPA_FIELDS {
        assert!(of(policy(json!({field: 2}))).per_vpa_config, "{field}");
    }
}

#[test]
fn warnings_are_upstreams() {
    let auto = json!({"spec": {"updatePolicy": {"updateMode": "Auto"}}});
    let found = validate(&auto, None, OFF);
    assert!(found.errors.is_empty());
    assert_eq!(
        found.warnings,
        ["spec.updatePolicy: \"Auto\" mode is deprecated and will be removed in a future API \
          version. Use explicit update modes like: [InPlace InPlaceOrRecreate Initial Off \
          Recreate]. See https://github.com/kubernetes/autoscaler/issues/8424 for more details."]
    );
    let broken = json!({"spec": policy(json!({"controlledResources": ["cpu", "broken"]}))});
    let found = validate(&broken, Some(&broken), OFF);
    assert!(found.errors.is_empty());
    assert_eq!(
        found.warnings,
        ["spec.resourcePolicy.containerPolicies[0].controlledResources[1]: unsupported value \
          \"broken\" is allowed only because it is present in the existing VPA object; supported \
          values: \"cpu\", \"memory\""]
    );
}

/// `TestVeryInvalidateVPA`, without the error for a missing target, which is the schema's.
#[test]
fn all_errors_are_reported() {
    let mut spec = policy(json!({"startupBoost": {"cpu": {}},
        "controlledResources": ["cpu", "memory", "broken"]}));
    spec["startupBoost"] = json!({});
    let update = json!({"minReplicas": -1, "updateMode": "bad", "evictAfterOOMSeconds": -1});
    spec["updatePolicy"] = update;
    spec["recommenders"] = json!([{"name": "test1"}, {"name": "test2"}]);
    let found = validate(&json!({"spec": spec}), None, OFF);
    let fields: Vec<String> = found.errors.iter().map(|error| error.field.to_string()).collect();
    assert_eq!(
        fields,
        [
            "spec.updatePolicy.updateMode",
            "spec.updatePolicy.minReplicas",
            "spec.updatePolicy.evictAfterOOMSeconds",
            "spec.resourcePolicy.containerPolicies[0].controlledResources[2]",
            "spec.resourcePolicy.containerPolicies[0].startupBoost",
            "spec.startupBoost",
            "spec.recommenders",
        ]
    );
}

#[test]
fn values_of_a_wrong_type_are_left_to_the_schema() {
    for spec in [
        json!({"updatePolicy": {"updateMode": 1, "minReplicas": "x"}}),
        json!({"updatePolicy": "x"}),
        policy(json!({"minAllowed": {"cpu": {}}, "oomBumpUpRatio": []})),
        json!({"resourcePolicy": {"containerPolicies": "x"}, "startupBoost": {"cpu": {
            "type": "Factor", "factor": "x"}}}),
    ] {
        let found = errors(spec.clone(), Features::ALL);
        let required = spec["updatePolicy"].is_string();
        assert_eq!(found.len(), usize::from(required), "{found:?}");
    }
}
