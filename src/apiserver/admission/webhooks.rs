//! Dynamic admission: webhooks that configurations name, asked about every write they match
//! (upstream's `pkg/admission/plugin/webhook`).

mod call;
mod hook;
mod mutating;
mod review;
mod source;
mod validating;
pub(crate) mod versions;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use api::{Gvk, Gvr, Status};
use serde_json::Value;

use super::Request;
use super::matching;
use crate::objects::Objects;
use crate::registry::Resource;
use crate::webhook::Callout;
use hook::Hook;
pub use mutating::MutatingAdmissionWebhook;
pub use source::Sources;
pub use validating::ValidatingAdmissionWebhook;
use versions::Versions;

/// Both plugins over these objects, and what keeps their configurations current.
pub fn plugins(
    objects: &Arc<Objects>,
    callout: &Callout,
) -> (MutatingAdmissionWebhook, ValidatingAdmissionWebhook, Sources) {
    let sources = Sources::new(callout.clone());
    let matcher = || Matcher { objects: Arc::clone(objects), versions: Versions::new(objects) };
    let mutating = MutatingAdmissionWebhook::new(matcher(), Arc::clone(&sources.mutating));
    let validating = ValidatingAdmissionWebhook::new(matcher(), Arc::clone(&sources.validating));
    (mutating, validating, sources)
}

/// A hook that is to be asked, and in which version.
struct Invocation {
    hook: Arc<Hook>,
    /// Resource as the rule names it.
    gvr: Gvr,
    /// Kind in that version.
    gvk: Gvk,
}

/// Decides who is asked.
struct Matcher {
    objects: Arc<Objects>,
    versions: Versions,
}

impl Matcher {
    /// The row of a request for `scale`: reviews show a Scale, the pipeline works on the object that is scaled.
    fn scaled(&self, request: &Request<'_>) -> Option<Arc<Resource>> {
        let is_scale = request.subresource == "scale";
        is_scale.then(|| self.objects.row(request.gvr).ok()).flatten()
    }

    /// The invocation, when the hook is to be asked about this request.
    ///
    /// # Errors
    /// 404 of a namespace that is not there, 403 of a condition that cannot be decided.
    async fn invocation(
        &self,
        hook: &Arc<Hook>,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<Option<Invocation>, Status> {
        let in_namespace = hook.selectors.namespace(request, object, &*self.objects).await;
        if matches!(in_namespace, Ok(false)) || !hook.selectors.object(object, request.old) {
            return Ok(None);
        }
        let namespace = matching::namespace_of(request, object);
        let fits = |gvr: &Gvr| {
            hook.rules
                .iter()
                .position(|r| r.matches(request.operation, gvr, request.subresource, namespace))
        };
        let found = if fits(request.gvr).is_some() {
            Some((request.gvr.clone(), kind.clone()))
        } else if hook.is_equivalent {
            // Of several versions that rules name, the one that the first rule names.
            let others = self.versions.equivalents(request.gvr, request.subresource);
            let fitting =
                others.into_iter().filter_map(|other| fits(&other.0).map(|at| (at, other)));
            fitting.min_by_key(|(at, _)| *at).map(|(_, other)| other)
        } else {
            None
        };
        let Some((gvr, gvk)) = found else { return Ok(None) };
        in_namespace?;
        if hook.has_conditions {
            // Named and not passed over: a webhook that is not asked would let everything through.
            let why = format!(
                "webhook {} has matchConditions, which this version does not evaluate; remove them from {} {}",
                api::field::go_quote(&hook.name),
                hook.kind,
                api::field::go_quote(&hook.configuration),
            );
            return Err(request.forbidden(object, &why));
        }
        Ok(Some(Invocation { hook: Arc::clone(hook), gvr, gvk }))
    }
}
