//! From objects to what requests are held against (upstream's `lockAndDigestConfigObjects`), and
//! the lending of seats.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;

use super::borrowing::{self, Demand, Holder, Limits};
use super::matching::Asked;
use super::queues::Shape;
use super::seat::{Class, Level};
use super::spec::{CATCH_ALL, EXEMPT, LevelSpec, SchemaSpec};
use crate::priority_and_fairness::level_counters::Flow;
use crate::request::user::User;

/// What requests are held against: classes in the order in which they are asked.
#[derive(Debug, Default)]
pub(super) struct Plan {
    classes: Vec<Arc<Class>>,
    /// Where who matches nothing belongs.
    rest: usize,
}

impl Plan {
    /// The class of a request.
    pub(super) fn class_of(&self, asked: &Asked<'_>, user: &User) -> Arc<Class> {
        let found = self.classes.iter().find(|class| class.spec.matches(asked, user));
        let found = found.or_else(|| self.classes.get(self.rest));
        Arc::clone(found.expect("the catch-all schema is always there"))
    }
}

/// A level with its seats.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) level: Arc<Level>,
    spec: LevelSpec,
    pub(super) limits: Limits,
    pub(super) demand: Demand,
    pub(super) current: i64,
    pub(super) target: f64,
}

/// Levels by the order of their names, and their figures.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) held: Vec<Held>,
    /// Figures by level and schema.
    pub(super) flows: HashMap<(Box<str>, Box<str>), Arc<Flow>>,
    pub(super) fair: f64,
    /// Seats of the server.
    server: i64,
    /// Levels and schemas that are always there, once read.
    mandatory: Option<(Vec<LevelSpec>, Vec<Value>)>,
}

fn unsigned(seats: i64) -> u64 {
    u64::try_from(seats).unwrap_or_default()
}

impl State {
    /// Takes the objects over; `seats` are those of the server.
    pub(super) fn digest(
        &mut self,
        now: Duration,
        seats: i64,
        levels: &[Value],
        schemas: &[Value],
    ) -> Plan {
        self.server = seats;
        let mut specs = Vec::new();
        for object in levels {
            match LevelSpec::of(object) {
                Ok(spec) => specs.push((spec, false)),
                Err(error) => {
                    let name = api::value::str_in(object, &["metadata", "name"]);
                    tracing::warn!(
                        level = name,
                        error,
                        "this PriorityLevelConfiguration is passed over"
                    );
                }
            }
        }
        let schemas = self.ordered(schemas, &specs);
        self.complete(&mut specs);
        let shares: i64 = specs.iter().map(|(spec, _)| spec.shares).sum();
        let mut former = std::mem::take(&mut self.held);
        for (spec, quiescing) in specs {
            let limits = Limits::of(seats, (spec.shares, shares), spec.lendable, spec.borrowing);
            let known = former.iter().position(|held| *held.level.name == *spec.name);
            let held = match known.map(|at| former.swap_remove(at)) {
                Some(held) => Held { spec, limits, ..held },
                None => {
                    let current = limits.initial();
                    let level = Level::new(&spec.name, now, spec.shape, unsigned(current));
                    let (level, demand) = (Arc::new(level), Demand::default());
                    Held { level, spec, limits, demand, current, target: 0.0 }
                }
            };
            held.level.quiescing.store(quiescing, Ordering::Relaxed);
            self.held.push(held);
        }
        self.held.sort_by(|a, b| a.level.name.cmp(&b.level.name));
        for held in &mut self.held {
            let mut queues = held.level.queues.lock();
            queues.sync(now);
            held.demand.note(queues.demand(), now);
        }
        self.allot(now);
        self.plan(schemas)
    }

    /// How many requests may execute and how many may wait, over all levels.
    pub(super) fn room(&self) -> (f64, f64) {
        let nominal: i64 = self.held.iter().map(|held| held.limits.nominal).sum();
        let places = self.held.iter().map(|held| match held.spec.shape {
            Shape::Queue { queues, length, .. } => f64::from(queues) * f64::from(length),
            Shape::Exempt | Shape::Reject => 0.0,
        });
        (nominal as f64, places.sum())
    }

