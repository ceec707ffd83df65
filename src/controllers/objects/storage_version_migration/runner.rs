//! Allows one migration per resource at a time, the oldest first, and records migrations of custom
//! resources in their definitions (upstream's `migration-runner-controller`).

use api::Gvr;
use api::value::{get, int_at, items, str_at};
use client::{Action, Client, Error, Informer, Patch};
use serde_json::{Value, json};

use super::conditions::{
    Condition, RUNNING, RUNNING_REASON, SUCCEEDED, add_condition, is_terminal, is_true, now,
    running_message, set_condition,
};
use super::{resource, text, write_status};
use crate::framework::context::Context;
use crate::framework::keyed::Keyed;

const NAME: &str = "migration-runner-controller";
/// The condition of a definition whose objects are migrated.
const MIGRATING: &str = "StorageMigrating";

/// Starts the worker, whose keys are groups and resources.
pub(super) fn start(context: &Context, client: &Client, migrations: &Informer<()>) {
    let mut keyed = Keyed::new();
    keyed.watches(migrations, |change| {
        change.object().value().map(|value| vec![resource(&value)]).unwrap_or_default()
    });
    let (client, migrations) = (client.clone(), migrations.clone());
    keyed.run(&context.tasks, NAME, 1, move |key| {
        let (client, migrations) = (client.clone(), migrations.clone());
        async move {
            let all = migrations.cache().list("");
            let all = all.iter().map(|o| o.value()).collect::<Result<Vec<_>, _>>()?;
            let plan = plan(all, &key);
            for ended in plan.ended {
                finish(&client, ended).await?;
            }
            if let Some(next) = plan.next {
                begin(&client, next).await?;
            }
            Ok::<_, Error>(Action::Done)
        }
    });
}

/// What is due for the migrations of one resource.
#[derive(Debug, Default)]
struct Plan {
    /// Migrations that have ended and are still marked as running.
    ended: Vec<Value>,
    /// The migration that may run now.
    next: Option<Value>,
}

fn plan(all: Vec<Value>, of: &(String, String)) -> Plan {
    let mut plan = Plan::default();
    let mut runs = false;
    let mut waiting: Vec<Value> = Vec::new();
    for migration in all.into_iter().filter(|m| resource(m) == *of) {
        match (is_true(&migration, RUNNING), is_terminal(&migration)) {
            (true, true) => plan.ended.push(migration),
            (true, false) => runs = true,
            (false, false) => waiting.push(migration),
            (false, true) => {}
        }
    }
    if !runs {
        plan.next = waiting.into_iter().min_by(|a, b| {
            let key = |m| (text(m, "/metadata/creationTimestamp"), text(m, "/metadata/name"));
            key(a).cmp(&key(b))
        });
    }
    plan
}

/// Marks a migration as running, after its definition.
async fn begin(client: &Client, mut migration: Value) -> Result<(), Error> {
    if let Some(definition) = definition(client, &migration).await? {
        let message = format!("Migration {} is running", text(&migration, "/metadata/name"));
        // As the next apply replaces what this one has, it has the stored versions, too.
        let stored = get(get(&definition, "status"), "storedVersions").clone();
        apply(client, &definition, "True", "MigrationRunning", &message, stored).await?;
    }
    let message = running_message(None, None);
    add_condition(&mut migration, RUNNING, RUNNING_REASON, &message, &now());
    write_status(client, &migration).await
}

/// Ends a migration that has succeeded or failed, in its definition first.
async fn finish(client: &Client, mut migration: Value) -> Result<(), Error> {
    if let Some(definition) = definition(client, &migration).await? {
        let end = end(&definition, is_true(&migration, SUCCEEDED));
        apply(client, &definition, "False", end.reason, end.message, end.stored).await?;
    }
    let done = "Migration completed";
    let ended =
        Condition { kind: RUNNING, status: false, reason: "MigrationCompleted", message: done };
    set_condition(&mut migration, &ended, &now());
    write_status(client, &migration).await
}

/// How the migration of a definition's objects ended.
#[derive(Debug, PartialEq, Eq)]
struct End {
    reason: &'static str,
    message: &'static str,
    /// The new `status.storedVersions`.
    stored: Value,
}

/// After a success without a change of the definition meanwhile, all objects have its storage
/// version. Unlike upstream, a failure never removes a stored version: its objects may remain.
fn end(definition: &Value, succeeded: bool) -> End {
    let status = get(definition, "status");
    let stored = get(status, "storedVersions").clone();
    let migrating = items(status, "conditions").iter().find(|c| str_at(c, "type") == MIGRATING);
    let number = |value: &Value, key: &str| int_at(value, key).unwrap_or(0);
    let generation = number(get(definition, "metadata"), "generation");
    let is_same = migrating.is_some_and(|c| number(c, "observedGeneration") == generation);
    match (succeeded, is_same) {
        (true, true) => End {
            reason: "MigrationSucceeded",
            message: "The migration has succeeded and the stored versions have been updated",
            stored: storage_version(definition).map_or(stored, |name| json!([name])),
        },
        (true, false) => End {
            reason: "MigrationSucceeded",
            message: "The migration has succeeded but the stored versions have not been updated \
                due to a generation mismatch",
            stored,
        },
        (false, _) => {
            End { reason: "MigrationFailed", message: "The migration has failed", stored }
        }
    }
}

