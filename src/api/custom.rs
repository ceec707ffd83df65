//! Structural schemas of custom resources, as `apiextensions.k8s.io/v1` defines them: validation,
//! pruning and defaulting of values.
//!
//! A [`Structural`] is parsed once per version of a definition; a pattern is compiled at its first
//! match. Values are processed in place. `validation::crd` validates the schemas themselves.

mod checking;
mod correlate;
mod decl;
mod defaulting;
mod enumeration;
mod formats;
mod lists;
mod meta;
mod node;
mod numbers;
mod paths;
mod pattern;
mod pruning;
mod rules;
mod table;
mod unknown;
mod values;

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::field::{Error, ErrorList, Kind, Path};

pub use self::checking::{has_pruned_defaults, validate_defaults};
pub(crate) use self::decl::Decl;
pub(crate) use self::node::{Additional, Node, Type, parse};
pub(crate) use self::paths::{FieldPathError, Steps};
pub use self::pattern::{check as check_pattern, compile as compile_pattern};
pub use self::pruning::PruneOptions;
pub(crate) use self::rules::{Compiled, SELF_TYPE, compile};
use self::rules::{Rules, Write};
pub use self::unknown::unrecognized_formats;

/// The schema of one version of a custom resource, or of a part of it. Clones share the schema.
#[derive(Debug, Clone)]
pub struct Structural(Arc<Node>, Arc<OnceLock<Option<Rules>>>);

impl Structural {
    /// Parses the JSON form of `JSONSchemaProps`. Fields that the schema does not specify are
    /// removed from its defaults, as upstream does before it serves them.
    ///
    /// # Errors
    /// Unsupported keywords and unknown types. A definition that `validation::crd` accepted has
    /// none of them.
    pub fn new(schema: &Value) -> Result<Self, ErrorList> {
        let mut root = node::parse(schema)?;
        defaulting::prune_defaults(&mut root);
        Ok(Self(Arc::new(root), Arc::default()))
    }

    /// The schema of a property, without rules, since rules are evaluated for whole objects only.
    /// `None` when the schema does not specify the property.
    pub fn property(&self, name: &str) -> Option<Self> {
        let node = self.0.properties.get(name)?;
        Some(Self(Arc::clone(node), Arc::new(OnceLock::from(None))))
    }

    /// Removes fields that the schema does not specify, and null fields that are neither nullable
    /// nor have a default. Returns the sorted paths of the removed fields (`spec.a[0].b`) when
    /// `options` requests them, up to a limit.
    pub fn prune(&self, value: &mut Value, options: &PruneOptions) -> Vec<String> {
        let paths = pruning::prune(value, Some(&self.0), options);
        pruning::drop_nulls(value, Some(&self.0));
        paths
    }

    /// Sets the defaults of absent fields, and of null fields that are not nullable.
    pub fn default(&self, value: &mut Value) {
        defaulting::apply(value, Some(&self.0));
    }

    /// Coerces `metadata` of embedded resources (not of the root) to `ObjectMeta`: removes unknown
    /// fields and returns their paths.
    ///
    /// # Errors
    /// The first embedded `apiVersion`, `kind` or `metadata` of a wrong type; none with
    /// `drop_invalid`.
    pub fn coerce(&self, value: &mut Value, drop_invalid: bool) -> Result<Vec<String>, Box<Error>> {
        meta::coerce(value, &self.0, &Path::default(), drop_invalid)
    }

    /// All errors of an object in upstream's order: [`Structural::values`],
    /// [`Structural::invariants`], then [`Structural::rules`]. `old` is the object before an
    /// update: an invalid value that the update does not change is no error (KEP-4008).
    pub fn validate(&self, new: &Value, old: Option<&Value>, path: &Path) -> ErrorList {
        let mut errors = self.values(new, old, path);
        errors.extend(self.invariants(new, old));
        errors.extend(self.rules(new, old, &errors).0);
        errors
    }

    /// Errors of values alone: types, required fields, enums, patterns, sizes, formats. `path` is
    /// the prefix of each error's field.
    pub fn values(&self, new: &Value, old: Option<&Value>, path: &Path) -> ErrorList {
        values::validate(&self.0, new, old, path)
    }

    /// Errors of embedded resources, and of sets and maps with duplicate items. They apply to whole
    /// objects only.
    pub fn invariants(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = meta::validate(new, &self.0, &Path::default(), false);
        errors.extend(self.lists(new, old));
        errors
    }

    /// Compiles the CEL rules unless they are compiled already. Returns whether the schema has
    /// rules, and whether this call compiled them.
    pub fn compile(&self) -> (bool, bool) {
        let done = self.1.get().is_some();
        (self.1.get_or_init(|| Rules::new(&self.0, true)).is_some(), !done)
    }

    /// Errors of CEL rules for a whole object, and warnings: errors that the old object has as
    /// well. The first call compiles the rules. `before` contains all errors found so far; some
    /// kinds of errors prevent the evaluation of rules.
    pub fn rules(
        &self,
        new: &Value,
        old: Option<&Value>,
        before: &[Error],
    ) -> (ErrorList, Vec<String>) {
        let Some(rules) = self.1.get_or_init(|| Rules::new(&self.0, true)) else {
            return (ErrorList::new(), Vec::new());
        };
        if before.iter().any(is_blocking) {
            let error = Error::invalid(&Path::default(), Value::Null, UNCHECKED);
            return (vec![error], Vec::new());
        }
        let write = Write { node: &self.0, new, old, ratchets: true };
        let found = rules.run_all(write, &Path::default());
        (found.errors, found.warnings)
    }

    /// Errors of sets and maps with duplicate items; none when the old object has duplicates as
    /// well.
    pub fn lists(&self, new: &Value, old: Option<&Value>) -> ErrorList {
        let path = Path::default();
        match old {
            Some(old) if !lists::validate(old, &self.0, &path).is_empty() => ErrorList::new(),
            _ => lists::validate(new, &self.0, &path),
        }
    }
}

/// The error that replaces the errors of rules when the rules are not evaluated.
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// Whether an error prevents the evaluation of rules: they would receive values of wrong types or
/// sizes.
fn is_blocking(error: &Error) -> bool {
    matches!(
        error.kind,
        Kind::NotSupported | Kind::Required | Kind::TooLong | Kind::TooMany | Kind::TypeInvalid
    )
}

#[cfg(test)]
mod tests;