    /// Schemas whose level is there, in the order in which they are asked, those that are always
    /// there among them.
    fn ordered(&mut self, objects: &[Value], levels: &[(LevelSpec, bool)]) -> Vec<SchemaSpec> {
        let mut schemas: Vec<SchemaSpec> = objects
            .iter()
            .map(SchemaSpec::of)
            .filter(|schema| levels.iter().any(|(level, _)| *level.name == *schema.level))
            .collect();
        schemas.sort_by(|a, b| a.order().cmp(&b.order()));
        let (_, mandatory) = self.mandatory();
        let own =
            |name: &str| mandatory.iter().map(SchemaSpec::of).find(|schema| &*schema.name == name);
        if !schemas.iter().any(|schema| &*schema.name == EXEMPT)
            && let Some(own) = own(EXEMPT)
        {
            schemas.insert(0, own);
        }
        if !schemas.iter().any(|schema| &*schema.name == CATCH_ALL) {
            schemas.extend(own(CATCH_ALL));
        }
        schemas
    }

    /// Adds the levels that are always there, and those that something is still in.
    fn complete(&mut self, specs: &mut Vec<(LevelSpec, bool)>) {
        for spec in self.mandatory().0.clone() {
            if !specs.iter().any(|(other, _)| other.name == spec.name) {
                specs.push((spec, false));
            }
        }
        for held in &self.held {
            let gone = !specs.iter().any(|(spec, _)| spec.name == held.spec.name);
            if gone && !held.level.queues.lock().is_idle() {
                specs.push((held.spec.clone(), true));
            }
        }
    }

    /// The levels and schemas that are always there, as upstream has them.
    fn mandatory(&mut self) -> &(Vec<LevelSpec>, Vec<Value>) {
        self.mandatory.get_or_insert_with(|| {
            let objects = crate::bootstrap::flow_objects().filter(|object| {
                let name = api::value::str_in(object, &["metadata", "name"]);
                matches!(name, EXEMPT | CATCH_ALL)
            });
            let (schemas, levels): (Vec<Value>, Vec<Value>) =
                objects.partition(|object| api::value::str_at(object, "kind") == "FlowSchema");
            (levels.iter().filter_map(|level| LevelSpec::of(level).ok()).collect(), schemas)
        })
    }

    /// What each level is given, from what it wanted.
    fn allot(&mut self, now: Duration) {
        let server = self.server;
        let holders: Vec<Holder> = self
            .held
            .iter()
            .map(|held| Holder {
                exempt: held.spec.shape == Shape::Exempt,
                limits: held.limits,
                demand: held.demand,
                current: held.current,
            })
            .collect();
        let (seats, fair) = borrowing::allot(&holders);
        self.fair = fair;
        for ((held, holder), current) in self.held.iter_mut().zip(holders).zip(seats) {
            (held.current, held.target) = (current, holder.target());
            let divisor =
                if current > 0 { current } else { (server as f64 / 10.0).round().max(1.0) as i64 };
            let mut queues = held.level.queues.lock();
            queues.configure(now, held.spec.shape, unsigned(current), unsigned(divisor));
        }
    }

    /// Lends and gives back what was due since `since`, at the end of each period until `until`.
    pub(super) fn adjust(&mut self, since: Duration, until: Duration, now: Duration) {
        for held in &mut self.held {
            let mut queues = held.level.queues.lock();
            queues.sync(since + borrowing::PERIOD);
            held.demand.follow(queues.demand(), since, until);
        }
        self.allot(now);
    }

    fn plan(&mut self, schemas: Vec<SchemaSpec>) -> Plan {
        let mut classes = Vec::with_capacity(schemas.len());
        for spec in schemas {
            let Some(held) = self.held.iter().find(|held| *held.level.name == *spec.level) else {
                continue;
            };
            let (spread, width) = match held.spec.shape {
                Shape::Queue { queues, hand, .. } => (queues > 1, held.limits.width(hand)),
                Shape::Exempt | Shape::Reject => (false, 0),
            };
            let key = (held.level.name.clone(), spec.name.clone());
            let flow = self.flows.entry(key);
            let flow = flow.or_insert_with_key(|(level, name)| Arc::new(Flow::new(name, level)));
            let uid = |uid: &str| {
                HeaderValue::from_str(uid).unwrap_or_else(|_| HeaderValue::from_static(""))
            };
            classes.push(Arc::new(Class {
                level: Arc::clone(&held.level),
                flow: Arc::clone(flow),
                uid: uid(&spec.uid),
                level_uid: uid(&held.spec.uid),
                exempt: held.spec.shape == Shape::Exempt,
                spread,
                width,
                spec,
            }));
        }
        // Figures of what is gone go with its last request.
        self.flows.retain(|_, flow| {
            let used = classes.iter().any(|class| Arc::ptr_eq(&class.flow, flow));
            used || Arc::strong_count(flow) > 1
        });
        let rest = classes.iter().position(|class| &*class.spec.name == CATCH_ALL);
        Plan { rest: rest.unwrap_or_default(), classes }
    }
}
