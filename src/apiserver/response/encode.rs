//! Encodes objects and lists in the form that the client accepts, from stored bytes when they can
//! be sent unchanged.

use std::sync::Arc;

use api::{Object, Status};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::protobuf_list;
use crate::audit;
use crate::registry::Resource;
use crate::registry::convert;
use crate::request::Query;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::negotiate;
use crate::request::negotiate::{Accepted, Media, Offer, Transform};
use crate::response::chunked;
use crate::response::chunked::Form;
use crate::response::status;

/// Encodes an error in the media type that the client accepts, or in JSON when none can be
/// negotiated. Errors are never transformed: when the client accepts only a Table or partial
/// metadata, upstream falls back to JSON.
pub(crate) fn refusal(context: &Context, refusal: &Status) -> Response<Body> {
    let offer = Offer { transforms: false, streams: false };
    let accepted = negotiate::accept(&context.headers, &context.query, offer);
    let media = accepted.map_or(Media::Json, |accepted| accepted.media);
    if media == Media::Json {
        return status::response(refusal);
    }
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let value = serde_json::to_value(refusal).unwrap_or_default();
    let accepted = Accepted {
        media,
        transform: Transform::None,
        transform_version: String::new(),
        pretty: false,
    };
    encode(context, code, &accepted, &value).unwrap_or_else(|_| status::response(refusal))
}

/// A document without a kind, such as `/version`.
pub(crate) fn plain_json(headers: &HeaderMap, query: &Query, document: &Value) -> Response<Body> {
    let pretty = negotiate::accept(headers, query, Offer { transforms: false, streams: false })
        .is_ok_and(|a| a.pretty);
    let bytes = if pretty || !headers.contains_key(http::header::ACCEPT) {
        serde_json::to_vec_pretty(document)
    } else {
        serde_json::to_vec(document)
    };
    negotiate::respond(headers, StatusCode::OK, Media::Json.name(), bytes.unwrap_or_default())
}

/// One object of the request's row.
///
/// # Errors
/// 406.
pub(crate) fn object(
    context: &Context,
    code: StatusCode,
    object: &Arc<Object>,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept()?;
    if accepted.media == Media::Json
        && accepted.transform == Transform::None
        && !accepted.pretty
        && !context.row.converts
    {
        audit::response_json(|| object.json());
        return Ok(negotiate::respond(&context.headers, code, Media::Json.name(), object.json()));
    }
    let object = convert::object(&context.row, object);
    let value = match accepted.transform {
        Transform::None => object.value().map_err(|e| Status::internal(&e.to_string()))?,
        Transform::Table => {
            let metadata = revision_only(object.resource_version);
            table(
                &context.row,
                &accepted,
                include(context),
                std::slice::from_ref(&object),
                metadata,
                false,
                true,
            )?
        }
        Transform::Partial => partial(&object, &accepted.transform_version)?,
        Transform::PartialList => {
            let go = crate::serialization::go_type(&context.row.spec.gvk, "");
            let text = format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list (*{go})"
            );
            return Err(Status::failure(406, "NotAcceptable", text));
        }
    };
    encode(context, code, &accepted, &value)
}

/// A value that is not an object of the row, such as a Scale, Status or review.
///
/// # Errors
/// 406.
pub(crate) fn value(
    context: &Context,
    code: StatusCode,
    value: &Value,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept()?;
    if accepted.transform != Transform::None {
        return Err(negotiate::not_acceptable());
    }
    encode(context, code, &accepted, value)
}

