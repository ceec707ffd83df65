//! StorageVersionMigrations: rewrites every object of a resource, so that each is stored in the
//! current storage version and with the current encryption key.
//!
//! As upstream, three parts act on one object in turn, each through its conditions: `runner` allows
//! one migration per resource, `list_version` records the resource version up to which objects are
//! rewritten, and `migrator` rewrites them. The API server decides whether a rewrite changes the
//! stored bytes; if it does not, nothing is written.

mod conditions;
mod list_version;
mod migrator;
mod pace;
mod runner;

use std::time::Duration;

use api::Gvr;
use client::{Client, Error, Informer, Scope};
use serde_json::Value;

use crate::framework::context::Context;
use crate::framework::edit;
use crate::framework::keyed::settled;
use crate::framework::served_resources::{self, Served};

const CONTROLLER: &str = "storage-version-migrator-controller";
/// How long a resource that discovery lacks is waited for after the creation of the migration, in
/// seconds.
const DISCOVERY_GRACE: i64 = 60;
/// Interval between two discoveries in that time; upstream renews its mapper as often.
const DISCOVERY_RETRY: Duration = Duration::from_secs(10);

fn migrations_gvr() -> Gvr {
    Gvr::new("storagemigration.k8s.io", "v1", "storageversionmigrations")
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let migrations: Informer<()> = context.informers.scoped(Scope::all(migrations_gvr()));
    runner::start(context, &client, &migrations);
    list_version::start(context, &client, &migrations);
    migrator::start(context, &client, &migrations);
}

/// Text of a field; empty if it is absent.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Group and resource that a migration names.
fn resource(migration: &Value) -> (String, String) {
    let part = |pointer| text(migration, pointer).to_owned();
    (part("/spec/resource/group"), part("/spec/resource/resource"))
}

/// The result of the search for the resource of a migration.
enum Lookup {
    Found(Box<Served>),
    /// It may be discovered later.
    Pending,
    Absent,
}

/// Finds the resource of a migration by discovery, in the preferred version.
///
/// # Errors
/// The API server does not answer.
async fn find(client: &Client, migration: &Value) -> Result<Lookup, Error> {
    let (group, name) = resource(migration);
    let discovery = served_resources::discover(client).await?;
    let is_it = |s: &&Served| *s.gvr.group == *group && *s.gvr.resource == *name;
    if let Some(served) = discovery.resources.iter().find(is_it) {
        return Ok(Lookup::Found(Box::new(served.clone())));
    }
    let now = jiff::Timestamp::now();
    if is_recent(migration, now) || discovery.group_failed(&group) {
        return Ok(Lookup::Pending);
    }
    Ok(Lookup::Absent)
}

/// Whether a migration was created less than a minute ago: a resource that was defined before it
/// may not be discovered yet.
fn is_recent(migration: &Value, now: jiff::Timestamp) -> bool {
    let created = text(migration, "/metadata/creationTimestamp").parse::<jiff::Timestamp>();
    created
        .is_ok_and(|created| now.as_second().saturating_sub(created.as_second()) < DISCOVERY_GRACE)
}

/// Go's text of a `GroupVersionResource`.
fn go_text(gvr: &Gvr) -> String {
    format!("{}/{}, Resource={}", gvr.group, gvr.version, gvr.resource)
}

/// Writes the status of a migration. A migration that has changed or is gone is left to the event
/// of its change.
async fn write_status(client: &Client, migration: &Value) -> Result<(), Error> {
    settled(edit::put(client, &migrations_gvr(), "status", migration).await)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resource_may_be_discovered_within_a_minute() {
        let migration = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        let at = |time: &str| time.parse::<jiff::Timestamp>().unwrap();
        assert!(is_recent(&migration, at("2026-01-01T00:00:59Z")));
        assert!(!is_recent(&migration, at("2026-01-01T00:01:00Z")));
        assert!(!is_recent(&json!({}), at("2026-01-01T00:00:00Z")));
    }

    #[test]
    fn resources_are_printed_as_in_go() {
        let secrets = Gvr::new("", "v1", "secrets");
        assert_eq!(go_text(&secrets), "/v1, Resource=secrets");
    }
}
