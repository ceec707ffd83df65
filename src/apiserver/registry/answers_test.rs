//! Compares defaults, preparation and validation with recorded answers of kube-apiserver 1.37.1.

#![allow(clippy::print_stderr, reason = "prints the counts of the answers")]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use api::Gvk;
use api::field::{Error, ErrorList};
use api::schema::Schema;
use api::validation::meta;
use api::value::{
    ensure_object, get, has, items, items_mut, object_mut, remove, semantic_equal, set, str_at,
    str_in,
};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use super::WriteContext;
use super::strategies::strategy_for;
use crate::request::user::User;

/// How many answers of each file must at least agree. Numbers only rise.
const FLOORS: [(&str, Counts); 2] = [
    ("create", Counts { accepted: 1772, refused: 2051, texts: 1987 }),
    ("update", Counts { accepted: 1239, refused: 1747, texts: 1494 }),
];

/// Replaces values that differ from run to run: uids, times, addresses, suffixes of volumes.
const UID: &str = "00000000-0000-0000-0000-0000000000aa";
const MARKS: [(&str, &str); 5] = [
    ("$uid", UID),
    ("$rv", "7"),
    ("$ct", "2026-11-21T00:00:00Z"),
    ("$ip", "10.96.5.5"),
    ("$vol", "kube-api-access-abcde"),
];

/// Kinds that are never stored.
const REVIEWS: [&str; 6] = ["tokenreview", "sar", "ssar", "lsar", "ssrr", "ssr"];

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// Accepted by both, objects equal.
    accepted: usize,
    /// Refused by both.
    refused: usize,
    /// Refused by both with the same causes.
    texts: usize,
}

struct Case {
    group: String,
    id: String,
    body: Value,
    code: u64,
    answer: Value,
}

fn folder() -> Option<PathBuf> {
    let root = Path::new("../../..");
    let candidates = [root.join("shared/answers"), root.join("../shared/answers")];
    candidates.into_iter().find(|path| path.is_dir())
}

/// Replaces the marks in a body with valid values.
fn unmarked(body: &Value) -> Value {
    let mut text = body.to_string();
    for (mark, value) in MARKS {
        text = text.replace(&format!("\"{mark}\""), &format!("\"{value}\""));
    }
    serde_json::from_str(&text).unwrap()
}

fn cases(folder: &Path, name: &str) -> Vec<Case> {
    let file = std::fs::File::open(folder.join(format!("{name}.jsonl.gz"))).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|case| get(case, "body").is_object() && !REVIEWS.contains(&str_at(case, "group")))
        .map(|case| Case {
            group: str_at(&case, "group").to_owned(),
            id: str_at(&case, "id").to_owned(),
            body: unmarked(get(&case, "body")),
            code: get(&case, "code").as_u64().unwrap(),
            answer: get(&case, "answer").clone(),
        })
        .collect()
}

/// Group, version, kind and whether it lives in a namespace, from the answer to the unchanged base
/// object.
struct Base {
    gvk: Gvk,
    namespaced: bool,
    namespace: String,
    object: Value,
}

fn bases(cases: &[Case]) -> BTreeMap<String, Base> {
    let plain = cases.iter().filter(|c| c.code == 201);
    let mut bases = BTreeMap::new();
    for case in plain {
        let exact = case.id == format!("{}/create", case.group);
        if exact || !bases.contains_key(&case.group) {
            let version = str_at(&case.answer, "apiVersion");
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let gvk = Gvk::new(group, version, str_at(&case.answer, "kind"));
            let namespaced = has(get(&case.answer, "metadata"), "namespace");
            let namespace = str_in(&case.answer, &["metadata", "namespace"]).to_owned();
            bases.insert(
                case.group.clone(),
                Base { gvk, namespaced, namespace, object: case.answer.clone() },
            );
        }
    }
    bases
}

/// Replaces the base objects with those that the recorded server had stored.
fn apply_stored(bases: &mut BTreeMap<String, Base>, updates: &[Case]) {
    for base in bases.values_mut() {
        if let Some(meta) = object_mut(&mut base.object, "metadata") {
            for (field, value) in [
                ("uid", UID),
                ("resourceVersion", "7"),
                ("creationTimestamp", "2026-11-21T00:00:00Z"),
            ] {
                set(meta, field, value);
            }
        }
    }
    for key in ["generation", "uid", "resourceVersion", "namespace"] {
        for case in updates
            .iter()
            .filter(|c| c.code == 200 && c.id.ends_with(&format!("/metadata.{key}/absent")))
        {
            let Some(base) = bases.get_mut(&case.group) else { continue };
            let mut held = case.body.clone();
            if let Some(meta) = object_mut(&mut held, "metadata") {
                for (field, value) in [("uid", UID), ("resourceVersion", "7")] {
                    set(meta, field, value);
                }
                if base.namespaced {
                    set(meta, "namespace", base.namespace.as_str());
                }
                if let Some(generation) = get(get(&case.answer, "metadata"), "generation").as_i64()
                {
                    set(meta, "generation", generation);
                }
            }
            if has(&case.answer, "status") {
                set(&mut held, "status", get(&case.answer, "status").clone());
            }
            base.object = held;
        }
    }
}

