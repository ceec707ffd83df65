//! The schema table: what every API type looks like, as a value that can be extended at run time.
//!
//! It drives strict decoding, JSON ↔ protobuf, defaulting, strategic merge, server-side apply and
//! OpenAPI.

mod builtin;
pub mod defaults;
mod proto;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::object::Gvk;

pub(crate) use self::proto::{Node, What};

/// Index of a type in its [`Schema`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// The shape of one value.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Shape {
    /// Go `string` and its named kinds.
    String,
    /// Go `bool`.
    Bool,
    /// Go `int32`.
    Int32,
    /// Go `int64`.
    Int64,
    /// Go `float64`.
    Double,
    /// Go `[]byte`: base64 in JSON, bytes in protobuf.
    Bytes,
    /// `resource.Quantity`: string or number in JSON, a message with one string in protobuf.
    Quantity,
    /// `metav1.Time`: RFC 3339 with seconds.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with microseconds.
    MicroTime,
    /// `metav1.Duration`: Go duration text in JSON, nanoseconds in protobuf.
    Duration,
    /// `intstr.IntOrString`.
    IntOrString,
    /// `runtime.RawExtension`: any object.
    RawExtension,
    /// `metav1.FieldsV1`: any object, raw bytes in protobuf.
    FieldsV1,
    /// `apiextensions.JSON` and the like: any JSON value.
    #[default]
    Any,
    /// `apiextensions.JSONSchemaPropsOrBool`: a schema or a boolean.
    PropsOrBool(TypeId),
    /// `apiextensions.JSONSchemaPropsOrArray`: a schema or a list of schemas.
    PropsOrList(TypeId),
    /// `apiextensions.JSONSchemaPropsOrStringArray`: a schema or a list of strings.
    PropsOrStrings(TypeId),
    /// A struct of the table.
    Struct(TypeId),
    /// A list of one shape.
    List(Box<Shape>),
    /// A map from string to one shape.
    Map(Box<Shape>),
    /// An item or value of a custom resource that says itself how it merges; of the field only
    /// shape and merging count.
    Typed(Arc<Field>),
}

/// How a list merges in server-side apply (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ListType {
    /// Replaced as a whole.
    #[default]
    Atomic,
    /// A set of scalars.
    Set,
    /// Elements told apart by these keys.
    Map(Vec<Arc<str>>),
}

/// How strategic merge patch treats a field (`patchStrategy`, `patchMergeKey`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PatchStrategy {
    /// Elements or scalars are merged, not replaced.
    pub merge: bool,
    /// Keys absent from the patch are removed.
    pub retain_keys: bool,
    /// The key that tells list elements apart.
    pub merge_key: Option<Arc<str>>,
}

/// One field of a struct. Inlined Go structs are flattened in [`Type::fields`]; `path` keeps their
/// protobuf nesting.
///
/// Build one with [`Field::new`] or `Field { …, ..Field::default() }`: more columns may come.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Field {
    /// JSON name.
    pub json: Arc<str>,
    /// Go name, as error messages of the decoder print it.
    pub go: Arc<str>,
    /// Protobuf field number; 0 when the type has no protobuf form.
    pub tag: u32,
    /// Protobuf tags of the inlined messages around this field, outermost first; usually empty.
    pub inlined_in: Box<[u32]>,
    /// Go names of the inlined structs around this field, dotted, as paths in error messages have
    /// them; usually absent.
    pub embedded: Option<Arc<str>>,
    /// What it holds.
    pub shape: Shape,
    /// A Go pointer: absence differs from the zero value.
    pub pointer: bool,
    /// Dropped from JSON when zero.
    pub omit_empty: bool,
    /// Required by OpenAPI (no `+optional`, not `omitempty`).
    pub required: bool,
    /// Default that the table itself states (`+default=`).
    pub default: Option<Arc<Value>>,
    /// Known values of an enum (of the elements, for lists and maps), empty otherwise.
    pub allowed: Arc<[Arc<str>]>,
    /// Server-side apply list type (lists only).
    pub list_type: ListType,
    /// The list type is stated to be atomic, not merely absent.
    pub list_atomic: bool,
    /// Server-side apply: a struct or map that is replaced as a whole (`structType=atomic`,
    /// `mapType=atomic`).
    pub atomic: bool,
    /// Strategic merge rules.
    pub patch: PatchStrategy,
    /// The Go type as messages print it, when a named type other than a struct is in it
    /// (`v1.Protocol`, `[]v1.Capability`).
    pub go_type: Option<Arc<str>>,
    /// Dropped from JSON when it is a zero struct or time (`omitzero`).
    pub omit_zero: bool,
    /// A list that protobuf wraps in a message of its own (`metav1.Verbs`).
    pub wrapped: bool,
}

