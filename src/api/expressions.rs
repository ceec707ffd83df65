//! CEL expressions of admission: the variables that they may use, the types that they must return,
//! and upstream's error texts (upstream's `pkg/admission/plugin/cel`).

pub mod checking;
pub mod devices;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use kcel::{Env, Program, Type};

use crate::field::{Error, Path};

/// Name of the type of the variable `variables`.
const VARIABLES_TYPE: &str = "kubernetes.variables";
/// The variable that contains the variables of a policy.
pub const VARIABLES: &str = "variables";

/// Variables and types that an expression may use in addition to `object`, `oldObject`, `request`
/// and `namespaceObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The variable `params`.
    pub params: bool,
    /// The variables `authorizer` and `authorizer.requestResource`.
    pub authorizer: bool,
    /// The types `Object{...}` and `JSONPatch{...}`.
    pub patches: bool,
}

/// The type that an expression must return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// A boolean: conditions and validations.
    Bool,
    /// A string: messages.
    Text,
    /// A string or null: values of audit annotations.
    TextOrNull,
    /// Any type: variables.
    Any,
    /// The type `Object{...}`: apply configurations.
    Object,
    /// A list of `JSONPatch{...}`.
    Patches,
}

/// Why an expression does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The expression has a syntax error or a type error.
    Invalid(String),
    /// The program cannot be instantiated, because a constant in the expression cannot be computed.
    Internal(String),
}

impl Fault {
    /// The error of the field that contains the expression, with `shown` as the field's value.
    pub fn at(self, field: &Path, shown: &str) -> Error {
        match self {
            Fault::Invalid(why) => Error::invalid(field, shown, why),
            Fault::Internal(why) => Error::internal(field, why),
        }
    }
}

impl From<kcel::CompileError> for Fault {
    fn from(error: kcel::CompileError) -> Self {
        if error.instantiation {
            Fault::Internal(format!("program instantiation failed: {error}"))
        } else {
            Fault::Invalid(format!("compilation failed: {error}"))
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Invalid(text) | Fault::Internal(text) => out.write_str(text),
        }
    }
}

/// Compiles the expressions of one webhook or policy.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// Types of the variables declared so far; `None` when expressions cannot use `variables`.
    variables: Option<Arc<BTreeMap<String, Type>>>,
    /// Types of the object and of `params`; `None` when they are not known.
    types: Option<(Type, Type)>,
}

impl Compiler {
    /// A compiler for expressions that cannot use `variables`.
    pub fn plain() -> Compiler {
        Compiler::default()
    }

    /// A compiler for expressions that can use `variables`. Initially no variable is declared.
    pub fn composed() -> Compiler {
        Compiler { variables: Some(Arc::default()), types: None }
    }

    /// A compiler like [`Compiler::composed`], with the types of the object and of `params`.
    fn typed(object: Type, params: Type) -> Compiler {
        Compiler { variables: Some(Arc::default()), types: Some((object, params)) }
    }

    /// Compiles one expression.
    ///
    /// # Errors
    /// Upstream's error text.
    pub fn compile(&self, text: &str, uses: Uses, yields: Yields) -> Result<Program, Fault> {
        compile(&self.env(uses), text, yields)
    }

    /// Compiles a variable and declares it for all later expressions. A variable that does not
    /// compile is declared with the type `dyn`.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn variable(&mut self, name: &str, text: &str, uses: Uses) -> Result<Program, Fault> {
        let compiled = self.compile(text, uses, Yields::Any);
        let of = compiled.as_ref().map_or(Type::Dyn, |program| declared(program.output()));
        // An environment is dropped when its expression is compiled, so `make_mut` copies nothing.
        Arc::make_mut(self.variables.get_or_insert_default()).insert(name.to_owned(), of);
        compiled
    }

    fn env(&self, uses: Uses) -> Env {
        let (object, params) = self.types.clone().unwrap_or((Type::Dyn, Type::Dyn));
        let mut env = Env::new()
            .variable("object", object.clone())
            .variable("oldObject", object)
            .variable("namespaceObject", NAMESPACE.clone())
            .variable("request", REQUEST.clone());
        if let Some(variables) = &self.variables {
            env = env
                .variable(VARIABLES, Type::object(VARIABLES_TYPE, BTreeMap::new()))
                .with_shared_fields(VARIABLES_TYPE, Arc::clone(variables));
        }
        if uses.params {
            env = env.variable("params", params);
        }
        if uses.authorizer {
            let of = |name: &str| Type::object(name, BTreeMap::new());
            env = env.variable("authorizer", of("kubernetes.authorization.Authorizer")).variable(
                "authorizer.requestResource",
                of("kubernetes.authorization.ResourceCheck"),
            );
        }
        if uses.patches { env.with_mutation() } else { env }
    }
}