fn admin() -> User {
    User {
        name: "admin".into(),
        uid: "1".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    }
}

static SCHEMA: std::sync::LazyLock<std::sync::Arc<Schema>> =
    std::sync::LazyLock::new(Schema::builtin);

/// Decodes a body and applies the defaults of the table.
fn decoded(base: &Base, body: &Value) -> Value {
    let Some(ty) = SCHEMA.kind(&base.gvk) else { return body.clone() };
    let mut value =
        match api::codec::json::decode_strict(&SCHEMA, ty, &serde_json::to_vec(body).unwrap()) {
            Ok(decoded) => decoded.value,
            Err(error) => panic!("{body} of {:?}: {error}", base.gvk),
        };
    set(&mut value, "kind", base.gvk.kind.to_string());
    let group =
        if base.gvk.group.is_empty() { String::new() } else { format!("{}/", base.gvk.group) };
    set(&mut value, "apiVersion", format!("{group}{}", base.gvk.version));
    api::schema::defaults::apply_table(&SCHEMA, ty, &mut value);
    value
}

fn normalize(base: &Base, object: &mut Value) {
    if let Some(ty) = SCHEMA.kind(&base.gvk) {
        api::codec::normalize(&SCHEMA, ty, object);
    }
}

/// Creates an object as the pipeline does; returns the object or the errors.
fn create(base: &Base, body: &Value, user: &User) -> Result<Value, ErrorList> {
    let strategy = strategy_for(&base.gvk);
    let mut object = decoded(base, body);
    let namespace = if base.namespaced { "a" } else { "" };
    let context = WriteContext { dry_run: true, ..WriteContext::of(user, namespace, "") };
    if let Some(meta) = ensure_object(&mut object, "metadata") {
        if base.namespaced {
            set(meta, "namespace", base.namespace.as_str());
        }
        set(meta, "uid", UID);
        set(meta, "creationTimestamp", "$T");
    }
    strategy.default(&mut object);
    allocate(&mut object);
    strategy.prepare_for_create(&context, &mut object);
    let mut errors = meta::validate_create(&object, base.namespaced, |name, prefix| {
        strategy.validate_name(name, prefix)
    });
    errors.extend(strategy.validate(&context, &object));
    normalize(base, &mut object);
    if errors.is_empty() { Ok(object) } else { Err(errors) }
}

fn update(base: &Base, body: &Value, user: &User) -> Result<Value, ErrorList> {
    let strategy = strategy_for(&base.gvk);
    let (mut object, old) = (decoded(base, body), base.object.clone());
    let namespace = if base.namespaced { "a" } else { "" };
    let context = WriteContext { dry_run: true, ..WriteContext::of(user, namespace, "") };
    let version = str_in(&object, &["metadata", "resourceVersion"]);
    if version.is_empty() && !strategy.allow_unconditional_update() {
        let field = api::field::Path::new("metadata").child("resourceVersion");
        return Err(vec![Error::invalid(&field, 0, "must be specified for an update")]);
    }
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        let kept = get(get(&old, "metadata"), key).clone();
        if let Some(meta) = object_mut(&mut object, "metadata") {
            if str_at(meta, key).is_empty() || key == "creationTimestamp" {
                set(meta, key, kept);
            }
        }
    }
    if let (true, Some(meta)) = (base.namespaced, object_mut(&mut object, "metadata")) {
        set(meta, "namespace", base.namespace.as_str());
    }
    strategy.default(&mut object);
    strategy.prepare_for_update(&context, &mut object, &old);
    let mut errors = meta::validate_update(&object, &old);
    errors.extend(strategy.validate_update(&context, &object, &old));
    normalize(base, &mut object);
    if errors.is_empty() { Ok(object) } else { Err(errors) }
}

