//! CEL rules (`x-kubernetes-validations`), compiled once and evaluated for every write
//! (`pkg/apiserver/schema/cel/{compilation,validation}.go`).

mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use kcel::{CompileError, Declared, Env, Program, Type};

use super::decl::{self, Decl};
use super::node::{Additional, Node, RuleText};
use super::paths;
use crate::field::Path;

pub(super) use self::run::Write;

/// The type of `self` in messages. Upstream appends a number that differs each time, so clients
/// cannot depend on the name.
pub(crate) const SELF_TYPE: &str = "selfType";

/// An invalid rule or message expression; the texts are upstream's
/// (`pkg/apiserver/schema/cel/compilation.go`).
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RuleError {
    #[error("cel expression must evaluate to a bool")]
    NotBool,
    #[error("messageExpression must evaluate to a string")]
    NotString,
    /// `step` is the failed step: compilation or instantiation of the rule or message.
    #[error("{step} failed: {source}")]
    Compile { step: &'static str, source: CompileError },
}

/// A compiled rule. An empty rule has neither a program nor an error.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) program: Result<Option<Program>, RuleError>,
    pub(crate) message: Result<Option<Program>, RuleError>,
    pub(crate) uses_old: bool,
}

/// Compiles the rules of one schema, whose type is `decl`.
pub(crate) fn compile(rules: &[RuleText], decl: &Decl) -> Vec<Compiled> {
    let env = |old: Type| Env::new().variable("self", decl.of.clone()).variable("oldSelf", old);
    let (mut plain, mut optional) = (None, None);
    let of = |rule: &RuleText| {
        let env = if rule.optional_old {
            optional.get_or_insert_with(|| env(Type::optional(decl.of.clone())))
        } else {
            plain.get_or_insert_with(|| env(decl.of.clone()))
        };
        compile_one(rule, env)
    };
    rules.iter().map(of).collect()
}

fn compile_one(rule: &RuleText, env: &Env) -> Compiled {
    let mut out = Compiled { program: Ok(None), message: Ok(None), uses_old: false };
    if rule.rule.trim().is_empty() {
        return out;
    }
    match env.compile_any(&rule.rule) {
        Err(error) => {
            out.program = Err(failed(error, "compilation", "program instantiation"));
            return out;
        }
        Ok(program) if program.output() != &Type::Bool => {
            out.program = Err(RuleError::NotBool);
            return out;
        }
        Ok(program) => {
            out.uses_old = program.uses("oldSelf");
            out.program = Ok(Some(program));
        }
    }
    if !rule.message_expression.is_empty() {
        out.message = match env.compile_any(&rule.message_expression) {
            Err(error) => Err(failed(
                error,
                "messageExpression compilation",
                "messageExpression instantiation",
            )),
            Ok(program) if program.output() != &Type::String => Err(RuleError::NotString),
            Ok(program) => Ok(Some(program)),
        };
    }
    out
}

fn failed(
    error: CompileError,
    compilation: &'static str,
    instantiation: &'static str,
) -> RuleError {
    let step = if error.instantiation { instantiation } else { compilation };
    RuleError::Compile { step, source: error }
}

/// The compiled rules of a resource, or of a part of it. All writes share them.
#[derive(Debug)]
pub(super) struct Rules {
    declared: Declared,
    level: Level,
}

/// The rules of one schema and of the schemas below it.
#[derive(Debug, Default)]
struct Level {
    rules: Box<[Rule]>,
    items: Option<Box<Level>>,
    fields: BTreeMap<Box<str>, Level>,
    more: Option<Box<Level>>,
}

#[derive(Debug)]
struct Rule {
    compiled: Compiled,
    /// The path that the rule's error reports, relative to the value.
    field: Option<Path>,
}

impl Rules {
    /// Compiles the rules in a schema; `root` marks the schema of a resource. `None` when the
    /// schema has no rules.
    pub(super) fn new(node: &Node, root: bool) -> Option<Self> {
        if !node.rules_below {
            return None;
        }
        let decl = Decl::of(node, root, SELF_TYPE);
        let level = Level::of(node, decl.as_ref())?;
        Some(Self { declared: decl::declared(node, root), level })
    }
}

impl Level {
    /// `None` when neither the schema nor a schema below it has rules. Schemas of values that rules
    /// cannot access have none.
    fn of(node: &Node, decl: Option<&Arc<Decl>>) -> Option<Self> {
        if !node.rules_below {
            return None;
        }
        let decl = decl?;
        let rules = compile(&node.rules, decl).into_iter().zip(&node.rules);
        let rules = rules.map(|(compiled, text)| Rule {
            compiled,
            field: Some(&*text.field_path)
                .filter(|path| !path.is_empty())
                .and_then(|path| paths::shown(path, node)),
        });
        let fields = node.properties.iter().filter_map(|(name, below)| {
            let level = match kcel::escape(name) {
                Some(_) => Self::of(below, decl.property(name)),
                // A field whose name expressions cannot use is checked by its own rules
                // nevertheless.
                None => Self::of(below, Decl::of(below, below.embedded, SELF_TYPE).as_ref()),
            };
            Some((name.clone(), level?))
        });
        let element = |below: &Node| Self::of(below, decl.element()).map(Box::new);
        Some(Self {
            rules: rules.collect(),
            fields: fields.collect(),
            items: node.items.as_deref().and_then(element),
            more: match &node.additional {
                Some(Additional::Schema(below)) => element(below),
                _ => None,
            },
        })
    }
}
