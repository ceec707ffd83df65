//! Server-side apply, and the tracking of field owners for all other writes.

use std::sync::LazyLock;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

use super::managed::{self, ManagedFieldsEntry, Operation};
use super::typed::{self, Comparison, Ty};
use super::{bad_request, plain};
use crate::Status;
use crate::fields::{Path, Set, show};
use crate::object::Gvk;
use crate::schema::{Schema, TypeId};
use crate::status::{Cause, Details};

/// The annotation of client-side apply.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager whose applies take over the fields of client-side apply.
const KUBECTL: &str = "kubectl";
/// The manager of fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Maximum total size of all annotations in bytes, upstream's `TotalAnnotationSizeLimitB`.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Fields that no manager owns.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    Set::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// The manager, time and target of a write, and the type of the object.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The schema table that contains `ty`.
    pub schema: &'a Schema,
    /// The type of the object in the version of the request.
    pub ty: TypeId,
    /// Group, version and kind of the request.
    pub gvk: &'a Gvk,
    /// Whether the object is a custom resource: before its creation it has no fields at all, not
    /// even `metadata`.
    pub custom: bool,
    /// Field manager; an empty string means `unknown`.
    pub manager: &'a str,
    /// The written subresource, or an empty string.
    pub subresource: &'a str,
    /// Fields that this write resets and therefore cannot own (upstream's `GetResetFields`).
    pub reset: Option<&'a Set>,
    /// Time of the write, RFC 3339 in UTC with seconds.
    pub now: &'a str,
}

impl Write<'_> {
    fn root(&self) -> Ty<'static> {
        typed::root(self.schema, self.ty)
    }

    /// The object before its creation: the zero value of its type, or an empty map for a custom
    /// resource.
    fn nothing(&self) -> Value {
        if self.custom { Value::Object(Map::new()) } else { typed::zero(self.schema, self.ty, 0) }
    }

    fn compare(&self, old: &Value, new: &Value) -> Comparison {
        let all = typed::compare(self.schema, self.root(), old, new).without(self.reset);
        Comparison {
            removed: all.removed.difference(&UNOWNED),
            modified: all.modified.difference(&UNOWNED),
            added: all.added.difference(&UNOWNED),
        }
    }

    fn entry(&self, manager: &str, operation: Operation, set: Set) -> ManagedFieldsEntry {
        let mut entry = ManagedFieldsEntry::new(
            manager,
            operation,
            &self.gvk.api_version(),
            self.subresource,
            set,
        );
        entry.time = Some(self.now.to_owned());
        entry
    }
}

fn meta_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata").and_then(Value::as_object_mut)
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata").and_then(|m| m.get("managedFields"))
}

fn set_managed_fields(object: &mut Value, entries: Option<Value>) {
    if let Some(meta) = meta_mut(object) {
        match entries {
            Some(entries) => meta.insert("managedFields".into(), entries),
            None => meta.remove("managedFields"),
        };
    }
}

/// The error text of invalid managed fields (upstream's `ValidateManagedFields`).
pub fn managed_fields_fault(object: &Value) -> Option<String> {
    managed::decode(managed_fields(object).cloned(), true).err().map(|error| error.to_string())
}