/// Sets the fields of ServiceAccount admission and of the allocators, which run before validation.
fn allocate(object: &mut Value) {
    if let ("Pod", Some(spec)) =
        (str_at(object, "kind").to_owned().as_str(), object_mut(object, "spec"))
    {
        api::value::default_str(spec, "serviceAccountName", "default");
    }
    if str_at(object, "kind") != "Service" {
        return;
    }
    let Some(spec) = object_mut(object, "spec") else { return };
    if str_at(spec, "type") == "ExternalName" {
        return;
    }
    if str_at(spec, "clusterIP").is_empty() && items(spec, "clusterIPs").is_empty() {
        set(spec, "clusterIP", "10.96.9.9");
    }
    if items(spec, "clusterIPs").is_empty() {
        let address = str_at(spec, "clusterIP").to_owned();
        set(spec, "clusterIPs", json!([address]));
    }
    if str_at(spec, "type") == "LoadBalancer" && str_at(spec, "externalTrafficPolicy") == "Local" {
        api::value::default_int(spec, "healthCheckNodePort", 32000);
    }
}

/// Removes the fields of admission and allocation, and values that differ from run to run.
fn comparable(mut object: Value) -> Value {
    if let Some(meta) = object_mut(&mut object, "metadata") {
        for key in ["uid", "creationTimestamp", "resourceVersion", "managedFields", "name"] {
            remove(meta, key);
        }
    }
    let kind = str_at(&object, "kind").to_owned();
    if let Some(spec) = object_mut(&mut object, "spec") {
        match kind.as_str() {
            "Service" => {
                for key in [
                    "clusterIP",
                    "clusterIPs",
                    "ipFamilies",
                    "ipFamilyPolicy",
                    "healthCheckNodePort",
                ] {
                    remove(spec, key);
                }
                items_mut(spec, "ports").iter_mut().for_each(|port| drop(remove(port, "nodePort")));
            }
            "Pod" => admitted_pod(spec),
            "PersistentVolumeClaim" => drop(remove(spec, "storageClassName")),
            _ => {}
        }
    }
    if let ("Node", Some(spec)) = (kind.as_str(), object_mut(&mut object, "spec")) {
        let kept: Vec<Value> = items(spec, "taints")
            .iter()
            .filter(|t| str_at(t, "key") != "node.kubernetes.io/not-ready")
            .cloned()
            .collect();
        set(spec, "taints", kept);
    }
    if matches!(
        kind.as_str(),
        "PersistentVolumeClaim" | "PersistentVolume" | "VolumeAttributesClass"
    ) {
        if let Some(meta) = object_mut(&mut object, "metadata") {
            remove(meta, "finalizers");
        }
    }
    walk(&mut object);
    object
}

fn admitted_pod(spec: &mut Value) {
    for key in
        ["priority", "preemptionPolicy", "serviceAccount", "serviceAccountName", "imagePullSecrets"]
    {
        remove(spec, key);
    }
    let added = |name: &str| name.starts_with("kube-api-access-");
    let keep = |list: &[Value], keep: &dyn Fn(&Value) -> bool| {
        list.iter().filter(|v| keep(v)).cloned().collect::<Vec<_>>()
    };
    let volumes = keep(items(spec, "volumes"), &|v| !added(str_at(v, "name")));
    set(spec, "volumes", volumes);
    let tolerations =
        keep(items(spec, "tolerations"), &|t| !str_at(t, "key").starts_with("node.kubernetes.io/"));
    set(spec, "tolerations", tolerations);
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec, list) {
            let mounts = keep(items(container, "volumeMounts"), &|m| !added(str_at(m, "name")));
            set(container, "volumeMounts", mounts);
        }
    }
}

/// Replaces times with a mark and removes zero scalars, which the decoder omits.
fn walk(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(walk);
            map.retain(|_, v| *v != json!("") && *v != json!(0) && *v != json!(false));
        }
        Value::Array(list) => list.iter_mut().for_each(walk),
        Value::String(text) => {
            if text.len() == 20 && text.starts_with("20") && text.ends_with('Z') {
                *text = "$T".into();
            }
            if let Some(amount) =
                (text.len() < 12).then(|| api::quantity::Quantity::parse(text).ok()).flatten()
            {
                *text = amount.to_string();
            }
            *text = text.replace(UID, "$UID");
        }
        _ => {}
    }
}

fn causes(errors: &ErrorList) -> Vec<(String, String)> {
    let mut list: Vec<_> =
        errors.iter().map(|e| (e.field.to_string(), e.body().replace(UID, "$UID"))).collect();
    list.compact_sort();
    list.dedup();
    list
}

