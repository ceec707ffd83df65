//! Recorded answers of upstream, and rules of its documentation of strategic merge patch.

use serde_json::json;

use super::*;
use crate::object::Gvk;

fn apply(kind: (&str, &str, &str), live: Value, patch: Value) -> Result<Value, Box<Status>> {
    let schema = Schema::builtin();
    let id = schema.kind(&Gvk::new(kind.0, kind.1, kind.2)).unwrap();
    strategic(&schema, id, live, patch)
}

const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");

fn template(spec: Value) -> Value {
    json!({"spec":{"template":{"spec":spec}}})
}

#[test]
fn merges_lists_by_key_and_deletes_elements() {
    let live = template(
        json!({"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]}]}),
    );
    let patch = template(
        json!({"containers":[{"name":"c","env":[{"name":"B","value":"3"},{"name":"C","value":"4"}]}]}),
    );
    let want = template(
        json!({"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"},{"name":"B","value":"3"},{"name":"C","value":"4"}]}]}),
    );
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), want);
    let patch =
        template(json!({"containers":[{"name":"c","env":[{"name":"A","$patch":"delete"}]}]}));
    let next = template(
        json!({"containers":[{"name":"c","image":"i","env":[{"name":"B","value":"3"},{"name":"C","value":"4"}]}]}),
    );
    assert_eq!(apply(DEPLOYMENT, want, patch).unwrap(), next);
}

#[test]
fn sets_the_order_of_elements() {
    let live = template(json!({"containers":[{"name":"c","image":"i"}]}));
    let patch = template(
        json!({"containers":[{"name":"side","image":"s"}],"$setElementOrder/containers":[{"name":"side"},{"name":"c"}]}),
    );
    let want =
        template(json!({"containers":[{"name":"side","image":"s"},{"name":"c","image":"i"}]}));
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), want);
    // Elements that only the server has keep their position relative to the other elements.
    let live =
        template(json!({"containers":[{"name":"x"},{"name":"a"},{"name":"y"},{"name":"b"}]}));
    let patch = template(json!({"$setElementOrder/containers":[{"name":"b"},{"name":"a"}]}));
    let want =
        template(json!({"containers":[{"name":"x"},{"name":"y"},{"name":"b"},{"name":"a"}]}));
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), want);
}

#[test]
fn replaces_a_list_or_a_map_on_demand() {
    let live = template(json!({"volumes":[{"name":"v","emptyDir":{}}]}));
    let patch = template(json!({"volumes":[{"$patch":"replace"},{"name":"w","emptyDir":{}}]}));
    assert_eq!(
        apply(DEPLOYMENT, live, patch).unwrap(),
        template(json!({"volumes":[{"name":"w","emptyDir":{}}]}))
    );
    let live = json!({"metadata":{"labels":{"a":"b"}}});
    let patch = json!({"metadata":{"labels":{"$patch":"replace","c":"d"}}});
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), json!({"metadata":{"labels":{"c":"d"}}}));
}

#[test]
fn retains_only_the_keys_named() {
    let live =
        json!({"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%"}}}});
    let patch = json!({"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}});
    assert_eq!(
        apply(DEPLOYMENT, live.clone(), patch).unwrap(),
        json!({"spec":{"strategy":{"type":"Recreate"}}})
    );
    let patch = json!({"spec":{"strategy":{"$retainKeys":["rollingUpdate"],"type":"Recreate"}}});
    let e = apply(DEPLOYMENT, live, patch).unwrap_err();
    assert_eq!((e.code, e.message.as_str()), (400, "invalid patch format of retainKeys"));
}

#[test]
fn adds_to_and_deletes_from_lists_of_scalars() {
    let live = json!({"metadata":{"finalizers":["x.io/a"]}});
    let patch = json!({"metadata":{"finalizers":["x.io/b","x.io/a"]}});
    let both = json!({"metadata":{"finalizers":["x.io/b","x.io/a"]}});
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), both);
    let patch = json!({"metadata":{"$deleteFromPrimitiveList/finalizers":["x.io/a"]}});
    assert_eq!(
        apply(DEPLOYMENT, both, patch).unwrap(),
        json!({"metadata":{"finalizers":["x.io/b"]}})
    );
}

