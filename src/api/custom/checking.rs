//! Validation of the defaults in a schema (`pkg/apiserver/schema/defaulting/validation.go`).

use std::sync::Arc;

use kcel::limits::RUNTIME_BUDGET;
use serde_json::{Value, json};

use super::node::{self, Node};
use super::pruning::{self, PruneOptions};
use super::rules::{Rules, Write};
use super::{meta, values};
use crate::field::{Error, ErrorList, Path};

/// The error of a default with fields that the schema does not specify.
const UNPRUNED: &str = "must not have unknown fields";

/// Errors of the defaults in a structural schema. With `pruned`, fields of a default that the
/// schema does not specify are errors.
pub fn validate_defaults(schema: &Value, path: &Path, pruned: bool) -> ErrorList {
    check(schema, path, Check { pruned, budget: RUNTIME_BUDGET, errors: ErrorList::new() })
}

/// Whether all fields of all defaults are specified in the schema.
pub fn has_pruned_defaults(schema: &Value) -> bool {
    // A budget of zero skips the rules.
    let check_only = Check { pruned: true, budget: 0, errors: ErrorList::new() };
    check(schema, &Path::default(), check_only).iter().all(|error| error.detail != UNPRUNED)
}

fn check(schema: &Value, path: &Path, mut check: Check) -> ErrorList {
    let Ok(root) = node::parse(schema) else { return ErrorList::new() };
    let whole = Whole { node: &root, steps: Vec::new() };
    check.node(&root, &whole, path, true, false);
    check.errors
}

/// A step on the path from an object to one of its values.
#[derive(Clone)]
enum Step<'a> {
    Field(&'a str),
    Item,
}

/// The resource that contains a schema, either the root or an embedded resource.
#[derive(Clone)]
struct Whole<'a> {
    node: &'a Node,
    steps: Vec<Step<'a>>,
}

impl Whole<'_> {
    /// Returns a resource in which only `value` is set, together with `kind` and `apiVersion`.
    fn around(&self, value: &Value) -> Value {
        let mut object = self.steps.iter().rev().fold(value.clone(), |inner, step| match step {
            Step::Field(name) => Value::Object([((*name).to_owned(), inner)].into_iter().collect()),
            Step::Item => json!([inner]),
        });
        if let Some(map) = object.as_object_mut() {
            map.entry("kind").or_insert_with(|| "Validation".into());
            map.entry("apiVersion").or_insert_with(|| "validation/v1".into());
        }
        object
    }
}

struct Check {
    pruned: bool,
    /// The remaining cost budget of rules about defaults.
    budget: u64,
    errors: ErrorList,
}

impl Check {
    fn node<'a>(
        &mut self,
        node: &'a Node,
        whole: &Whole<'a>,
        path: &Path,
        root: bool,
        inside: bool,
    ) {
        let embedded = root || node.embedded;
        let own = Whole { node, steps: Vec::new() };
        let (whole, inside) = if embedded { (&own, false) } else { (whole, inside) };
        if let Some(default) = &node.default {
            let mut found = if inside {
                of_meta(default, node, whole, path)
            } else {
                self.plain(default, node, path, embedded)
            };
            if found.iter().all(|error| error.detail == UNPRUNED) {
                found.extend(self.rules(default, node, path, embedded));
            }
            self.errors.extend(found);
        }
        if let Some(items) = &node.items {
            self.below(items, whole, Step::Item, &path.child("items"), inside);
        }
        for (name, property) in &node.properties {
            let meta = matches!(&**name, "metadata" | "apiVersion" | "kind");
            let field = path.child("properties").key(name);
            self.below(property, whole, Step::Field(name), &field, inside || embedded && meta);
        }
    }

    fn below<'a>(
        &mut self,
        node: &'a Arc<Node>,
        whole: &Whole<'a>,
        step: Step<'a>,
        path: &Path,
        inside: bool,
    ) {
        let mut deeper = whole.clone();
        deeper.steps.push(step);
        self.node(node, &deeper, path, false, inside);
    }

    /// Evaluates the rules of a default, both as an update without a change and as a new value.
    fn rules(&mut self, default: &Value, node: &Node, path: &Path, root: bool) -> ErrorList {
        if self.budget == 0 {
            return ErrorList::new();
        }
        let Some(rules) = Rules::new(node, root) else { return ErrorList::new() };
        let (field, budget) = (path.child("default"), self.budget);
        let (mut kept, mut made) = (budget, budget);
        let write = Write { node, new: default, old: Some(default), ratchets: false };
        let mut errors = rules.run(write, &field, &mut kept).errors;
        if errors.is_empty() {
            errors = rules.run(Write { old: None, ..write }, &field, &mut made).errors;
        }
        self.budget = kept.min(made);
        errors
    }

    fn plain(&self, default: &Value, node: &Node, path: &Path, embedded: bool) -> ErrorList {
        let field = path.child("default");
        let mut errors = ErrorList::new();
        if self.pruned {
            let mut copy = default.clone();
            let options = PruneOptions { resource: embedded, collect: false };
            pruning::prune(&mut copy, Some(node), &options);
            if &copy != default {
                errors.push(Error::invalid(&field, default.clone(), UNPRUNED));
            }
        }
        let mut copy = default.clone();
        if let Err(error) = meta::coerce(&mut copy, node, &field, false) {
            errors.push(*error);
            return errors;
        }
        let mut found = meta::validate(default, node, &field, node.embedded);
        if found.is_empty() {
            found = values::validate(node, default, None, &field);
        }
        errors.extend(found);
        errors
    }
}

/// Errors of a default within `metadata`: the resource that contains it must have valid metadata.
fn of_meta(default: &Value, node: &Node, whole: &Whole<'_>, path: &Path) -> ErrorList {
    let field = path.child("default");
    let bad = |why: String| {
        let text = format!("must result in valid metadata: {why}");
        vec![Error::invalid(&field, default.clone(), text)]
    };
    let mut object = whole.around(default);
    if let Err(error) = meta::coerce_root(&mut object, whole.node) {
        return bad(error.to_string());
    }
    let errors = meta::validate(&object, whole.node, &Path::default(), true);
    match errors.as_slice() {
        [] => values::validate(node, default, None, &field),
        [one] => bad(one.to_string()),
        many => {
            let texts: Vec<String> = many.iter().map(ToString::to_string).collect();
            bad(format!("[{}]", texts.join(", ")))
        }
    }
}
