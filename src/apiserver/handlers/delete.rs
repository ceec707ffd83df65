//! DELETE of one object and of a collection: grace periods, finalizers and propagation (upstream's
//! generic registry `Store.Delete`).

use std::sync::Arc;

use api::{Object, Status};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::list;
use crate::request::body;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::negotiate;
use crate::request::negotiate::Media;
use crate::request::options::{
    DeleteOptions, FieldValidation, IGNORE_READ_ERROR, ListOptions, Propagation, WriteOptions,
};
use crate::response::encode;
use crate::serialization;
use crate::write::{Write, url_name};

use crate::registry::storage::{Deletion, Written};
use crate::registry::{Resource, metadata};
use crate::write::service_allocation;

/// Attempts of a deletion when the object changes concurrently.
const RETRY_MAX: usize = 10;

/// The outcome of a deletion.
pub(super) enum Deleted {
    /// The object was deleted; its last state.
    Gone(Arc<Object>),
    /// The object is marked and exists until its finalizers are removed or its grace period ends.
    Marked(Arc<Object>),
}

/// Handles a delete.
///
/// # Errors
/// Any error of options, preconditions, admission or storage.
pub(super) async fn delete(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let name = url_name(context)?;
    let options = read_options(context, exchange.body).await?;
    if options.ignore_read_error {
        return super::unsafe_delete::delete(context, name, &options).await;
    }
    warn_of_orphans(context, &options);
    let deleted = remove(context, &context.row, context.namespace(), name, &options).await?;
    let object = match deleted {
        Deleted::Gone(object) if !returns_object(&context.row) => {
            return encode::value(context, StatusCode::OK, &encode::success(&context.row, &object));
        }
        Deleted::Gone(object) | Deleted::Marked(object) => object,
    };
    encode::object(context, StatusCode::OK, &object)
}

/// The options of a deletion, from the body, or from the query when the body is empty.
async fn read_options(context: &Context, body: Body) -> Result<DeleteOptions, Status> {
    let bytes = body::read(body).await?;
    context.size.record(bytes.len()).await;
    if bytes.is_empty() {
        return DeleteOptions::of_query(&context.query);
    }
    let media = negotiate::content_type(&context.headers)?;
    let kind = api::Gvk::new("", "v1", "DeleteOptions");
    // Options have a separate decoder, which reports errors without context and has no other kinds.
    let named = match media {
        Media::Json => api::codec::json::interpret(&bytes).ok(),
        Media::Yaml => api::codec::yaml::interpret(&bytes).ok(),
        Media::Protobuf => None,
    };
    if let Some(named) = named.filter(|named| !matches!(named.kind.as_str(), "" | "DeleteOptions"))
    {
        let version = if named.api_version.is_empty() { "v1" } else { &named.api_version };
        return Err(Status::bad_request(serialization::no_kind(&named.kind, version)));
    }
    let value = input::decode(context, media, &bytes, &kind, FieldValidation::Ignore)
        .map_err(|refusal| Status::bad_request(input::cause(&refusal, &kind)))?;
    crate::audit::request_object(&value, |mut recorded| {
        // The version to which upstream's decoder converts the options.
        let internal = api::Gvk::new("meta.k8s.io", "__internal", "DeleteOptions");
        input::name_kind(&mut recorded, &internal);
        recorded
    });
    DeleteOptions::of_value(&value)
}

/// Warns that the pods of a Job are orphaned by default.
fn warn_of_orphans(context: &Context, options: &DeleteOptions) {
    let gvr = &context.row.spec.gvr;
    let is_job = (&*gvr.group, &*gvr.resource) == ("batch", "jobs");
    if is_job && options.propagation.is_none() && options.orphan.is_none() {
        context.warn(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set \
             propagationPolicy=Orphan to suppress this warning",
        );
    }
}

/// Resources whose deletion answers with the object (upstream's `ReturnDeletedObject`).
fn returns_object(row: &Resource) -> bool {
    matches!(
        (row.spec.gvr.group.as_ref(), row.spec.gvr.resource.as_ref()),
        (
            "",
            "resourcequotas"
                | "persistentvolumes"
                | "serviceaccounts"
                | "persistentvolumeclaims"
                | "pods"
                | "services"
                | "podtemplates"
        ) | (
            "storage.k8s.io",
            "csidrivers"
                | "storageclasses"
                | "volumeattachments"
                | "csinodes"
                | "volumeattributesclasses"
        ) | ("resource.k8s.io", _)
    )
}

