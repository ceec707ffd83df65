//! Lists of clients are as long as bodies: the work on each list field of each built-in kind must not grow by the square of its length.

#![allow(clippy::print_stderr, reason = "the counts are for whoever reads the test's output")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Gvk;
use api::patch::apply::{Write, apply, track_update};
use api::schema::{Schema, Shape, TypeId};
use serde_json::{Map, Value, json};

use super::strategies::strategy_for;
use super::{WriteContext, metadata};
use crate::user::User;

/// Items of the list that is measured first.
const ITEMS: usize = 2000;
/// Work on an item that is surely not done by all other items; more is measured again on longer lists.
const CHEAP: Duration = Duration::from_micros(8);
/// Four times the items may take so many times as long: 4 is linear, 16 the square. The rest is for a busy machine.
const GROWTH_MAX: f64 = 9.0;
/// The shortest of so many measurements counts.
const ROUNDS: usize = 3;
/// Lists within items of other lists and deeper structs, such as schemas within schemas, are followed so far.
const DEPTH_MAX: usize = 14;

/// A way from the root of a kind to one of its lists.
#[derive(Clone)]
struct ListField {
    gvk: Gvk,
    root: TypeId,
    steps: Vec<Step>,
    element: Shape,
}

#[derive(Clone)]
enum Step {
    Field(Arc<str>),
    /// Into the one item of a list, whose own fields are filled.
    Item(Shape),
    /// Into a value of a map.
    Key,
}

/// Each list field of each type that a built-in kind reaches, by the first kind and the shortest way.
fn list_fields(schema: &Schema) -> Vec<ListField> {
    let mut known: HashSet<(TypeId, Arc<str>)> = HashSet::new();
    let mut lists = Vec::new();
    let mut kinds: Vec<(&Gvk, TypeId)> = schema.kinds().collect();
    kinds.sort_by(|a, b| {
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

    /// An object whose list has so many items; those of the last quarter are the first ones again when `doubled`.
    fn object(&self, schema: &Schema, count: usize, doubled: bool) -> Value {
        let number = |index: usize| if doubled { index % (count * 3 / 4) } else { index };
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

/// The time that an operation takes with this object, which a client sends.
fn measured(schema: &Schema, list: &ListField, operation: &str, object: &Value) -> Duration {
    let strategy = strategy_for(&list.gvk);
    let user = User { name: "admin".into(), ..User::default() };
    let context = WriteContext {
        user: &user,
        namespace: "a",
        subresource: "",
        dry_run: true,
        tolerated: Default::default(),
    };
    let write = Write {
        schema,
        ty: list.root,
        gvk: &list.gvk,
        custom: false,
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
    let begin = Instant::now();
    match operation {
        "create" => {
            metadata::one_of_each_owner(&mut new);
            crate::wire::default(schema, &list.gvk, &mut new);
            strategy.default(&mut new);
            strategy.prepare_for_create(&context, &mut new);
            let mut errors = metadata::validate(&new, true, strategy.as_ref());
            errors.extend(strategy.validate(&context, &new));
            strategy.warnings_on_create(&context, &new);
            crate::wire::normalize(schema, &list.gvk, &mut new);
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
    begin.elapsed()
}

fn shortest(
    schema: &Schema,
    list: &ListField,
    operation: &str,
    count: usize,
    doubled: bool,
) -> Duration {
    let object = list.object(schema, count, doubled);
    (0..ROUNDS).map(|_| measured(schema, list, operation, &object)).min().unwrap_or_default()
}

/// What grows too fast in one list.
fn too_fast(schema: &Schema, list: &ListField, operation: &str, doubled: bool) -> Option<String> {
    let object = list.object(schema, ITEMS, doubled);
    let first = measured(schema, list, operation, &object);
    if first < CHEAP * u32::try_from(ITEMS).unwrap() {
        return None;
    }
    let (short, long) = (
        shortest(schema, list, operation, ITEMS, doubled),
        shortest(schema, list, operation, 4 * ITEMS, doubled),
    );
    let growth = long.as_secs_f64() / short.as_secs_f64().max(1e-6);
    (growth > GROWTH_MAX).then(|| {
        format!(
            "{} {operation}{}: {ITEMS} items {short:?}, four times as many {long:?}",
            list.shown(),
            if doubled { " doubled" } else { "" }
        )
    })
}

/// What grows too fast in these lists, on two threads.
fn growing(schema: &Schema, lists: &[ListField]) -> Vec<String> {
    const THREADS: usize = 2;
    std::thread::scope(|scope| {
        let part = |start: usize| {
            scope.spawn(move || {
                let mut slow = Vec::new();
                for list in lists.iter().skip(start).step_by(THREADS) {
                    for operation in OPERATIONS {
                        // Items that repeat take other ways through the same work.
                        for doubled in [false, true] {
                            slow.extend(too_fast(schema, list, operation, doubled));
                        }
                    }
                }
                slow
            })
        };
        let running: Vec<_> = (0..THREADS).map(part).collect();
        running.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

#[test]
#[ignore = "measures time, which other tests beside it disturb: cargo test -p apiserver growth_test -- --ignored"]
fn the_lists_of_metadata_do_not_take_time_by_the_square_of_their_length() {
    let schema = Schema::builtin();
    let mut lists = list_fields(&schema);
    lists.retain(|list| list.shown().split('.').nth(1) == Some("metadata"));
    lists.retain(|list| list.steps.len() <= 2 && list.gvk.group.is_empty());
    assert!(!lists.is_empty());
    let slow = growing(&schema, &lists);
    assert!(slow.is_empty(), "grow too fast:\n{}", slow.join("\n"));
}

#[test]
#[ignore = "takes minutes: cargo test -p apiserver --release growth_test -- --ignored"]
fn no_list_of_a_built_in_kind_takes_time_by_the_square_of_its_length() {
    let schema = Schema::builtin();
    let lists = list_fields(&schema);
    let slow = growing(&schema, &lists);
    eprintln!("{} list fields, {} operations", lists.len(), OPERATIONS.len());
    assert!(lists.len() > 500, "{} list fields", lists.len());
    assert!(slow.is_empty(), "grow too fast:\n{}", slow.join("\n"));
}
