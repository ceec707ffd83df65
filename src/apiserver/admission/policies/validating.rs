//! Validating policies: all that match are evaluated, the first denial is returned (upstream's
//! `policy/validating/dispatcher.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::status::{Cause, Details};
use api::{Gvk, Status};
use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use super::source::{Action, Binding, Hook, Hooks, Policy};
use super::validator::{Decision, Outcome, Validations};
use super::{Cluster, is_exempt};
use crate::admission::expressions::Inputs;
use crate::admission::expressions::cel_authorizer::{CelAuthorizer, DecisionCache};
use crate::admission::webhooks::{Scaled, review};
use crate::admission::{Plugin, Request};
use crate::metrics::admission as metrics;

/// The maximum number of failed validations in the audit log.
const FAILURES_MAX: usize = 50;
/// The maximum length of an audit annotation, in bytes.
const ANNOTATION_BYTES_MAX: usize = 10 * 1024;

/// The ValidatingAdmissionPolicy plugin.
pub struct ValidatingAdmissionPolicy {
    cluster: Cluster,
    hooks: Arc<Hooks<Validations>>,
}

/// A denial.
struct Denied {
    message: String,
    reason: String,
}

/// A failed validation in the format of the audit log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure<'a> {
    message: String,
    policy: &'a str,
    binding: &'a str,
    expression_index: usize,
    validation_actions: Vec<&'static str>,
}

/// The results over all policies.
#[derive(Default)]
struct Gathered<'a> {
    denied: Option<Denied>,
    failures: Vec<Failure<'a>>,
    annotations: BTreeMap<String, Vec<String>>,
}

impl<'a> Gathered<'a> {
    fn deny(&mut self, policy: &str, binding: Option<&str>, why: &str, reason: Option<String>) {
        let of = match binding {
            Some(binding) => format!("'{policy}' with binding '{binding}'"),
            None => format!("'{policy}'"),
        };
        // The first denial is returned.
        self.denied.get_or_insert_with(|| Denied {
            message: format!("ValidatingAdmissionPolicy {of} denied request: {why}"),
            reason: reason.unwrap_or_else(|| "Invalid".to_owned()),
        });
    }

    /// Records a policy or binding that is unusable.
    fn misconfigured(
        &mut self,
        policy: &Policy<Validations>,
        binding: Option<&Binding>,
        error: &dyn std::fmt::Display,
    ) {
        if !policy.fails_open {
            let what = if binding.is_some() { "binding" } else { "policy" };
            let why = format!("failed to configure {what}: {error}");
            self.deny(&policy.name, binding.map(|b| b.name.as_str()), &why, None);
        }
    }

    fn take(
        &mut self,
        request: &Request<'_>,
        policy: &Policy<Validations>,
        binding: &'a Binding,
        outcome: Outcome,
    ) {
        let of = (policy.name.as_str(), binding.name.as_str());
        if let Some(counted) = outcome.conditions {
            metrics::matched("policy", of.0, "validate", request.operation, &counted);
        }
        let decisions = outcome.decisions.into_iter().zip(outcome.notes);
        for (index, (decision, (took, error))) in decisions.enumerate() {
            let Decision::Deny(message, reason) = decision else {
                if error.is_some() {
                    metrics::validated(of, "allow", error.as_deref(), took);
                }
                continue;
            };
            for action in &binding.actions {
                let word = match action {
                    Action::Deny => "deny",
                    Action::Warn => "warn",
                    Action::Audit => "audit",
                };
                metrics::validated(of, word, Some(&message), took);
                match action {
                    Action::Deny => {
                        self.deny(&policy.name, Some(&binding.name), &message, reason.clone());
                    }
                    Action::Warn => request.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                        policy.name, binding.name
                    )),
                    Action::Audit => self.failures.push(Failure {
                        message: message.clone(),
                        policy: &binding.policy,
                        binding: &binding.name,
                        expression_index: index,
                        validation_actions: binding.actions.iter().map(|a| a.name()).collect(),
                    }),
                }
            }
        }
        for (key, value, took) in outcome.annotations {
            match value {
                Ok(mut value) => {
                    value.truncate(value.floor_char_boundary(ANNOTATION_BYTES_MAX));
                    let values = self.annotations.entry(key).or_default();
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    metrics::validated(of, "deny", Some(&why), took);
                    self.deny(&policy.name, Some(&binding.name), &why, None);
                }
            }
        }
    }

    /// Adds the annotations of one policy to the audit event.
    fn publish(&mut self, policy: &str) {
        for (key, values) in std::mem::take(&mut self.annotations) {
            crate::audit::annotate(&format!("{policy}/{key}"), || values.join(", "));
        }
    }

    /// Adds the failures to the audit event; returns the rejection if a policy denied the request.
    fn end(mut self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        if !self.failures.is_empty() {
            self.failures.truncate(FAILURES_MAX);
            let key = "validation.policy.admission.k8s.io/validation_failure";
            crate::audit::annotate(key, || {
                let text = serde_json::to_string(&self.failures).unwrap_or_default();
                api::field::escape_html(&text)
            });
        }
        let Some(denied) = self.denied else { return Ok(()) };
        let mut status = request.forbidden(object, &denied.message);
        status.code = match denied.reason.as_str() {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        status.reason = denied.reason;
        let details = status.details.get_or_insert_with(Details::default);
        details.causes.push(Cause { message: denied.message, ..Cause::default() });
        Err(status)
    }
}