/// A Scale, which has a specific Table for built-in workloads. (For a custom resource upstream uses
/// the columns of the resource; this server has none.)
///
/// # Errors
/// 406.
pub(crate) fn scale(context: &Context, scale: &Value) -> Result<Response<Body>, Status> {
    let accepted = context.accept()?;
    if accepted.transform != Transform::Table || context.row.spec.custom.is_some() {
        return value(context, StatusCode::OK, scale);
    }
    let revision = scale.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    let metadata = revision_only(revision.and_then(|text| text.parse().ok()).unwrap_or_default());
    let options = printers::Options {
        include: printers::IncludeObject::parse(include(context))
            .map_err(|error| Status::bad_request(error.to_string()))?,
        no_headers: false,
        list: false,
        custom: None,
        now: jiff::Timestamp::now(),
    };
    let kind = api::Gvk::new("autoscaling", "v1", "Scale");
    let mut made = printers::render(&kind, std::slice::from_ref(scale), metadata, &options);
    set_meta_version(&mut made, &accepted);
    encode(context, StatusCode::OK, &accepted, &made)
}

/// Sets the version of the group `meta.k8s.io` that the client requests.
fn set_meta_version(table: &mut Value, accepted: &Accepted) {
    let version = || Value::from(format!("meta.k8s.io/{}", accepted.transform_version));
    if let Some(map) = table.as_object_mut() {
        map.insert("apiVersion".into(), version());
    }
    let rows = table.get_mut("rows").and_then(Value::as_array_mut);
    for object in rows.into_iter().flatten().filter_map(|row| row.get_mut("object")) {
        let kind = object.get("kind").and_then(Value::as_str);
        if kind == Some("PartialObjectMetadata")
            && let Some(map) = object.as_object_mut()
        {
            map.insert("apiVersion".into(), version());
        }
    }
}

/// The metadata of a list.
#[derive(Debug, Default)]
pub(crate) struct ListHead {
    pub(crate) revision: i64,
    pub(crate) continue_token: String,
    pub(crate) remaining: Option<usize>,
}

impl ListHead {
    fn metadata(&self) -> Map<String, Value> {
        let mut map = Map::new();
        // Objects that are not stored have no revision.
        if self.revision > 0 {
            map.insert("resourceVersion".into(), self.revision.to_string().into());
        }
        if !self.continue_token.is_empty() {
            map.insert("continue".into(), self.continue_token.clone().into());
        }
        if let Some(remaining) = self.remaining {
            map.insert("remainingItemCount".into(), remaining.into());
        }
        map
    }
}

/// A list of objects of the request's row; a large one is encoded while it is sent.
///
/// # Errors
/// 406.
pub(crate) async fn list(
    context: &Context,
    head: &ListHead,
    items: Vec<Arc<Object>>,
) -> Result<Response<Body>, Status> {
    let accepted = context.accept()?;
    let row = &context.row;
    // A response that is recorded is made as a whole.
    let large = list_bytes(&items) > chunked::CHUNKED_FROM_BYTES && !audit::records_response();
    if accepted.media == Media::Json
        && accepted.transform == Transform::None
        && !accepted.pretty
        && !row.converts
    {
        return Ok(stored_list(context, head, items, large));
    }
    let form = match accepted.media {
        Media::Json if accepted.pretty => Some(Form::Pretty),
        Media::Json => Some(Form::Json),
        Media::Yaml => Some(Form::Yaml),
        Media::Protobuf => None,
    };
    if let Some(form) = form.filter(|_| large)
        && let Some((whole, field, values)) = chunked_list(context, &accepted, head)?
    {
        let source = chunked::of_values(&whole, field, form, items, values);
        let media = accepted.media.name();
        return Ok(chunked::chunked_response(&context.headers, media, source));
    }
    if accepted.media == Media::Protobuf
        && accepted.transform == Transform::None
        && row.spec.custom.is_none()
    {
        return protobuf_list(context, head, items, large).await;
    }
    let value = whole_list(context, &accepted, head, &items)?;
    encode(context, StatusCode::OK, &accepted, &value)
}

