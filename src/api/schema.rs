//! The schema table, which describes every API type and can be extended at run time.
//!
//! Strict decoding, the conversion between JSON and protobuf, defaulting, strategic merge patch,
//! server-side apply and OpenAPI use it.

mod builtin;
pub mod defaults;
mod proto;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use sorting::CompactSort as _;

use crate::object::Gvk;

pub(crate) use self::proto::{Node, What};

/// The index of a type in its [`Schema`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// The shape of one value.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Shape {
    /// Go `string` and the named types based on it.
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
    /// An item or a value of a custom resource with its own merge rules; only the shape and the
    /// merge rules of the field apply.
    Typed(Arc<Field>),
}

/// How a list merges in server-side apply (`x-kubernetes-list-type`).
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ListType {
    /// The list is replaced as a whole.
    #[default]
    Atomic,
    /// The list is a set of scalars.
    Set,
    /// The list is a map; these fields are the key of an element.
    Map(Vec<Arc<str>>),
}

/// The rules of strategic merge patch for a field (`patchStrategy`, `patchMergeKey`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PatchStrategy {
    /// Whether elements or scalars are merged instead of replaced.
    pub merge: bool,
    /// Whether keys that the patch lacks are removed.
    pub retain_keys: bool,
    /// The field that identifies a list element.
    pub merge_key: Option<Arc<str>>,
}

/// A field of a struct. [`Type::fields`] contains the fields of inlined Go structs directly;
/// `inlined_in` records their nesting in protobuf.
///
/// Create one with [`Field::new`] or `Field { …, ..Field::default() }`, because columns may be
/// added.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Field {
    /// The JSON name.
    pub json: Arc<str>,
    /// The Go name, which error messages of the decoder contain.
    pub go: Arc<str>,
    /// The protobuf field number; 0 if the type has no protobuf form.
    pub tag: u32,
    /// The protobuf tags of the inlined messages that contain this field, outermost first; usually
    /// empty.
    pub inlined_in: Box<[u32]>,
    /// The Go names of the inlined structs that contain this field, joined with dots, as paths in
    /// error messages contain them; usually absent.
    pub embedded: Option<Arc<str>>,
    /// The shape of the value.
    pub shape: Shape,
    /// Whether the Go field is a pointer, so that absence differs from the zero value.
    pub pointer: bool,
    /// Whether JSON omits the zero value.
    pub omit_empty: bool,
    /// Whether OpenAPI requires the field (no `+optional`, not `omitempty`).
    pub required: bool,
    /// The default that the Go type declares (`+default=`).
    pub default: Option<Arc<Value>>,
    /// The values of an enum, or of the elements for lists and maps; empty for other types.
    pub allowed: Arc<[Arc<str>]>,
    /// The list type of server-side apply, for lists only.
    pub list_type: ListType,
    /// Whether the Go type declares the list type `atomic`, instead of no list type.
    pub list_atomic: bool,
    /// Whether server-side apply replaces the struct or map as a whole (`structType=atomic`,
    /// `mapType=atomic`).
    pub atomic: bool,
    /// The rules of strategic merge patch.
    pub patch: PatchStrategy,
    /// The Go type in the form of error messages, if it contains a named type other than a struct
    /// (`v1.Protocol`, `[]v1.Capability`).
    pub go_type: Option<Arc<str>>,
    /// Whether JSON omits a zero struct or a zero time (`omitzero`).
    pub omit_zero: bool,
    /// Whether protobuf wraps the list in a separate message (`metav1.Verbs`).
    pub wrapped: bool,
}

