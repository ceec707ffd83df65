//! Expressions (CEL) over the claims of a token and over the user that they make (upstream's `pkg/authentication/cel`).

use std::sync::LazyLock;

use api::expressions::Fault;
use kcel::limits::PER_CALL;
use kcel::{Declared, Env, Program, Type, Value, Variables};
use serde_json::Value as Json;

/// What an expression is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variable {
    /// `claims`.
    Claims,
    /// `user`.
    User,
}

impl Variable {
    fn name(self) -> &'static str {
        match self {
            Self::Claims => "claims",
            Self::User => "user",
        }
    }
}

/// What it must yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Anything; types of claims are known only when there are some.
    Any,
    /// A truth value.
    Bool,
}

static CLAIMS: LazyLock<Env> =
    LazyLock::new(|| Env::new().variable("claims", Type::map(Type::String, Type::Dyn)));

static USER: LazyLock<Env> = LazyLock::new(|| {
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    let fields = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    Env::new().variable("user", Type::object("kubernetes.UserInfo", fields))
});

/// How claims are read.
static READ: Declared = Declared::Claims;

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    variable: Variable,
    program: Program,
}

impl Expression {
    /// Compiles a text.
    ///
    /// # Errors
    /// Upstream's sentence.
    pub(crate) fn compile(variable: Variable, text: &str, wanted: Wanted) -> Result<Self, Fault> {
        let env = match variable {
            Variable::Claims => &*CLAIMS,
            Variable::User => &*USER,
        };
        let program = env.compile_any(text)?;
        // A claim alone has no known type: also that is no truth value.
        if wanted == Wanted::Bool && *program.output() != Type::Bool {
            return Err(Fault::Invalid("must evaluate to bool".to_owned()));
        }
        Ok(Self { text: text.to_owned(), variable, program })
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Levels of its tree.
    pub(crate) fn depth(&self) -> usize {
        self.program.depth()
    }

    /// Whether it asks for this claim.
    pub(crate) fn selects(&self, claim: &str) -> bool {
        self.program.selects("claims", claim)
    }

    /// What it yields for claims or a user, as its variable says.
    ///
    /// # Errors
    /// Upstream's sentence.
    pub(crate) fn eval<'a>(&self, input: &'a Json) -> Result<Value<'a>, String> {
        let value = READ.value(input).map_err(|e| e.to_string())?;
        let variables = Variables(vec![(self.variable.name(), value)]);
        let mut budget = PER_CALL;
        self.program
            .eval(&variables, &mut budget)
            .map_err(|error| format!("expression '{}' resulted in error: {error}", self.text))
    }
}
