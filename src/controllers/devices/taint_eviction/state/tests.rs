//! The cases of upstream's tests of the handlers: each order of the first changes ends in the same
//! state.

use api::k8s::jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;

/// A change of an object.
#[derive(Clone)]
struct Step {
    old: Option<Value>,
    new: Option<Value>,
}

fn add(object: &Value) -> Step {
    Step { old: None, new: Some(object.clone()) }
}

fn change(old: &Value, new: &Value) -> Step {
    Step { old: Some(old.clone()), new: Some(new.clone()) }
}

fn remove(object: &Value) -> Step {
    Step { old: Some(object.clone()), new: None }
}

#[derive(Default)]
struct World {
    state: State,
    pods: HashMap<(String, String), ClaimPod>,
    effects: Vec<Effect>,
}

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

impl World {
    fn apply(&mut self, step: &Step) {
        let object = |value: &Value| Object::from_value(value.clone()).unwrap();
        let (old, new) = (step.old.as_ref().map(object), step.new.as_ref().map(object));
        let kind = step.new.as_ref().or(step.old.as_ref()).unwrap()["kind"].clone();
        let pods = &mut self.pods;
        let key = |o: &Object| (o.key.namespace.to_string(), o.key.name.to_string());
        if kind == "Pod" {
            match &new {
                Some(new) => pods.insert(key(new), ClaimPod::of(new).unwrap()),
                None => pods.remove(&key(old.as_ref().unwrap())),
            };
        }
        let find = |ns: &str, name: &str| pods.get(&(ns.to_owned(), name.to_owned())).cloned();
        let state = &mut self.state;
        let effects = match kind.as_str().unwrap() {
            "ResourceSlice" => {
                let of = |o: &Object| SliceView::of(o).unwrap();
                state.slice_changed(old.as_ref().map(of).as_ref(), new.as_ref().map(of), &find)
            }
            "DeviceTaintRule" => {
                let of = |o: &Object| RuleView::of(o).unwrap();
                state.rule_changed(old.as_ref().map(of).as_ref(), new.as_ref().map(of), &find)
            }
            "ResourceClaim" => {
                let of = |o: &Object| ClaimView::of(o).unwrap();
                state.claim_changed(old.as_ref().map(of).as_ref(), new.as_ref().map(of), &find)
            }
            _ => match &new {
                Some(new) => {
                    let old = old.as_ref().and_then(ClaimPod::of);
                    state.pod_changed(old.as_ref(), &ClaimPod::of(new).unwrap())
                }
                None => {
                    state.pod_removed(&PodRef::of(old.as_ref().unwrap()));
                    Vec::new()
                }
            },
        };
        self.effects.extend(effects);
    }

    /// `<pod> <seconds>: <reasons>` of each pod that must be deleted.
    fn pending(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .state
            .pending
            .iter()
            .map(|(pod, eviction)| {
                let seconds = eviction.at.duration_since(start()).as_secs();
                let reasons: Vec<String> = eviction.reasons.iter().map(shown).collect();
                format!("{} {seconds}: {}", pod.name, reasons.join(", "))
            })
            .collect();
        found.sort();
        found
    }

    fn cancelled(&self) -> usize {
        self.effects.iter().filter(|e| matches!(e, Effect::Cancelled(_))).count()
    }
}

fn shown(reason: &Reason) -> String {
    match reason {
        Reason::Rule { name, .. } => name.to_string(),
        Reason::Slice { device, index, .. } => format!("{device}#{index}"),
    }
}

/// All orders of the steps.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for at in 0..steps.len() {
        let mut rest = steps.to_vec();
        let first = rest.remove(at);
        for mut order in orders(&rest) {
            order.insert(0, first.clone());
            found.push(order);
        }
    }
    found
}

/// Applies `initial` in each order, then `further`; the pods that are pending at the end, and the
/// number of cancellations.
fn check(name: &str, initial: &[Step], further: &[Step], want: &[&str], cancelled: usize) {
    for order in orders(initial) {
        let mut world = World::default();
        for step in order.iter().chain(further) {
            world.apply(step);
        }
        assert_eq!(world.pending(), want, "{name}");
        assert_eq!(world.cancelled(), cancelled, "{name}");
    }
}

fn time(seconds: i64) -> String {
    start().checked_add(SignedDuration::from_secs(seconds)).unwrap().to_string()
}

fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "value": "v", "effect": effect, "timeAdded": time(0)})
}

