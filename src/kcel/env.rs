//! The environment of expressions: variables, object types and the functions of Kubernetes 1.37.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checker;
use crate::declarations::{Function, functions};
use crate::escape;
use crate::parser;
use crate::program::Program;
use crate::source::CompileError;
use crate::types::{ObjectType, Type};

/// The variables and functions that expressions may use. Cheap to create, as all environments share
/// one table of functions.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: BTreeMap<String, Type>,
    objects: BTreeMap<Arc<str>, Type>,
    shared_fields: Option<(&'static str, Arc<BTreeMap<String, Type>>)>,
    mutation: bool,
    bindings: bool,
}

impl Env {
    /// Creates an environment without variables.
    pub fn new() -> Env {
        Env::default()
    }

    /// Declares a variable; expressions may then name the object types in its type.
    #[must_use]
    pub fn variable(mut self, name: &str, of: Type) -> Env {
        self.register(&of);
        self.variables.insert(name.into(), of);
        self
    }

    /// Adds fields to the object type `name`. The caller shares them, so that an environment for
    /// the next expression costs the same regardless of the number of fields. Their types declare
    /// no object types.
    #[must_use]
    pub fn with_shared_fields(
        mut self,
        name: &'static str,
        fields: Arc<BTreeMap<String, Type>>,
    ) -> Env {
        self.shared_fields = Some((name, fields));
        self
    }

    /// Allows the additions of mutating policies: objects `Object{...}`, `JSONPatch{...}` and
    /// `jsonpatch.escapeKey`.
    #[must_use]
    pub fn with_mutation(mut self) -> Env {
        self.mutation = true;
        self
    }

    /// Allows `cel.bind(name, value, expression)`.
    #[must_use]
    pub fn with_bindings(mut self) -> Env {
        self.bindings = true;
        self
    }

    fn register(&mut self, of: &Type) {
        match of {
            Type::Object(object) => {
                let known = self.objects.insert(object.name.clone(), of.clone());
                let fields = object.fields.values().filter(|_| known.is_none());
                fields.for_each(|field| self.register(field));
            }
            Type::List(of) | Type::Type(Some(of)) => self.register(of),
            Type::Map(key, value) => {
                self.register(key);
                self.register(value);
            }
            Type::Opaque(_, parameters) => parameters.iter().for_each(|of| self.register(of)),
            _ => {}
        }
    }

    /// Parses and checks an expression that must have the type `want`.
    ///
    /// # Errors
    /// cel-go's text with position and marker; for a wrong type upstream's `must evaluate to ...`;
    /// and errors of constants that cannot be evaluated ([`CompileError::instantiation`]).
    pub fn compile(&self, source: &str, want: &Type) -> Result<Program, CompileError> {
        let program = self.compile_any(source)?;
        let fits = want.is_dyn() || program.output().is_dyn() || program.output() == want;
        if fits {
            return Ok(program);
        }
        Err(CompileError::plain(format!("must evaluate to {}", want.name())))
    }

    /// Parses and checks an expression of any type; [`Program::output`] returns the type.
    ///
    /// # Errors
    /// As [`Env::compile`].
    pub fn compile_any(&self, source: &str) -> Result<Program, CompileError> {
        if !is_deep(source) {
            return self.compile_here(source);
        }
        // Nesting up to the limits of the parser needs more stack than the threads of workers have.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let compiled = thread.spawn_scoped(scope, || self.compile_here(source));
            let failed = || CompileError::plain("the expression could not be compiled: no thread");
            compiled.map_err(|_| failed())?.join().map_err(|_| failed())?
        })
    }

    fn compile_here(&self, source: &str) -> Result<Program, CompileError> {
        let parsed = parser::parse(source, self.bindings)?;
        let checked = checker::check(self, parsed)?;
        Program::plan(checked)
    }

    /// Returns the type of a name that is not a loop variable, and whether the name is a type.
    pub(crate) fn identifier(&self, name: &str) -> Option<(Type, bool)> {
        if let Some(of) = self.variables.get(name) {
            return Some((of.clone(), false));
        }
        let of = match name {
            "bool" => Type::Bool,
            "bytes" => Type::Bytes,
            "double" => Type::Double,
            "google.protobuf.Duration" => Type::Duration,
            "google.protobuf.Timestamp" => Type::Timestamp,
            "int" => Type::Int,
            "list" => Type::list(Type::param("A")),
            "map" => Type::map(Type::param("A"), Type::param("B")),
            "null_type" => Type::Null,
            "optional_type" => Type::optional(Type::param("V")),
            "string" => Type::String,
            "type" => Type::Type(None),
            "uint" => Type::Uint,
            name => self.type_named(name)?,
        };
        Some((Type::Type(Some(Arc::new(of))), true))
    }

    /// Returns the object type of this name.
    pub(crate) fn type_named(&self, name: &str) -> Option<Type> {
        if let Some(of) = self.objects.get(name) {
            return Some(of.clone());
        }
        let known = self.mutation
            && (name == "JSONPatch" || name == "Object" || name.starts_with("Object."));
        known.then(|| Type::object(name, BTreeMap::new()))
    }

    /// Returns the type of a field, if the object has it.
    pub(crate) fn field(&self, object: &ObjectType, field: &str) -> Option<Type> {
        if let Some(of) = object.fields.get(field) {
            return Some(of.clone());
        }
        // Fields named as reserved words can be selected with their plain and their escaped names.
        let escaped = escape::escape_reserved(field);
        if let Some(of) = escaped.as_ref().and_then(|name| object.fields.get(name)) {
            return Some(of.clone());
        }
        if let Some((name, fields)) = &self.shared_fields
            && *name == &*object.name
        {
            let of = fields.get(field);
            return of.or_else(|| fields.get(escaped.as_ref()?)).cloned();
        }
        match &*object.name {
            "JSONPatch" if self.mutation => match field {
                "op" | "path" | "from" => Some(Type::String),
                "value" => Some(Type::Dyn),
                _ => None,
            },
            // The fields of objects that a policy constructs have the types of their values.
            name if self.mutation && (name == "Object" || name.starts_with("Object.")) => {
                Some(Type::Dyn)
            }
            _ => None,
        }
    }

    /// Whether fields of this object can be selected.
    pub(crate) fn knows(&self, object: &ObjectType) -> bool {
        self.type_named(&object.name).is_some()
    }

    pub(crate) fn function(&self, name: &str) -> Option<&'static Function> {
        let found = functions().get(name)?;
        (self.mutation || name != "jsonpatch.escapeKey").then_some(found)
    }
}

