//! Types of parameters, and Go's texts about arguments that do not fit.

use crate::value::{Class, Elem, Value};

/// The type of a parameter of a function or method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Param {
    /// `interface {}`
    Any,
    /// `reflect.Value`, which Go's own functions take.
    Reflect,
    Str,
    Int,
    Float,
    Bool,
    /// `map[string]interface {}`
    Map,
    /// `time.Time`
    Time,
    /// `[]interface {}`
    List,
    /// `[]string`
    Strings,
    /// `sprig.certificate`
    Certificate,
    /// `*semver.Version`
    Version,
}

impl Param {
    /// Go's name of the type.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Any => "interface {}",
            Self::Reflect => "reflect.Value",
            Self::Str => "string",
            Self::Int => "int",
            Self::Float => "float64",
            Self::Bool => "bool",
            Self::Map => "map[string]interface {}",
            Self::Time => "time.Time",
            Self::List => "[]interface {}",
            Self::Strings => "[]string",
            Self::Certificate => "sprig.certificate",
            Self::Version => "*semver.Version",
        }
    }

    /// Whether `nil` is a value of the type.
    pub fn can_be_nil(self) -> bool {
        !matches!(
            self,
            Self::Str | Self::Int | Self::Float | Self::Bool | Self::Time | Self::Certificate
        )
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Any | Self::Reflect => true,
            Self::Str => matches!(value, Value::String(_) | Value::Binary(_)),
            Self::Int => matches!(value, Value::Int(_)),
            Self::Float => matches!(value, Value::Float(_)),
            Self::Bool => matches!(value, Value::Bool(_)),
            Self::Map => matches!(value, Value::Map(map) if map.class == Class::Any),
            Self::Time => matches!(value, Value::Time(_)),
            Self::List => matches!(value, Value::List(list) if list.elem == Elem::Any),
            Self::Strings => {
                let strings = [Elem::String, Elem::Versions];
                matches!(value, Value::List(list) if strings.contains(&list.elem))
            }
            Self::Certificate | Self::Version => value.type_name() == self.type_name(),
        }
    }

    /// `validateType` of text/template.
    ///
    /// # Errors
    ///
    /// Go's text when the value does not fit the parameter.
    pub fn validate(self, value: Value) -> Result<Value, Mismatch> {
        if matches!(value, Value::Invalid) {
            if self.can_be_nil() {
                return Ok(Value::Nil);
            }
            return Err(Mismatch::Invalid(self));
        }
        if self.accepts(&value) {
            return Ok(value);
        }
        Err(Mismatch::Type(self, value.type_name()))
    }
}

/// An argument does not fit its parameter.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    #[error("invalid value; expected {}", .0.type_name())]
    Invalid(Param),
    #[error("wrong type for value; expected {}; got {}", .0.type_name(), .1)]
    Type(Param, &'static str),
}

/// The number of arguments that a function takes.
///
/// # Errors
///
/// Go's text about `given` arguments for `params`, of which the last repeats when `variadic`.
pub(crate) fn check_count(
    name: &str,
    params: usize,
    variadic: bool,
    given: usize,
    literal: usize,
) -> Result<(), WrongCount> {
    let name = name.to_owned();
    if variadic {
        let least = params.saturating_sub(1);
        if given < least {
            return Err(WrongCount::AtLeast { name, want: least, got: literal });
        }
    } else if given != params {
        return Err(WrongCount::Exactly { name, want: params, got: given });
    }
    Ok(())
}

/// A function was called with too many or too few arguments.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongCount {
    #[error("wrong number of args for {name}: want at least {want} got {got}")]
    AtLeast { name: String, want: usize, got: usize },
    #[error("wrong number of args for {name}: want {want} got {got}")]
    Exactly { name: String, want: usize, got: usize },
}
