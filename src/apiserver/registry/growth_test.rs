//! Measures that the work on a list field grows with the length of the list, which clients choose,
//! and not with its square.
//!
//! `cargo test` measures the lists that are used most; `tests/growth` each list field of each
//! built-in kind.

#![allow(clippy::print_stderr, reason = "tests/growth prints the counts")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::Gvk;
use api::custom::{PruneOptions, Structural};
use api::field::Path;
use api::patch::apply::{Write, apply, track_update};
use api::schema::{Schema, Shape, TypeId};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use sorting::CompactSort as _;

use super::strategies::strategy_for;
use super::{WriteContext, metadata};
use crate::request::user::User;

/// `all` measures each list field of each built-in kind.
const FIELDS_VARIABLE: &str = "KUBE_LITE_GROWTH_FIELDS";
/// The longer list is this many times as long as the shorter one.
const LONGER: usize = 16;
/// Work that grows with n·log n takes about 22 times as long, quadratic work 256 times; the limit
/// leaves room for noise.
const GROWTH_MAX: f64 = 80.0;
/// A longer list that takes less per item is not measured further.
const CHEAP: Duration = Duration::from_micros(8);
/// Items of the shorter list when each list field is measured.
const ALL_ITEMS: usize = 1000;
/// Measurements of which the shortest is used.
const ROUNDS: usize = 3;
/// Depth to which lists within lists and nested structs, such as schemas within schemas, are found.
const DEPTH_MAX: usize = 14;

/// The path from the root of a kind to one of its lists.
#[derive(Clone)]
struct ListField {
    schema: Arc<Schema>,
    /// The schema of a custom resource.
    structural: Option<Structural>,
    gvk: Gvk,
    root: TypeId,
    steps: Vec<Step>,
    element: Shape,
}

#[derive(Clone)]
enum Step {
    Field(Arc<str>),
    /// Into the only item of a list, whose fields are set.
    Item(Shape),
    /// Into a value of a map.
    Key,
}

/// Each list field of each type of the built-in kinds, at its shortest path.
fn list_fields(schema: &Arc<Schema>) -> Vec<ListField> {
    let mut known: HashSet<(TypeId, Arc<str>)> = HashSet::new();
    let mut lists = Vec::new();
    let mut kinds: Vec<(&Gvk, TypeId)> = schema.kinds().collect();
    kinds.compact_sort_by(|a, b| {
        (&a.0.group, &a.0.version, &a.0.kind).cmp(&(&b.0.group, &b.0.version, &b.0.kind))
    });
    for (gvk, root) in kinds.into_iter().filter(|(gvk, _)| !gvk.kind.ends_with("List")) {
        let mut open: Vec<(TypeId, Vec<Step>)> = vec![(root, Vec::new())];
        while !open.is_empty() {
            for (ty, steps) in std::mem::take(&mut open) {
                for field in &schema.get(ty).fields {
                    if steps.len() > DEPTH_MAX || !known.insert((ty, field.json.clone())) {
                        continue;
                    }
                    let mut steps = steps.clone();
                    steps.push(Step::Field(field.json.clone()));
                    let mut shape = &field.shape;
                    loop {
                        match shape {
                            Shape::List(element) => {
                                lists.push(ListField {
                                    schema: schema.clone(),
                                    structural: None,
                                    gvk: gvk.clone(),
                                    root,
                                    steps: steps.clone(),
                                    element: (**element).clone(),
                                });
                                steps.push(Step::Item((**element).clone()));
                                shape = element;
                            }
                            Shape::Map(value) => {
                                steps.push(Step::Key);
                                shape = value;
                            }
                            Shape::Struct(id) => {
                                open.push((*id, steps));
                                break;
                            }
                            _ => break,
                        }
                    }
                }
            }
        }
    }
    lists
}

