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

/// How often a deletion is tried against a newer object.
const RETRY_MAX: usize = 10;

/// What became of the object.
pub(super) enum Deleted {
    /// It is gone; its last state.
    Gone(Arc<Object>),
    /// It stays until its finalizers or its grace are over.
    Marked(Arc<Object>),
}

/// Answers a delete.
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

/// The options of a deletion: the body's when there is one, else the query's.
async fn read_options(context: &Context, body: Body) -> Result<DeleteOptions, Status> {
    let bytes = body::read(body).await?;
    context.size.note(bytes.len()).await;
    if bytes.is_empty() {
        return DeleteOptions::of_query(&context.query);
    }
    let media = negotiate::content_type(&context.headers)?;
    let kind = api::Gvk::new("", "v1", "DeleteOptions");
    // Options have a separate decoder, which reports bare errors and knows no other kinds.
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
    crate::audit::request_object(&value, |mut shown| {
        // The version in which upstream's decoder has them, whatever was sent.
        input::name_kind(&mut shown, &api::Gvk::new("meta.k8s.io", "__internal", "DeleteOptions"));
        shown
    });
    DeleteOptions::of_value(&value)
}

/// The pods of a Job are orphaned by default; the client gets a warning.
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
/// 404, 409 of a precondition, 422 of the options, admission's refusal.
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
    // What was marked for deletion by this very request.
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
    context.size.note(found.raw().len()).await;
    let mut value = found.value().map_err(|e| Status::internal(&e.to_string()))?;
    preconditions(row, &found, options)?;
    if !options.is_admitted {
        write.admit_delete(&found.key.name, &value).await?;
    }
    context.size.checkpoint().await;
    let mut plan = plan(row, &mut value, options);
    // The instances of a CustomResourceDefinition are deleted before it, also where upstream's
    // deletion of a collection leaves them behind.
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

/// What the client wants the object to be still.
///
/// # Errors
/// 409 when it is another one, or was changed.
pub(super) fn preconditions(
    row: &Resource,
    found: &Object,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let spec = &row.spec;
    // To upstream events of both groups are one kind here, that of the older group.
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

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing: a deletion with no more grace is under way.
    Pending,
    /// Write the marked object and leave it.
    Mark,
    /// Write the marked object, then delete it (a graceful kind with no grace left).
    MarkThenDelete,
    /// Delete it.
    Delete,
}