/// Records the owners of fields in `new` after a create, update or patch other than apply.
///
/// `live` is the object before the write, `None` on create. The object remains untracked if it has
/// no managers before an update, or if the client resets its managed fields. Entries for another
/// version of the kind are compared by their paths without conversion, so they are inaccurate for
/// kinds whose versions differ in structure.
pub fn track_update(write: &Write<'_>, live: Option<&Value>, new: &mut Value) {
    let Some(sent) = meta_mut(new).map(|m| m.remove("managedFields")) else { return };
    let stored = live.and_then(managed_fields);
    let is_stored = sent.as_ref() == stored;
    // Only a ServiceAccount can contain a reference without a name, which has no key in an
    // associative list. Upstream does not update the owners in this case.
    let has_no_type =
        |object: &Value| typed::validate(write.schema, write.root(), object, true).is_err();
    if &*write.gvk.kind == "ServiceAccount" && (has_no_type(new) || live.is_some_and(has_no_type)) {
        let kept = sent.filter(|sent| sent.as_array().is_some_and(|list| !list.is_empty()));
        return set_managed_fields(new, kept.or_else(|| stored.cloned()));
    }
    let comparison = match live {
        Some(live) => write.compare(live, new),
        None => write.compare(&write.nothing(), new),
    };
    if live.is_some() && comparison.is_same() && (is_stored || !write.subresource.is_empty()) {
        // No owner changes, so the entries are kept without being decoded.
        let kept = if is_stored { sent } else { stored.cloned() };
        return set_managed_fields(new, kept);
    }
    let mut entries = if !write.subresource.is_empty() {
        managed::decode(stored.cloned(), false).unwrap_or_default()
    } else if managed::is_reset(sent.as_ref()) {
        Vec::new()
    } else {
        // Stored entries were validated when they were written; only entries from the client are
        // validated here.
        match managed::decode(sent, !is_stored) {
            Ok(entries) if !entries.is_empty() => entries,
            _ => managed::decode(stored.cloned(), false).unwrap_or_default(),
        }
    };
    // A stored object without managers remains without managers; an object without a uid is not
    // stored yet (upstream's `skipNonAppliedManager`).
    let is_stored = |object: &Value| {
        let uid = object.get("metadata").and_then(|m| m.get("uid")).and_then(Value::as_str);
        uid.is_some_and(|uid| !uid.is_empty())
    };
    if entries.is_empty() && live.is_some_and(is_stored) {
        return;
    }
    let touched = comparison.touched();
    entries.retain_mut(|entry| {
        if !entry.overlaps(&touched) && !entry.overlaps(&comparison.removed) {
            return true;
        }
        let set = entry.set();
        *set = set.difference(&touched).difference(&comparison.removed);
        !set.is_empty()
    });
    if !touched.is_empty() {
        let mine = write.entry(write.manager, Operation::Update, touched);
        match entries.iter_mut().find(|e| e.is_same(&mine)) {
            Some(have) => {
                let previous = std::mem::take(have.set());
                *have = mine;
                let set = std::mem::take(have.set()).union(previous);
                *have.set() = set;
            }
            None => entries.push(mine),
        }
    }
    managed::cap(&mut entries);
    set_managed_fields(new, managed::encode(entries));
}

/// Applies a configuration. The returned object contains the new managed fields; the caller sets
/// its defaults and validates it.
///
/// `live` is the object before the apply, `None` when the apply creates it.
///
/// # Errors
/// Upstream's: 400 for another type or for managed fields in the configuration, 409 with one cause
/// per conflict, 500 without a reason when the configuration does not match the schema.
pub fn apply(
    write: &Write<'_>,
    live: Option<&Value>,
    config: &Value,
    force: bool,
) -> Result<Value, Box<Status>> {
    check_kind(write, config)?;
    let entries = managed::decode(live.and_then(managed_fields).cloned(), true)
        .map_err(|e| plain(format!("failed to decode managed fields: {e}")))?;
    if managed_fields(config).is_some_and(|m| !m.is_null()) {
        return Err(bad_request("metadata.managedFields must be nil"));
    }
    typed::validate(write.schema, write.root(), config, false).map_err(|e| {
        plain(format!("failed to create typed patch object ({}): {e}", named(write, config)))
    })?;
    let outcome = match (attempt(write, live, config, entries.clone(), force), live) {
        (Err(Failure(conflicts)), Some(live)) if write.manager == KUBECTL => {
            match from_last_applied(write, live) {
                Some(allowed) => {
                    let left: Vec<Conflict> =
                        conflicts.into_iter().filter(|c| !allowed.has(&c.path)).collect();
                    if left.is_empty() {
                        attempt(write, Some(live), config, entries, true)
                    } else {
                        Err(Failure(left))
                    }
                }
                None => Err(Failure(conflicts)),
            }
        }
        (outcome, _) => outcome,
    };
    let mut object = outcome.map_err(|Failure(conflicts)| conflict_status(&conflicts))?;
    if write.manager == KUBECTL {
        renew_last_applied(&mut object, config);
    }
    Ok(object)
}

