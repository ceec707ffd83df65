//! CEL expressions over the claims of a token and over the resulting user (upstream's
//! `pkg/authentication/cel`).

use std::sync::LazyLock;

use api::expressions::Fault;
use kcel::limits::PER_CALL;
use kcel::{Declared, Env, Program, Type, Value, Variables};
use serde_json::Value as Json;

/// The variable of an expression.
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

/// The required type of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultType {
    /// Any type; types of claims are known at run time only.
    Any,
    /// A boolean.
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

/// The type declaration of claims.
static READ: Declared = Declared::Claims;

/// An expression has no value. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvaluationError {
    /// The input cannot be converted.
    #[error(transparent)]
    Input(#[from] kcel::Error),
    #[error("expression '{expression}' resulted in error: {source}")]
    Expression { expression: String, source: kcel::Error },
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    variable: Variable,
    program: Program,
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Upstream's message.
    pub(crate) fn compile(
        variable: Variable,
        text: &str,
        required: ResultType,
    ) -> Result<Self, Fault> {
        let env = match variable {
            Variable::Claims => &*CLAIMS,
            Variable::User => &*USER,
        };
        let program = env.compile_any(text)?;
        // The type of a plain claim is dynamic, which does not count as a boolean, either.
        if required == ResultType::Bool && *program.output() != Type::Bool {
            return Err(Fault::Invalid("must evaluate to bool".to_owned()));
        }
        Ok(Self { text: text.to_owned(), variable, program })
    }

    /// The source text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The depth of the syntax tree.
    pub(crate) fn depth(&self) -> usize {
        self.program.depth()
    }

    /// Whether it selects this claim.
    pub(crate) fn selects(&self, claim: &str) -> bool {
        self.program.selects("claims", claim)
    }

    /// Evaluates the expression; `input` is the value of its variable, claims or user.
    ///
    /// # Errors
    /// If the expression has no value for this input.
    pub(crate) fn eval<'a>(&self, input: &'a Json) -> Result<Value<'a>, EvaluationError> {
        let value = READ.value(input)?;
        let variables = Variables(vec![(self.variable.name(), value)]);
        let mut budget = PER_CALL;
        self.program
            .eval(&variables, &mut budget)
            .map_err(|source| EvaluationError::Expression { expression: self.text.clone(), source })
    }
}
