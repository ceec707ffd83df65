//! Follows the watch cache of definitions in one task: writes accepted names and conditions into
//! their status, and updates the rows of the registry.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::{Object, Status};
use base::Tasks;
use base::tasks::Kind as TaskKind;
use sorting::CollectOrdered as _;

use super::definition::Definition;
use super::kind::Family;
use super::status::Outcome;
use super::{cleanup, names, status};
use crate::crd::registration;
use crate::registry::ResourceSpec;
use crate::registry::objects::Objects;
use crate::registry::watch_cache::{Filter, Position};

/// The readiness check that passes once the stored definitions are served.
pub(crate) const STEP: &str = "crd-informer-synced";

/// Starts the task; it calls `synced` once the stored definitions are served.
pub(crate) fn follow(
    objects: &Arc<Objects>,
    tasks: &Tasks,
    synced: impl FnOnce() + Send + 'static,
) {
    let mut follower = Follower {
        objects: Arc::clone(objects),
        tasks: tasks.clone(),
        definitions: BTreeMap::new(),
        removed: Vec::new(),
        added: Vec::new(),
        cleanups: Arc::default(),
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

/// A definition and the revision of it that its rows use.
struct FollowedDefinition {
    /// The current definition.
    definition: Definition,
    /// The last revision with different rows.
    family: Arc<Family>,
}

struct Follower {
    objects: Arc<Objects>,
    tasks: Tasks,
    /// By name.
    definitions: BTreeMap<Arc<str>, FollowedDefinition>,
    /// Revisions whose rows are still in the registry and have to be removed.
    removed: Vec<Arc<Family>>,
    /// Revisions whose rows are not in the registry yet.
    added: Vec<Arc<Family>>,
    /// Definitions whose objects are being deleted.
    cleanups: cleanup::Running,
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
                    // A follower that lags behind the watch cache relists.
                    while let Ok((events, _)) = position.next().await {
                        let mut changed = BTreeMap::new();
                        for event in events {
                            let object = &event.entry.object;
                            let current = (!event.deleted).then(|| Arc::clone(object));
                            changed.insert(Arc::clone(&object.key.name), current);
                        }
                        self.update(changed).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot list CustomResourceDefinitions, retrying");
                }
            }
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    /// Lists all definitions and updates the known ones.
    async fn list(&mut self) -> Result<Position, Status> {
        let row = self.objects.row(&status::definitions())?;
        let cache = self.objects.fresh_cache(&row).await?;
        let (page, position) = cache.list_and_watch(&Filter::default());
        let mut changed: BTreeMap<Arc<str>, Option<Arc<Object>>> =
            self.definitions.keys().map(|name| (Arc::clone(name), None)).collect_map();
        for object in page.items {
            changed.insert(Arc::clone(&object.key.name), Some(object));
        }
        self.update(changed).await;
        Ok(position)
    }

    /// Handles changed definitions, by name; `None` for deleted ones. Rows are updated before the
    /// status, so that a client that reads the condition `Established` can use the kind.
    async fn update(&mut self, changed: BTreeMap<Arc<str>, Option<Arc<Object>>>) {
        let mut affected_groups: HashSet<Arc<str>> = HashSet::new();
        let mut changed_names: HashSet<Arc<str>> = HashSet::new();
        for (name, object) in changed {
            let read = object.map(|object| Definition::read(&object)).transpose();
            let definition = read.unwrap_or_else(|error| {
                tracing::error!(
                    definition = %name,
                    %error,
                    "cannot read a stored CustomResourceDefinition, it is not served"
                );
                None
            });
            let old = self.definitions.get(&name).map(|followed| &followed.definition);
            let names = |definition: Option<&Definition>| definition.map(|d| d.accepted.clone());
            if names(old) != names(definition.as_ref()) {
                let both = old.into_iter().chain(&definition);
                affected_groups.extend(both.map(|d| Arc::clone(&d.group)));
            }
            changed_names.insert(Arc::clone(&name));
            self.set_definition(name, definition);
        }
        self.update_registry();
        // A name that a definition takes or releases affects all definitions of the group.
        let affected = self.definitions.iter().filter(|(name, followed)| {
            changed_names.contains(*name) || affected_groups.contains(&followed.definition.group)
        });
        let affected: Vec<Arc<str>> = affected.map(|(name, _)| Arc::clone(name)).collect();
        for name in affected {
            if let Err(error) = self.reconcile(&name).await {
                tracing::warn!(
                    definition = %name,
                    %error,
                    "cannot write the status of a CustomResourceDefinition"
                );
            }
        }
    }

    /// Sets the current definition, or removes it if `None`, and determines which rows change.
    fn set_definition(&mut self, name: Arc<str>, definition: Option<Definition>) {
        let Some(definition) = definition else {
            self.removed.extend(self.definitions.remove(&name).map(|followed| followed.family));
            return;
        };
        if let Some(followed) = self.definitions.get_mut(&name)
            && followed.family.definition.has_same_rows(&definition)
        {
            followed.definition = definition;
            return;
        }
        let family = Family::new(definition.clone());
        self.added.push(Arc::clone(&family));
        let old = self.definitions.insert(name, FollowedDefinition { definition, family });
        self.removed.extend(old.map(|followed| followed.family));
    }

    /// Replaces the rows in the registry. Watches of the replaced rows end, as in upstream; clients
    /// start new ones, which use the new schema.
    fn update_registry(&mut self) {
        let removed = std::mem::take(&mut self.removed);
        let added = std::mem::take(&mut self.added);
        if removed.is_empty() && added.is_empty() {
            return;
        }
        removed.iter().for_each(|family| family.retire());
        let old: Vec<ResourceSpec> = removed.iter().flat_map(registration::rows).collect();
        let new: Vec<ResourceSpec> = added.iter().flat_map(registration::rows).collect();
        if old.is_empty() && new.is_empty() {
            return;
        }
        self.objects.update_registry(|registry| registry.exchange(&old, &new));
        for spec in &old {
            self.objects.caches().stop(&spec.cache_key());
        }
    }

    /// Writes accepted names and conditions into the status, and starts the cleanup of a definition
    /// that is being deleted.
    async fn reconcile(&mut self, name: &Arc<str>) -> Result<(), Status> {
        let Some(followed) = self.definitions.get(name) else { return Ok(()) };
        let definition = followed.definition.clone();
        let all = self.definitions.values().map(|followed| &followed.definition);
        if let Some(outcome) = names::decide(&definition, all) {
            let mut next = definition.clone();
            next.accepted = outcome.accepted.clone();
            for condition in &outcome.conditions {
                next.conditions.retain(|c| c.name != condition.name);
                next.conditions.push(condition.clone());
            }
            // Update the rows first: a client that reads `Established` may send requests at once.
            self.set_definition(Arc::clone(name), Some(next));
            self.update_registry();
            let written = status::write(&self.objects, &definition.object, |value| {
                status::set_names(value, &outcome.accepted);
                outcome.conditions.iter().for_each(|c| status::set_condition(value, c));
            });
            match written.await? {
                Outcome::Done(object) => {
                    if let Ok(definition) = Definition::read(&Arc::new(*object)) {
                        self.set_definition(Arc::clone(name), Some(definition));
                        self.update_registry();
                    }
                }
                // The watch cache delivers the change.
                Outcome::Changed => return Ok(()),
            }
        }
        if self.definitions.get(name).is_some_and(|followed| followed.definition.needs_cleanup) {
            cleanup::start(&self.objects, &self.tasks, &self.cleanups, &definition);
        }
        Ok(())
    }
}
