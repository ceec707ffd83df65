//! Builds the classifier and the levels from the objects (upstream's
//! `lockAndDigestConfigObjects`), and adjusts the borrowing of seats.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderValue;
use serde_json::Value;
use sorting::CompactSort as _;

use super::borrowing::{self, Demand, Holder, Limits};
use super::matching::FlowAttributes;
use super::queues::Shape;
use super::seat::{Class, Level};
use super::spec::{CATCH_ALL, EXEMPT, LevelSpec, SchemaSpec};
use crate::priority_and_fairness::level_counters::Flow;
use crate::request::user::User;

/// Classifies requests: the classes in matching order.
#[derive(Debug, Default)]
pub(super) struct Classifier {
    classes: Vec<Arc<Class>>,
    /// The index of the catch-all class.
    catch_all: usize,
}

impl Classifier {
    /// The class of a request.
    pub(super) fn class_of(&self, attributes: &FlowAttributes<'_>, user: &User) -> Arc<Class> {
        let class = self.classes.iter().find(|class| class.spec.matches(attributes, user));
        let class = class.or_else(|| self.classes.get(self.catch_all));
        Arc::clone(class.expect("there is always a catch-all schema"))
    }
}

/// A priority level and its seats.
#[derive(Debug)]
pub(super) struct LevelState {
    pub(super) level: Arc<Level>,
    spec: LevelSpec,
    pub(super) limits: Limits,
    pub(super) demand: Demand,
    pub(super) current: i64,
    pub(super) target: f64,
}

/// The levels and their counters.
#[derive(Debug, Default)]
pub(super) struct State {
    /// In the order of their names.
    pub(super) levels: Vec<LevelState>,
    /// The counters by level and schema.
    pub(super) flows: HashMap<(Box<str>, Box<str>), Arc<Flow>>,
    pub(super) fair: f64,
    /// The total number of seats.
    server: i64,
    /// The mandatory levels and schemas, parsed on first use.
    mandatory: Option<(Vec<LevelSpec>, Vec<Value>)>,
}

fn unsigned(seats: i64) -> u64 {
    u64::try_from(seats).unwrap_or_default()
}

impl State {
    /// Applies the objects; `seats` is the total number.
    pub(super) fn digest(
        &mut self,
        now: Duration,
        seats: i64,
        levels: &[Value],
        schemas: &[Value],
    ) -> Classifier {
        self.server = seats;
        let mut specs = Vec::new();
        for object in levels {
            match LevelSpec::of(object) {
                Ok(spec) => specs.push((spec, false)),
                Err(error) => {
                    let name = api::value::str_in(object, &["metadata", "name"]);
                    tracing::warn!(
                        level = name,
                        %error,
                        "flow control: an invalid PriorityLevelConfiguration is ignored"
                    );
                }
            }
        }
        let schemas = self.ordered(schemas, &specs);
        self.complete(&mut specs);
        let shares: i64 = specs.iter().map(|(spec, _)| spec.shares).sum();
        let mut former = std::mem::take(&mut self.levels);
        for (spec, is_quiescing) in specs {
            let limits = Limits::of(seats, (spec.shares, shares), spec.lendable, spec.borrowing);
            let known = former.iter().position(|state| *state.level.name == *spec.name);
            let state = match known.map(|at| former.swap_remove(at)) {
                Some(state) => LevelState { spec, limits, ..state },
                None => {
                    let current = limits.initial();
                    let level = Level::new(&spec.name, now, spec.shape, unsigned(current));
                    let (level, demand) = (Arc::new(level), Demand::default());
                    LevelState { level, spec, limits, demand, current, target: 0.0 }
                }
            };
            state.level.is_quiescing.store(is_quiescing, Ordering::Relaxed);
            self.levels.push(state);
        }
        self.levels.compact_sort_by(|a, b| a.level.name.cmp(&b.level.name));
        for state in &mut self.levels {
            let mut queues = state.level.queues.lock();
            queues.sync(now);
            state.demand.update_at(queues.demand(), now);
        }
        self.allocate_seats(now);
        self.classifier(schemas)
    }

    /// The maximum numbers of executing and of waiting requests, over all levels.
    pub(super) fn capacity(&self) -> (f64, f64) {
        let nominal: i64 = self.levels.iter().map(|state| state.limits.nominal).sum();
        let places = self.levels.iter().map(|state| match state.spec.shape {
            Shape::Queue { queues, length, .. } => f64::from(queues) * f64::from(length),
            Shape::Exempt | Shape::Reject => 0.0,
        });
        (nominal as f64, places.sum())
    }

