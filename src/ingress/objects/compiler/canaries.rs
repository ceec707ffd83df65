//! Canaries: Ingresses that take a share of another one's requests.

use std::collections::btree_map::Entry;

use super::{Compiler, ReferenceError, Shape, Source, single};
use crate::objects::ingress::{Problem, References};
use http_proxy::routes::canary::Canary;

/// A path of a canary that no rule has taken yet.
pub(super) struct PendingCanary {
    canary: Canary,
    problem: Problem,
}

impl<R: References> Compiler<'_, R> {
    /// Keeps the paths of a canary for the rules of its namespace with the same host and path.
    pub(in crate::objects) fn add_canary(&mut self, source: &Source<'_>) {
        let Some(rules) = source.settings.canary.rules() else { return };
        if source.spec.is_some_and(|spec| spec.default_backend.is_some()) {
            let message = "a canary has no default backend: spec.defaultBackend has no effect";
            self.problem(source, message.to_owned());
        }
        for (host, path) in source.paths() {
            let shape = Shape::new(&source.settings, path).map_err(ReferenceError::from);
            let found = shape.and_then(|shape| Ok((shape, self.backend(source, &path.backend)?)));
            let (shape, backend) = match found {
                Ok(found) => found,
                Err(error) => {
                    self.problem(source, error.to_string());
                    continue;
                }
            };
            let text = &shape.text;
            let all = if host.is_empty() { "every host" } else { host };
            let problem = Problem {
                namespace: source.namespace.to_owned(),
                name: source.name.to_owned(),
                message: format!(
                    "path {text} of {all} has no other Ingress in the namespace, of which this \
                     canary takes requests"
                ),
            };
            let canary =
                Canary { rules: rules.clone(), split: single(backend), ..Canary::default() };
            let key = (source.namespace.to_owned(), host.to_ascii_lowercase(), shape.key.clone());
            match self.canaries.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(PendingCanary { canary, problem });
                }
                Entry::Occupied(_) => {
                    let message =
                        format!("path {text} of {all} has an older canary; this one has no effect");
                    self.problem(source, message);
                }
            }
        }
    }

    /// The canary of a path.
    pub(super) fn take_canary(
        &mut self,
        source: &Source<'_>,
        host: &str,
        shape: &Shape,
    ) -> Option<Canary> {
        let key = (source.namespace.to_owned(), host.to_ascii_lowercase(), shape.key.clone());
        self.canaries.remove(&key).map(|pending| pending.canary)
    }

    /// Reports canaries that take requests of no rule.
    pub(super) fn report_unused_canaries(&mut self) {
        let unused = std::mem::take(&mut self.canaries);
        self.out.problems.extend(unused.into_values().map(|pending| pending.problem));
    }
}