/// Decides, and marks the object: deletion time, grace, finalizers of the garbage collector
/// (`BeforeDelete` and `updateForGracefulDeletionAndFinalizers` of
/// `k8s.io/apiserver/pkg/registry`).
fn plan(row: &Resource, value: &mut Value, options: &DeleteOptions) -> Plan {
    let namespace = row.spec.gvk.kind.as_ref() == "Namespace" && row.spec.gvk.group.is_empty();
    let deleting = !metadata::text(value, "deletionTimestamp").is_empty();
    if namespace && !deleting {
        mark(value);
        if let Some(map) = value.as_object_mut() {
            let phase = map.entry("status").or_insert_with(|| json!({}));
            if let Some(phase) = phase.as_object_mut() {
                phase.insert("phase".into(), "Terminating".into());
            }
        }
        collect(row, value, options);
        return Plan::Mark;
    }
    let namespace_held = namespace
        && value
            .pointer("/spec/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|f| !f.is_empty());
    if namespace_held {
        return Plan::Pending;
    }
    let graceful = row.spec.gvk.kind.as_ref() == "Pod" && row.spec.gvk.group.is_empty();
    let asked = options.grace.map(|g| if g < 0 { 1 } else { g });
    let mut marked = false;
    let mut grace = 0;
    if graceful {
        match grace_of(value, asked, deleting) {
            Grace::Pending => return Plan::Pending,
            Grace::None => {}
            Grace::Set { seconds, time } => {
                let metadata = metadata::metadata_mut(value);
                metadata.insert("deletionTimestamp".into(), metadata::rfc3339(time).into());
                metadata.insert("deletionGracePeriodSeconds".into(), seconds.into());
                if !deleting {
                    count_generation(value);
                }
                marked = true;
                grace = seconds;
            }
        }
    }
    let changed = collect(row, value, options);
    let held = !metadata::finalizers(value).is_empty();
    match (marked, held) {
        (true, true) => Plan::Mark,
        (true, false) if grace > 0 => Plan::Mark,
        (true, false) => Plan::MarkThenDelete,
        (false, true) => {
            if deleting
                && !changed
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

/// What grace means for a pod.
enum Grace {
    /// A deletion is under way and this one does not shorten it.
    Pending,
    /// No grace: delete now.
    None,
    /// Delete at this time (seconds since the epoch).
    Set { seconds: i64, time: i64 },
}

fn grace_of(pod: &Value, asked: Option<i64>, deleting: bool) -> Grace {
    let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(0);
    if deleting {
        let left = metadata::number(pod, "deletionGracePeriodSeconds")
            .map_or(0, |g| if g < 0 { 1 } else { g });
        if left == 0 {
            return Grace::None;
        }
        let Some(period) = asked.filter(|p| *p < left) else { return Grace::Pending };
        let old = metadata::seconds(metadata::text(pod, "deletionTimestamp")).unwrap_or(now);
        let time = old - left + period;
        // A grace that is over already is shortened to the least that the node still acts on.
        return if time < now {
            Grace::Set { seconds: i64::from(period != 0), time: now }
        } else {
            Grace::Set { seconds: period, time }
        };
    }
    let mut period = asked
        .or_else(|| pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64))
        .unwrap_or(0);
    let unscheduled =
        pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default().is_empty();
    let finished = matches!(
        pod.pointer("/status/phase").and_then(Value::as_str),
        Some("Failed" | "Succeeded")
    );
    if unscheduled || finished {
        period = 0;
    }
    if period < 0 {
        period = 1;
    }
    Grace::Set { seconds: period, time: now + period }
}

fn count_generation(value: &mut Value) {
    if let Some(generation) = metadata::number(value, "generation").filter(|g| *g > 0) {
        metadata::metadata_mut(value).insert("generation".into(), (generation + 1).into());
    }
}

/// Marks an object that only waits for finalizers.
fn mark(value: &mut Value) {
    let text = metadata::text(value, "deletionTimestamp").to_owned();
    if text.is_empty() {
        count_generation(value);
    }
    let now = metadata::now();
    let future = metadata::seconds(&text) > metadata::seconds(&now);
    let metadata = metadata::metadata_mut(value);
    if text.is_empty() || future {
        metadata.insert("deletionTimestamp".into(), now.into());
    }
    metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
}

/// Sets the finalizers that determine how the garbage collector handles dependents; returns whether
/// they changed.
fn collect(row: &Resource, value: &mut Value, options: &DeleteOptions) -> bool {
    let unsupported = row.spec.gvr.resource.as_ref() == "events";
    let old = metadata::finalizers(value);
    let has = |name: &str| old.iter().any(|f| f == name);
    let orphan_by_default = matches!(
        (row.spec.gvr.group.as_ref(), row.spec.gvr.resource.as_ref()),
        ("batch", "jobs") | ("", "replicationcontrollers")
    );
    let (orphan, foreground) = if unsupported {
        (false, false)
    } else {
        match (options.orphan, options.propagation) {
            (Some(orphan), _) => (orphan, false),
            (None, Some(policy)) => {
                (policy == Propagation::Orphan, policy == Propagation::Foreground)
            }
            (None, None) if has("orphan") => (true, false),
            (None, None) if has("foregroundDeletion") => (false, true),
            (None, None) => (orphan_by_default, false),
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
    let same = new.len() == old.len() && new.iter().all(|f| old.contains(f));
    if !same {
        metadata::set_finalizers(value, &new);
    }
    !same
}

/// Answers the deletion of a collection: every selected object by the rules of a single deletion.
///
/// # Errors
/// The first refusal other than that an object is gone already.
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
