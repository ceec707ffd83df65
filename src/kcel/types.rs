//! Types of CEL, and their text in messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Known only at run time: the checker allows every operation.
    Dyn,
    /// `google.protobuf.Any`: as `Dyn`, but not iterable.
    Any,
    /// The type of an expression with a reported error.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    /// An object with declared fields, equal to all other types of the same name.
    Object(Arc<ObjectType>),
    /// A type of a library, with optional parameters: `optional_type(T)`, `net.IP`.
    Opaque(Arc<str>, Arc<[Type]>),
    /// The type of a type; `None` is `type` itself.
    Type(Option<Arc<Type>>),
    /// A type parameter of a declaration, or a free variable of the checker.
    Param(Arc<str>),
}

/// An object type: its name and the fields that expressions may select.
#[derive(Debug)]
pub struct ObjectType {
    /// The qualified name, such as `kubernetes.URL`.
    pub name: Arc<str>,
    /// The fields by their names in expressions (escaped, see [`crate::escape`]).
    pub fields: BTreeMap<String, Type>,
}

impl PartialEq for ObjectType {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Name of the type of optional values.
pub const OPTIONAL: &str = "optional_type";

impl Type {
    /// `list(of)`.
    pub fn list(of: Type) -> Type {
        Type::List(Arc::new(of))
    }

    /// `map(key, value)`.
    pub fn map(key: Type, value: Type) -> Type {
        Type::Map(Arc::new(key), Arc::new(value))
    }

    /// `optional_type(of)`.
    pub fn optional(of: Type) -> Type {
        Type::Opaque(OPTIONAL.into(), [of].into())
    }

    /// An object type with this name and these fields.
    pub fn object(name: &str, fields: BTreeMap<String, Type>) -> Type {
        Type::Object(Arc::new(ObjectType { name: name.into(), fields }))
    }

    pub(crate) fn param(name: impl Into<Arc<str>>) -> Type {
        Type::Param(name.into())
    }

    pub(crate) fn is_dyn(&self) -> bool {
        matches!(self, Type::Dyn | Type::Any)
    }

    pub(crate) fn is_dyn_or_error(&self) -> bool {
        matches!(self, Type::Dyn | Type::Any | Type::Error)
    }

    /// Returns the type in an optional type.
    pub fn unwrap_optional(&self) -> Option<&Type> {
        match self {
            Type::Opaque(name, parameters) if &**name == OPTIONAL => parameters.first(),
            _ => None,
        }
    }

    /// Returns the runtime name, without parameters: the result of `type(x)`.
    pub fn name(&self) -> &str {
        match self {
            Type::Dyn => "dyn",
            Type::Any => "google.protobuf.Any",
            Type::Error => "*error*",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "google.protobuf.Timestamp",
            Type::Duration => "google.protobuf.Duration",
            Type::List(_) => "list",
            Type::Map(..) => "map",
            Type::Object(object) => &object.name,
            Type::Opaque(name, _) | Type::Param(name) => name,
            Type::Type(_) => "type",
        }
    }

    /// Parses the text that messages and the table of declarations use.
    pub(crate) fn parse(text: &str) -> Option<Type> {
        let text = text.trim();
        let (head, inner) = match text.find('(') {
            Some(at) => (text.get(..at)?, Some(text.get(at + 1..)?.strip_suffix(')')?)),
            None => (text, None),
        };
        let simple = match head {
            "dyn" => Type::Dyn,
            "null" => Type::Null,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "list" => return Some(Type::list(Type::parse(inner?)?)),
            "map" => {
                let (key, value) = split_parameters(inner?)?;
                return Some(Type::map(Type::parse(key)?, Type::parse(value)?));
            }
            "type" => {
                return Some(Type::Type(match inner {
                    Some(inner) => Some(Arc::new(Type::parse(inner)?)),
                    None => None,
                }));
            }
            OPTIONAL => return Some(Type::optional(Type::parse(inner?)?)),
            "net.IP" | "net.CIDR" => Type::Opaque(head.into(), [].into()),
            name if name.len() == 1 => Type::param(name),
            name => Type::object(name, BTreeMap::new()),
        };
        inner.is_none().then_some(simple)
    }
}

/// Splits `K, V` at the comma outside parentheses.
fn split_parameters(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => return Some((text.get(..at)?, text.get(at + 1..)?)),
            _ => {}
        }
    }
    None
}

impl fmt::Display for Type {
    /// Formats the type as cel-go's `FormatCELType`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Any => out.write_str("any"),
            Type::Error => out.write_str("!error!"),
            Type::Null => out.write_str("null"),
            Type::Timestamp => out.write_str("timestamp"),
            Type::Duration => out.write_str("duration"),
            Type::List(of) => write!(out, "list({of})"),
            Type::Map(key, value) => write!(out, "map({key}, {value})"),
            Type::Type(Some(of)) => write!(out, "type({of})"),
            Type::Opaque(name, parameters) if !parameters.is_empty() => {
                write!(out, "{name}(")?;
                for (at, parameter) in parameters.iter().enumerate() {
                    if at > 0 {
                        out.write_str(", ")?;
                    }
                    write!(out, "{parameter}")?;
                }
                out.write_str(")")
            }
            other => out.write_str(other.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of cel-go's `checker/format_test.go` and `common/types/types_test.go`.
    #[test]
    fn types_have_a_text_with_parameters_and_a_name_without() {
        for (text, name) in [
            ("list(int)", "list"),
            ("map(uint, double)", "map"),
            ("bool", "bool"),
            ("dyn", "dyn"),
            ("null", "null_type"),
            ("optional_type(list(string))", "optional_type"),
            ("my.type.Message", "my.type.Message"),
            ("type(string)", "type"),
            ("type", "type"),
            ("timestamp", "google.protobuf.Timestamp"),
            ("duration", "google.protobuf.Duration"),
            ("map(string, map(int, list(bytes)))", "map"),
            ("net.IP", "net.IP"),
        ] {
            let of = Type::parse(text).unwrap();
            assert_eq!(of.to_string(), text);
            assert_eq!(of.name(), name);
        }
        assert_eq!(Type::Any.to_string(), "any");
        assert_eq!(Type::Error.to_string(), "!error!");
    }

    /// Types of `declarations.txt` have the parameters that cel-go's `common/types/types.go` gives
    /// them.
    #[test]
    fn texts_with_missing_or_superfluous_parameters_are_no_types() {
        for text in ["list", "list(int", "int(int)", "map(int)", "map", "optional_type"] {
            assert_eq!(Type::parse(text), None, "{text}");
        }
    }

    /// `IsExactType` of cel-go's `common/types/types.go` compares names.
    #[test]
    fn objects_are_equal_if_their_names_are() {
        let fields = BTreeMap::from([("a".to_owned(), Type::Int)]);
        assert_eq!(Type::object("A", fields.clone()), Type::object("A", BTreeMap::new()));
        assert_ne!(Type::object("A", fields.clone()), Type::object("B", fields));
    }
}