impl Field {
    /// A plain optional field that keeps its zero value, without a protobuf form.
    pub fn new(json: &str, shape: Shape) -> Self {
        let name: Arc<str> = json.into();
        Self {
            go: Arc::clone(&name),
            json: name,
            shape,
            pointer: true,
            omit_empty: true,
            ..Self::default()
        }
    }
}

/// One struct type.
#[derive(Debug, Clone)]
pub struct Type {
    /// Full name, such as `io.k8s.api.core.v1.Pod`.
    pub name: Arc<str>,
    /// Fields in Go order.
    pub fields: Vec<Field>,
    /// Fields that the table does not name are kept (custom resources with
    /// `x-kubernetes-preserve-unknown-fields`).
    pub open: bool,
    /// The whole struct is atomic in server-side apply.
    pub atomic: bool,
    /// Positions in `fields`, sorted by JSON name.
    index: Box<[u32]>,
    pub(crate) proto: proto::Layout,
}

impl Type {
    /// A type of these fields.
    pub fn new(name: Arc<str>, fields: Vec<Field>) -> Self {
        let mut index: Vec<u32> = (0_u32..).take(fields.len()).collect();
        index.sort_by_key(|i| fields.get(*i as usize).map(|f| Arc::clone(&f.json)));
        let proto = proto::layout(&fields);
        Self { name, fields, open: false, atomic: false, index: index.into(), proto }
    }

    /// The field with this JSON name (case-sensitive, as Kubernetes' decoder).
    pub fn field(&self, json: &str) -> Option<&Field> {
        self.position(json).and_then(|i| self.fields.get(i))
    }

    /// The position in [`Type::fields`] of the field with this JSON name.
    pub fn position(&self, json: &str) -> Option<usize> {
        let at = |i: &u32| self.fields.get(*i as usize).map_or("", |f| &f.json);
        let found = self.index.binary_search_by(|i| at(i).cmp(json)).ok()?;
        self.index.get(found).map(|i| *i as usize)
    }

    /// The Go name of the struct: the last part of the full name.
    pub fn go_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// The Go type as messages print it, such as `v1.Pod`.
    pub fn go_type(&self) -> &str {
        let mut dots = self.name.rmatch_indices('.');
        dots.next();
        dots.next().and_then(|(i, _)| self.name.get(i + 1..)).unwrap_or(&self.name)
    }
}

/// Kinds of `meta.k8s.io/v1` that upstream registers in every group version.
const SHARED_KINDS: &[&str] = &[
    "Status",
    "APIVersions",
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "WatchEvent",
    "ListOptions",
    "GetOptions",
    "DeleteOptions",
    "CreateOptions",
    "UpdateOptions",
    "PatchOptions",
];

/// The table. Cheap to share; extended by building a new one and swapping it.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    types: Vec<Arc<Type>>,
    by_name: HashMap<Arc<str>, TypeId>,
    kinds: HashMap<Gvk, TypeId>,
}

impl Schema {
    /// An empty table; the built-in one comes from [`Schema::builtin`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The table of all stable kinds of Kubernetes 1.37, built once and shared.
    pub fn builtin() -> Arc<Self> {
        builtin::shared()
    }

    /// Adds a type and returns its id; a type of the same name is replaced and keeps its id.
    pub fn add_type(&mut self, ty: Type) -> TypeId {
        let name = Arc::clone(&ty.name);
        if let Some(id) = self.by_name.get(&name).copied() {
            if let Some(slot) = self.types.get_mut(id.0 as usize) {
                *slot = Arc::new(ty);
            }
            return id;
        }
        let id = TypeId(u32::try_from(self.types.len()).expect("fewer than 2^32 types"));
        self.types.push(Arc::new(ty));
        self.by_name.insert(name, id);
        id
    }

    /// Says which type a kind has.
    pub fn add_kind(&mut self, gvk: Gvk, id: TypeId) {
        self.kinds.insert(gvk, id);
    }

    /// The type with this id.
    ///
    /// # Panics
    /// When the id is of another table: a bug of the caller.
    pub fn get(&self, id: TypeId) -> &Arc<Type> {
        &self.types[id.0 as usize]
    }

    /// Looks a type up by its full name.
    pub fn by_name(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    /// The type of a kind. Kinds that belong to every group version (`Status`, `DeleteOptions`,
    /// `WatchEvent`, …) are found in each.
    pub fn kind(&self, gvk: &Gvk) -> Option<TypeId> {
        self.kinds.get(gvk).copied().or_else(|| {
            let shared = SHARED_KINDS.contains(&gvk.kind.as_ref());
            shared
                .then(|| self.kinds.get(&Gvk::new("meta.k8s.io", "v1", &gvk.kind)).copied())
                .flatten()
        })
    }

    /// All kinds of the table.
    pub fn kinds(&self) -> impl Iterator<Item = (&Gvk, TypeId)> {
        self.kinds.iter().map(|(gvk, id)| (gvk, *id))
    }

    /// All types of the table.
    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Arc<Type>)> {
        (0_u32..).map(TypeId).zip(&self.types)
    }
}