/// Lists of a custom resource: a map and a set.
fn custom_lists() -> Vec<ListField> {
    let structural = Structural::new(&json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": {
            "ports": {
                "type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name", "port"],
                "items": {"type": "object", "required": ["name", "port"], "properties": {
                    "name": {"type": "string"}, "port": {"type": "integer"},
                    "protocol": {"type": "string", "default": "TCP"}}}},
            "tags": {
                "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}}))
    .unwrap();
    let mut schema = (*Schema::builtin()).clone();
    let pod = schema.kind(&Gvk::new("", "v1", "Pod")).unwrap();
    let metadata = schema.get(pod).field("metadata").unwrap().shape.clone();
    let root = structural.extend(&mut schema, "Widget", &metadata);
    let Shape::Struct(spec) = schema.get(root).field("spec").unwrap().shape else { panic!() };
    let schema = Arc::new(schema);
    let list = |name: &str| {
        let Shape::List(element) = &schema.get(spec).field(name).unwrap().shape else { panic!() };
        ListField {
            schema: schema.clone(),
            structural: Some(structural.clone()),
            gvk: Gvk::new("example.com", "v1", "Widget"),
            root,
            steps: vec![Step::Field("spec".into()), Step::Field(name.into())],
            element: (**element).clone(),
        }
    };
    vec![list("ports"), list("tags")]
}

/// An item whose scalars differ from those of other numbers.
fn item(schema: &Schema, shape: &Shape, number: usize, depth: usize) -> Value {
    match shape {
        Shape::String => json!(format!("v{number}")),
        Shape::Bytes => json!("dg=="),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => json!(number % 60_000 + 1),
        Shape::Double => json!(number),
        Shape::Quantity => json!(number.to_string()),
        Shape::Time | Shape::MicroTime => json!("2026-11-21T00:00:00Z"),
        Shape::Duration => json!("1s"),
        Shape::Struct(id) if schema.get(*id).field("fieldsV1").is_some() => json!({
            "manager": format!("v{number}"), "operation": "Update", "apiVersion": "v1",
            "time": "2026-11-21T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {(format!("f:v{number}")): {}}},
        }),
        Shape::Struct(id) => {
            let mut map = Map::new();
            for field in &schema.get(*id).fields {
                let scalar = matches!(field.shape, Shape::String | Shape::Int32 | Shape::Int64);
                let needed = field.required && depth < 4 && matches!(field.shape, Shape::Struct(_));
                if scalar && field.allowed.is_empty() || needed {
                    let value = item(schema, &field.shape, number, depth + 1);
                    map.insert(field.json.to_string(), value);
                }
            }
            Value::Object(map)
        }
        Shape::List(element) => json!([item(schema, element, number, depth + 1)]),
        Shape::Map(value) => json!({"k": item(schema, value, number, depth + 1)}),
        _ => json!({}),
    }
}

impl ListField {
    fn shown(&self) -> String {
        let steps = self.steps.iter().map(|step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item(_) => "[]".to_owned(),
            Step::Key => "{}".to_owned(),
        });
        format!("{}/{}{}", self.gvk.api_version(), self.gvk.kind, steps.collect::<String>())
    }

    /// An object whose list has so many items; those of the last quarter are the first ones again
    /// when `doubled`.
    fn object(&self, count: usize, doubled: bool) -> Value {
        let number = |index: usize| if doubled { index % (count * 3 / 4) } else { index };
        let schema = &*self.schema;
        let list = (0..count).map(|index| item(schema, &self.element, number(index), 0));
        let mut value = Value::Array(list.collect());
        for step in self.steps.iter().rev() {
            value = match step {
                Step::Field(name) => json!({&**name: value}),
                Step::Key => json!({"k": value}),
                Step::Item(shape) => {
                    let mut item = item(schema, shape, 0, 0);
                    merge(&mut item, value);
                    json!([item])
                }
            };
        }
        let head = json!({
            "apiVersion": self.gvk.api_version(), "kind": *self.gvk.kind,
            "metadata": {"name": "a", "namespace": "a"},
        });
        merge(&mut value, head);
        value
    }
}