/// Compiles one expression in an environment.
///
/// # Errors
/// Upstream's error text.
pub fn compile(env: &Env, text: &str, yields: Yields) -> Result<Program, Fault> {
    let program = env.compile_any(text)?;
    let wanted = yields.types();
    let got = program.output();
    if wanted.is_empty() || wanted.contains(got) {
        return Ok(program);
    }
    let shown: Vec<String> = wanted.iter().map(go_name).collect();
    let wanted = match shown.as_slice() {
        [one] => format!("must evaluate to {one}"),
        several => format!("must evaluate to one of [{}]", several.join(" ")),
    };
    Err(Fault::Invalid(format!("{wanted} but got {}", go_name(got))))
}

impl Yields {
    /// The allowed types; an empty list allows all types.
    fn types(self) -> Vec<Type> {
        match self {
            Yields::Bool => vec![Type::Bool],
            Yields::Text => vec![Type::String],
            Yields::TextOrNull => vec![Type::String, Type::Null],
            Yields::Any => Vec::new(),
            Yields::Object => vec![Type::object("Object", BTreeMap::new())],
            Yields::Patches => vec![Type::list(Type::object("JSONPatch", BTreeMap::new()))],
        }
    }
}

/// A type in the format of Go's `%v`: its name at run time, with its parameters.
fn go_name(of: &Type) -> String {
    match of {
        Type::List(of) => format!("list({})", go_name(of)),
        Type::Map(key, value) => format!("map({}, {})", go_name(key), go_name(value)),
        Type::Type(Some(of)) => format!("type({})", go_name(of)),
        Type::Opaque(name, parameters) if !parameters.is_empty() => {
            let parameters: Vec<String> = parameters.iter().map(go_name).collect();
            format!("{name}({})", parameters.join(", "))
        }
        other => other.name().to_owned(),
    }
}

/// The type with which a variable is declared: simple types, and lists and maps of them, are kept;
/// all other types become `dyn`.
fn declared(of: &Type) -> Type {
    match of {
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint => of.clone(),
        Type::List(of) => Type::list(declared(of)),
        Type::Map(key, value) => Type::map(declared(key), declared(value)),
        _ => Type::Dyn,
    }
}

fn object<const N: usize>(name: &str, fields: [(&str, Type); N]) -> Type {
    Type::object(name, fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect())
}

/// The type of `request`: AdmissionRequest without `uid`, `object` and `oldObject` (upstream's
/// `BuildRequestType`).
static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let kind = || {
        let fields = ["group", "version", "kind"].map(|name| (name, Type::String));
        object("kubernetes.GroupVersionKind", fields)
    };
    let resource = || {
        let fields = ["group", "version", "resource"].map(|name| (name, Type::String));
        object("kubernetes.GroupVersionResource", fields)
    };
    let texts = || Type::list(Type::String);
    let user = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    let fields = [
        ("kind", kind()),
        ("resource", resource()),
        ("subResource", Type::String),
        ("requestKind", kind()),
        ("requestResource", resource()),
        ("requestSubResource", Type::String),
        ("name", Type::String),
        ("namespace", Type::String),
        ("operation", Type::String),
        ("userInfo", object("kubernetes.UserInfo", user)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ];
    object("kubernetes.AdmissionRequest", fields)
});