/// Deletes one object.
///
/// # Errors
/// 404, 409 for an unmet precondition, or the error of admission.
pub(super) async fn remove(
    context: &Context,
    row: &Arc<Resource>,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    let storage = context.server.objects.storage();
    let write_options = WriteOptions {
        dry_run: options.dry_run,
        manager: String::new(),
        validation: FieldValidation::Ignore,
        force: None,
    };
    let delete_options = Some(options.members());
    let write = Write {
        context,
        options: &write_options,
        row,
        subresource: "",
        applies: false,
        delete_options,
    };
    let missing = || Status::not_found(&row.spec.gvr.group, &row.spec.gvr.resource, name);
    let mut current = storage.get(row, namespace, name).await?;
    // The object that this request marked for deletion.
    let mut marked: Option<Object> = None;
    for _ in 0..RETRY_MAX {
        let Some(found) = current else {
            // The pod's node has already completed the deletion after the mark; upstream ignores
            // the missing object, too.
            return marked.map(|object| Deleted::Gone(Arc::new(object))).ok_or_else(missing);
        };
        match remove_version(&write, found, options, &mut marked).await? {
            RemoveAttempt::Done(deleted) => return Ok(deleted),
            RemoveAttempt::Changed(changed) => current = changed,
        }
    }
    Err(write.conflict(name))
}

/// The outcome of one attempt of a deletion.
enum RemoveAttempt {
    Done(Deleted),
    /// The object as a concurrent write left it; `None` when it was deleted.
    Changed(Option<Object>),
}

/// Deletes this version of an object; sets `marked` to the object that it marked before.
async fn remove_version(
    write: &Write<'_>,
    found: Object,
    options: &DeleteOptions,
    marked: &mut Option<Object>,
) -> Result<RemoveAttempt, Status> {
    let (context, row) = (write.context, write.row);
    context.size.record(found.raw().len()).await;
    let mut value = found.value().map_err(|e| Status::internal(&e.to_string()))?;
    preconditions(row, &found, options)?;
    if !options.is_admitted {
        write.admit_delete(&found.key.name, &value).await?;
    }
    context.size.checkpoint().await;
    let mut plan = plan(row, &mut value, options);
    // The instances of a CustomResourceDefinition are deleted before it, also where upstream's
    // deletion of a collection does not delete them.
    if let Some(definition) = definition_to_terminate(row, &found)? {
        value = definition;
        crate::crd::status::begin_deletion(&mut value);
        plan = Plan::Mark;
    }
    if plan == Plan::Pending {
        return Ok(RemoveAttempt::Done(Deleted::Marked(Arc::new(found))));
    }
    if options.dry_run {
        let object = write.dry(&value, found.resource_version)?;
        return Ok(RemoveAttempt::Done(match plan {
            Plan::Mark => Deleted::Marked(object),
            _ => Deleted::Gone(object),
        }));
    }
    let storage = context.server.objects.storage();
    let mut last = found;
    if matches!(plan, Plan::Mark | Plan::MarkThenDelete) {
        match storage.write(row, &value, last.resource_version).await? {
            Written::Done(object) if plan == Plan::Mark => {
                return Ok(RemoveAttempt::Done(Deleted::Marked(Arc::new(object))));
            }
            Written::Done(object) => {
                *marked = Some(object.clone());
                last = object;
            }
            Written::Changed(changed) => return Ok(RemoveAttempt::Changed(changed)),
        }
    }
    match storage.delete(row, &last).await? {
        Deletion::Done(revision) => {
            service_allocation::deleted(context, row, &value).await;
            last.resource_version = revision;
            Ok(RemoveAttempt::Done(Deleted::Gone(Arc::new(last))))
        }
        Deletion::Changed(changed) => Ok(RemoveAttempt::Changed(changed)),
    }
}

/// A CustomResourceDefinition that is not being deleted yet; `None` for any other object.
fn definition_to_terminate(row: &Resource, found: &Object) -> Result<Option<Value>, Status> {
    if row.spec.gvr != crate::crd::status::definitions() {
        return Ok(None);
    }
    let old = found.value().map_err(|e| Status::internal(&e.to_string()))?;
    Ok(metadata::text(&old, "deletionTimestamp").is_empty().then_some(old))
}

