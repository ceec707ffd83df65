//! A template that is parsed once and rendered often, with functions that its user adds.

use std::sync::Arc;

use crate::budget::Budget;
use crate::error::Failure;
use crate::exec::{Core, execute};
use crate::function::{Find, Function, NoCluster};
use crate::functions;
use crate::parse::{self, Template, Templates};
use crate::value::Value;

/// Nodes that one rendering executes at most.
const STEPS_MAX: u64 = 1_000_000;
/// The size of one rendering's output.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Blocks and parentheses within each other: the rendering runs on the stack of its caller.
const DEPTH_MAX: usize = 50;

/// A parsed template.
pub struct Prepared {
    main: Arc<Template>,
    templates: Templates,
    find: Find,
}

impl Prepared {
    /// Parses a template, whose functions `find` finds by name; [`builtin`] has Go's and sprig's.
    ///
    /// # Errors
    ///
    /// Go's text with the line: wrong syntax, an unknown function or variable.
    pub fn parse(name: &str, text: &str, find: Find) -> Result<Self, Failure> {
        let templates = parse::parse(name, text, find)?.all;
        let main = templates.get(name).cloned();
        let main = main.ok_or_else(|| Failure::new(format!("template {name} is empty")))?;
        Ok(Self { main, templates, find })
    }

    /// Renders the template with `dot`. A missing key prints `<no value>`, as in Go.
    ///
    /// # Errors
    ///
    /// Go's text with the template, the line and the expression; an exceeded bound.
    pub fn render(&self, dot: Value) -> Result<String, Failure> {
        let mut core = Core {
            budget: Budget::new(STEPS_MAX, OUTPUT_BYTES_MAX, DEPTH_MAX),
            host: &NoCluster,
            find: self.find,
            strict: false,
            included: Default::default(),
        };
        let bytes = execute(&mut core, &self.templates, &self.main, dot)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Go's and sprig's function of a name.
pub fn builtin(name: &str) -> Option<&'static Function> {
    functions::find(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::{Call, Run, variadic};
    use crate::signature::Param;

    fn count(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
        Ok(Value::Int(i64::try_from(args.len()).unwrap()))
    }

    static COUNT: Function = variadic("Count", &[Param::Any], count);

    fn find(name: &str) -> Option<&'static Function> {
        if name == "Count" { Some(&COUNT) } else { builtin(name) }
    }

    #[test]
    fn prepared_template_renders_with_added_functions_and_gos_own() {
        assert!(matches!(COUNT.run, Run::Plain(_)));
        let text = "{{range 2}}{{.}}-{{end}}{{Count 1 .n}} {{or .none .n}}";
        let template = Prepared::parse("t", text, find).unwrap();
        for n in [7, 8] {
            let dot: Value = [("n", Value::Int(n))].into_iter().collect();
            assert_eq!(template.render(dot).unwrap(), format!("0-1-2 {n}"));
        }
    }

    #[test]
    fn prepared_template_refuses_an_unknown_function() {
        let error = Prepared::parse("t", "{{Nope 1}}", find).err().unwrap();
        assert_eq!(error.message, "template: t:1: function \"Nope\" not defined");
    }
}
