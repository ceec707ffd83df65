//! Records in a running migration the current resource version of its resource: objects that change
//! later are stored in the current form anyway (upstream's `resource-version-controller`).

use api::resource_version::check;
use api::value::{ensure_object, set};
use client::{Action, Client, Error, Informer};
use serde_json::Value;

use super::conditions::{FAILED, FAILED_REASON, RUNNING, add_condition, is_terminal, is_true, now};
use super::migrator::Pages;
use super::{DISCOVERY_RETRY, Lookup, find, go_text, text, write_status};
use crate::framework::context::Context;
use crate::framework::keyed::Keyed;
use crate::framework::served_resources::Served;

const NAME: &str = "resource-version-controller";
/// The verbs that a migration needs.
const VERBS: [&str; 3] = ["update", "patch", "list"];

/// Starts the worker, whose keys are migrations.
pub(super) fn start(context: &Context, client: &Client, migrations: &Informer<()>) {
    let mut keyed = Keyed::new();
    keyed.watches_self(migrations);
    let (client, migrations) = (client.clone(), migrations.clone());
    keyed.run(&context.tasks, NAME, 1, move |(_, name)| {
        let (client, migrations) = (client.clone(), migrations.clone());
        async move {
            match migrations.cache().get("", &name) {
                Some(object) => reconcile(&client, object.value()?).await,
                None => Ok(Action::Done),
            }
        }
    });
}

fn is_due(migration: &Value) -> bool {
    is_true(migration, RUNNING)
        && !is_terminal(migration)
        && text(migration, "/status/resourceVersion").is_empty()
}

/// Why the objects of a resource cannot be rewritten.
fn missing_verbs(served: &Served) -> Option<String> {
    (!served.can(&VERBS)).then(|| {
        let (resource, verbs) = (go_text(&served.gvr), VERBS.join(" "));
        format!("resource \"{resource}\" does not support discovery operations: [{verbs}]")
    })
}

async fn reconcile(client: &Client, mut migration: Value) -> Result<Action, Error> {
    if !is_due(&migration) {
        return Ok(Action::Done);
    }
    let served = match find(client, &migration).await? {
        Lookup::Found(served) => served,
        Lookup::Pending => return Ok(Action::After(DISCOVERY_RETRY)),
        Lookup::Absent => {
            return fail(client, migration, "resource does not exist in discovery").await;
        }
    };
    if let Some(message) = missing_verbs(&served) {
        return fail(client, migration, &message).await;
    }
    let version = Pages::new(&served.gvr).version(client).await?;
    if let Err(error) = check(&version) {
        let resource = go_text(&served.gvr);
        let message = format!("latest resourceVersion for {resource} is not valid: {error}");
        return fail(client, migration, &message).await;
    }
    if let Some(status) = ensure_object(&mut migration, "status") {
        set(status, "resourceVersion", version);
    }
    write_status(client, &migration).await?;
    Ok(Action::Done)
}

async fn fail(client: &Client, mut migration: Value, message: &str) -> Result<Action, Error> {
    add_condition(&mut migration, FAILED, FAILED_REASON, message, &now());
    write_status(client, &migration).await?;
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{Gvk, Gvr};
    use serde_json::json;

    /// The cases of upstream's `TestResourceVersionController_Sync`.
    #[test]
    fn only_a_running_migration_without_version_is_due() {
        let migration = |conditions: &[&str], version: &str| {
            let conditions: Vec<Value> =
                conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
            json!({"status": {"conditions": conditions, "resourceVersion": version}})
        };
        assert!(is_due(&migration(&[RUNNING], "")));
        for (conditions, version) in [
            (&[][..], ""),
            (&[RUNNING, "Succeeded"], ""),
            (&[RUNNING, "Failed"], ""),
            (&[RUNNING], "5"),
        ] {
            assert!(!is_due(&migration(conditions, version)), "{conditions:?} {version}");
        }
    }

    /// The cases of upstream's `TestIsResourceMigratable`.
    #[test]
    fn a_migration_needs_three_verbs() {
        let served = |verbs: &[&str]| Served {
            gvr: Gvr::new("g", "v1", "rs"),
            kind: Gvk::new("g", "v1", "R"),
            namespaced: true,
            verbs: verbs.iter().map(|v| (*v).to_owned()).collect(),
        };
        assert_eq!(missing_verbs(&served(&["list", "patch", "update", "watch"])), None);
        for verbs in [["list", "patch"], ["list", "update"], ["patch", "update"]] {
            assert_eq!(
                missing_verbs(&served(&verbs)).as_deref(),
                Some(
                    "resource \"g/v1, Resource=rs\" does not support discovery operations: \
                     [update patch list]"
                )
            );
        }
    }
}
