//! The conditions of a migration (`metav1.Condition`), with upstream's reasons and messages.

pub(super) use api::value::is_condition_true as is_true;
use api::value::{condition, ensure_object, items_mut, set, str_at};
use serde_json::{Value, json};

pub(super) const RUNNING: &str = "Running";
pub(super) const SUCCEEDED: &str = "Succeeded";
pub(super) const FAILED: &str = "Failed";

pub(super) const RUNNING_REASON: &str = "MigrationRunning";
pub(super) const SUCCEEDED_REASON: &str = "StorageVersionMigrationSucceeded";
pub(super) const FAILED_REASON: &str = "StorageVersionMigrationFailed";

/// A condition that is to be set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Condition<'a> {
    pub(super) kind: &'a str,
    pub(super) status: bool,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl Condition<'_> {
    fn status(&self) -> &'static str {
        if self.status { "True" } else { "False" }
    }

    fn value(&self, now: &str) -> Value {
        json!({"type": self.kind, "status": self.status(), "reason": self.reason,
            "message": self.message, "lastTransitionTime": now})
    }
}

/// Progress of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Objects that are still to be rewritten.
    pub(super) left: u64,
    /// All objects of the resource.
    pub(super) total: u64,
}

/// The current time in the form of `metav1.Time`.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether a migration has succeeded or failed.
pub(super) fn is_terminal(migration: &Value) -> bool {
    is_true(migration, SUCCEEDED) || is_true(migration, FAILED)
}

/// Sets a condition (`meta.SetStatusCondition`); the time changes with the status alone. Returns
/// whether anything changed.
pub(super) fn set_condition(migration: &mut Value, new: &Condition<'_>, now: &str) -> bool {
    let Some(status) = ensure_object(migration, "status") else { return false };
    let mut conditions = items_mut(status, "conditions").iter_mut();
    let Some(old) = conditions.find(|c| str_at(c, "type") == new.kind) else {
        append(status, new.value(now));
        return true;
    };
    let mut changed = false;
    if str_at(old, "status") != new.status() {
        set_text(old, "status", new.status());
        set_text(old, "lastTransitionTime", now);
        changed = true;
    }
    for (key, value) in [("reason", new.reason), ("message", new.message)] {
        if str_at(old, key) != value {
            set_text(old, key, value);
            changed = true;
        }
    }
    changed
}

/// Adds a true condition, unless the migration has it already, true or false.
pub(super) fn add_condition(
    migration: &mut Value,
    kind: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let status = condition(migration, kind).map(|c| str_at(c, "status"));
    if matches!(status, Some("True" | "False")) {
        return;
    }
    let condition = Condition { kind, status: true, reason, message };
    if let Some(status) = ensure_object(migration, "status") {
        append(status, condition.value(now));
    }
}

fn set_text(condition: &mut Value, key: &str, text: &str) {
    if let Some(fields) = condition.as_object_mut() {
        fields.insert(key.to_owned(), text.into());
    }
}

fn append(status: &mut Value, condition: Value) {
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(list) => list.push(condition),
        None => set(status, "conditions", json!([condition])),
    }
}

/// The message of a running migration.
pub(super) fn running_message(progress: Option<Progress>, transient: Option<&str>) -> String {
    let mut message = "The migration is running".to_owned();
    if let Some(Progress { left, total }) = progress.filter(|p| p.total > 0) {
        message += &match left {
            0 => format!(", {total} objects verified migrated"),
            left => format!(", {left}/{total} objects not yet migrated"),
        };
    }
    if let Some(error) = transient {
        message += &format!("; transient error: {error}");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_upstream() {
        let progress = |left, total| Some(Progress { left, total });
        for (progress, transient, message) in [
            (None, None, "The migration is running"),
            (progress(0, 0), None, "The migration is running"),
            (progress(2, 3), None, "The migration is running, 2/3 objects not yet migrated"),
            (progress(0, 3), None, "The migration is running, 3 objects verified migrated"),
            (
                progress(1, 2),
                Some("x"),
                "The migration is running, 1/2 objects not yet migrated; transient error: x",
            ),
        ] {
            assert_eq!(running_message(progress, transient), message);
        }
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut migration = json!({});
        let condition = |status, message| Condition { kind: RUNNING, status, reason: "R", message };
        assert!(set_condition(&mut migration, &condition(true, "a"), "1"));
        assert!(!set_condition(&mut migration, &condition(true, "a"), "2"));
        assert!(set_condition(&mut migration, &condition(true, "b"), "3"));
        let list = &migration["status"]["conditions"];
        assert_eq!(
            (&list[0]["lastTransitionTime"], &list[0]["message"]),
            (&json!("1"), &json!("b"))
        );
        assert!(set_condition(&mut migration, &condition(false, "b"), "4"));
        assert_eq!(migration["status"]["conditions"][0]["lastTransitionTime"], "4");
        assert!(!is_true(&migration, RUNNING) && !is_terminal(&migration));
    }

    #[test]
    fn a_condition_is_added_once() {
        let mut migration = json!({"status": {}});
        for message in ["a", "b"] {
            add_condition(&mut migration, FAILED, FAILED_REASON, message, "1");
        }
        let list = migration["status"]["conditions"].as_array().unwrap();
        assert_eq!((list.len(), &list[0]["message"]), (1, &json!("a")));
        assert!(is_terminal(&migration));
    }
}