fn slice(generation: i64, taints: &Value) -> Value {
    json!({"kind": "ResourceSlice", "metadata": {"name": format!("slice-{generation}"), "uid": "s"},
        "spec": {"driver": "d", "pool": {"name": "p", "generation": generation,
            "resourceSliceCount": 1}, "nodeName": "n",
            "devices": [{"name": "dev", "taints": taints}, {"name": "other"}]}})
}

fn tainted() -> Value {
    slice(1, &json!([taint("a", "NoExecute")]))
}

fn rule(name: &str, key: &str, effect: &str) -> Value {
    json!({"kind": "DeviceTaintRule", "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"deviceSelector": {"driver": "d"}, "taint": taint(key, effect)}})
}

fn claim_of(name: &str, pod: &str, tolerations: &Value) -> Value {
    json!({"kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod,
                "uid": format!("uid-{pod}"), "controller": true}]},
        "status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p",
            "device": "dev", "request": "r", "tolerations": tolerations}]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("uid-{pod}")}]}})
}

fn claim() -> Value {
    claim_of("c", "pod", &json!([]))
}

fn tolerating(tolerations: &Value) -> Value {
    claim_of("c", "pod", tolerations)
}

fn pod_with(name: &str, claims: &Value, statuses: &Value) -> Value {
    json!({"kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"nodeName": "n", "resourceClaims": claims},
        "status": {"resourceClaimStatuses": statuses}})
}

fn pod() -> Value {
    pod_with("pod", &json!([{"name": "r", "resourceClaimName": "c"}]), &json!([]))
}

fn of_template(statuses: &Value) -> Value {
    pod_with("pod", &json!([{"name": "r", "resourceClaimTemplateName": "t"}]), statuses)
}

fn tolerate(key: &str, seconds: Option<i64>) -> Value {
    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds})
}

fn edited(object: &Value, edit: impl FnOnce(&mut Value)) -> Value {
    let mut new = object.clone();
    edit(&mut new);
    new
}

const NOW: &[&str] = &["pod 0: dev#0"];

#[test]
fn pods_of_tainted_devices_are_evicted() {
    let initial = |pod: &Value| [add(&tainted()), add(&claim()), add(pod)];
    check("empty", &[], &[], &[], 0);
    check("direct", &initial(&pod()), &[], NOW, 0);
    let recorded = of_template(&json!([{"name": "r", "resourceClaimName": "c"}]));
    check("template", &initial(&recorded), &[], NOW, 0);
    let rule = rule("rule", "a", "NoExecute");
    let by_rule = [add(&rule), add(&claim()), add(&pod())];
    check("by a rule without slices", &by_rule, &[], &["pod 0: rule"], 0);
    let both = [add(&rule), add(&tainted()), add(&claim()), add(&pod())];
    check("both", &both, &[], &["pod 0: rule, dev#0"], 0);
    let unscheduled = edited(&pod(), |pod| pod["spec"]["nodeName"] = "".into());
    check("scheduled later", &initial(&unscheduled), &[change(&unscheduled, &pod())], NOW, 0);
}

#[test]
fn tolerations_delay_or_prevent_evictions() {
    let initial =
        |tolerations: Value| [add(&tainted()), add(&tolerating(&tolerations)), add(&pod())];
    let many = json!([tolerate("b", Some(20)), tolerate("a", Some(60)), tolerate("a", Some(30))]);
    check("later", &initial(json!([tolerate("a", Some(3600))])), &[], &["pod 3600: dev#0"], 0);
    check("the shortest", &initial(many), &[], &["pod 30: dev#0"], 0);
    let other = json!([{"key": "a", "operator": "Equal", "value": "w", "effect": "NoExecute"}]);
    check("mismatch", &initial(other), &[], NOW, 0);
    check("forever", &initial(json!([tolerate("a", None)])), &[], &[], 0);
    let both = json!([tolerate("a", Some(60)), tolerate("a", None)]);
    check("forever wins", &initial(both), &[], &[], 0);
    let no_effect = json!([{"key": "a", "operator": "Exists"}]);
    check("no effect does not count", &initial(no_effect), &[], NOW, 0);
    let two = slice(1, &json!([taint("a", "NoExecute"), taint("b", "NoExecute")]));
    let partly = tolerating(&json!([tolerate("a", None)]));
    check("partly", &[add(&two), add(&partly), add(&pod())], &[], &["pod 0: dev#1"], 0);
    let seconds = json!([tolerate("a", Some(60)), tolerate("b", Some(30))]);
    let all = [
        add(&two),
        add(&rule("rule1", "a", "NoExecute")),
        add(&rule("rule2", "b", "NoExecute")),
        add(&tolerating(&seconds)),
        add(&pod()),
    ];
    check("many taints", &all, &[], &["pod 30: rule1, rule2, dev#0, dev#1"], 0);
    // The taint changes so that it is not tolerated any more.
    let equal = json!([{"key": "a", "operator": "Equal", "value": "v", "effect": "NoExecute",
        "tolerationSeconds": 3600}]);
    let changed = edited(&tainted(), |slice| {
        slice["spec"]["devices"][0]["taints"][0]["value"] = "w".into();
    });
    let further = [change(&tainted(), &changed)];
    check("changed taint", &initial(equal), &further, NOW, 0);
}