/// Keeps the stored managed fields when a write changes nothing in them but the times, so that the
/// object need not be stored again.
pub fn keep_times_if_unchanged(live: &Value, new: &mut Value) {
    let (Some(old), Some(now)) = (managed_fields(live), managed_fields(new)) else { return };
    let without_time = |list: &Value| -> Option<Vec<Map<String, Value>>> {
        let mut out = Vec::new();
        for entry in list.as_array()? {
            let mut entry = entry.as_object()?.clone();
            entry.remove("time");
            out.push(entry);
        }
        // The times affect the order, so the entries are sorted without them.
        out.compact_sort_by_cached_key(|e| Value::Object(e.clone()).to_string());
        Some(out)
    };
    let same_owners = old != now && without_time(old).is_some_and(|o| Some(o) == without_time(now));
    if !same_owners {
        return;
    }
    let kept = old.clone();
    let taken = meta_mut(new).and_then(|m| m.insert("managedFields".into(), kept));
    if live != new {
        set_managed_fields(new, taken);
    }
}

struct Conflict {
    manager: String,
    path: Path,
}

struct Failure(Vec<Conflict>);

fn check_kind(write: &Write<'_>, config: &Value) -> Result<(), Box<Status>> {
    let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    let gvk = Gvk::from_api_version(text("apiVersion"), text("kind"));
    if gvk == *write.gvk {
        return Ok(());
    }
    Err(bad_request(format!(
        "invalid object type: {}/{}, Kind={}",
        gvk.group, gvk.version, gvk.kind
    )))
}

/// The configuration's name in errors: `namespace/name; group/version, Kind=kind`.
fn named(write: &Write<'_>, config: &Value) -> String {
    let meta = |name: &str| {
        config.get("metadata").and_then(|m| m.get(name)).and_then(Value::as_str).unwrap_or_default()
    };
    let gvk = write.gvk;
    let version =
        if gvk.group.is_empty() { format!("/{}", gvk.version) } else { gvk.api_version() };
    format!("{}/{}; {version}, Kind={}", meta("namespace"), meta("name"), gvk.kind)
}

/// Applies a configuration once; the error contains the conflicts.
fn attempt(
    write: &Write<'_>,
    live: Option<&Value>,
    config: &Value,
    mut entries: Vec<ManagedFieldsEntry>,
    force: bool,
) -> Result<Value, Failure> {
    let (schema, root) = (write.schema, write.root());
    for entry in &mut entries {
        let set = entry.set();
        *set = typed::reconcile(schema, root, set);
    }
    let live = live.map(|live| {
        let mut live = live.clone();
        set_managed_fields(&mut live, None);
        live
    });
    if let Some(live) = live.as_ref().filter(|_| entries.is_empty()) {
        let set = write.compare(&write.nothing(), live).touched();
        if !set.is_empty() {
            entries.push(write.entry(BEFORE_FIRST_APPLY, Operation::Update, set));
        }
    }
    let mut set = typed::field_set(schema, root, config);
    if let Some(reset) = write.reset {
        set = set.recursive_difference(reset);
    }
    let mut mine = write.entry(write.manager, Operation::Apply, set);
    let previous = entries.iter().position(|e| e.is_same(&mine)).map(|at| entries.remove(at));
    mine.time = previous.as_ref().and_then(|p| p.time.clone());
    let mut object = match &live {
        None => config.clone(),
        Some(live) => {
            let merged = typed::merge(schema, root, live, config);
            let last = previous.map(|mut p| std::mem::take(p.set())).unwrap_or_default();
            let pruned = prune(write, merged, &last, &mut mine, &mut entries);
            release(write, live, &pruned, &mut entries, force)?;
            pruned
        }
    };
    if live.as_ref() != Some(&object) {
        mine.time = Some(write.now.to_owned());
    }
    // A container that has lost its last member is null here. For custom resources, their schema
    // determines how nulls are handled.
    if !write.custom {
        typed::drop_nulls(schema, root, &mut object);
    }
    let owned = mine.set().difference(&UNOWNED);
    *mine.set() = owned;
    entries.push(mine);
    entries.retain_mut(|e| !e.set().is_empty());
    if object.get("metadata").is_none_or(Value::is_null)
        && let Value::Object(map) = &mut object
    {
        map.insert("metadata".into(), Value::Object(Map::new()));
    }
    set_managed_fields(&mut object, managed::encode(entries));
    Ok(object)
}

