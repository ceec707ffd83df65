//! Validating webhooks: all matching webhooks are called concurrently, and the first rejection is
//! returned.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Gvk, Status};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use super::call::{self, ask};
use super::hook::Hook;
use super::review::Question;
use super::source::Hooks;
use super::{Invocation, Matcher, Scaled};
use crate::admission::{Plugin, Request, matching};

/// The new and the old object of a request.
type Objects = (Option<Value>, Option<Value>);

/// The ValidatingAdmissionWebhook plugin.
pub struct ValidatingAdmissionWebhook {
    matcher: Matcher,
    hooks: Arc<Hooks>,
}

impl ValidatingAdmissionWebhook {
    pub(super) fn new(matcher: Matcher, hooks: Arc<Hooks>) -> Self {
        Self { matcher, hooks }
    }

    /// Calls all matching webhooks concurrently.
    async fn ask_all(
        &self,
        hooks: &[Arc<Hook>],
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let kind = self.matcher.versions.kind(request);
        let mut invocations = Vec::new();
        for hook in hooks {
            let invocation = self.matcher.invocation(hook, "validating", request, &kind, object);
            invocations.extend(invocation.await?);
        }
        let versions = self.in_versions(request, &kind, object, &invocations)?;
        let mut calls: FuturesUnordered<_> = invocations
            .iter()
            .enumerate()
            .map(|(at, invocation)| {
                let (object, old) = match versions.get(&invocation.gvk) {
                    Some((object, old)) => (object.as_ref(), old.as_ref()),
                    None => (object, request.old),
                };
                let question = Question { request, kind: &kind, object, old };
                async move {
                    let begun = base::clock::now();
                    let outcome = ask(invocation, &question, false).await;
                    call::count(invocation, "validating", question.request, begun, &outcome);
                    match outcome {
                        Ok(_) => Ok(()),
                        Err(failure) => {
                            let key = format!(
                                "failed-open.validating.webhook.admission.k8s.io/round_0_index_{at}"
                            );
                            failure.apply_failure_policy(invocation, &key)
                        }
                    }
                }
            })
            .collect();
        // Await all calls, as upstream does: a webhook may rely on every call completing.
        let mut first = Ok(());
        while let Some(outcome) = calls.next().await {
            if first.is_ok() {
                first = outcome;
            }
        }
        first
    }

    /// The objects of a request, converted to each requested kind.
    fn in_versions(
        &self,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
        invocations: &[Invocation],
    ) -> Result<BTreeMap<Gvk, Objects>, Status> {
        let mut all = BTreeMap::new();
        for invocation in invocations.iter().filter(|i| i.gvk != *kind) {
            if !all.contains_key(&invocation.gvk) {
                let convert = |object: Option<&Value>| {
                    let converted = object
                        .map(|o| self.matcher.versions.convert(o.clone(), kind, &invocation.gvk));
                    converted.transpose()
                };
                all.insert(invocation.gvk.clone(), (convert(object)?, convert(request.old)?));
            }
        }
        Ok(all)
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let hooks = self.hooks.load_full();
        if hooks.is_empty() || matching::is_exempt(request) {
            return Ok(());
        }
        let Some(scaled) = Scaled::of(&self.matcher.objects, request, object)? else {
            return self.ask_all(&hooks, request, object).await;
        };
        let request = Request { old: scaled.old.as_ref(), ..*request };
        self.ask_all(&hooks, &request, scaled.new.as_ref()).await
    }
}