/// Removes the lines after the first from texts of which the record has only the first line.
fn shortened(got: Vec<(String, String)>, want: &[(String, String)]) -> Vec<(String, String)> {
    let mut list: Vec<_> = got
        .into_iter()
        .map(|cause| {
            if want.contains(&cause) {
                return cause;
            }
            let first = cause.1.split('\n').next().unwrap_or_default().to_owned();
            (cause.0, first)
        })
        .collect();
    list.compact_sort();
    list.dedup();
    list
}

fn wanted(answer: &Value) -> Vec<(String, String)> {
    let causes = get(get(answer, "details"), "causes");
    let mut list: Vec<_> = causes
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| (str_at(c, "field").to_owned(), str_at(c, "message").to_owned()))
        .collect();
    list.compact_sort();
    list.dedup();
    list
}

fn difference(want: &Value, got: &Value, at: &str, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Object(x), Value::Object(y)) => {
            let keys: std::collections::BTreeSet<_> = x.keys().chain(y.keys()).collect();
            for key in keys {
                let (a, b) =
                    (x.get(key).unwrap_or(&Value::Null), y.get(key).unwrap_or(&Value::Null));
                if !semantic_equal(a, b) {
                    difference(a, b, &format!("{at}.{key}"), out);
                }
            }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            for (i, (a, b)) in x.iter().zip(y).enumerate() {
                if !semantic_equal(a, b) {
                    difference(a, b, &format!("{at}[{i}]"), out);
                }
            }
        }
        _ => out.push(format!("{at}: want {want} got {got}")),
    }
}

/// Compares one case; adds its differences to `notes`.
fn compare(
    case: &Case,
    outcome: Result<Value, ErrorList>,
    counts: &mut Counts,
    notes: &mut Vec<String>,
) {
    match (case.code, outcome) {
        (200 | 201, Ok(object)) => {
            let (want, got) = (comparable(case.answer.clone()), comparable(object));
            if semantic_equal(&want, &got) {
                counts.accepted += 1;
            } else {
                let mut list = Vec::new();
                difference(&want, &got, "", &mut list);
                notes.push(format!("OBJECT {} {}", case.id, list.join(" | ")));
            }
        }
        (200 | 201, Err(errors)) => {
            notes.push(format!("REFUSED {} {:?}", case.id, causes(&errors)))
        }
        (_, Ok(_)) => notes.push(format!("ACCEPTED {} {:?}", case.id, wanted(&case.answer))),
        (_, Err(errors)) => {
            counts.refused += 1;
            let want = wanted(&case.answer);
            let got = shortened(causes(&errors), &want);
            if want == got {
                counts.texts += 1;
            } else {
                let missing: Vec<_> = want.iter().filter(|w| !got.contains(w)).collect();
                let extra: Vec<_> = got.iter().filter(|g| !want.contains(g)).collect();
                notes.push(format!("TEXT {} want {missing:?} got {extra:?}", case.id));
            }
        }
    }
}

#[test]
fn writes_agree_with_recorded_answers() {
    let Some(folder) = folder() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "shared/answers is missing next to the repository"
        );
        eprintln!("skipped: shared/answers is not here");
        return;
    };
    let created = cases(&folder, "create");
    let updated = cases(&folder, "update");
    let mut bases = bases(&created);
    apply_stored(&mut bases, &updated);
    let user = admin();
    let mut report = Vec::new();
    for ((name, floor), cases) in FLOORS.into_iter().zip([created, updated]) {
        let mut totals: BTreeMap<&str, (Counts, Counts)> = BTreeMap::new();
        for case in cases.iter().filter(|c| matches!(c.code, 200 | 201 | 422)) {
            let Some(base) = bases.get(&case.group) else { continue };
            let (have, all) = totals.entry(&case.group).or_default();
            if case.code == 422 {
                all.refused += 1
            } else {
                all.accepted += 1
            }
            let outcome = if name == "create" {
                create(base, &case.body, &user)
            } else {
                update(base, &case.body, &user)
            };
            compare(case, outcome, have, &mut report);
        }
        let mut sum = Counts::default();
        for (group, (have, all)) in &totals {
            eprintln!(
                "{name} {group}: accepted {}/{} refused {}/{} same causes {}",
                have.accepted, all.accepted, have.refused, all.refused, have.texts
            );
            sum.accepted += have.accepted;
            sum.refused += have.refused;
            sum.texts += have.texts;
        }
        eprintln!("{name} total: {sum:?}");
        let enough = sum.accepted >= floor.accepted
            && sum.refused >= floor.refused
            && sum.texts >= floor.texts;
        assert!(enough, "{name}: fewer answers agree than before: {sum:?}, at least {floor:?}");
    }
    if let Some(path) = std::env::var_os("ANSWERS_REPORT") {
        std::fs::write(path, report.join("\n")).unwrap();
    }
}
