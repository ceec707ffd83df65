//! Mutating policies: applied in sequence, each sees the changes of those before it; a policy is
//! reinvoked if a later step changed the object (upstream's `policy/mutating/dispatcher.go`).

use std::sync::Arc;

use api::expressions::{Compiler, Uses};
use api::status::{Cause, Details};
use api::value::{items, set, str_at, str_in};
use api::{Gvk, Gvr, Status};
use async_trait::async_trait;
use serde_json::Value;

use super::patch::{Change, Mutation};
use super::source::{Binding, Body, Hook, Hooks, Policy};
use super::{Cluster, is_exempt, kind_text, name_of};
use crate::admission::expressions::Inputs;
use crate::admission::expressions::cel_authorizer::{CelAuthorizer, DecisionCache};
use crate::admission::expressions::conditions::Matched;
use crate::admission::reinvocation::ReinvokingPlugin;
use crate::admission::webhooks::{Scaled, review};
use crate::admission::{Operation, Plugin, Request};
use crate::metrics::admission as metrics;

/// The MutatingAdmissionPolicy plugin.
pub struct MutatingAdmissionPolicy {
    cluster: Cluster,
    hooks: Arc<Hooks<Mutations>>,
}

/// The mutating part of a policy's `spec`.
#[derive(Debug)]
pub(super) struct Mutations {
    list: Vec<Mutation>,
    /// `reinvocationPolicy: IfNeeded`.
    is_reinvoked: bool,
}

impl Body for Mutations {
    fn of(spec: &Value, compiler: &Compiler, uses: Uses) -> Self {
        let list = items(spec, "mutations").iter();
        Self {
            list: list.map(|one| Mutation::of(one, compiler, uses)).collect(),
            is_reinvoked: str_at(spec, "reinvocationPolicy") == "IfNeeded",
        }
    }
}

/// A policy to apply, with one parameter of one binding.
struct Invocation<'h> {
    policy: &'h Policy<Mutations>,
    binding: &'h Binding,
    gvr: Gvr,
    gvk: Gvk,
    param: Option<Value>,
}

impl Invocation<'_> {
    /// A key that is unique within the request.
    fn key(&self) -> String {
        let param = self.param.as_ref().map(|param| {
            format!("{}/{}", str_in(param, &["metadata", "namespace"]), name_of(param))
        });
        format!("{}/{}/{}", self.policy.name, self.binding.name, param.unwrap_or_default())
    }
}