fn storage_version(definition: &Value) -> Option<&str> {
    let versions = items(get(definition, "spec"), "versions").iter();
    let mut stored = versions.filter(|v| get(v, "storage").as_bool() == Some(true));
    stored.next().map(|version| str_at(version, "name"))
}

fn definitions() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

/// Reads the definition of a migration's resource; `None` for built-in resources.
async fn definition(client: &Client, migration: &Value) -> Result<Option<Value>, Error> {
    let (group, name) = resource(migration);
    if group.is_empty() {
        return Ok(None);
    }
    match client.get_value(&definitions(), "", &format!("{name}.{group}")).await {
        Ok(definition) => Ok(Some(definition)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Applies the condition of a definition, and its stored versions. The resource version prevents a
/// write over a change since the read: the conflict repeats the reconcile.
async fn apply(
    client: &Client,
    definition: &Value,
    status: &str,
    reason: &str,
    message: &str,
    stored: Value,
) -> Result<(), Error> {
    let name = text(definition, "/metadata/name");
    let object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name,
            "resourceVersion": text(definition, "/metadata/resourceVersion")},
        "status": {"storedVersions": stored, "conditions": [{
            "type": MIGRATING, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now(),
            "observedGeneration": int_at(get(definition, "metadata"), "generation"),
        }]},
    });
    let patch = Patch::Apply { object: &object, manager: NAME, force: true };
    client.patch_value(&definitions(), "", name, "status", &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(name: &str, created: &str, conditions: &[&str]) -> Value {
        let conditions: Vec<Value> =
            conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
        json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"resource": {"group": "g", "resource": "rs"}},
            "status": {"conditions": conditions}})
    }

    fn planned(all: &[Value]) -> (Vec<String>, Option<String>) {
        let plan = plan(all.to_vec(), &("g".into(), "rs".into()));
        let name = |m: &Value| text(m, "/metadata/name").to_owned();
        (plan.ended.iter().map(name).collect(), plan.next.as_ref().map(name))
    }

    /// The cases of upstream's `TestCustomResourceController_Sync`.
    #[test]
    fn the_oldest_migration_runs_alone() {
        let (old, new) = (migration("b", "2026-01-01T00:00:00Z", &[]), "2026-01-02T00:00:00Z");
        assert_eq!(planned(&[migration("a", new, &[]), old.clone()]), (vec![], Some("b".into())));
        let same = migration("a", "2026-01-01T00:00:00Z", &[]);
        assert_eq!(planned(&[old.clone(), same]).1, Some("a".into()));
        let running = migration("r", new, &[RUNNING]);
        assert_eq!(planned(&[old.clone(), running]), (vec![], None));
        let ended = migration("e", new, &[RUNNING, SUCCEEDED]);
        assert_eq!(planned(&[old.clone(), ended]), (vec!["e".into()], Some("b".into())));
        let done = migration("d", new, &[SUCCEEDED]);
        assert_eq!(planned(&[done]), (vec![], None));
        assert!(plan(vec![old], &("g".into(), "others".into())).next.is_none());
    }

    fn defined(generation: i64, observed: Option<i64>) -> Value {
        let conditions = observed.map_or(json!([]), |observed| {
            json!([{"type": MIGRATING, "status": "True", "observedGeneration": observed}])
        });
        json!({"metadata": {"name": "rs.g", "generation": generation},
            "spec": {"versions": [{"name": "v1", "storage": false},
                {"name": "v2", "storage": true}]},
            "status": {"storedVersions": ["v1", "v2"], "conditions": conditions}})
    }

    #[test]
    fn stored_versions_are_reset_after_a_success_without_a_change() {
        let both = json!(["v1", "v2"]);
        let ended = |generation, observed, succeeded| {
            let end = end(&defined(generation, observed), succeeded);
            (end.reason, end.message.contains("have been updated"), end.stored)
        };
        assert_eq!(ended(1, Some(1), true), ("MigrationSucceeded", true, json!(["v2"])));
        assert_eq!(ended(2, Some(1), true), ("MigrationSucceeded", false, both.clone()));
        assert_eq!(ended(1, None, true), ("MigrationSucceeded", false, both.clone()));
        assert_eq!(ended(1, Some(1), false), ("MigrationFailed", false, both));
    }
}