/// A list of stored JSON, chunked when it is large.
fn stored_list(
    context: &Context,
    head: &ListHead,
    items: Vec<Arc<Object>>,
    large: bool,
) -> Response<Body> {
    let (row, headers, json) = (&context.row, &context.headers, Media::Json.name());
    if large {
        let (before, row) = (list_begin(row, head), Arc::clone(row));
        let each = Box::new(move |object: &Object, out: &mut Vec<u8>| {
            item_json(&row, object, out);
        });
        let source = chunked::of_items(before, items, each, LIST_END);
        return chunked::chunked_response(headers, json, source);
    }
    let bytes = list_json(row, head, &items);
    audit::response_json(|| bytes.clone());
    negotiate::respond(headers, StatusCode::OK, json, bytes)
}

/// A list in protobuf, chunked when it is large.
///
/// # Errors
/// 406 when an object has no protobuf form.
async fn protobuf_list(
    context: &Context,
    head: &ListHead,
    items: Vec<Arc<Object>>,
    large: bool,
) -> Result<Response<Body>, Status> {
    let (row, headers, media) = (&context.row, &context.headers, Media::Protobuf.name());
    let metadata = Value::Object(head.metadata());
    let schema = Arc::clone(&context.server.objects.registry().schema);
    let list = protobuf_list::List::new(schema, Arc::clone(row), &metadata)?;
    if large && list_bytes(&items) > protobuf_list::TWICE_FROM {
        return Ok(chunked::chunked_response(headers, media, list.source(items).await?));
    }
    let bytes = list.whole(&items)?;
    audit::response_json(|| {
        let items: Vec<_> = items.iter().map(|object| convert::object(row, object)).collect();
        list_json(row, head, &items)
    });
    Ok(negotiate::respond(headers, StatusCode::OK, media, bytes))
}

/// A list as one value, transformed as the client requests.
///
/// # Errors
/// 400 for an unknown `includeObject`, 406 for partial metadata of the list itself.
fn whole_list(
    context: &Context,
    accepted: &Accepted,
    head: &ListHead,
    items: &[Arc<Object>],
) -> Result<Value, Status> {
    let row = &context.row;
    let items: Vec<Arc<Object>> = items.iter().map(|object| convert::object(row, object)).collect();
    let mut value = match accepted.transform {
        Transform::None => list_value(row, &items)?,
        Transform::Table => {
            table(row, accepted, include(context), &items, head.metadata(), true, true)?
        }
        Transform::Partial => {
            let go = crate::serialization::go_type(&row.spec.gvk, "");
            let text = format!(
                "you requested PartialObjectMetadata, but the requested object is a list (*{go}List)"
            );
            return Err(Status::failure(406, "NotAcceptable", text));
        }
        Transform::PartialList => {
            let partials: Result<Vec<Value>, Status> =
                items.iter().map(|o| partial(o, &accepted.transform_version)).collect();
            // Upstream's empty list is null here.
            let items = Some(partials?).filter(|items| !items.is_empty());
            partial_list(&accepted.transform_version, items)
        }
    };
    set_metadata(&mut value, head);
    Ok(value)
}

/// A list without its items, the name of the items' field, and the function that encodes an item;
/// `None` when the items depend on each other.
///
/// # Errors
/// 400 for an unknown `includeObject`.
fn chunked_list(
    context: &Context,
    accepted: &Accepted,
    head: &ListHead,
) -> Result<Option<(Value, &'static str, chunked::Values)>, Status> {
    let row = Arc::clone(&context.row);
    Ok(match accepted.transform {
        Transform::None => {
            let mut whole = list_value(&row, &[])?;
            set_metadata(&mut whole, head);
            let values: chunked::Values = Box::new(move |some| {
                let value = |object: &Arc<Object>| {
                    let value = convert::object(&row, object).value();
                    value.map(|value| item_value(&row, value))
                };
                let values: Result<Vec<Value>, _> = some.iter().map(value).collect();
                values.map_err(|e| Status::internal(&e.to_string()))
            });
            Some((whole, "items", values))
        }
        Transform::Table if !printers::depends_on_list(&row.spec.gvk) => {
            let (include, accepted) = (include(context).to_owned(), accepted.clone());
            let whole = table(&row, &accepted, &include, &[], head.metadata(), true, true)?;
            let values: chunked::Values = Box::new(move |some| {
                let some: Vec<_> = some.iter().map(|o| convert::object(&row, o)).collect();
                let mut part = table(&row, &accepted, &include, &some, Map::new(), true, false)?;
                Ok(match part.get_mut("rows").map(Value::take) {
                    Some(Value::Array(rows)) => rows,
                    _ => Vec::new(),
                })
            });
            Some((whole, "rows", values))
        }
        Transform::PartialList => {
            let version = accepted.transform_version.clone();
            let mut whole = partial_list(&version, Some(Vec::new()));
            set_metadata(&mut whole, head);
            let values: chunked::Values = Box::new(move |some| {
                some.iter().map(|o| partial(&convert::object(&row, o), &version)).collect()
            });
            Some((whole, "items", values))
        }
        Transform::Table | Transform::Partial => None,
    })
}

