//! Mutating webhooks: called in sequence, each sees the changes of those before it; a webhook is
//! reinvoked if a later step changed the object.

use std::sync::Arc;

use api::{Gvk, Status};
use async_trait::async_trait;
use serde_json::Value;

use super::call::{self, Failure, ask};
use super::hook::Hook;
use super::review::{Question, Verdict};
use super::source::Hooks;
use super::{Invocation, Matcher, Scaled};
use crate::admission::reinvocation::ReinvokingPlugin;
use crate::admission::{Plugin, Request, matching};
use crate::audit;

/// The MutatingAdmissionWebhook plugin.
pub struct MutatingAdmissionWebhook {
    matcher: Matcher,
    hooks: Arc<Hooks>,
}

impl MutatingAdmissionWebhook {
    pub(super) fn new(matcher: Matcher, hooks: Arc<Hooks>) -> Self {
        Self { matcher, hooks }
    }

    /// Calls all matching webhooks in sequence.
    async fn ask_all(
        &self,
        hooks: &[Arc<Hook>],
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let kind = self.matcher.versions.kind(request);
        let reinvocation = request.reinvocation.of(ReinvokingPlugin::Webhooks);
        reinvocation.begin(object.as_ref());
        for (at, hook) in hooks.iter().enumerate() {
            let invocation =
                self.matcher.invocation(hook, "admit", request, &kind, object.as_ref()).await?;
            let Some(invocation) = invocation.filter(|_| reinvocation.should_invoke(&hook.id))
            else {
                continue;
            };
            let position = format!("round_{}_index_{at}", u8::from(reinvocation.is_second_pass()));
            let begun = base::clock::now();
            let outcome = self.call(&invocation, request, &kind, object.as_ref(), &position).await;
            call::count(&invocation, "admit", request, begun, &outcome);
            let key = format!("mutation.webhook.admission.k8s.io/{position}");
            let mutated = matches!(outcome, Ok(Some(_)));
            audit::annotate(&key, || hook.audit_annotation(&[("mutated", mutated.into())]));
            let changed = match outcome {
                Ok(changed) => changed,
                Err(failure) => {
                    failure.apply_failure_policy(&invocation, &format!("failed-open.{key}"))?;
                    None
                }
            };
            if changed.is_some() {
                *object = changed;
                reinvocation.require_reinvocation();
            }
            if hook.is_reinvoked {
                reinvocation.add_reinvocable(&hook.id);
            }
        }
        reinvocation.end(object.as_ref());
        Ok(())
    }

    /// Calls one webhook for the object; returns the new object if it changed.
    async fn call(
        &self,
        invocation: &Invocation,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
        position: &str,
    ) -> Result<Option<Value>, Failure> {
        let versions = &self.matcher.versions;
        let convert = |object: Option<&Value>| {
            let converted = object.map(|o| versions.convert(o.clone(), kind, &invocation.gvk));
            converted.transpose().map_err(Failure::from)
        };
        let (new, old);
        let question = if invocation.gvk == *kind {
            Question { request, kind, object, old: request.old }
        } else {
            (new, old) = (convert(object)?, convert(request.old)?);
            Question { request, kind, object: new.as_ref(), old: old.as_ref() }
        };
        let verdict = ask(invocation, &question, true).await?;
        let patched = self.patched(invocation, question.object, &verdict, position)?;
        let Some(patched) = patched else { return Ok(None) };
        let back = versions.convert(patched, &invocation.gvk, kind).map_err(Failure::from)?;
        Ok(Some(back))
    }

    /// Applies the patch of the verdict and defaulting; `None` if the patch is empty or has no
    /// effect.
    fn patched(
        &self,
        invocation: &Invocation,
        object: Option<&Value>,
        verdict: &Verdict,
        position: &str,
    ) -> Result<Option<Value>, Failure> {
        let internal = |why: &str| Failure::from(Status::internal(why));
        if verdict.patch.is_empty() {
            return Ok(None);
        }
        let patch: Value = serde_json::from_slice(&verdict.patch).map_err(|e| {
            Failure::Calling(format!("received undecodable patch in webhook response: {e}"), 503)
        })?;
        match patch.as_array() {
            Some(operations) if operations.is_empty() => return Ok(None),
            Some(_) => {}
            None if patch.is_null() => return Ok(None),
            None => {
                let why = "received undecodable patch in webhook response: it is no list";
                return Err(Failure::Calling(why.to_owned(), 503));
            }
        }
        let name = api::field::go_quote(&invocation.hook.name);
        let Some(object) = object else {
            return Err(internal(&format!(
                "admission webhook {name} attempted to modify the object, which is not supported for this operation"
            )));
        };
        if verdict.patch_type != "JSONPatch" {
            let given = api::field::go_quote(&verdict.patch_type);
            return Err(Failure::Calling(format!("unsupported patch type {given}"), 400));
        }
        let patched = api::patch::json_patch(object.clone(), &patch)
            .map_err(|refusal| internal(&refusal.message))?;
        let settled = self.matcher.versions.decode(&invocation.gvk, &patched);
        let settled = settled.map_err(Failure::from)?;
        let key = format!("patch.webhook.admission.k8s.io/{position}");
        audit::annotate_request(&key, || {
            invocation.hook.audit_annotation(&[("patch", patch), ("patchType", "JSONPatch".into())])
        });
        Ok((settled != *object).then_some(settled))
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let hooks = self.hooks.load_full();
        if hooks.is_empty() || matching::is_exempt(request) {
            return Ok(());
        }
        let Some(mut scaled) = Scaled::of(&self.matcher.objects, request, object.as_ref())? else {
            return self.ask_all(&hooks, request, object).await;
        };
        let request = Request { old: scaled.old.as_ref(), ..*request };
        self.ask_all(&hooks, &request, &mut scaled.new).await?;
        scaled.write_back(object)
    }
}
