//! Helm's engine: all templates of a chart and its subcharts, parsed together and rendered.

use std::collections::BTreeMap;
use std::sync::Arc;

use sorting::CompactSort as _;

use crate::budget::Budget;
use crate::error::{Failure, RenderError};
use crate::exec::{Core, execute};
use crate::function::Host;
use crate::functions;
use crate::go::path;
use crate::parse::{self, Templates};
use crate::value::Value;

/// A file of a chart's `templates` folder.
pub struct Source<'a> {
    /// The path with the chart's, such as `app/charts/db/templates/secret.yaml`.
    pub name: &'a str,
    pub text: &'a str,
    /// The dot: a map with `Values`, `Release`, `Chart`, `Files`, `Capabilities` and `Subcharts`,
    /// which files of one chart share. The engine sets `Template` in it.
    pub root: Value,
    /// False when only its definitions count: files that begin with `_`, and library charts.
    pub render: bool,
}

/// The bounds of a rendering, and whether missing keys are errors.
#[derive(Clone, Debug)]
pub struct Options {
    /// A missing key of a map is an error, as with `helm --strict`.
    pub strict: bool,
    /// The size of each text and of the output together.
    pub max_output_bytes: usize,
    /// Nodes that are executed, and 256 bytes of results each.
    pub max_steps: u64,
    /// Templates, blocks and parentheses within each other.
    pub max_depth: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { strict: false, max_output_bytes: 32 << 20, max_steps: 20_000_000, max_depth: 3_000 }
    }
}

/// The stack for one level of nesting.
const STACK_PER_LEVEL: usize = if cfg!(debug_assertions) { 64 << 10 } else { 16 << 10 };
const STACK_BASE: usize = 4 << 20;

/// Renders all files; the result has the texts of those with `render`, by name.
///
/// The work is done on a thread of its own, whose stack suffices for the bounds.
///
/// # Errors
///
/// A template is wrong, fails or exceeds a bound; the text is Helm's and names the place.
pub fn render(
    sources: &[Source<'_>],
    host: &(dyn Host + Sync),
    options: &Options,
) -> Result<BTreeMap<String, String>, RenderError> {
    let stack = STACK_BASE.saturating_add(options.max_depth.saturating_mul(STACK_PER_LEVEL));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("helm-render".into())
            .stack_size(stack)
            .spawn_scoped(scope, || render_here(sources, host, options))
            .map_err(|error| RenderError(format!("cannot start a thread to render: {error}")))?
            .join()
            .map_err(|_| RenderError("rendering template failed: the renderer crashed".into()))?
    })
}