/// Removes the fields that this manager applied before and no longer applies, unless another
/// manager owns them.
fn prune(
    write: &Write<'_>,
    merged: Value,
    last: &Set,
    mine: &mut ManagedFieldsEntry,
    entries: &mut [ManagedFieldsEntry],
) -> Value {
    if last.is_empty() {
        return merged;
    }
    let (schema, root) = (write.schema, write.root());
    let named = |set: &Set| typed::named_fields(schema, Some(root), set);
    let of = |value: &Value| named(&typed::field_set(schema, root, value));
    let last = named(last);
    let owned: Vec<Set> = entries.iter_mut().map(|e| named(e.set())).collect();
    let owned = Set::union_all(std::iter::once(named(mine.set())).chain(owned));
    let all = of(&merged);
    let removed = typed::remove(schema, root, &merged, &last);
    let kept = of(&removed).union(owned);
    let with_owned = typed::remove(schema, root, &merged, &all.difference(&kept));
    let gone = all.difference(&of(&with_owned)).intersection(&last);
    typed::remove(schema, root, &merged, &gone)
}

/// Removes the changed fields from the entries of other managers. Without `force`, such a field is
/// a conflict.
fn release(
    write: &Write<'_>,
    live: &Value,
    new: &Value,
    entries: &mut [ManagedFieldsEntry],
    force: bool,
) -> Result<(), Failure> {
    let comparison = write.compare(live, new);
    let touched = comparison.touched();
    if !force {
        let mut owners: Vec<(String, Vec<Path>)> = entries
            .iter_mut()
            .map(|e| (e.show(), e.set().intersection(&touched).paths()))
            .filter(|(_, paths)| !paths.is_empty())
            .collect();
        owners.compact_sort_by(|a, b| a.0.cmp(&b.0));
        let conflicts: Vec<Conflict> = owners
            .into_iter()
            .flat_map(|(manager, paths)| {
                paths.into_iter().map(move |path| Conflict { manager: manager.clone(), path })
            })
            .collect();
        if !conflicts.is_empty() {
            return Err(Failure(conflicts));
        }
    }
    for entry in entries {
        let set = entry.set();
        *set = set.difference(&touched).difference(&comparison.removed);
    }
    Ok(())
}

fn conflict_status(conflicts: &[Conflict]) -> Box<Status> {
    let message = match conflicts {
        [one] => format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager,
            show(&one.path)
        ),
        many => {
            let mut lines: Vec<String> = Vec::new();
            let mut last = None;
            for conflict in many {
                if last != Some(&conflict.manager) {
                    lines.push(format!("conflicts with {}:", conflict.manager));
                    last = Some(&conflict.manager);
                }
                lines.push(format!("- {}", show(&conflict.path)));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    let causes = conflicts
        .iter()
        .map(|c| Cause {
            reason: "FieldManagerConflict".into(),
            message: format!("conflict with {}", c.manager),
            field: show(&c.path),
        })
        .collect();
    let mut status = Status::failure(409, "Conflict", message);
    status.details = Some(Details { causes, ..Details::default() });
    Box::new(status)
}

/// Fields that client-side apply set and whose values are unchanged; `None` without a valid
/// annotation.
fn from_last_applied(write: &Write<'_>, live: &Value) -> Option<Set> {
    let text = live.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(write.gvk.api_version().as_str()) {
        return None;
    }
    let (schema, root) = (write.schema, write.root());
    typed::validate(schema, root, live, false).ok()?;
    typed::validate(schema, root, &last, false).ok()?;
    let comparison = typed::compare(schema, root, &last, live);
    let set = typed::field_set(schema, root, &last);
    Some(
        set.difference(&comparison.modified)
            .difference(&comparison.added)
            .difference(&comparison.removed),
    )
}

/// Updates the annotation of client-side apply if the object has one.
fn renew_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = object
        .get_mut("metadata")
        .and_then(|m| m.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(own) = config
        .get_mut("metadata")
        .and_then(|m| m.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    {
        own.remove(LAST_APPLIED);
    }
    // Go's encoder escapes characters with a meaning in HTML and ends the document with a newline.
    let mut text = String::new();
    for c in config.to_string().chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            c => text.push(c),
        }
    }
    text.push('\n');
    annotations.insert(LAST_APPLIED.into(), text.into());
    let size: usize =
        annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

#[cfg(test)]
mod tests;