/// Checks the preconditions of a deletion.
///
/// # Errors
/// 409 when the object has another uid or resource version.
pub(super) fn preconditions(
    row: &Resource,
    found: &Object,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let spec = &row.spec;
    // Upstream has one type for the Events of both groups and names the older group.
    let group = if &*spec.gvk.group == "events.k8s.io" { "" } else { &*spec.gvk.group };
    let conflict =
        |why: String| Err(Status::conflict(group, &spec.gvk.kind, &found.key.name, &why));
    if let Some(uid) = options.uid.as_deref().filter(|uid| **uid != *found.uid) {
        return conflict(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            found.uid
        ));
    }
    let version = found.resource_version.to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|v| *v != version) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        ));
    }
    Ok(())
}

/// The next step of a deletion.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing: a deletion is in progress and this one does not change it.
    Pending,
    /// Write the marked object.
    Mark,
    /// Write the marked object, then delete it (a graceful kind without grace period).
    MarkThenDelete,
    /// Delete it.
    Delete,
}

/// Decides the next step and marks the object: deletion time, grace period, finalizers of the
/// garbage collector (`BeforeDelete` and `updateForGracefulDeletionAndFinalizers` of
/// `k8s.io/apiserver/pkg/registry`).
fn plan(row: &Resource, value: &mut Value, options: &DeleteOptions) -> Plan {
    let is_namespace = row.spec.gvk.kind.as_ref() == "Namespace" && row.spec.gvk.group.is_empty();
    let is_deleting = !metadata::text(value, "deletionTimestamp").is_empty();
    if is_namespace && !is_deleting {
        mark(value);
        if let Some(map) = value.as_object_mut() {
            let phase = map.entry("status").or_insert_with(|| json!({}));
            if let Some(phase) = phase.as_object_mut() {
                phase.insert("phase".into(), "Terminating".into());
            }
        }
        set_gc_finalizers(row, value, options);
        return Plan::Mark;
    }
    let has_namespace_finalizer = is_namespace
        && value
            .pointer("/spec/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|f| !f.is_empty());
    if has_namespace_finalizer {
        return Plan::Pending;
    }
    let is_graceful = row.spec.gvk.kind.as_ref() == "Pod" && row.spec.gvk.group.is_empty();
    let requested = options.grace.map(|g| if g < 0 { 1 } else { g });
    let mut marked = false;
    let mut grace = 0;
    if is_graceful {
        match grace_of(value, requested, is_deleting) {
            Grace::Pending => return Plan::Pending,
            Grace::None => {}
            Grace::Set { seconds, time } => {
                let metadata = metadata::metadata_mut(value);
                metadata.insert("deletionTimestamp".into(), metadata::rfc3339(time).into());
                metadata.insert("deletionGracePeriodSeconds".into(), seconds.into());
                if !is_deleting {
                    increment_generation(value);
                }
                marked = true;
                grace = seconds;
            }
        }
    }
    let has_changed = set_gc_finalizers(row, value, options);
    let is_held = !metadata::finalizers(value).is_empty();
    match (marked, is_held) {
        (true, true) => Plan::Mark,
        (true, false) if grace > 0 => Plan::Mark,
        (true, false) => Plan::MarkThenDelete,
        (false, true) => {
            if is_deleting
                && !has_changed
                && metadata::number(value, "deletionGracePeriodSeconds") == Some(0)
            {
                return Plan::Pending;
            }
            mark(value);
            Plan::Mark
        }
        (false, false) => Plan::Delete,
    }
}

/// The effect of a grace period on a pod.
enum Grace {
    /// A deletion is in progress and this one does not shorten it.
    Pending,
    /// No grace period: delete now.
    None,
    /// Delete at this time (seconds since the epoch).
    Set { seconds: i64, time: i64 },
}

/// The grace period of a pod (`BeforeDelete`, `podStrategy.CheckGracefulDelete`).
fn grace_of(pod: &Value, requested: Option<i64>, is_deleting: bool) -> Grace {
    let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(0);
    if is_deleting {
        let left = metadata::number(pod, "deletionGracePeriodSeconds")
            .map_or(0, |g| if g < 0 { 1 } else { g });
        if left == 0 {
            return Grace::None;
        }
        let Some(period) = requested.filter(|p| *p < left) else { return Grace::Pending };
        let old = metadata::seconds(metadata::text(pod, "deletionTimestamp")).unwrap_or(now);
        let time = old - left + period;
        // A period that has already expired becomes the shortest one that the node still acts on.
        return if time < now {
            Grace::Set { seconds: i64::from(period != 0), time: now }
        } else {
            Grace::Set { seconds: period, time }
        };
    }
    let mut period = requested
        .or_else(|| pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64))
        .unwrap_or(0);
    let is_unscheduled =
        pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().is_empty();
    let is_finished = matches!(
        pod.pointer("/status/phase").and_then(Value::as_str),
        Some("Failed" | "Succeeded")
    );
    if is_unscheduled || is_finished {
        period = 0;
    }
    if period < 0 {
        period = 1;
    }
    Grace::Set { seconds: period, time: now + period }
}