fn render_here(
    sources: &[Source<'_>],
    host: &(dyn Host + Sync),
    options: &Options,
) -> Result<BTreeMap<String, String>, RenderError> {
    let mut order: Vec<&Source<'_>> = sources.iter().collect();
    // Files of deeper folders first, so that those of the parent chart replace their definitions.
    order.compact_sort_by_key(|source| {
        std::cmp::Reverse((source.name.matches('/').count(), source.name))
    });
    let mut templates = Templates::new();
    for source in &order {
        let parsed = parse::parse(source.name, source.text, functions::find)
            .map_err(|failure| RenderError(parse_error(source.name, &failure.message)))?;
        parse::add(&mut templates, parsed.all);
    }
    let budget = Budget::new(options.max_steps, options.max_output_bytes, options.max_depth);
    let strict = options.strict;
    let (find, included) = (functions::find as _, Default::default());
    let mut core = Core { budget, host, find, strict, included };
    let mut rendered = BTreeMap::new();
    let mut total = 0_usize;
    for source in order.iter().filter(|source| source.render) {
        let Some(template) = templates.get(source.name).cloned() else { continue };
        set_template(source);
        let bytes = execute(&mut core, &templates, &template, source.root.clone())
            .map_err(|failure| RenderError(exec_error(source.name, &failure)))?;
        total = total.saturating_add(bytes.len());
        if total > options.max_output_bytes {
            let max = options.max_output_bytes;
            let text = format!("the rendered chart is larger than {max} bytes");
            return Err(RenderError(format!("execution error in ({}): {text}", source.name)));
        }
        let text = String::from_utf8_lossy(&bytes).replace("<no value>", "");
        rendered.insert(source.name.to_owned(), text);
    }
    Ok(rendered)
}

fn set_template(source: &Source<'_>) {
    if let Value::Map(root) = &source.root {
        let base = source.name.find("/templates/").map(|_| {
            let at = source.name.rfind("/templates/").unwrap_or(0);
            source.name.get(..at + "/templates".len()).unwrap_or_default()
        });
        let base = base.map_or_else(|| path::dir(source.name), str::to_owned);
        let template: Value = [("Name", Value::from(source.name)), ("BasePath", Value::from(base))]
            .into_iter()
            .collect();
        root.insert("Template", template);
    }
}

/// Helm's `cleanupParseError`.
fn parse_error(name: &str, message: &str) -> String {
    let tokens: Vec<&str> = message.split(": ").collect();
    match (tokens.get(1), tokens.last()) {
        (Some(location), Some(text)) => format!("parse error at ({location}): {text}"),
        _ => format!("parse error in ({name}): {message}"),
    }
}

#[derive(PartialEq, Eq, Default)]
struct ErrorFrame {
    location: String,
    function: String,
    message: String,
}

/// Helm's `reformatExecErrorMsg`.
fn exec_error(name: &str, failure: &Failure) -> String {
    let message = &failure.message;
    let mut tokens = message.splitn(3, ": ");
    let (Some(_), Some(location), Some(rest)) = (tokens.next(), tokens.next(), tokens.next())
    else {
        return format!("execution error in ({name}): {message}");
    };
    if let (Some(start), Some(end)) = (rest.find("HELM_ERR_START"), rest.rfind("HELM_ERR_END")) {
        let text = rest.get(start + "HELM_ERR_START".len()..end).unwrap_or_default();
        return format!("execution error at ({location}): {text}");
    }
    let mut places: Vec<ErrorFrame> = Vec::new();
    let mut current = Some(failure);
    while let Some(failure) = current {
        let Some(place) = read_place(&failure.message) else {
            return message.clone();
        };
        if places.last() != Some(&place) {
            places.push(place);
        }
        current = failure.cause.as_deref();
    }
    let mut out = String::new();
    for place in places {
        if !place.location.is_empty() {
            out.push_str(&format!("{}\n  ", place.location));
        }
        if !place.function.is_empty() {
            out.push_str(&format!("{}\n    ", place.function));
        }
        if !place.message.is_empty() {
            out.push_str(&format!("{}\n", place.message));
        }
    }
    out.trim().to_owned()
}

/// Helm's `parseTemplateExecErrorString`.
fn read_place(message: &str) -> Option<ErrorFrame> {
    let rest = message.strip_prefix("template: ")?;
    if rest.starts_with("no template ") {
        return Some(ErrorFrame { message: message.to_owned(), ..ErrorFrame::default() });
    }
    if let Some(place) = executing_place(rest) {
        return Some(place);
    }
    let at = rest.rfind(": ")?;
    let (location, text) = rest.split_at(at);
    let message = text.trim_start_matches(": ").to_owned();
    Some(ErrorFrame { location: location.to_owned(), message, ..ErrorFrame::default() })
}

fn executing_place(rest: &str) -> Option<ErrorFrame> {
    let (location, after) = rest.split_once(": executing ")?;
    let inner = after.strip_prefix('"')?;
    let (function, after) = inner.split_once('"')?;
    let after = after.strip_prefix(" at <")?;
    let (node, text) = after.split_once(">: ")?;
    let text = text.split(" template:").next().unwrap_or(text);
    Some(ErrorFrame {
        location: location.to_owned(),
        function: format!("executing \"{function}\" at <{node}>:"),
        message: text.to_owned(),
    })
}

/// What a chart's templates read of the cluster: `.Capabilities`.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Such as `v1.37.1`.
    pub kube_version: String,
    pub kube_major: String,
    pub kube_minor: String,
    /// Groups with versions, and these with kinds: `apps/v1`, `apps/v1/Deployment`.
    pub api_versions: Vec<String>,
    /// The version of Helm whose behaviour the templates can rely on, such as `v4.3.1`.
    pub helm_version: String,
}

impl Capabilities {
    /// The object for a root map.
    pub fn value(&self) -> Value {
        Value::Object(Arc::new(crate::capabilities::CapabilitiesObject::new(self)))
    }
}