#[test]
fn replaces_lists_that_are_not_merged_and_drops_nulls() {
    let live = template(json!({"containers":[{"name":"c","args":["a","b"],"command":["x"]}]}));
    let patch = template(json!({"containers":[{"name":"c","args":["z"],"command":null}]}));
    assert_eq!(
        apply(DEPLOYMENT, live, patch).unwrap(),
        template(json!({"containers":[{"name":"c","args":["z"]}]}))
    );
    let patch = json!({"metadata":{"annotations":{"a":null,"b":"c"}}});
    assert_eq!(
        apply(DEPLOYMENT, json!({"metadata":{}}), patch).unwrap(),
        json!({"metadata":{"annotations":{"b":"c"}}})
    );
}

#[test]
fn refuses_as_upstream_does() {
    let live = template(json!({"containers":[{"name":"c","image":"i"}]}));
    for (patch, code, text) in [
        (
            template(json!({"containers":[{"image":"nokey"}]})),
            500,
            "map: map[image:nokey] does not contain declared merge key: name",
        ),
        (
            template(json!({"containers":[{"name":"c","$patch":"merge"}]})),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (json!({"spec":{"$patch":"x"}}), 500, "unknown patch type: x in map: map[$patch:x]"),
        (
            json!({"spec":{"$patch":1}}),
            500,
            "unknown patch type: %!s(int64=1) in map: map[$patch:1]",
        ),
        (
            template(json!({"$setElementOrder/containers":{"a":1}})),
            500,
            "expected a []interface {}, but received a map[string]interface {}",
        ),
        (
            template(json!({"containers":[],"$setElementOrder/containers":["x"]})),
            500,
            "value for key 0 is not a map",
        ),
        (
            template(json!({"tolerations":null,"$setElementOrder/tolerations":["x"]})),
            500,
            "expected a []interface {}, but received a %!s(<nil>)",
        ),
        (
            json!({"spec":{"$setElementOrder/nothing":[1]}}),
            500,
            "unable to find api field in struct DeploymentSpec for the json field \"nothing\"",
        ),
        (
            json!([]),
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
    ] {
        let e = apply(DEPLOYMENT, live.clone(), patch.clone()).unwrap_err();
        assert_eq!((e.code, e.message.as_str()), (code, text), "{patch}");
    }
    let patch = template(
        json!({"containers":[{"name":"b"},{"name":"c"}],"$setElementOrder/containers":[{"name":"c"},{"name":"b"}]}),
    );
    let e = apply(DEPLOYMENT, live, patch).unwrap_err();
    let text = "The order in patch list:\n[map[name:b] map[name:c]]\n doesn't match $setElementOrder list:\n[map[name:c] map[name:b]]\n";
    assert_eq!(e.message, text);
}

#[test]
fn replaces_the_selector_of_a_disruption_budget() {
    let live = json!({"spec":{"selector":{"matchLabels":{"a":"b"}}}});
    let patch = json!({"spec":{"selector":{"matchLabels":{"c":"d"}}}});
    assert_eq!(apply(("policy", "v1", "PodDisruptionBudget"), live, patch.clone()).unwrap(), patch);
}

#[test]
fn orders_by_what_the_merge_left_of_the_servers_list() {
    let live = template(json!({"containers":[{"name":"d"},{"name":"a"}]}));
    let patch =
        template(json!({"containers":[{"name":"b"},{"$patch":"delete","name":"a"},{"name":"c"}],
        "$setElementOrder/containers":[{"name":"b"},{"name":"a"},{"name":"c"}]}));
    let want = template(json!({"containers":[{"name":"d"},{"name":"b"},{"name":"c"}]}));
    assert_eq!(apply(DEPLOYMENT, live, patch).unwrap(), want);
    let patch = json!({"metadata":{"finalizers":[],"$setElementOrder/finalizers":[]}});
    let e = apply(DEPLOYMENT, json!({"metadata":{}}), patch).unwrap_err();
    assert_eq!(e.message, "no elements in any of the given slices");
}
