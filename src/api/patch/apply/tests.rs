//! Recorded answers of upstream, and properties of structured-merge-diff.

use serde_json::json;

use super::*;

const T1: &str = "2026-01-01T00:00:01Z";
const T2: &str = "2026-01-01T00:00:02Z";

struct Client {
    schema: std::sync::Arc<Schema>,
    gvk: Gvk,
    ty: TypeId,
}

impl Client {
    fn new(group: &str, version: &str, kind: &str) -> Self {
        let schema = Schema::builtin();
        let gvk = Gvk::new(group, version, kind);
        let ty = schema.kind(&gvk).unwrap();
        Self { schema, gvk, ty }
    }

    fn write<'a>(&'a self, manager: &'a str, now: &'a str) -> Write<'a> {
        Write {
            schema: &self.schema,
            ty: self.ty,
            gvk: &self.gvk,
            custom: false,
            manager,
            subresource: "",
            reset: None,
            now,
        }
    }

    fn apply(
        &self,
        live: Option<&Value>,
        manager: &str,
        config: Value,
        force: bool,
    ) -> Result<Value, Box<Status>> {
        apply(&self.write(manager, T1), live, &config, force)
    }

    fn update(&self, live: Option<&Value>, manager: &str, now: &str, mut new: Value) -> Value {
        track_update(&self.write(manager, now), live, &mut new);
        new
    }
}

fn deployment(spec: Value) -> Value {
    json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":spec})
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm"},"data":data})
}

fn entry(manager: &str, operation: &str, version: &str, time: &str, fields: Value) -> Value {
    json!({"manager":manager,"operation":operation,"apiVersion":version,"time":time,"fieldsType":"FieldsV1","fieldsV1":fields})
}

fn owners(object: &Value) -> &Value {
    &object["metadata"]["managedFields"]
}

