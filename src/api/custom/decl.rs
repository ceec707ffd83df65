//! Declarations of a schema for CEL rules: types for the checker, sizes for cost estimates, and the
//! conversion of values (`k8s.io/apiserver/pkg/cel/common/schemas.go`,
//! `pkg/apiserver/schema/cel/model`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use kcel::limits::REQUEST_BYTES_MAX;
use kcel::{Declared, Format, ListType, Properties, Range, SizeEstimator, escape};
use serde_json::Value;

use super::node::{Additional, ListKind, Node, Type};

/// Bytes of a request without the delimiters of a list, an object or a string.
const WITHIN_REQUEST: u64 = REQUEST_BYTES_MAX - 2;
/// Maximum length of an object's name (DNS-1123 subdomain).
const NAME_MAX: i64 = 253;
/// Maximum size of a duration or timestamp in JSON.
const TIME_MAX: u64 = 32;
/// Size of a date in JSON.
const DATE: u64 = 12;
/// Minimum size of a timestamp in JSON.
const MOMENT_MIN: u64 = 21;
/// Minimum size of a duration in JSON.
const DURATION_MIN: u64 = 3;

/// The type of a schema, equivalent to upstream's `DeclType`.
#[derive(Debug)]
pub(crate) struct Decl {
    pub(crate) of: kcel::Type,
    /// Minimum size of a value in JSON, in bytes.
    pub(crate) min: u64,
    /// Maximum number of elements, entries, characters or bytes of a value.
    max: u64,
    below: Below,
}

#[derive(Debug)]
enum Below {
    Nothing,
    Items(Arc<Decl>),
    Values(Arc<Decl>),
    /// By escaped field name.
    Fields(BTreeMap<String, Arc<Decl>>),
}

impl Decl {
    /// The type of a schema under this name; `None` when rules cannot access such values. `root`
    /// marks the schema of a resource.
    pub(crate) fn of(node: &Node, root: bool, name: &str) -> Option<Arc<Self>> {
        if node.int_or_string {
            let max = node.checks.max_length.map_or(WITHIN_REQUEST, four_times);
            return simple(kcel::Type::Dyn, 1, max);
        }
        let node = if root { with_meta(node) } else { Cow::Borrowed(node) };
        match node.kind? {
            Type::Array => {
                let items = node.items.as_deref()?;
                let items = Self::of(items, items.embedded, &format!("{name}.@idx"))?;
                let max = node.checks.max_items.map_or(WITHIN_REQUEST / (items.min + 1), size);
                let of = kcel::Type::list(items.of.clone());
                Some(Arc::new(Self { of, min: 2, max, below: Below::Items(items) }))
            }
            Type::Object => match &node.additional {
                Some(Additional::Schema(values)) => {
                    let values = Self::of(values, values.embedded, &format!("{name}.@elem"))?;
                    let fit = WITHIN_REQUEST / (values.min + 6);
                    let max = node.checks.max_properties.map_or(fit, size);
                    let of = kcel::Type::map(kcel::Type::String, values.of.clone());
                    Some(Arc::new(Self { of, min: 2, max, below: Below::Values(values) }))
                }
                _ => Some(Self::object(&node, name)),
            },
            Type::String => text(&node),
            Type::Boolean => simple(kcel::Type::Bool, 4, 0),
            Type::Number => simple(kcel::Type::Double, 1, 0),
            Type::Integer => simple(kcel::Type::Int, 1, 0),
        }
    }

    fn object(node: &Node, name: &str) -> Arc<Self> {
        let mut fields = BTreeMap::new();
        let mut min = 2u64;
        for (key, below) in &node.properties {
            let escaped = escape(key);
            let own = format!("{name}.{}", escaped.as_deref().unwrap_or(key));
            let Some(decl) = Self::of(below, below.embedded, &own) else { continue };
            if below.default.is_none() && node.checks.required.contains(key) {
                min = min.saturating_add(key.len() as u64 + decl.min + 4);
            }
            if let Some(escaped) = escaped {
                fields.insert(escaped, decl);
            }
        }
        let types = fields.iter().map(|(name, decl)| (name.clone(), decl.of.clone())).collect();
        let of = kcel::Type::object(name, types);
        Arc::new(Self { of, min, max: 0, below: Below::Fields(fields) })
    }

    /// The type of a property whose name expressions can use.
    pub(crate) fn property(&self, name: &str) -> Option<&Arc<Self>> {
        match &self.below {
            Below::Fields(fields) => fields.get(&escape(name)?),
            _ => None,
        }
    }

    /// The type of the items of a list or the values of a map.
    pub(crate) fn element(&self) -> Option<&Arc<Self>> {
        match &self.below {
            Below::Items(below) | Below::Values(below) => Some(below),
            _ => None,
        }
    }

    /// Maximum number of such values in a request.
    pub(crate) fn cardinality(&self) -> u64 {
        REQUEST_BYTES_MAX / (self.min + 1)
    }
}

impl SizeEstimator for Decl {
    fn size(&self, path: &[String]) -> Option<Range> {
        let (_, mut steps) = path.split_first()?;
        let mut here = self;
        while let Some((step, rest)) = steps.split_first() {
            here = match (step.as_str(), &here.below) {
                ("@items" | "@values", Below::Items(below) | Below::Values(below)) => below,
                // Upstream's declaration of map keys has no size.
                ("@keys", Below::Values(_)) => return rest.is_empty().then(|| range(0)),
                (name, Below::Fields(fields)) => fields.get(name)?,
                _ => return None,
            };
            steps = rest;
        }
        Some(range(here.max))
    }
}

fn range(max: u64) -> Range {
    Range { min: 0, max }
}

