//! The schema table: what every API type looks like, as a value that can be extended at run time.
//!
//! It drives strict decoding, JSON ↔ protobuf, defaulting, strategic merge, server-side apply and OpenAPI.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::object::Gvk;

/// Index of a type in its [`Schema`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// The shape of one value.
#[derive(Debug, Clone, PartialEq)]
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
    Any,
    /// A struct of the table.
    Struct(TypeId),
    /// A list of one shape.
    List(Box<Shape>),
    /// A map from string to one shape.
    Map(Box<Shape>),
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

/// One field of a struct. Inlined Go structs are flattened in [`Type::fields`]; `path` keeps their protobuf nesting.
#[derive(Debug, Clone)]
pub struct Field {
    /// JSON name.
    pub json: Arc<str>,
    /// Go name, as error messages of the decoder print it.
    pub go: Arc<str>,
    /// Protobuf field number; 0 when the type has no protobuf form.
    pub tag: u32,
    /// Protobuf tags of the inlined messages around this field, outermost first; usually empty.
    pub inlined_in: Vec<u32>,
    /// What it holds.
    pub shape: Shape,
    /// A Go pointer: absence differs from the zero value.
    pub pointer: bool,
    /// Dropped from JSON when zero.
    pub omit_empty: bool,
    /// Required by OpenAPI (no `+optional`, not `omitempty`).
    pub required: bool,
    /// Default that the table itself states (`+default=`).
    pub default: Option<Value>,
    /// Known values of an enum, empty otherwise.
    pub allowed: Vec<Arc<str>>,
    /// Server-side apply list type (lists only).
    pub list_type: ListType,
    /// Server-side apply: a struct or map that is replaced as a whole (`structType=atomic`, `mapType=atomic`).
    pub atomic: bool,
    /// Strategic merge rules.
    pub patch: PatchStrategy,
}

/// One struct type.
#[derive(Debug, Clone)]
pub struct Type {
    /// Full name, such as `io.k8s.api.core.v1.Pod`.
    pub name: Arc<str>,
    /// Fields in Go order.
    pub fields: Vec<Field>,
    /// Fields that the table does not name are kept (custom resources with `x-kubernetes-preserve-unknown-fields`).
    pub open: bool,
    /// The whole struct is atomic in server-side apply.
    pub atomic: bool,
    index: HashMap<Arc<str>, usize>,
}

impl Type {
    /// A type of these fields.
    pub fn new(name: Arc<str>, fields: Vec<Field>) -> Self {
        let index = fields.iter().enumerate().map(|(i, f)| (Arc::clone(&f.json), i)).collect();
        Self { name, fields, open: false, atomic: false, index }
    }

    /// The field with this JSON name (case-sensitive, as Kubernetes' decoder).
    pub fn field(&self, json: &str) -> Option<&Field> {
        self.index.get(json).and_then(|i| self.fields.get(*i))
    }
}

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

    /// The type of a kind.
    pub fn kind(&self, gvk: &Gvk) -> Option<TypeId> {
        self.kinds.get(gvk).copied()
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