#[test]
fn applies_shares_takes_over_and_removes() {
    let c = Client::new("apps", "v1", "Deployment");
    let mut first = deployment(
        json!({"replicas":2,"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},
        "spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]}]}}}),
    );
    first["metadata"]["labels"] = json!({"a":"b"});
    let mut d = c.apply(None, "one", first, false).unwrap();
    // Fields that defaulting sets have no manager.
    d["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    let e = c.apply(Some(&d), "two", deployment(json!({"replicas":5})), false).unwrap_err();
    assert_eq!(e.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    assert_eq!(
        serde_json::to_value(&e.details).unwrap(),
        json!({"causes":[{"reason":"FieldManagerConflict","message":"conflict with \"one\"","field":".spec.replicas"}]})
    );
    assert_eq!((e.code, e.reason.as_str()), (409, "Conflict"));
    let d = c.apply(Some(&d), "two", deployment(json!({"replicas":5})), true).unwrap();
    assert_eq!(d["spec"]["replicas"], 5);
    let last = deployment(
        json!({"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},
        "spec":{"containers":[{"name":"c","image":"i2"},{"name":"e","image":"j"}]}}}),
    );
    let d = c.apply(Some(&d), "one", last, false).unwrap();
    assert_eq!(d["metadata"].get("labels"), None);
    assert_eq!(d["spec"]["replicas"], 5);
    let containers =
        json!([{"name":"c","image":"i2","imagePullPolicy":"Always"},{"name":"e","image":"j"}]);
    assert_eq!(d["spec"]["template"]["spec"]["containers"], containers);
    let one = json!({"f:spec":{"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:containers":{
        "k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}},"k:{\"name\":\"e\"}":{".":{},"f:image":{},"f:name":{}}}}}}});
    let two = json!({"f:spec":{"f:replicas":{}}});
    assert_eq!(
        *owners(&d),
        json!([
            entry("one", "Apply", "apps/v1", T1, one),
            entry("two", "Apply", "apps/v1", T1, two)
        ])
    );
}

#[test]
fn an_update_takes_fields_and_conflicts_by_its_version() {
    let c = Client::new("", "v1", "ConfigMap");
    let cm = c.apply(None, "one", config_map(json!({"a":"1","b":"2"})), false).unwrap();
    let cm = c.apply(Some(&cm), "one", config_map(json!({"a":"1"})), false).unwrap();
    assert_eq!(cm["data"], json!({"a":"1"}));
    let mut next = cm.clone();
    next["data"]["a"] = json!("9");
    let cm = c.update(Some(&cm), "upd", T2, next);
    assert_eq!(
        *owners(&cm),
        json!([entry("upd", "Update", "v1", T2, json!({"f:data":{"f:a":{}}}))])
    );
    let e = c.apply(Some(&cm), "one", config_map(json!({"a":"1"})), false).unwrap_err();
    assert_eq!(e.message, "Apply failed with 1 conflict: conflict with \"upd\" using v1: .data.a");
    let cause = &e.details.unwrap().causes[0];
    assert_eq!(
        (cause.message.as_str(), cause.field.as_str()),
        ("conflict with \"upd\" using v1", ".data.a")
    );
}

#[test]
fn lists_several_conflicts_by_manager() {
    let c = Client::new("", "v1", "ConfigMap");
    let cm = c.apply(None, "b", config_map(json!({"x":"1","y":"1"})), false).unwrap();
    let cm = c.apply(Some(&cm), "a", config_map(json!({"y":"1","z":"1"})), false).unwrap();
    let e = c.apply(Some(&cm), "c", config_map(json!({"x":"2","y":"2"})), false).unwrap_err();
    let text = "Apply failed with 3 conflicts: conflicts with \"a\":\n- .data.y\nconflicts with \"b\":\n- .data.x\n- .data.y";
    assert_eq!(e.message, text);
}

#[test]
fn refuses_as_upstream_does() {
    let c = Client::new("apps", "v1", "Deployment");
    let mut with_managers = deployment(json!({}));
    with_managers["metadata"]["managedFields"] = json!([{"manager":"x"}]);
    let twice = deployment(
        json!({"template":{"spec":{"containers":[{"name":"c","image":"a"},{"name":"c","image":"b"}]}}}),
    );
    let typed = "failed to create typed patch object (/d; apps/v1, Kind=Deployment): ";
    for (config, code, text) in [
        (with_managers, 400, "metadata.managedFields must be nil".to_owned()),
        (
            json!({"kind":"Deployment","metadata":{"name":"d"}}),
            400,
            "invalid object type: /, Kind=Deployment".into(),
        ),
        (
            twice,
            500,
            format!(
                "{typed}.spec.template.spec.containers: duplicate entries for key [name=\"c\"]"
            ),
        ),
        (
            deployment(json!({"foo":1})),
            500,
            format!("{typed}.spec.foo: field not declared in schema"),
        ),
        (
            deployment(json!({"replicas":"x"})),
            500,
            format!("{typed}.spec.replicas: expected numeric (int or float), got string"),
        ),
        (deployment(json!([])), 500, format!("{typed}.spec: expected map, got &{{[]}}")),
        (
            deployment(json!({"paused":"x","replicas":"y"})),
            500,
            format!(
                "{typed}errors:\n  .spec.paused: expected boolean, got &{{x}}\n  .spec.replicas: expected numeric (int or float), got string"
            ),
        ),
    ] {
        let e = c.apply(None, "one", config, false).unwrap_err();
        assert_eq!((e.code, e.message), (code, text));
    }
    let labels = json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"a":1}}});
    let e = c.apply(None, "one", labels, false).unwrap_err();
    assert_eq!(
        e.message,
        format!(
            "{typed}.metadata.labels.a: expected string, got &value.valueUnstructured{{Value:1}}"
        )
    );
}