/// The type of `namespaceObject` (upstream's `BuildNamespaceType`).
static NAMESPACE: LazyLock<Type> = LazyLock::new(|| {
    let texts = || Type::list(Type::String);
    let labels = || Type::map(Type::String, Type::String);
    let condition = [
        ("status", Type::String),
        ("type", Type::String),
        ("lastTransitionTime", Type::Timestamp),
        ("message", Type::String),
        ("reason", Type::String),
    ];
    let status = [
        ("conditions", Type::list(object("kubernetes.NamespaceCondition", condition))),
        ("phase", Type::String),
    ];
    let metadata = [
        ("name", Type::String),
        ("generateName", Type::String),
        ("namespace", Type::String),
        ("labels", labels()),
        ("annotations", labels()),
        ("UID", Type::String),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("resourceVersion", Type::String),
        ("finalizers", texts()),
    ];
    let fields = [
        ("metadata", object("kubernetes.NamespaceMetadata", metadata)),
        ("spec", object("kubernetes.NamespaceSpec", [("finalizers", texts())])),
        ("status", object("kubernetes.NamespaceStatus", status)),
    ];
    object("kubernetes.Namespace", fields)
});

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(uses: Uses, yields: Yields, text: &str) -> String {
        Compiler::plain().compile(text, uses, yields).unwrap_err().to_string()
    }

    /// Error texts of upstream's `compile_test.go`, `validation_test.go` and `composition_test.go`.
    #[test]
    fn what_may_not_be_used_is_named() {
        let none = Uses::default();
        assert_eq!(
            fault(none, Yields::Bool, "params == 'a'"),
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params == 'a'\n | ^"
        );
        assert!(
            fault(none, Yields::Bool, "authorizer.path('/x').check('get').allowed()")
                .contains("undeclared reference to 'authorizer'")
        );
        let uses = Uses { params: true, authorizer: true, patches: false };
        for text in [
            "object.foo < object.bar",
            "has(object.foo) && has(oldObject.foo)",
            "request.kind.group != 'example.com' && request.userInfo.username != 'a'",
            "params.foo == 'a'",
            "authorizer.group('apps').resource('deployments').check('get').allowed()",
            "authorizer.requestResource.check('breakglass').allowed()",
            "namespaceObject.metadata.labels.env == 'x'",
        ] {
            let compiled = Compiler::plain().compile(text, uses, Yields::Bool);
            assert!(compiled.is_ok(), "{text}: {compiled:?}");
        }
        assert!(
            fault(uses, Yields::Bool, "request.foo3.foo4 != 'nope'")
                .contains("undefined field 'foo3'")
        );
    }

    #[test]
    fn what_is_yielded_is_held_to_its_type() {
        let uses = Uses { patches: true, ..Uses::default() };
        let rows = [
            (Yields::Bool, "'a'", "must evaluate to bool but got string"),
            (Yields::Bool, "object.a", "must evaluate to bool but got dyn"),
            (Yields::Text, "[1]", "must evaluate to string but got list(int)"),
            (Yields::TextOrNull, "true", "must evaluate to one of [string null_type] but got bool"),
            (
                Yields::Object,
                "[{'a': 'b'}]",
                "must evaluate to Object but got list(map(string, string))",
            ),
            (Yields::Patches, "Object{}", "must evaluate to list(JSONPatch) but got Object"),
        ];
        for (yields, text, wanted) in rows {
            assert_eq!(fault(uses, yields, text), wanted, "{text}");
        }
    }

    #[test]
    fn variables_are_known_behind_their_declaration() {
        let mut compiler = Compiler::composed();
        let none = Uses::default();
        let unknown = compiler.compile("variables.a > 1", none, Yields::Bool).unwrap_err();
        assert!(unknown.to_string().contains("undefined field 'a'"), "{unknown}");
        compiler.variable("a", "1", none).unwrap();
        compiler.variable("b", "variables.a + 1", none).unwrap();
        assert!(compiler.compile("variables.b > 1", none, Yields::Bool).is_ok());
        let mixed = compiler.compile("variables.b == 'x'", none, Yields::Bool).unwrap_err();
        assert!(mixed.to_string().contains("found no matching overload"), "{mixed}");
        assert!(compiler.variable("c", "1 +", none).is_err());
        assert!(compiler.compile("variables.c == 'x'", none, Yields::Bool).is_ok());
    }
}