fn set_metadata(list: &mut Value, head: &ListHead) {
    if let Some(map) = list.as_object_mut() {
        map.insert("metadata".into(), Value::Object(head.metadata()));
    }
}

fn partial_list(version: &str, items: Option<Vec<Value>>) -> Value {
    let version = format!("meta.k8s.io/{version}");
    json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "items": items})
}

/// The approximate size of a list as JSON in bytes.
fn list_bytes(items: &[Arc<Object>]) -> usize {
    items.iter().map(|object| object.raw().len() + 40).sum()
}

const LIST_END: &[u8] = b"]}";

/// The bytes before the items of a list.
fn list_begin(row: &Resource, head: &ListHead) -> Vec<u8> {
    let (kind, version) = (list_kind(row), row.spec.gvk.api_version());
    let mut out =
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":").into_bytes();
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(&mut out, &head.metadata());
    out.extend_from_slice(b",\"items\":[");
    out
}

/// A list whose items are the stored bytes without kind and version, like upstream's typed lists.
fn list_json(row: &Resource, head: &ListHead, items: &[Arc<Object>]) -> Vec<u8> {
    let mut out = list_begin(row, head);
    out.reserve(list_bytes(items));
    for (index, object) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        item_json(row, object, &mut out);
    }
    out.extend_from_slice(LIST_END);
    out
}

/// The kind of a list.
fn list_kind(row: &Resource) -> String {
    match &row.spec.custom {
        Some(custom) => custom.list_kind().to_owned(),
        None => format!("{}List", row.spec.gvk.kind),
    }
}

fn item_json(row: &Resource, object: &Object, out: &mut Vec<u8>) {
    if row.spec.custom.is_some() {
        return object.write_json(out);
    }
    if object.raw().starts_with(row.stored_head.as_bytes()) && !row.keeps_item_kind() {
        object.write_json_behind(row.stored_head.len(), out);
        return;
    }
    match object.value() {
        Ok(value) => {
            let _ = serde_json::to_writer(&mut *out, &item_value(row, value));
        }
        Err(_) => object.write_json(out),
    }
}

fn item_value(row: &Resource, mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut().filter(|_| !row.keeps_item_kind()) {
        map.remove("kind");
        map.remove("apiVersion");
    }
    value
}

fn list_value(row: &Resource, items: &[Arc<Object>]) -> Result<Value, Status> {
    let items: Result<Vec<Value>, _> =
        items.iter().map(|object| object.value().map(|value| item_value(row, value))).collect();
    let items = items.map_err(|e| Status::internal(&e.to_string()))?;
    let kind = &row.spec.gvk;
    Ok(json!({"kind": list_kind(row), "apiVersion": kind.api_version(), "items": items}))
}