fn increment_generation(value: &mut Value) {
    if let Some(generation) = metadata::number(value, "generation").filter(|g| *g > 0) {
        metadata::metadata_mut(value).insert("generation".into(), (generation + 1).into());
    }
}

/// Marks an object that has only finalizers left.
fn mark(value: &mut Value) {
    let text = metadata::text(value, "deletionTimestamp").to_owned();
    if text.is_empty() {
        increment_generation(value);
    }
    let now = metadata::now();
    let is_future = metadata::seconds(&text) > metadata::seconds(&now);
    let metadata = metadata::metadata_mut(value);
    if text.is_empty() || is_future {
        metadata.insert("deletionTimestamp".into(), now.into());
    }
    metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
}

/// Sets the finalizers that determine how the garbage collector handles dependents
/// (`deletionFinalizersForGarbageCollection`); returns whether they changed.
fn set_gc_finalizers(row: &Resource, value: &mut Value, options: &DeleteOptions) -> bool {
    let is_unsupported = row.spec.gvr.resource.as_ref() == "events";
    let old = metadata::finalizers(value);
    let has = |name: &str| old.iter().any(|f| f == name);
    let is_orphaned_by_default = matches!(
        (row.spec.gvr.group.as_ref(), row.spec.gvr.resource.as_ref()),
        ("batch", "jobs") | ("", "replicationcontrollers")
    );
    let (orphan, foreground) = if is_unsupported {
        (false, false)
    } else {
        match (options.orphan, options.propagation) {
            (Some(orphan), _) => (orphan, false),
            (None, Some(policy)) => {
                (policy == Propagation::Orphan, policy == Propagation::Foreground)
            }
            (None, None) if has("orphan") => (true, false),
            (None, None) if has("foregroundDeletion") => (false, true),
            (None, None) => (is_orphaned_by_default, false),
        }
    };
    let mut new: Vec<String> = old
        .iter()
        .filter(|f| !matches!(f.as_str(), "orphan" | "foregroundDeletion"))
        .cloned()
        .collect();
    if orphan {
        new.push("orphan".into());
    }
    if foreground {
        new.push("foregroundDeletion".into());
    }
    let is_same = new.len() == old.len() && new.iter().all(|f| old.contains(f));
    if !is_same {
        metadata::set_finalizers(value, &new);
    }
    !is_same
}

/// Handles the deletion of a collection: deletes every selected object as a single deletion does.
///
/// # Errors
/// The first error other than 404.
pub(super) async fn delete_collection(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let list_options = ListOptions::read(&context.query, false)?;
    let options = read_options(context, exchange.body).await?;
    if options.ignore_read_error {
        let error = api::field::Error::invalid(
            &api::field::Path::new(IGNORE_READ_ERROR),
            true,
            "is not allowed with DELETECOLLECTION, try again after removing the option",
        );
        return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &[error]));
    }
    warn_of_orphans(context, &options);
    let filter = list::filter(context)?;
    let (head, items) = list::select(context, &list_options, &filter).await?;
    for object in &items {
        let outcome =
            remove(context, &context.row, &object.key.namespace, &object.key.name, &options).await;
        match outcome {
            Err(refusal) if !refusal.is("NotFound") => return Err(refusal),
            _ => {}
        }
    }
    encode::list(context, &head, items).await
}

#[cfg(test)]
mod tests;