    /// The schemas whose level exists, and the mandatory ones, in matching order.
    fn ordered(&mut self, objects: &[Value], levels: &[(LevelSpec, bool)]) -> Vec<SchemaSpec> {
        let mut schemas: Vec<SchemaSpec> = objects
            .iter()
            .map(SchemaSpec::of)
            .filter(|schema| levels.iter().any(|(level, _)| *level.name == *schema.level))
            .collect();
        schemas.compact_sort_by(|a, b| a.order().cmp(&b.order()));
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

    /// Adds the mandatory levels, and deleted levels that still have requests, which are quiescing.
    fn complete(&mut self, specs: &mut Vec<(LevelSpec, bool)>) {
        for spec in self.mandatory().0.clone() {
            if !specs.iter().any(|(other, _)| other.name == spec.name) {
                specs.push((spec, false));
            }
        }
        for state in &self.levels {
            let is_deleted = !specs.iter().any(|(spec, _)| spec.name == state.spec.name);
            if is_deleted && !state.level.queues.lock().is_idle() {
                specs.push((state.spec.clone(), true));
            }
        }
    }

    /// Upstream's mandatory levels and schemas.
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

    /// Calculates the seats of each level from its demand.
    fn allocate_seats(&mut self, now: Duration) {
        let server = self.server;
        let holders: Vec<Holder> = self
            .levels
            .iter()
            .map(|state| Holder {
                exempt: state.spec.shape == Shape::Exempt,
                limits: state.limits,
                demand: state.demand,
                current: state.current,
            })
            .collect();
        let (seats, fair) = borrowing::allocate(&holders);
        self.fair = fair;
        for ((state, holder), current) in self.levels.iter_mut().zip(holders).zip(seats) {
            (state.current, state.target) = (current, holder.target());
            // The denominator of utilization: of a level without seats a tenth of the server's, as
            // in upstream.
            let divisor =
                if current > 0 { current } else { (server as f64 / 10.0).round().max(1.0) as i64 };
            let mut queues = state.level.queues.lock();
            queues.configure(now, state.spec.shape, unsigned(current), unsigned(divisor));
        }
    }

    /// Updates demands at the end of each period between `since` and `until`, and adjusts the
    /// borrowing of seats.
    pub(super) fn adjust(&mut self, since: Duration, until: Duration, now: Duration) {
        for state in &mut self.levels {
            let mut queues = state.level.queues.lock();
            queues.sync(since + borrowing::PERIOD);
            state.demand.catch_up(queues.demand(), since, until);
        }
        self.allocate_seats(now);
    }

    fn classifier(&mut self, schemas: Vec<SchemaSpec>) -> Classifier {
        let mut classes = Vec::with_capacity(schemas.len());
        for spec in schemas {
            let Some(state) = self.levels.iter().find(|state| *state.level.name == *spec.level)
            else {
                continue;
            };
            let (spread, width) = match state.spec.shape {
                Shape::Queue { queues, hand, .. } => (queues > 1, state.limits.width(hand)),
                Shape::Exempt | Shape::Reject => (false, 0),
            };
            let key = (state.level.name.clone(), spec.name.clone());
            let flow = self.flows.entry(key);
            let flow = flow.or_insert_with_key(|(level, name)| Arc::new(Flow::new(name, level)));
            let uid = |uid: &str| {
                HeaderValue::from_str(uid).unwrap_or_else(|_| HeaderValue::from_static(""))
            };
            classes.push(Arc::new(Class {
                level: Arc::clone(&state.level),
                flow: Arc::clone(flow),
                uid: uid(&spec.uid),
                level_uid: uid(&state.spec.uid),
                exempt: state.spec.shape == Shape::Exempt,
                spread,
                width,
                spec,
            }));
        }
        // The counters of deleted objects are removed after their last request.
        self.flows.retain(|_, flow| {
            let is_used = classes.iter().any(|class| Arc::ptr_eq(&class.flow, flow));
            is_used || Arc::strong_count(flow) > 1
        });
        let catch_all = classes.iter().position(|class| &*class.spec.name == CATCH_ALL);
        Classifier { catch_all: catch_all.unwrap_or_default(), classes }
    }
}