fn simple(of: kcel::Type, min: u64, max: u64) -> Option<Arc<Decl>> {
    Some(Arc::new(Decl { of, min, max, below: Below::Nothing }))
}

fn size(limit: i64) -> u64 {
    u64::try_from(limit).unwrap_or(0)
}

/// Maximum number of bytes of `limit` characters in UTF-8.
fn four_times(limit: i64) -> u64 {
    size(limit).saturating_mul(4)
}

fn text(node: &Node) -> Option<Arc<Decl>> {
    let limit = node.checks.max_length;
    match format(node) {
        Format::Byte => simple(kcel::Type::Bytes, 2, limit.map_or(WITHIN_REQUEST, size)),
        Format::Duration => simple(kcel::Type::Duration, DURATION_MIN, TIME_MAX),
        Format::Date => simple(kcel::Type::Timestamp, DATE, DATE),
        Format::DateTime => simple(kcel::Type::Timestamp, MOMENT_MIN, TIME_MAX),
        Format::Plain => {
            let values = node.checks.values.iter().filter_map(Value::as_str).map(str::len);
            let longest = || match &*node.checks.values {
                [] => WITHIN_REQUEST,
                _ => values.max().unwrap_or(0) as u64,
            };
            simple(kcel::Type::String, 2, limit.map_or_else(longest, four_times))
        }
    }
}

fn format(node: &Node) -> Format {
    match node.checks.format.as_ref().map(|format| &*format.name) {
        Some("byte") => Format::Byte,
        Some("duration") => Format::Duration,
        Some("date") => Format::Date,
        Some("date-time") => Format::DateTime,
        _ => Format::Plain,
    }
}

/// The schema of a resource. Rules can always access `apiVersion`, `kind`, `metadata.name` and
/// `metadata.generateName`, so missing ones are added.
fn with_meta(node: &Node) -> Cow<'_, Node> {
    let is = |node: &Node, name: &str, kind: Type| {
        node.properties.get(name).is_some_and(|below| below.kind == Some(kind))
    };
    let meta = node.properties.get("metadata");
    let named = meta.is_some_and(|meta| {
        is(meta, "name", Type::String) && is(meta, "generateName", Type::String)
    });
    if named
        && is(node, "kind", Type::String)
        && is(node, "apiVersion", Type::String)
        && is(node, "metadata", Type::Object)
    {
        return Cow::Borrowed(node);
    }
    let short = |name: &str, limit: i64| {
        let given = meta.and_then(|meta| meta.properties.get(name)?.checks.max_length);
        let mut node = Node { kind: Some(Type::String), ..Node::default() };
        node.checks.max_length = Some(given.map_or(limit, |given| given.min(limit)));
        Arc::new(node)
    };
    let text = || Arc::new(Node { kind: Some(Type::String), ..Node::default() });
    let names = [
        ("name".into(), short("name", NAME_MAX)),
        // The server appends at least one byte to the prefix.
        ("generateName".into(), short("generateName", NAME_MAX - 1)),
    ];
    let properties = names.into_iter().collect();
    let meta = Node { kind: Some(Type::Object), properties, ..Node::default() };
    let mut whole = node.clone();
    whole.properties.insert("kind".into(), text());
    whole.properties.insert("apiVersion".into(), text());
    whole.properties.insert("metadata".into(), Arc::new(meta));
    Cow::Owned(whole)
}

/// The conversion of values of a schema to CEL values.
pub(super) fn declared(node: &Node, root: bool) -> Declared {
    let plain = plain(node, root || node.embedded);
    if node.nullable { Declared::Nullable(Box::new(plain)) } else { plain }
}

fn plain(node: &Node, resource: bool) -> Declared {
    if node.int_or_string {
        return Declared::IntOrString;
    }
    match node.kind {
        None => Declared::Preserved,
        Some(Type::Boolean) => Declared::Boolean,
        Some(Type::Integer) => Declared::Integer,
        Some(Type::Number) => Declared::Number,
        Some(Type::String) => Declared::String(format(node)),
        Some(Type::Array) => {
            let items = node.items.as_deref().map_or(Declared::Preserved, |n| declared(n, false));
            let list = match node.list {
                Some(ListKind::Set) => ListType::Set,
                Some(ListKind::Map) => {
                    ListType::Map(node.list_keys.iter().map(|key| key.as_ref().into()).collect())
                }
                _ => ListType::Atomic,
            };
            Declared::Array { items: Box::new(items), list }
        }
        Some(Type::Object) => {
            let node = if resource { with_meta(node) } else { Cow::Borrowed(node) };
            match &node.additional {
                _ if !node.properties.is_empty() => {
                    let fields = node.properties.iter();
                    let fields =
                        fields.map(|(key, below)| (key.to_string(), declared(below, false)));
                    // Only types for the checker need a name; values do not.
                    let name = String::new();
                    Declared::Object(Arc::new(Properties { name, fields: fields.collect() }))
                }
                Some(Additional::Schema(values)) => {
                    Declared::Map(Box::new(declared(values, false)))
                }
                _ => Declared::Unspecified,
            }
        }
    }
}

/// The conversion of a field (`name`) or an element (`None`) of a value with the conversion
/// `whole`.
pub(super) fn part<'a>(whole: &'a Declared, name: Option<&str>) -> Option<&'a Declared> {
    match (whole, name) {
        (Declared::Nullable(inner), _) => part(inner, name),
        (Declared::Array { items, .. }, None) => Some(items),
        (Declared::Map(values), Some(_)) => Some(values),
        (Declared::Object(properties), Some(name)) => properties.fields.get(name),
        _ => None,
    }
}
