//! Functions of templates: their names, parameters and implementations.

use crate::budget::Budget;
use crate::error::{Failure, HostError};
use crate::signature::Param;
use crate::value::Value;

/// What templates can ask of the cluster.
pub trait Host {
    /// The object of a kind, or the list of them when `name` is empty; an empty map when there is
    /// none.
    ///
    /// # Errors
    ///
    /// The cluster does not answer, or knows no such kind.
    fn lookup(
        &self,
        _api_version: &str,
        _kind: &str,
        _namespace: &str,
        _name: &str,
    ) -> Result<Value, HostError> {
        Ok(Value::map())
    }
}

/// A host without a cluster, as `helm template` has.
pub struct NoCluster;

impl Host for NoCluster {}

/// What a function may use beside its arguments.
pub struct Call<'a> {
    pub(crate) budget: &'a mut Budget,
    pub(crate) host: &'a (dyn Host + Sync),
}

/// An implementation; the arguments fit the parameters.
pub type Plain = fn(&mut Call<'_>, &[Value]) -> Result<Value, Failure>;

/// How a function runs.
#[derive(Clone, Copy)]
pub enum Run {
    And,
    Or,
    Call,
    Include,
    Tpl,
    Plain(Plain),
}

/// A function of templates.
pub struct Function {
    pub name: &'static str,
    pub params: &'static [Param],
    /// The last parameter takes any number of arguments.
    pub variadic: bool,
    pub run: Run,
}

/// A function with a fixed number of parameters.
pub const fn fixed(name: &'static str, params: &'static [Param], run: Plain) -> Function {
    Function { name, params, variadic: false, run: Run::Plain(run) }
}

/// A function whose last parameter takes any number of arguments.
pub const fn variadic(name: &'static str, params: &'static [Param], run: Plain) -> Function {
    Function { name, params, variadic: true, run: Run::Plain(run) }
}

/// Finds a function by its name.
pub type Find = fn(&str) -> Option<&'static Function>;

/// Readers of arguments, for implementations: the parameters were checked before.
pub trait Args {
    fn value(&self, at: usize) -> Value;
    /// The bytes of a string.
    fn bytes(&self, at: usize) -> &[u8];
    /// A string; bytes that are not UTF-8 are replaced.
    fn text(&self, at: usize) -> std::borrow::Cow<'_, str>;
    fn int(&self, at: usize) -> i64;
    fn flag(&self, at: usize) -> bool;
    /// The arguments from a position on.
    fn from(&self, at: usize) -> &[Value];
}

impl Args for [Value] {
    fn value(&self, at: usize) -> Value {
        self.get(at).cloned().unwrap_or(Value::Nil)
    }

    fn bytes(&self, at: usize) -> &[u8] {
        self.get(at).and_then(Value::string_bytes).unwrap_or_default()
    }

    fn text(&self, at: usize) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.bytes(at))
    }

    fn int(&self, at: usize) -> i64 {
        match self.get(at) {
            Some(Value::Int(number) | Value::Int64(number)) => *number,
            _ => 0,
        }
    }

    fn flag(&self, at: usize) -> bool {
        matches!(self.get(at), Some(Value::Bool(true)))
    }

    fn from(&self, at: usize) -> &[Value] {
        self.get(at..).unwrap_or_default()
    }
}