#[test]
fn a_created_object_owns_what_go_does_not_show_empty() {
    let c = Client::new("", "v1", "Pod");
    let pod = json!({"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","uid":"u","creationTimestamp":"2026-01-01T00:00:01Z","labels":{"a":"b"}},
        "spec":{"containers":[{"name":"c","image":"i","resources":{},"ports":[{"containerPort":80,"protocol":"TCP"}]}],"securityContext":{}},"status":{}});
    let pod = c.update(None, "kubectl", T1, pod);
    let fields = json!({"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},
        "f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}},"f:resources":{}}},"f:securityContext":{}}});
    assert_eq!(*owners(&pod), json!([entry("kubectl", "Update", "v1", T1, fields)]));
    // A write of the status has a separate entry.
    let mut next = pod.clone();
    next["status"] = json!({"phase":"Running","conditions":[{"type":"Ready","status":"True"}]});
    let mut write = c.write("kubelet", T2);
    write.subresource = "status";
    track_update(&write, Some(&pod), &mut next);
    let mut status = entry(
        "kubelet",
        "Update",
        "v1",
        T2,
        json!({"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:phase":{}}}),
    );
    status["subresource"] = json!("status");
    assert_eq!(owners(&next)[1], status);
    assert_eq!(owners(&next)[0], owners(&pod)[0]);
}

#[test]
fn an_update_without_changes_keeps_times_and_entries() {
    let c = Client::new("", "v1", "ConfigMap");
    let cm = c.update(None, "a", T1, config_map(json!({"a":"1"})));
    let same = c.update(Some(&cm), "b", T2, config_map(json!({"a":"1"})));
    assert_eq!(owners(&same), owners(&cm));
    let reset = json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm","managedFields":[{}]},"data":{"a":"1"}});
    let reset = c.update(Some(&cm), "b", T2, reset);
    assert_eq!(reset["metadata"], json!({"name":"cm"}));
    // After the reset, an update of a stored object (with a uid, `skipNonAppliedManager`) tracks
    // nothing, and the first apply assigns all fields to the manager `before-first-apply`.
    let mut stored = reset.clone();
    stored["metadata"]["uid"] = json!("u");
    let again = c.update(Some(&stored), "b", T2, config_map(json!({"a":"2"})));
    assert_eq!(again["metadata"], json!({"name":"cm"}));
    let tracked = c.update(Some(&reset), "b", T2, config_map(json!({"a":"2"})));
    assert_eq!(
        *owners(&tracked),
        json!([entry("b", "Update", "v1", T2, json!({"f:data":{"f:a":{}}}))])
    );
    let e = c.apply(Some(&again), "x", config_map(json!({"a":"3"})), false).unwrap_err();
    assert_eq!(
        e.message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
}

#[test]
fn removing_fields_takes_them_from_every_owner() {
    let c = Client::new("", "v1", "ConfigMap");
    let cm = c.apply(None, "one", config_map(json!({"a":"1","b":"2"})), false).unwrap();
    let cm = c.update(Some(&cm), "upd", T2, config_map(json!({"b":"2"})));
    assert_eq!(
        *owners(&cm),
        json!([entry("one", "Apply", "v1", T1, json!({"f:data":{"f:b":{}}}))])
    );
    // A field that two managers apply is kept until the last one drops it.
    let cm = c.apply(Some(&cm), "two", config_map(json!({"b":"2"})), false).unwrap();
    let cm = c.apply(Some(&cm), "one", config_map(json!({})), false).unwrap();
    assert_eq!(cm["data"], json!({"b":"2"}));
    let cm = c
        .apply(
            Some(&cm),
            "two",
            json!({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"cm"}}),
            false,
        )
        .unwrap();
    assert_eq!(cm.get("data"), None);
}

#[test]
fn tells_list_items_by_keys_with_defaults_and_sets_by_value() {
    let c = Client::new("", "v1", "Service");
    let service = |ports: Value, finalizers: Value| json!({"apiVersion":"v1","kind":"Service","metadata":{"name":"s","finalizers":finalizers},"spec":{"ports":ports}});
    let first = c
        .apply(
            None,
            "one",
            service(json!([{"port":53,"protocol":"UDP"},{"port":53}]), json!(["a/1"])),
            false,
        )
        .unwrap();
    let second = c
        .apply(
            Some(&first),
            "two",
            service(json!([{"port":53,"name":"dns"}]), json!(["a/2"])),
            false,
        )
        .unwrap();
    // The default of `protocol` is part of the key.
    assert_eq!(
        second["spec"]["ports"],
        json!([{"port":53,"protocol":"UDP"},{"port":53,"name":"dns"}])
    );
    assert_eq!(second["metadata"]["finalizers"], json!(["a/1", "a/2"]));
    let third =
        c.apply(Some(&second), "one", service(json!([{"port":53}]), json!([])), false).unwrap();
    assert_eq!(third["spec"]["ports"], json!([{"port":53,"name":"dns"}]));
    assert_eq!(third["metadata"]["finalizers"], json!(["a/2"]));
}

