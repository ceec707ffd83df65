//! The one task behind all custom resources: follows the watch cache of definitions, says in their
//! status what became of their names, and keeps the rows of the registry in step.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::{Object, Status};
use base::Tasks;
use base::tasks::Kind as TaskKind;

use super::definition::Definition;
use super::kind::Family;
use super::status::Outcome;
use super::{cleanup, names, status};
use crate::crd::registration;
use crate::registry::ResourceSpec;
use crate::registry::objects::Objects;
use crate::registry::watch_cache::{Filter, Position};

/// The step of readiness that ends when the definitions of the store are served.
pub(crate) const STEP: &str = "crd-informer-synced";

/// Starts following; `synced` is called once what the store holds is served.
pub(crate) fn follow(
    objects: &Arc<Objects>,
    tasks: &Tasks,
    synced: impl FnOnce() + Send + 'static,
) {
    let mut follower = Follower {
        objects: Arc::clone(objects),
        tasks: tasks.clone(),
        known: BTreeMap::new(),
        gone: Vec::new(),
        came: Vec::new(),
        cleaning: Arc::default(),
    };
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(TaskKind::Critical, "custom-resources", async move {
        tokio::select! {
            () = follower.run(synced) => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
}

/// One definition: as it is now, and the form of it that its rows share.
struct Known {
    definition: Definition,
    family: Arc<Family>,
}

struct Follower {
    objects: Arc<Objects>,
    tasks: Tasks,
    known: BTreeMap<Arc<str>, Known>,
    /// Forms that came and went since the registry was changed last.
    gone: Vec<Arc<Family>>,
    came: Vec<Arc<Family>>,
    /// Definitions whose objects are being deleted, by uid.
    cleaning: cleanup::Running,
}

impl Follower {
    async fn run(&mut self, synced: impl FnOnce()) {
        let mut synced = Some(synced);
        let mut backoff = base::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            match self.list().await {
                Ok(mut position) => {
                    if let Some(synced) = synced.take() {
                        synced();
                    }
                    backoff.reset();
                    // What fell off the ring is listed anew.
                    while let Ok((events, _)) = position.next().await {
                        let mut changed = BTreeMap::new();
                        for event in events {
                            let object = &event.entry.object;
                            let now = (!event.deleted).then(|| Arc::clone(object));
                            changed.insert(Arc::clone(&object.key.name), now);
                        }
                        self.take(changed).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "definitions of custom resources cannot be listed, trying again");
                }
            }
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    /// Takes over all definitions as they are now.
    async fn list(&mut self) -> Result<Position, Status> {
        let row = self.objects.row(&status::definitions())?;
        let cache = self.objects.fresh_cache(&row).await?;
        let (page, position) = cache.list_and_watch(&Filter::default());
        let mut changed: BTreeMap<Arc<str>, Option<Arc<Object>>> =
            self.known.keys().map(|name| (Arc::clone(name), None)).collect();
        for object in page.items {
            changed.insert(Arc::clone(&object.key.name), Some(object));
        }
        self.take(changed).await;
        Ok(position)
    }

    /// Takes changed definitions over: rows first, so that whoever reads that a kind is established
    /// can use it.
    async fn take(&mut self, changed: BTreeMap<Arc<str>, Option<Arc<Object>>>) {
        let mut groups: HashSet<Arc<str>> = HashSet::new();
        let mut fresh: HashSet<Arc<str>> = HashSet::new();
        for (name, object) in changed {
            let read = object.map(|object| Definition::read(&object)).transpose();
            let definition = read.unwrap_or_else(|error| {
                tracing::error!(definition = %name, %error, "the stored definition cannot be read and is not served");
                None
            });
            let before = self.known.get(&name).map(|known| &known.definition);
            let names = |definition: Option<&Definition>| definition.map(|d| d.accepted.clone());
            if names(before) != names(definition.as_ref()) {
                groups.extend(before.into_iter().chain(&definition).map(|d| Arc::clone(&d.group)));
            }
            fresh.insert(Arc::clone(&name));
            self.serve(name, definition);
        }
        self.publish();
        // A name that somebody gave up, or took, concerns all definitions of the group.
        let concerned = self.known.iter().filter(|(name, known)| {
            fresh.contains(*name) || groups.contains(&known.definition.group)
        });
        let concerned: Vec<Arc<str>> = concerned.map(|(name, _)| Arc::clone(name)).collect();
        for name in concerned {
            if let Err(error) = self.judge(&name).await {
                tracing::warn!(definition = %name, %error, "its status cannot be written");
            }
        }
    }

    /// Notes a definition as it is now, and whether its rows have to change.
    fn serve(&mut self, name: Arc<str>, definition: Option<Definition>) {
        let Some(definition) = definition else {
            self.gone.extend(self.known.remove(&name).map(|known| known.family));
            return;
        };
        if let Some(known) = self.known.get_mut(&name)
            && known.family.definition.serves_as(&definition)
        {
            known.definition = definition;
            return;
        }
        let family = Family::new(definition.clone());
        self.came.push(Arc::clone(&family));
        let old = self.known.insert(name, Known { definition, family });
        self.gone.extend(old.map(|known| known.family));
    }

    /// Changes the registry; watches of what changed end, as upstream's do, and begin anew with the
    /// new form.
    fn publish(&mut self) {
        let (gone, came) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.came));
        if gone.is_empty() && came.is_empty() {
            return;
        }
        gone.iter().for_each(|family| family.retire());
        let old: Vec<ResourceSpec> = gone.iter().flat_map(registration::rows).collect();
        let new: Vec<ResourceSpec> = came.iter().flat_map(registration::rows).collect();
        if old.is_empty() && new.is_empty() {
            return;
        }
        self.objects.update_registry(|registry| registry.exchange(&old, &new));
        for spec in &old {
            self.objects.caches().stop(&spec.cache_key());
        }
    }

    /// Says in the status what became of the names, and begins the end of a definition that is
    /// deleted.
    async fn judge(&mut self, name: &Arc<str>) -> Result<(), Status> {
        let Some(known) = self.known.get(name) else { return Ok(()) };
        let definition = known.definition.clone();
        if let Some(outcome) =
            names::decide(&definition, self.known.values().map(|k| &k.definition))
        {
            let mut next = definition.clone();
            next.accepted = outcome.accepted.clone();
            for condition in &outcome.conditions {
                next.conditions.retain(|c| c.name != condition.name);
                next.conditions.push(condition.clone());
            }
            // Who reads that it is established may use it at once.
            self.serve(Arc::clone(name), Some(next));
            self.publish();
            let written = status::write(&self.objects, &definition.object, |value| {
                status::set_names(value, &outcome.accepted);
                outcome.conditions.iter().for_each(|c| status::set_condition(value, c));
            });
            match written.await? {
                Outcome::Done(object) => {
                    if let Ok(definition) = Definition::read(&Arc::new(*object)) {
                        self.serve(Arc::clone(name), Some(definition));
                        self.publish();
                    }
                }
                // The change is on its way here.
                Outcome::Changed => return Ok(()),
            }
        }
        if self.known.get(name).is_some_and(|known| known.definition.cleans) {
            cleanup::start(&self.objects, &self.tasks, &self.cleaning, &definition);
        }
        Ok(())
    }
}