/// Stack size, in bytes, for deeply nested expressions.
const STACK_BYTES: usize = 32 << 20;
/// Numbers of bytes and brackets up to which an expression is compiled on the caller's stack.
const SHALLOW_BYTES: usize = 400;
const SHALLOW_BRACKETS: usize = 20;

/// Whether an expression may be deeply nested.
fn is_deep(source: &str) -> bool {
    let brackets = source.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'{' | b'?')).count();
    source.len() > SHALLOW_BYTES || brackets > SHALLOW_BRACKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pkg/authorization/cel/compile_test.go` of k8s.io/apiserver.
    #[test]
    fn an_expression_must_have_the_wanted_type_or_dyn() {
        let env = Env::new().variable("user", Type::String).variable("any", Type::Dyn);
        for (expr, want, expected) in [
            ("user", Type::Bool, Err("must evaluate to bool")),
            ("user == ''", Type::Bool, Ok("bool")),
            ("any", Type::Bool, Ok("dyn")),
            ("user", Type::Dyn, Ok("string")),
            ("1", Type::String, Err("must evaluate to string")),
        ] {
            let got = env.compile(expr, &want).map(|program| program.output().to_string());
            let got = got.as_deref().map_err(CompileError::to_string);
            assert_eq!(got, expected.map_err(str::to_owned), "{expr}");
        }
    }

    /// `pkg/cel/environment/base.go` and `pkg/cel/mutation` of k8s.io/apiserver: only some
    /// environments have the macro `cel.bind` and the functions of mutations.
    #[test]
    fn bindings_and_mutations_exist_only_on_request() {
        let plain = || Env::new();
        let bind = "cel.bind(a, 1, a + a) == 2";
        let patch = "JSONPatch{op: 'add', path: '/' + jsonpatch.escapeKey('a/b'), value: 1}.op";
        let object = "Object{spec: Object.spec{replicas: 1}}.spec";
        for (env, expr, valid) in [
            (plain(), bind, false),
            (plain().with_bindings(), bind, true),
            (plain(), patch, false),
            (plain().with_mutation(), patch, true),
            (plain(), object, false),
            (plain().with_mutation(), object, true),
        ] {
            assert_eq!(env.compile_any(expr).is_ok(), valid, "{expr}");
        }
    }

    /// `FindStructFieldType` of `pkg/cel/types.go` and `pkg/cel/escaping.go` in k8s.io/apiserver.
    #[test]
    fn fields_are_found_by_name_and_reserved_words_by_their_escaped_name() {
        let fields = [("a__dash__b", Type::Int), ("__namespace__", Type::String)];
        let of = Type::object("T", fields.map(|(name, of)| (name.to_owned(), of)).into());
        let env = Env::new().variable("x", of);
        for (expr, expected) in [
            ("x.a__dash__b", Ok("int")),
            ("x.__namespace__", Ok("string")),
            ("x.missing", Err("undefined field 'missing'")),
        ] {
            match (env.compile_any(expr), expected) {
                (Ok(program), Ok(of)) => assert_eq!(program.output().to_string(), of, "{expr}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (got, _) => panic!("{expr}: {got:?}"),
            }
        }
    }
}