fn merge(into: &mut Value, value: Value) {
    match (into, value) {
        (Value::Object(into), Value::Object(value)) => {
            for (key, value) in value {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}

const OPERATIONS: [&str; 5] = ["create", "update", "strategic", "apply", "track"];

/// The processor time of this thread, which does not include other threads.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The time of an operation on an object that a client sends.
fn measured(list: &ListField, operation: &str, object: &Value) -> Duration {
    let schema = &*list.schema;
    let strategy = strategy_for(&list.gvk);
    let user = User { name: "admin".into(), ..User::default() };
    let context = WriteContext { dry_run: true, ..WriteContext::of(&user, "a", "") };
    let write = Write {
        schema,
        ty: list.root,
        gvk: &list.gvk,
        custom: list.structural.is_some(),
        manager: "m",
        subresource: "",
        reset: None,
        now: "2026-11-21T00:00:00Z",
    };
    let (sent, mut new) = (object.clone(), object.clone());
    let empty = json!({
        "apiVersion": list.gvk.api_version(), "kind": *list.gvk.kind,
        "metadata": {"name": "a", "namespace": "a"},
    });
    let begin = processor_time();
    match operation {
        "create" | "update" if list.structural.is_some() => {
            let structural = list.structural.as_ref().unwrap();
            structural.prune(&mut new, &PruneOptions { resource: true, collect: true });
            structural.default(&mut new);
            let old = Some(object).filter(|_| operation == "update");
            drop(structural.values(&new, old, &Path::default()));
            drop(structural.lists(&new, old));
        }
        "create" => {
            metadata::dedup_owner_references(&mut new);
            crate::serialization::default(schema, &list.gvk, &mut new);
            strategy.default(&mut new);
            strategy.prepare_for_create(&context, &mut new);
            let mut errors = metadata::validate(&new, true, strategy.as_ref());
            errors.extend(strategy.validate(&context, &new));
            strategy.warnings_on_create(&context, &new);
            crate::serialization::normalize(schema, &list.gvk, &mut new);
        }
        "update" => {
            strategy.prepare_for_update(&context, &mut new, object);
            let mut errors = metadata::validate_update(&new, object, true);
            errors.extend(strategy.validate_update(&context, &new, object));
            strategy.warnings_on_update(&context, &new, object);
        }
        "strategic" => drop(api::patch::strategic(schema, list.root, new, sent)),
        "apply" => {
            if let Ok(applied) = apply(&write, None, object, true) {
                drop(apply(&write, Some(&applied), object, true));
            }
            drop(apply(&write, Some(object), &empty, true));
        }
        _ => {
            track_update(&write, None, &mut new);
            let mut gone = empty;
            track_update(&write, Some(&new), &mut gone);
        }
    }
    processor_time() - begin
}

/// A measurement of a list field.
#[derive(Clone, Copy)]
struct Measure<'a> {
    list: &'a ListField,
    operation: &'a str,
    /// Whether items repeat, which takes other code paths.
    doubled: bool,
    /// Items of the shorter list.
    items: usize,
}

impl Measure<'_> {
    fn shortest(&self, count: usize, rounds: usize) -> Duration {
        let object = self.list.object(count, self.doubled);
        let rounds = (0..rounds).map(|_| measured(self.list, self.operation, &object));
        rounds.min().unwrap_or_default()
    }

    /// The times of the two lists, when the longer one takes too long.
    fn too_fast(&self) -> Option<String> {
        if self.items >= ALL_ITEMS && self.operation == OPERATIONS[0] && !self.doubled {
            // Names the list of a measurement that does not end.
            eprintln!("{}", self.list.shown());
        }
        let longer = LONGER * self.items;
        let is_too_fast = |short: Duration, long: Duration| {
            long > CHEAP * u32::try_from(longer).unwrap()
                && long.as_secs_f64() > GROWTH_MAX * short.as_secs_f64()
        };
        let long = self.shortest(longer, 1);
        if !is_too_fast(Duration::ZERO, long) {
            return None;
        }
        let short = self.shortest(self.items, ROUNDS);
        if !is_too_fast(short, long) {
            return None;
        }
        let long = long.min(self.shortest(longer, ROUNDS - 1));
        is_too_fast(short, long).then(|| {
            format!(
                "{} {}{}: {} items {short:?}, {longer} items {long:?}",
                self.list.shown(),
                self.operation,
                if self.doubled { " doubled" } else { "" },
                self.items,
            )
        })
    }
}

/// The measurements that grow too fast; two threads measure.
fn growing(measures: &[Measure<'_>]) -> Vec<String> {
    const THREADS: usize = 2;
    std::thread::scope(|scope| {
        let part = |start: usize| {
            let part = measures.iter().skip(start).step_by(THREADS);
            scope.spawn(|| part.filter_map(Measure::too_fast).collect::<Vec<_>>())
        };
        let running: Vec<_> = (0..THREADS).map(part).collect();
        running.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

/// The lists that are used most, by the ends of their paths.
const COMMON: [&str; 9] = [
    ".metadata.ownerReferences",
    ".metadata.finalizers",
    ".metadata.managedFields",
    "v1/Pod.spec.containers",
    "v1/Pod.spec.initContainers[].env",
    "v1/Pod.spec.initContainers[].ports",
    "v1/Pod.spec.volumes",
    "v1/Pod.spec.volumes[].projected.sources",
    "v1/Pod.spec.topologySpreadConstraints",
];

#[test]
fn the_work_on_a_list_does_not_grow_with_the_square_of_its_length() {
    #[allow(clippy::disallowed_methods, reason = "tests/growth passes what to measure")]
    let all = std::env::var(FIELDS_VARIABLE).is_ok_and(|fields| fields == "all");
    let mut lists = list_fields(&Schema::builtin());
    if !all {
        lists.retain(|list| COMMON.iter().any(|end| list.shown().ends_with(end)));
        let found: Vec<String> = lists.iter().map(ListField::shown).collect();
        assert_eq!(found.len(), COMMON.len(), "{found:?}");
    }
    lists.extend(custom_lists());
    let mut measures = Vec::new();
    for list in &lists {
        for operation in OPERATIONS {
            for doubled in [false, true] {
                let items = if all { ALL_ITEMS } else { 350 };
                // Merge and apply refuse a list with repeated items early.
                if all || !doubled || matches!(operation, "create" | "update") {
                    measures.push(Measure { list, operation, doubled, items });
                }
            }
        }
    }
    let slow = growing(&measures);
    eprintln!(
        "{} list fields, {} operations, {} grow faster than n log n",
        lists.len(),
        measures.len(),
        slow.len()
    );
    assert!(
        slow.is_empty(),
        "grow too fast:
{}",
        slow.join(
            "
"
        )
    );
    // Each list field of each type is measured once, however many kinds have it.
    assert!(!all || lists.len() > 300, "{} list fields", lists.len());
}