impl Field {
    /// Creates an optional field without a protobuf form, whose explicit zero value is kept.
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

/// A struct type.
#[derive(Debug, Clone)]
pub struct Type {
    /// The full name, such as `io.k8s.api.core.v1.Pod`.
    pub name: Arc<str>,
    /// The fields in Go's order.
    pub fields: Vec<Field>,
    /// Whether the decoder keeps fields that the type lacks (custom resources with
    /// `x-kubernetes-preserve-unknown-fields`).
    pub open: bool,
    /// Whether server-side apply treats the whole struct as atomic.
    pub atomic: bool,
    /// The positions in `fields`, sorted by JSON name.
    index: Box<[u32]>,
    pub(crate) proto: proto::Layout,
}

impl Type {
    /// Creates a type with these fields.
    pub fn new(name: Arc<str>, fields: Vec<Field>) -> Self {
        let mut index: Vec<u32> = (0_u32..).take(fields.len()).collect();
        index.compact_sort_by_key(|i| fields.get(*i as usize).map(|f| Arc::clone(&f.json)));
        let proto = proto::layout(&fields);
        Self { name, fields, open: false, atomic: false, index: index.into(), proto }
    }

    /// Returns the field with this JSON name. The comparison is case-sensitive, as in Kubernetes'
    /// decoder.
    pub fn field(&self, json: &str) -> Option<&Field> {
        self.position(json).and_then(|i| self.fields.get(i))
    }

    /// Returns the position in [`Type::fields`] of the field with this JSON name.
    pub fn position(&self, json: &str) -> Option<usize> {
        let at = |i: &u32| self.fields.get(*i as usize).map_or("", |f| &f.json);
        let found = self.index.binary_search_by(|i| at(i).cmp(json)).ok()?;
        self.index.get(found).map(|i| *i as usize)
    }

    /// Returns the Go name of the struct, which is the last part of the full name.
    pub fn go_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    /// Returns the Go type in the form of error messages, such as `v1.Pod`.
    pub fn go_type(&self) -> &str {
        let mut dots = self.name.rmatch_indices('.');
        dots.next();
        dots.next().and_then(|(i, _)| self.name.get(i + 1..)).unwrap_or(&self.name)
    }
}

/// The kinds of `meta.k8s.io/v1` that upstream registers in every group version.
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

/// The schema table. A clone is cheap; to extend a shared table, build a new one and replace it.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    types: Vec<Arc<Type>>,
    by_name: HashMap<Arc<str>, TypeId>,
    kinds: HashMap<Gvk, TypeId>,
}

impl Schema {
    /// Creates an empty table; [`Schema::builtin`] returns the built-in one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the table of all stable kinds of Kubernetes 1.37, which is built once and shared.
    pub fn builtin() -> Arc<Self> {
        builtin::shared()
    }

    /// Adds a type and returns its id. A type with the same name is replaced and keeps its id.
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

    /// Assigns a type to a kind.
    pub fn add_kind(&mut self, gvk: Gvk, id: TypeId) {
        self.kinds.insert(gvk, id);
    }

    /// Returns the type with this id.
    ///
    /// # Panics
    /// Panics if the id belongs to another table, which is a bug of the caller.
    pub fn get(&self, id: TypeId) -> &Arc<Type> {
        &self.types[id.0 as usize]
    }

    /// Returns the id of the type with this full name.
    pub fn by_name(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    /// Returns the type of a kind. The kinds of every group version (`Status`, `DeleteOptions`,
    /// `WatchEvent`, …) exist in each of them.
    pub fn kind(&self, gvk: &Gvk) -> Option<TypeId> {
        self.kinds.get(gvk).copied().or_else(|| {
            let shared = SHARED_KINDS.contains(&gvk.kind.as_ref());
            shared
                .then(|| self.kinds.get(&Gvk::new("meta.k8s.io", "v1", &gvk.kind)).copied())
                .flatten()
        })
    }

    /// Returns all kinds of the table with their types.
    pub fn kinds(&self) -> impl Iterator<Item = (&Gvk, TypeId)> {
        self.kinds.iter().map(|(gvk, id)| (gvk, *id))
    }

    /// Returns all types of the table with their ids.
    pub fn types(&self) -> impl Iterator<Item = (TypeId, &Arc<Type>)> {
        (0_u32..).map(TypeId).zip(&self.types)
    }
}