#[test]
fn other_pods_claims_and_devices_are_left_alone() {
    let with = |slice: &Value, claim: &Value, pod: &Value, name: &str| {
        check(name, &[add(slice), add(claim), add(pod)], &[], &[], 0);
    };
    let unscheduled = edited(&pod(), |pod| pod["spec"]["nodeName"] = "".into());
    with(&tainted(), &claim(), &unscheduled, "not scheduled");
    with(&slice(1, &json!([])), &claim(), &pod(), "no taint");
    for effect in ["None", "NoSchedule", "Unknown"] {
        with(&slice(1, &json!([taint("a", effect)])), &claim(), &pod(), effect);
    }
    with(&tainted(), &claim(), &of_template(&json!([])), "no status");
    with(&tainted(), &claim(), &of_template(&json!([{"name": "r"}])), "no claim needed");
    let other = edited(&claim(), |claim| {
        claim["status"]["allocation"]["devices"]["results"][0]["device"] = "other".into();
    });
    with(&tainted(), &other, &pod(), "another device");
    let replaced = edited(&pod(), |pod| pod["metadata"]["uid"] = "other".into());
    with(&tainted(), &claim(), &replaced, "another pod of the name");
    let foreign = edited(&claim(), |claim| {
        claim["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    });
    let recorded = of_template(&json!([{"name": "r", "resourceClaimName": "c"}]));
    with(&tainted(), &foreign, &recorded, "a claim of another pod");
    let initial = [add(&tainted()), add(&claim()), add(&replaced)];
    check("the pod arrives", &initial, &[remove(&replaced), add(&pod())], NOW, 0);
    let initial = [add(&tainted()), add(&foreign), add(&recorded)];
    let own = edited(&claim(), |claim| claim["metadata"]["uid"] = "new".into());
    check("the claim arrives", &initial, &[change(&foreign, &own)], NOW, 0);
}

#[test]
fn an_eviction_is_cancelled_when_its_reason_ends() {
    let initial = [add(&tainted()), add(&claim()), add(&pod())];
    let cancel = |name: &str, step: Step| check(name, &initial, &[step], &[], 1);
    cancel("taint removed", change(&tainted(), &slice(1, &json!([]))));
    let reduced = slice(1, &json!([taint("a", "NoSchedule")]));
    cancel("taint reduced", change(&tainted(), &reduced));
    cancel("newer generation", add(&slice(2, &json!([]))));
    cancel("slice removed", remove(&tainted()));
    let released = edited(&claim(), |claim| claim["status"]["allocation"] = Value::Null);
    cancel("claim deallocated", change(&claim(), &released));
    cancel("claim deleted", remove(&claim()));
    check("pod deleted", &initial, &[remove(&pod())], &[], 0);
    let again = [remove(&tainted()), add(&tainted())];
    check("evicted again", &initial, &again, NOW, 1);
    let unrelated = [
        change(&tainted(), &edited(&tainted(), |s| s["spec"]["devices"][1]["name"] = "x".into())),
        change(&claim(), &edited(&claim(), |c| c["metadata"]["labels"] = json!({"a": "b"}))),
        change(&pod(), &edited(&pod(), |p| p["metadata"]["labels"] = json!({"a": "b"}))),
    ];
    check("unrelated changes", &initial, &unrelated, NOW, 0);
    let rule = rule("rule", "a", "NoExecute");
    let by_rule = [add(&rule), add(&claim()), add(&pod())];
    check("rule removed", &by_rule, &[remove(&rule)], &[], 1);
}

#[test]
fn several_claims_of_a_pod_count_together() {
    let claims = json!([{"name": "r", "resourceClaimName": "c"},
        {"name": "s", "resourceClaimName": "e"}]);
    let pod = pod_with("pod", &claims, &json!([]));
    let rule1 = rule("rule1", "a", "NoExecute");
    let later = |name: &str, key: &str, seconds| {
        claim_of(name, "pod", &json!([tolerate(key, Some(seconds))]))
    };
    let (c, e) = (later("c", "a", 60), later("e", "a", 30));
    let initial = [add(&rule1), add(&c), add(&e), add(&pod)];
    check("the same rule", &initial, &[], &["pod 30: rule1"], 0);
    let mut world = World::default();
    initial.iter().for_each(|step| world.apply(step));
    let view = RuleView::of(&Object::from_value(rule1.clone()).unwrap()).unwrap();
    let pods = world.pods.clone();
    let find = |ns: &str, name: &str| pods.get(&(ns.to_owned(), name.to_owned())).cloned();
    assert_eq!(world.state.pods_of_rule(&view, false, &find).len(), 1);
    assert_eq!(world.state.devices_of_rule(&view), (0, 2));
    // Two rules, of which each concerns one claim.
    let of_device = |name: &str, device: &str| {
        edited(&rule(name, "a", "NoExecute"), |rule| {
            rule["spec"]["deviceSelector"]["device"] = device.into();
        })
    };
    let on = |claim: &Value, device: &str| {
        edited(claim, |claim| {
            claim["status"]["allocation"]["devices"]["results"][0]["device"] = device.into();
        })
    };
    let initial = [
        add(&of_device("rule1", "x")),
        add(&of_device("rule2", "y")),
        add(&on(&c, "x")),
        add(&on(&e, "y")),
        add(&pod),
    ];
    check("different rules", &initial, &[], &["pod 30: rule1, rule2"], 0);
}

#[test]
fn each_rule_of_an_eviction_counts_the_pod_and_forgets_it_with_the_rule() {
    let mut world = World::default();
    let (one, two) = (rule("rule1", "a", "NoExecute"), rule("rule2", "b", "NoExecute"));
    for step in [add(&one), add(&two), add(&claim()), add(&pod())] {
        world.apply(&step);
    }
    let reference = PodRef::of(&Object::from_value(pod()).unwrap());
    let eviction = world.state.pending(&reference).unwrap();
    let rules = world.state.pod_evicted(&reference, Some(&eviction));
    assert_eq!(rules.iter().map(|rule| &*rule.name).collect::<Vec<_>>(), ["rule1", "rule2"]);
    assert_eq!(world.state.evicted_by("uid-rule1"), 1);
    // The pod is not looked at again.
    world.apply(&change(&claim(), &edited(&claim(), |c| c["status"]["x"] = 1.into())));
    assert_eq!(world.state.pending(&reference), None);
    world.apply(&change(&one, &edited(&one, |r| r["spec"]["taint"]["effect"] = "None".into())));
    assert_eq!(world.state.evicted_by("uid-rule1"), 1);
    world.apply(&remove(&one));
    assert_eq!(world.state.evicted_by("uid-rule1"), 0);
    assert_eq!(world.state.evicted_by("uid-rule2"), 1);
}

#[test]
fn a_rule_is_reported_when_its_specification_changes() {
    let mut world = World::default();
    let one = rule("rule", "a", "None");
    world.apply(&add(&one));
    let report =
        |delay| Effect::Report(RuleRef { name: "rule".into(), uid: "uid-rule".into() }, delay);
    assert_eq!(std::mem::take(&mut world.effects), [report(Duration::ZERO)]);
    world.apply(&change(&one, &edited(&one, |rule| rule["status"] = json!({"conditions": []}))));
    assert!(world.effects.is_empty());
    let evicting = rule("rule", "a", "NoExecute");
    world.apply(&change(&one, &evicting));
    assert_eq!(std::mem::take(&mut world.effects), [report(Duration::ZERO)]);
    world.apply(&add(&claim()));
    world.apply(&add(&pod()));
    assert!(world.effects.contains(&report(STATUS_PERIOD)));
}

#[test]
fn pools_and_claims_are_forgotten_with_their_objects() {
    let mut world = World::default();
    let (old, new) = (tainted(), slice(1, &json!([])));
    for step in [add(&old), add(&claim()), add(&pod())] {
        world.apply(&step);
    }
    for step in [change(&old, &new), remove(&new), remove(&claim()), remove(&pod())] {
        world.apply(&step);
    }
    assert_eq!(world.state.pools, Pools::default());
    assert!(world.state.claims.is_empty() && world.state.pending.is_empty());
}