#[test]
fn takes_over_from_client_side_apply() {
    let c = Client::new("", "v1", "ConfigMap");
    let last = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"cm\"},\"data\":{\"a\":\"1\"}}";
    let mut created = config_map(json!({"a":"1","b":"2"}));
    created["metadata"]["annotations"] = json!({LAST_APPLIED:last});
    let cm = c.update(None, "kubectl-client-side-apply", T1, created);
    // `a` has the value of client-side apply; another manager owns `b`.
    let e = c.apply(Some(&cm), "kubectl", config_map(json!({"a":"3","b":"3"})), false).unwrap_err();
    assert_eq!(
        e.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.b"
    );
    assert!(c.apply(Some(&cm), "other", config_map(json!({"a":"3"})), false).is_err());
    let cm = c.apply(Some(&cm), "kubectl", config_map(json!({"a":"<3"})), false).unwrap();
    let renewed = "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"\\u003c3\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"cm\"}}\n";
    assert_eq!(cm["metadata"]["annotations"][LAST_APPLIED], renewed);
}

#[test]
fn merges_old_updates_at_the_eleventh() {
    let c = Client::new("", "v1", "ConfigMap");
    let mut cm = c.update(None, "m00", "2026-01-01T00:00:00Z", config_map(json!({"k00":"1"})));
    for i in 1..12 {
        let mut next = cm.clone();
        next["data"][format!("k{i:02}")] = json!("1");
        cm = c.update(Some(&cm), &format!("m{i:02}"), &format!("2026-01-01T00:00:{i:02}Z"), next);
    }
    let list = owners(&cm).as_array().unwrap();
    assert_eq!(list.len(), 10);
    assert_eq!(list[0]["manager"], "ancient-changes");
    assert_eq!(list[0]["time"], "2026-01-01T00:00:02Z");
    assert_eq!(list[0]["fieldsV1"], json!({"f:data":{".":{},"f:k00":{},"f:k01":{},"f:k02":{}}}));
    assert_eq!(list[9]["manager"], "m11");
}

#[test]
fn fields_that_are_reset_are_not_owned() {
    let c = Client::new("apps", "v1", "Deployment");
    let status = Set::of_fields(&[&["status"]]);
    let mut write = c.write("one", T1);
    write.reset = Some(&status);
    let mut config = deployment(json!({"replicas":1}));
    config["status"] = json!({"replicas":7});
    let d = apply(&write, None, &config, false).unwrap();
    assert_eq!(
        *owners(&d),
        json!([entry("one", "Apply", "apps/v1", T1, json!({"f:spec":{"f:replicas":{}}}))])
    );
}

/// Recorded answers of kube-apiserver 1.37.1.
#[test]
fn a_reference_without_its_key_leaves_the_owners() {
    let client = Client::new("", "v1", "ServiceAccount");
    let account = |secrets: Value| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}, "secrets": secrets});
    let made = client.update(None, "m", T1, account(json!([{}])));
    assert!(made["metadata"].get("managedFields").is_none(), "{made}");
    let live = client.update(None, "m", T1, account(json!([{"name": "y"}])));
    let mut new = account(json!([{}]));
    new["metadata"] = live["metadata"].clone();
    let changed = client.update(Some(&live), "n", T2, new);
    assert_eq!(owners(&changed), owners(&live));
}

