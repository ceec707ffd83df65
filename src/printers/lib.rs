//! `meta.k8s.io/v1 Table`: server-side printing for `kubectl get`.

mod apps;
mod batch;
mod cells;
mod core;
mod custom;
mod extension;
mod metrics;
mod network;
mod node;
mod pod;
mod policy;
mod printer;
mod resource;
mod storage;
#[cfg(test)]
mod tests;

use api::Gvk;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sorting::CompactSort as _;

pub use cells::human_duration;
pub use custom::{CustomColumns, UnsupportedColumn};
pub use printer::Column;
use printer::*;

static PRINTERS: &[&[Printer]] = &[
    pod::PRINTERS,
    core::PRINTERS,
    node::PRINTERS,
    apps::PRINTERS,
    batch::PRINTERS,
    network::PRINTERS,
    storage::PRINTERS,
    policy::PRINTERS,
    extension::PRINTERS,
    resource::PRINTERS,
    metrics::PRINTERS,
];

/// Columns of kinds without a specific printer.
static GENERIC: &[Column] = &[NAME, column("Created At", "date", 0)];

fn find(gvk: &Gvk) -> Option<&'static Printer> {
    PRINTERS
        .iter()
        .flat_map(|group| group.iter())
        .find(|p| *p.group == *gvk.group && *p.kind == *gvk.kind)
}

/// The columns of a built-in kind; name and creation time for a kind without a printer.
pub fn columns(gvk: &Gvk) -> &'static [Column] {
    find(gvk).map_or(GENERIC, |p| p.columns)
}

/// The cells of one object.
pub fn row(gvk: &Gvk, object: &Value, now: Timestamp) -> Vec<Value> {
    match find(gvk) {
        Some(p) => (p.row)(object, now),
        None => vec![cells::name(object), cells::created_at(object)],
    }
}

/// What a row includes of its object in addition to the cells (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// A `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`; empty is the default.
    ///
    /// # Errors
    /// For an unknown value.
    pub fn parse(text: &str) -> Result<Self, UnknownIncludeObject> {
        match text {
            "None" => Ok(Self::None),
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Object),
            other => Err(UnknownIncludeObject(other.to_owned())),
        }
    }
}

/// A value of `includeObject` that is unknown; the text is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized includeObject value: {}", api::field::go_quote(.0))]
pub struct UnknownIncludeObject(String);

/// How a table is rendered.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The form of the objects in the rows.
    pub include: IncludeObject,
    /// Omits the column definitions; in a watch, after the first event.
    pub no_headers: bool,
    /// Whether the objects form a list, in which some kinds are ordered or marked.
    pub list: bool,
    /// Columns of a custom resource; `None` for built-in kinds.
    pub custom: Option<&'a CustomColumns>,
    /// Time that ages are counted to.
    pub now: Timestamp,
}

/// Whether rows of this kind depend on the other objects of the list, by order or marks.
pub fn depends_on_list(gvk: &Gvk) -> bool {
    matches!(
        (&*gvk.group, &*gvk.kind),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") | ("storage.k8s.io", "StorageClass")
    )
}

/// A table of these objects. `metadata` is the list's: resource version, `continue`,
/// `remainingItemCount`.
pub fn render(
    gvk: &Gvk,
    objects: &[Value],
    metadata: Map<String, Value>,
    options: &Options<'_>,
) -> Value {
    let mut order: Vec<&Value> = objects.iter().collect();
    let is = |group: &str, kind: &str| *gvk.group == *group && *gvk.kind == *kind;
    if options.list && is("flowcontrol.apiserver.k8s.io", "FlowSchema") {
        order.compact_sort_by_key(|o| policy::flow_schema_order(o));
    }
    let default_class = (options.list && is("storage.k8s.io", "StorageClass"))
        .then(|| storage::default_class(objects))
        .flatten();
    let rows: Vec<Value> = order
        .into_iter()
        .map(|object| {
            let mut cells = match options.custom {
                Some(custom) => custom.row(object, options.now),
                None => row(gvk, object, options.now),
            };
            if let (Some(default), Some(first)) = (default_class, cells.first_mut())
                && first.as_str() == Some(default)
            {
                *first = Value::from(format!("{default} (default)"));
            }
            let mut row = Map::new();
            row.insert("cells".into(), Value::Array(cells));
            if let Some(conditions) = pod::conditions(gvk, object) {
                row.insert("conditions".into(), conditions);
            }
            row.insert("object".into(), included(gvk, object, options.include));
            Value::Object(row)
        })
        .collect();
    let rows = if rows.is_empty() && options.custom.is_none() && is_plain(gvk) {
        Value::Null
    } else {
        Value::Array(rows)
    };
    let definitions = match (options.no_headers, options.custom) {
        (true, _) => Value::Null,
        // metrics-server takes the columns from the first row.
        (false, None) if is_usage(gvk) && objects.is_empty() => Value::Null,
        (false, Some(custom)) => custom.definitions(),
        (false, None) => columns(gvk)
            .iter()
            .map(|c| json!({"name":c.name,"type":c.kind,"format":c.format,"description":description(gvk, c.name),"priority":c.priority}))
            .collect(),
    };
    json!({"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":metadata,"columnDefinitions":definitions,"rows":rows})
}

/// Kinds whose table converter upstream appends rows to a nil slice, so that `rows` is null when
/// empty (`rest.NewDefaultTableConvertor` and that of custom resources).
fn is_plain(gvk: &Gvk) -> bool {
    std::ptr::eq(columns(gvk), GENERIC) || &*gvk.kind == "CustomResourceDefinition" || is_usage(gvk)
}

/// Whether the kind belongs to the resource metrics API.
fn is_usage(gvk: &Gvk) -> bool {
    &*gvk.group == metrics::GROUP
}

fn description(gvk: &Gvk, column: &str) -> &'static str {
    match column {
        "Name" if is_usage(gvk) => "Name of the resource",
        _ => describe(column),
    }
}

fn included(gvk: &Gvk, object: &Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => {
            json!({"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":cells::at(object, &["metadata"])})
        }
        IncludeObject::Object => {
            let mut object = object.clone();
            if let Value::Object(map) = &mut object {
                map.entry("apiVersion").or_insert_with(|| gvk.api_version().into());
                map.entry("kind").or_insert_with(|| Value::from(&*gvk.kind));
            }
            object
        }
    }
}

/// The description of a common column; other columns repeat their name.
fn describe(name: &str) -> &'static str {
    match name {
        "Name" => "Name of the object, unique among its kind in its namespace.",
        "Age" => "Time since the object was created.",
        "Created At" => "Time when the object was created.",
        "Containers" => "Names of the containers in the pod template.",
        "Images" => "Images of the containers in the pod template.",
        "Selector" => "Labels by which the objects that belong to this one are found.",
        "Desired" => "How many are wanted.",
        "Current" => "How many there are.",
        "Ready" => "How many are ready.",
        "Status" => "State of the object in one word.",
        _ => "",
    }
}