/// The old and new object of a request, by kind.
type Versioned = BTreeMap<Gvk, [Option<Value>; 2]>;

impl ValidatingAdmissionPolicy {
    pub(super) fn new(cluster: Cluster, hooks: Arc<Hooks<Validations>>) -> Self {
        Self { cluster, hooks }
    }

    async fn ask_all(
        &self,
        hooks: &[Hook<Validations>],
        request: &Request<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let kind = self.cluster.versions.kind(request);
        let cel_authorizer = CelAuthorizer::new(&*self.cluster.authorizer, request.user);
        let mut gathered = Gathered::default();
        let mut versioned = Versioned::new();
        for hook in hooks {
            self.ask(hook, request, &kind, object, &cel_authorizer, &mut versioned, &mut gathered)
                .await?;
            gathered.publish(&hook.policy.name);
        }
        gathered.end(request, object)
    }

    #[expect(clippy::too_many_arguments, reason = "each is another fact of the one request")]
    async fn ask<'h>(
        &self,
        hook: &'h Hook<Validations>,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
        cel_authorizer: &CelAuthorizer<'_>,
        versioned: &mut Versioned,
        gathered: &mut Gathered<'h>,
    ) -> Result<(), Status> {
        let (cluster, policy) = (&self.cluster, &*hook.policy);
        let (gvr, gvk) = match policy.criteria.matches(cluster, request, kind, object).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(why) => {
                gathered.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let row = match policy.params.as_ref().map(|kind| kind.row(cluster)).transpose() {
            Ok(row) => row,
            Err(why) => {
                gathered.misconfigured(policy, None, &why);
                return Ok(());
            }
        };
        let described = review::described(request, kind, object, &gvr, &gvk);
        let described = Value::Object(described);
        let check = request.resource_check(object);
        for binding in hook.bindings.iter().map(|binding| &**binding) {
            let params = binding.params(cluster, row.as_ref(), request, kind, object).await;
            let params = match params {
                Ok(None) => continue,
                Ok(Some(params)) => params,
                Err(why) => {
                    gathered.misconfigured(policy, Some(binding), &why);
                    continue;
                }
            };
            let converted = if gvk == *kind {
                Ok(None)
            } else {
                self.in_version(request, kind, &gvk, object, versioned).map(Some)
            };
            let [new, old] = match converted {
                Ok(None) => [object, request.old],
                Ok(Some([new, old])) => [new.as_ref(), old.as_ref()],
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    gathered.misconfigured(policy, Some(binding), &why);
                    continue;
                }
            };
            let namespace = cluster.namespace(request, kind, object).await?;
            for param in &params {
                let run = |cache: &Arc<DecisionCache>| {
                    policy.decide(&Inputs {
                        object: new,
                        old,
                        request: &described,
                        namespace: namespace.as_ref(),
                        params: param.as_ref(),
                        authorizer: Some((cache, &check)),
                        variables: &policy.variables,
                    })
                };
                let outcome = cel_authorizer.evaluate(policy.deepest(), run).await?;
                gathered.take(request, policy, binding, outcome);
            }
        }
        Ok(())
    }

    fn in_version<'v>(
        &self,
        request: &Request<'_>,
        kind: &Gvk,
        gvk: &Gvk,
        object: Option<&Value>,
        versioned: &'v mut Versioned,
    ) -> Result<&'v [Option<Value>; 2], Status> {
        let convert = |object: Option<&Value>| {
            let versions = &self.cluster.versions;
            object.map(|object| versions.convert(object.clone(), kind, gvk)).transpose()
        };
        match versioned.entry(gvk.clone()) {
            std::collections::btree_map::Entry::Occupied(there) => Ok(there.into_mut()),
            std::collections::btree_map::Entry::Vacant(entry) => {
                Ok(entry.insert([convert(object)?, convert(request.old)?]))
            }
        }
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let hooks = self.hooks.load_full();
        if hooks.is_empty() || is_exempt(request) {
            return Ok(());
        }
        let Some(scaled) = Scaled::of(&self.cluster.objects, request, object)? else {
            return self.ask_all(&hooks, request, object).await;
        };
        let request = Request { old: scaled.old.as_ref(), ..*request };
        self.ask_all(&hooks, &request, scaled.new.as_ref()).await
    }
}