#[test]
fn times_alone_are_no_change() {
    let c = Client::new("", "v1", "ConfigMap");
    let live = c.apply(None, "one", config_map(json!({"a":"1"})), false).unwrap();
    let mut write = c.write("one", T2);
    let same = apply(&write, Some(&live), &config_map(json!({"a":"1"})), false).unwrap();
    assert_eq!(same, live);
    let mut later = live.clone();
    later["metadata"]["managedFields"][0]["time"] = json!(T2);
    keep_times_if_unchanged(&live, &mut later);
    assert_eq!(later, live);
    write.manager = "two";
    let mut changed = apply(&write, Some(&live), &config_map(json!({"b":"1"})), false).unwrap();
    let before = changed.clone();
    keep_times_if_unchanged(&live, &mut changed);
    assert_eq!(changed, before);
}

#[test]
fn a_custom_object_owns_its_structs_and_unknown_fields() {
    let mut schema = Schema::builtin().as_ref().clone();
    let gvk = Gvk::new("x.io", "v1", "Foo");
    let meta = schema.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let mut spec =
        schema.get(schema.by_name("io.k8s.api.core.v1.ConfigMap").unwrap()).fields[0].clone();
    spec.json = "metadata".into();
    spec.shape = crate::schema::Shape::Struct(meta);
    let mut ty = crate::schema::Type::new("x.io.v1.Foo".into(), vec![spec]);
    ty.open = true;
    let ty = schema.add_type(ty);
    schema.add_kind(gvk.clone(), ty);
    let write = Write {
        schema: &schema,
        ty,
        gvk: &gvk,
        custom: true,
        manager: "m",
        subresource: "",
        reset: None,
        now: T1,
    };
    let mut foo = json!({"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"f","labels":{"a":"b"}},"spec":{"list":[{"x":1}],"n":1}});
    track_update(&write, None, &mut foo);
    let fields =
        json!({"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{".":{},"f:list":{},"f:n":{}}});
    assert_eq!(*owners(&foo), json!([entry("m", "Update", "x.io/v1", T1, fields)]));
}

#[test]
fn owns_what_a_live_server_says() {
    let c = Client::new("apps", "v1", "Deployment");
    let container = |name: &str, more: Value| {
        let mut c = json!({"name":name,"image":"i","resources":{},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"Always"});
        c.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        c
    };
    let object = |meta: Value, strategy: Value, volume: &str, container: Value| {
        json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":meta,"spec":{"replicas":1,"selector":{"matchLabels":{"app":"x"}},
            "template":{"metadata":{"labels":{"app":"x"}},"spec":{"volumes":[{"name":volume,"emptyDir":{}}],"containers":[container],"restartPolicy":"Always",
            "terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","securityContext":{},"schedulerName":"default-scheduler"}},
            "strategy":strategy,"revisionHistoryLimit":10,"progressDeadlineSeconds":600},"status":{}})
    };
    let rolling =
        json!({"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%","maxSurge":"25%"}});
    let ports =
        json!({"ports":[{"containerPort":80,"protocol":"TCP"}],"env":[{"name":"A","value":"1"}]});
    let first = object(json!({"name":"d","labels":{"a":"b"}}), rolling, "v", container("c", ports));
    let live = c.update(None, "", T1, first);
    let mut next = object(
        json!({"name":"d","labels":{"z":"y"},"finalizers":["x.io/b"]}),
        json!({"type":"Recreate"}),
        "w",
        container("only", json!({})),
    );
    next["metadata"]["managedFields"] = owners(&live).clone();
    let next = c.update(Some(&live), "", T2, next);
    let fields = json!({"f:metadata":{"f:finalizers":{".":{},"v:\"x.io/b\"":{}},"f:labels":{".":{},"f:z":{}}},"f:spec":{"f:progressDeadlineSeconds":{},"f:replicas":{},
        "f:revisionHistoryLimit":{},"f:selector":{},"f:strategy":{"f:type":{}},"f:template":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{
        "k:{\"name\":\"only\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},
        "f:dnsPolicy":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{".":{},
        "k:{\"name\":\"w\"}":{".":{},"f:emptyDir":{},"f:name":{}}}}}}});
    assert_eq!(*owners(&next), json!([entry("unknown", "Update", "apps/v1", T2, fields)]));
}