/// `PartialObjectMetadata` of an object.
///
/// # Errors
/// When the object cannot be read.
pub(crate) fn partial(object: &Object, version: &str) -> Result<Value, Status> {
    let mut value = object.value().map_err(|e| Status::internal(&e.to_string()))?;
    let mut metadata = value.get_mut("metadata").map(Value::take).unwrap_or_default();
    if value.get("kind").and_then(Value::as_str) == Some("DaemonSet") {
        without_generation_of_template(&mut metadata);
    }
    Ok(
        json!({"kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata}),
    )
}

/// In upstream's internal type this annotation is a field that conversion turns into an annotation,
/// so partial metadata does not contain it.
fn without_generation_of_template(metadata: &mut Value) {
    const GENERATION: &str = "deprecated.daemonset.template.generation";
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.remove(GENERATION);
    if annotations.is_empty()
        && let Some(metadata) = metadata.as_object_mut()
    {
        metadata.remove("annotations");
    }
}

/// The objects as a Table; `list`: they form a list, `headers`: include the column definitions.
///
/// # Errors
/// 400 for an unknown `includeObject`.
pub(crate) fn table(
    row: &Resource,
    accepted: &Accepted,
    include: &str,
    items: &[Arc<Object>],
    metadata: Map<String, Value>,
    list: bool,
    headers: bool,
) -> Result<Value, Status> {
    let include = printers::IncludeObject::parse(include)
        .map_err(|error| Status::bad_request(error.to_string()))?;
    let objects: Result<Vec<Value>, Status> =
        items.iter().map(|o| o.value().map_err(|e| Status::internal(&e.to_string()))).collect();
    let options = printers::Options {
        include,
        no_headers: !headers,
        list,
        custom: row.spec.columns.as_deref(),
        now: jiff::Timestamp::now(),
    };
    let mut value = printers::render(&row.spec.gvk, &objects?, metadata, &options);
    set_meta_version(&mut value, accepted);
    if &*row.spec.gvk.kind == "DaemonSet" {
        let rows = value.get_mut("rows").and_then(Value::as_array_mut);
        for object in rows.into_iter().flatten().filter_map(|row| row.get_mut("object")) {
            let kind = object.get("kind").and_then(Value::as_str);
            if kind == Some("PartialObjectMetadata")
                && let Some(metadata) = object.get_mut("metadata")
            {
                without_generation_of_template(metadata);
            }
        }
    }
    Ok(value)
}

/// The query's `includeObject`.
fn include(context: &Context) -> &str {
    context.query.get("includeObject").unwrap_or_default()
}

/// The metadata of a table or list at a revision.
pub(crate) fn revision_only(revision: i64) -> Map<String, Value> {
    ListHead { revision, ..ListHead::default() }.metadata()
}

/// Encodes a value.
///
/// # Errors
/// 406 when the value has no protobuf form.
pub(crate) fn encode(
    context: &Context,
    code: StatusCode,
    accepted: &Accepted,
    value: &Value,
) -> Result<Response<Body>, Status> {
    audit::response_value(value);
    let bytes = encode_bytes(&context.server.objects.registry().schema, accepted, value)?;
    Ok(negotiate::respond(&context.headers, code, accepted.media.name(), bytes))
}

fn encode_bytes(
    schema: &api::schema::Schema,
    accepted: &Accepted,
    value: &Value,
) -> Result<Vec<u8>, Status> {
    match accepted.media {
        Media::Json if accepted.pretty => {
            let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
            bytes.push(b'\n');
            Ok(bytes)
        }
        Media::Json => Ok(serde_json::to_vec(value).unwrap_or_default()),
        Media::Yaml => Ok(crate::serialization::yaml(value).into_bytes()),
        Media::Protobuf => crate::serialization::protobuf(schema, value),
    }
}

/// The Status of a deletion that does not return the object.
pub(crate) fn success(row: &Resource, object: &Object) -> Value {
    let mut details =
        json!({"name": *object.key.name, "kind": *row.spec.gvr.resource, "uid": *object.uid});
    let group = &*row.spec.gvr.group;
    if let Some(map) = details.as_object_mut().filter(|_| !group.is_empty()) {
        map.insert("group".into(), group.into());
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// The Status of a success without an object.
pub(crate) fn done(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code})
}