/// The reason why a mutation fails.
enum Failure {
    /// `failurePolicy` decides.
    Failed(String),
    /// The request is rejected.
    Refused(Box<Status>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// The errors of policies with `failurePolicy: Fail`.
#[derive(Default)]
struct Failures(Vec<(String, &'static str)>);

impl Failures {
    fn add(
        &mut self,
        policy: &Policy<Mutations>,
        binding: Option<&str>,
        why: &dyn std::fmt::Display,
        reason: &'static str,
    ) {
        if policy.fails_open {
            return;
        }
        let name = &policy.name;
        let text = match binding {
            Some(binding) => {
                format!("policy '{name}' with binding '{binding}' denied request: {why}")
            }
            None => format!("policy {} denied request: {why}", api::field::go_quote(name)),
        };
        self.0.push((text, reason));
    }

    fn misconfigured(
        &mut self,
        policy: &Policy<Mutations>,
        binding: Option<&str>,
        error: &dyn std::fmt::Display,
    ) {
        let what = if binding.is_some() { "binding" } else { "policy" };
        self.add(policy, binding, &format!("failed to configure {what}: {error}"), "");
    }

    fn end(self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some((message, reason)) = self.0.first() else { return Ok(()) };
        let mut status = request.forbidden(object, "admission request denied by policy");
        status.message.clone_from(message);
        if !reason.is_empty() {
            status.reason = (*reason).to_owned();
        }
        let details = status.details.get_or_insert_with(Details::default);
        let causes = self.0.into_iter().map(|(message, _)| Cause { message, ..Cause::default() });
        details.causes.extend(causes);
        Err(status)
    }
}

impl MutatingAdmissionPolicy {
    pub(super) fn new(cluster: Cluster, hooks: Arc<Hooks<Mutations>>) -> Self {
        Self { cluster, hooks }
    }

    async fn apply_all(
        &self,
        hooks: &[Hook<Mutations>],
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let kind = self.cluster.versions.kind(request);
        let mut failures = Failures::default();
        let mut invocations = Vec::new();
        for hook in hooks {
            let found = self.invocations(hook, request, &kind, object.as_ref(), &mut failures);
            invocations.extend(found.await);
        }
        if !invocations.is_empty() {
            self.apply(&invocations, request, &kind, object, &mut failures).await?;
        }
        failures.end(request, object.as_ref())
    }

    /// The invocations of a policy for the request.
    async fn invocations<'h>(
        &self,
        hook: &'h Hook<Mutations>,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
        failures: &mut Failures,
    ) -> Vec<Invocation<'h>> {
        let (cluster, policy) = (&self.cluster, &*hook.policy);
        let mut all = Vec::new();
        let matched = policy.criteria.matches(cluster, request, kind, object).await;
        let row = policy.params.as_ref().map(|kind| kind.row(cluster)).transpose();
        let ((gvr, gvk), row) = match (matched, row) {
            (Ok(None), _) => return all,
            (Ok(Some(found)), Ok(row)) => (found, row),
            (Err(error), _) => {
                failures.misconfigured(policy, None, &error);
                return all;
            }
            (_, Err(error)) => {
                failures.misconfigured(policy, None, &error);
                return all;
            }
        };
        for binding in hook.bindings.iter().map(|binding| &**binding) {
            match binding.params(cluster, row.as_ref(), request, kind, object).await {
                Ok(None) => {}
                Ok(Some(params)) => all.extend(params.into_iter().map(|param| Invocation {
                    policy,
                    binding,
                    gvr: gvr.clone(),
                    gvk: gvk.clone(),
                    param,
                })),
                Err(error) => failures.misconfigured(policy, Some(&binding.name), &error),
            }
        }
        all
    }

    async fn apply(
        &self,
        invocations: &[Invocation<'_>],
        request: &Request<'_>,
        kind: &Gvk,
        object: &mut Option<Value>,
        failures: &mut Failures,
    ) -> Result<(), Status> {
        let namespace = self.cluster.namespace(request, kind, object.as_ref()).await?;
        let cel_authorizer = CelAuthorizer::new(&*self.cluster.authorizer, request.user);
        let reinvocation = request.reinvocation.of(ReinvokingPlugin::Policies);
        reinvocation.begin(object.as_ref());
        let mut succeeded = false;
        for invocation in invocations {
            let (policy, binding) = (invocation.policy, invocation.binding);
            let invoked = MutationContext {
                cluster: &self.cluster,
                cel_authorizer: &cel_authorizer,
                invocation,
                request,
                kind,
                namespace: namespace.as_ref(),
            };
            match invoked.meets_conditions(object.as_ref()).await? {
                Matched::Yes => {}
                Matched::Failed(why) => {
                    failures.add(policy, Some(&binding.name), &why, "Invalid");
                    continue;
                }
                Matched::No => continue,
            }
            let key = invocation.key();
            if !reinvocation.should_invoke(&key) {
                continue;
            }
            for mutation in &policy.body.list {
                let Some(current) = object.as_ref() else { continue };
                let begun = base::clock::now();
                let mutated = invoked.mutate(mutation, current).await;
                let why = match &mutated {
                    Ok(_) => None,
                    Err(Failure::Failed(why)) => Some(why.as_str()),
                    Err(Failure::Refused(status)) => Some(status.message.as_str()),
                };
                let took = base::clock::now().duration_since(begun);
                metrics::mutated((&policy.name, &binding.name), why, took);
                match mutated {
                    Ok(changed) => {
                        *object = Some(changed);
                        succeeded = true;
                    }
                    Err(Failure::Failed(why)) => {
                        failures.add(policy, Some(&binding.name), &why, "Invalid");
                    }
                    Err(Failure::Refused(status)) => return Err(*status),
                }
            }
            if policy.body.is_reinvoked {
                reinvocation.add_reinvocable(&key);
            }
        }
        // Upstream requests a second pass after any successful mutation, even one without an
        // effect; then all reinvocable policies are applied again, including the one that caused
        // it.
        if succeeded {
            reinvocation.require_reinvocation();
        }
        reinvocation.end(object.as_ref());
        Ok(())
    }
}

/// An invocation in the context of its request.
struct MutationContext<'a> {
    cluster: &'a Cluster,
    cel_authorizer: &'a CelAuthorizer<'a>,
    invocation: &'a Invocation<'a>,
    request: &'a Request<'a>,
    kind: &'a Gvk,
    namespace: Option<&'a Value>,
}

impl MutationContext<'_> {
    /// An object of the request, in the version of the rule that matched.
    fn in_version(&self, object: &Value) -> Result<Value, Status> {
        self.cluster.versions.convert(object.clone(), self.kind, &self.invocation.gvk)
    }

    /// Evaluates with all variables that expressions can read.
    async fn run<T: Send>(
        &self,
        depth: usize,
        object: Option<&Value>,
        (namespace, gvr): (Option<&Value>, &Gvr),
        run: impl Fn(&Inputs<'_>) -> T + Send + Sync,
    ) -> Result<T, Status> {
        let (request, policy) = (self.request, self.invocation.policy);
        let (new, old);
        let (object, before) = if self.invocation.gvk == *self.kind {
            (object, request.old)
        } else {
            new = object.map(|object| self.in_version(object)).transpose()?;
            old = request.old.map(|old| self.in_version(old)).transpose()?;
            (new.as_ref(), old.as_ref())
        };
        let described = review::described(request, self.kind, object, gvr, &self.invocation.gvk);
        let described = Value::Object(described);
        let check = request.resource_check(object);
        let with = |cache: &Arc<DecisionCache>| {
            run(&Inputs {
                object,
                old: before,
                request: &described,
                namespace,
                params: self.invocation.param.as_ref(),
                authorizer: Some((cache, &check)),
                variables: &policy.variables,
            })
        };
        self.cel_authorizer.evaluate(depth, with).await
    }

    async fn meets_conditions(&self, object: Option<&Value>) -> Result<Matched, Status> {
        let policy = self.invocation.policy;
        if policy.conditions.is_empty() {
            return Ok(Matched::Yes);
        }
        let decide = |inputs: &Inputs<'_>| policy.conditions.count(inputs);
        let seen = (None, self.request.gvr);
        let (matched, counted) = self.run(policy.depth(), object, seen, decide).await?;
        metrics::matched("policy", &policy.name, "validate", self.request.operation, &counted);
        Ok(match matched {
            Matched::Failed(_) if policy.fails_open => Matched::No,
            matched => matched,
        })
    }

    /// Applies one mutation to the object, and defaulting.
    async fn mutate(&self, mutation: &Mutation, object: &Value) -> Result<Value, Failure> {
        let (gvk, versions) = (&self.invocation.gvk, &self.cluster.versions);
        let registry = self.cluster.objects.registry();
        let custom = registry.row_of_kind(gvk).and_then(|row| row.spec.custom.as_ref());
        let types = match custom {
            Some(custom) => Some(custom.types()),
            None => registry.schema.kind(gvk).map(|ty| (Arc::clone(&registry.schema), ty)),
        };
        let Some((schema, ty)) = types else {
            let text = format!(
                "Resource kind {} not found. There can be a delay between when CustomResourceDefinitions are created and when they are available.",
                kind_text(gvk)
            );
            return Err(Status::failure(503, "ServiceUnavailable", text).into());
        };
        let depth = self.invocation.policy.depth().saturating_add(mutation.expression.depth());
        let change = |inputs: &Inputs<'_>| mutation.change(inputs);
        let seen = (self.namespace, &self.invocation.gvr);
        let change = self.run(depth, Some(object), seen, change).await?;
        let change = change.map_err(|error| Failure::Failed(error.to_string()))?;
        let current = self.in_version(object)?;
        let changed = match change {
            Change::Apply(mut configuration) => {
                set(&mut configuration, "apiVersion", gvk.api_version());
                set(&mut configuration, "kind", &*gvk.kind);
                let merged = api::patch::merge_configuration(&schema, ty, &current, &configuration);
                let merged = merged
                    .map_err(|why| Failure::Failed(format!("error applying patch: {why}")))?;
                versions.decode(gvk, &merged)?
            }
            Change::Patch(operations) => {
                let patched = api::patch::json_patch_explained(current.clone(), &operations);
                match patched.map_err(|why| Failure::Failed(format!("JSON Patch: {why}")))? {
                    Some(patched) => versions.decode_strictly(gvk, &patched)?,
                    // A failed `test` operation leaves the object unchanged.
                    None => current,
                }
            }
        };
        Ok(versions.convert(changed, gvk, self.kind)?)
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let hooks = self.hooks.load_full();
        // A deletion has no new object to mutate.
        let is_deletion = request.operation == Operation::Delete;
        if hooks.is_empty() || is_deletion || is_exempt(request) {
            return Ok(());
        }
        let Some(mut scaled) = Scaled::of(&self.cluster.objects, request, object.as_ref())? else {
            return self.apply_all(&hooks, request, object).await;
        };
        let request = Request { old: scaled.old.as_ref(), ..*request };
        self.apply_all(&hooks, &request, &mut scaled.new).await?;
        scaled.write_back(object)
    }
}
