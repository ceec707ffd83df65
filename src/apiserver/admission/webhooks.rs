//! Dynamic admission: calls the webhooks of configurations for every write that they match
//! (upstream's `pkg/admission/plugin/webhook`).

mod call;
mod hook;
mod mutating;
pub(crate) mod review;
mod source;
mod validating;
pub(crate) mod versions;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{Gvk, Gvr, Status};
use serde_json::Value;

use super::Request;
use super::expressions::conditions::Matched;
use super::expressions::{Inputs, Variables};
use super::matching;
use crate::admission::expressions::cel_authorizer::{CelAuthorizer, DecisionCache};
use crate::authz::Authorizer;
use crate::metrics::admission as metrics;
use crate::registry::Resource;
use crate::registry::objects::Objects;
use crate::registry::scale::{scale_of, set_replicas};
use hook::Hook;
pub use mutating::MutatingAdmissionWebhook;
pub use source::Sources;
pub use validating::ValidatingAdmissionWebhook;
use versions::Versions;
use webhook::Callout;

/// Creates both plugins over these objects, and the sources that keep the configurations current.
pub fn plugins(
    objects: &Arc<Objects>,
    authorizer: &Arc<dyn Authorizer>,
    callout: &Callout,
) -> (MutatingAdmissionWebhook, ValidatingAdmissionWebhook, Sources) {
    let sources = Sources::new(callout.clone());
    let matcher = || Matcher {
        objects: Arc::clone(objects),
        versions: Versions::new(objects),
        authorizer: Arc::clone(authorizer),
    };
    let mutating = MutatingAdmissionWebhook::new(matcher(), Arc::clone(&sources.mutating));
    let validating = ValidatingAdmissionWebhook::new(matcher(), Arc::clone(&sources.validating));
    (mutating, validating, sources)
}

/// A hook to call, and the version of its review.
struct Invocation {
    hook: Arc<Hook>,
    /// The resource as the rule names it.
    gvr: Gvr,
    /// The kind in that version.
    gvk: Gvk,
}

/// Selects the hooks to call.
struct Matcher {
    objects: Arc<Objects>,
    versions: Versions,
    authorizer: Arc<dyn Authorizer>,
}

/// The Scale that webhooks and policies receive for a request to `scale`; the write pipeline uses
/// the scaled object.
pub(crate) struct Scaled {
    row: Arc<Resource>,
    /// The Scale of the old object.
    pub(crate) old: Option<Value>,
    /// The Scale of the new object, which can be mutated.
    pub(crate) new: Option<Value>,
}

impl Scaled {
    /// Creates the Scales of the old and new object; `None` if the subresource is not `scale`.
    ///
    /// # Errors
    /// If the object has no Scale.
    pub(crate) fn of(
        objects: &Objects,
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<Option<Self>, Status> {
        let is_scale = request.subresource == "scale";
        let Some(row) = is_scale.then(|| objects.row(request.gvr).ok()).flatten() else {
            return Ok(None);
        };
        let scale = |object: Option<&Value>| object.map(|o| scale_of(&row, o)).transpose();
        let (old, new) = (scale(request.old)?, scale(object)?);
        Ok(Some(Self { row, old, new }))
    }

    /// Writes the new Scale back to the object.
    ///
    /// # Errors
    /// If the object has no field for it.
    pub(crate) fn write_back(self, object: &mut Option<Value>) -> Result<(), Status> {
        match (object, self.new) {
            (Some(object), Some(scale)) => set_replicas(&self.row, object, &scale),
            _ => Ok(()),
        }
    }
}

impl Matcher {
    /// The invocation, if the hook matches this request. `plugin_type` is the value of the label
    /// `type` of metrics.
    ///
    /// # Errors
    /// 404 if the namespace does not exist, 403 if a condition fails to evaluate.
    async fn invocation(
        &self,
        hook: &Arc<Hook>,
        plugin_type: &str,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<Option<Invocation>, Status> {
        let in_namespace = hook.selectors.namespace(request, object, &*self.objects).await;
        if matches!(in_namespace, Ok(false)) || !hook.selectors.object(object, request.old) {
            return Ok(None);
        }
        let namespace = matching::namespace_of(request, object);
        let position_of_rule = |gvr: &Gvr| {
            hook.rules
                .iter()
                .position(|r| r.matches(request.operation, gvr, request.subresource, namespace))
        };
        let found = if position_of_rule(request.gvr).is_some() {
            Some((request.gvr.clone(), kind.clone()))
        } else if hook.is_equivalent {
            // If rules name several versions, the version of the first rule.
            let others = self.versions.equivalents(request.gvr, request.subresource);
            let candidates = others
                .into_iter()
                .filter_map(|other| position_of_rule(&other.0).map(|at| (at, other)));
            candidates.min_by_key(|(at, _)| *at).map(|(_, other)| other)
        } else {
            None
        };
        let Some((gvr, gvk)) = found else { return Ok(None) };
        // A namespace that cannot be read is an error only if a rule matches.
        in_namespace?;
        let invocation = Invocation { hook: Arc::clone(hook), gvr, gvk };
        let is_met = self.meets_conditions(&invocation, plugin_type, request, kind, object).await?;
        Ok(is_met.then_some(invocation))
    }

    /// Whether the request meets the hook's match conditions, which are evaluated on the object in
    /// the version of the invocation.
    ///
    /// # Errors
    /// 403 if a condition fails to evaluate and the hook must not be skipped.
    async fn meets_conditions(
        &self,
        invocation: &Invocation,
        plugin_type: &str,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<bool, Status> {
        let (hook, gvk) = (&invocation.hook, &invocation.gvk);
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let convert = |object: Option<&Value>| {
            let other = object.filter(|_| gvk != kind);
            other.map(|o| self.versions.convert(o.clone(), kind, gvk)).transpose()
        };
        let (new, old) = (convert(object)?, convert(request.old)?);
        let described = Value::Object(review::described(request, kind, object, request.gvr, gvk));
        let check = request.resource_check(object);
        let none = Variables::new();
        let cel_authorizer = CelAuthorizer::new(&*self.authorizer, request.user);
        let run = |cache: &Arc<DecisionCache>| {
            hook.conditions.count(&Inputs {
                object: new.as_ref().or(object),
                old: old.as_ref().or(request.old),
                request: &described,
                namespace: None,
                params: None,
                authorizer: Some((cache, &check)),
                variables: &none,
            })
        };
        let (matched, counted) = cel_authorizer.evaluate(hook.conditions.depth(), run).await?;
        metrics::matched("webhook", &hook.name, plugin_type, request.operation, &counted);
        match matched {
            Matched::Yes => Ok(true),
            Matched::Failed(why) if !hook.fails_open => {
                tracing::warn!(
                    webhook = hook.name,
                    configuration = hook.configuration,
                    error = why,
                    "rejecting a request: match conditions cannot be evaluated"
                );
                let gvr = request.gvr;
                Err(Status::forbidden(&gvr.group, &gvr.resource, request.named(object), &why))
            }
            Matched::No | Matched::Failed(_) => {
                metrics::excluded(&hook.name, plugin_type, request.operation);
                Ok(false)
            }
        }
    }
}
