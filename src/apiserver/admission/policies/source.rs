//! Policies and their bindings, followed in the watch cache: a change takes effect when this server
//! receives its event.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::expressions::{Compiler, Uses};
use api::value::{get, has, items, str_at};
use api::{Gvk, Gvr, Object, ObjectKey, Status};
use arc_swap::ArcSwap;
use base::{Kind, Tasks};
use parking_lot::Mutex;
use serde_json::Value;

use super::criteria::{Criteria, MatchError};
use super::mutating::Mutations;
use super::params::{ParamError, ParamKind, ParamRef};
use super::validator::Validations;
use super::{Cluster, name_of};
use crate::admission::expressions::conditions::Conditions;
use crate::admission::expressions::{Variables, variables};
use crate::admission::{Request, matching};
use crate::registry::Resource;
use crate::registry::follower;
use crate::registry::follower::Follower;
use crate::registry::objects::Objects;

/// The part of `spec` that differs between the kinds of policies.
pub(super) trait Body: Send + Sync + Sized + 'static {
    /// Parses it from the policy's `spec`.
    fn of(spec: &Value, compiler: &Compiler, uses: Uses) -> Self;
}

/// A compiled policy.
#[derive(Debug)]
pub(super) struct Policy<B> {
    pub(super) name: String,
    pub(super) criteria: Criteria,
    pub(super) params: Option<ParamKind>,
    /// `failurePolicy: Ignore`.
    pub(super) fails_open: bool,
    pub(super) variables: Variables,
    pub(super) conditions: Conditions,
    pub(super) body: B,
}

impl<B: Body> Policy<B> {
    fn of(policy: &Value) -> Self {
        let spec = get(policy, "spec");
        let uses = Uses { params: has(spec, "paramKind"), authorizer: true, patches: false };
        let mut compiler = Compiler::composed();
        let variables = variables(&mut compiler, items(spec, "variables"), uses);
        Self {
            name: name_of(policy).to_owned(),
            criteria: Criteria::of(get(spec, "matchConstraints")),
            params: ParamKind::of(spec),
            fails_open: str_at(spec, "failurePolicy") == "Ignore",
            conditions: Conditions::of(&compiler, spec, uses),
            body: B::of(spec, &compiler, uses),
            variables,
        }
    }

    /// The depth of the deepest evaluation over variables and conditions.
    pub(super) fn depth(&self) -> usize {
        let variables = self.variables.iter().map(|(_, expression)| expression.depth());
        // The evaluation of a variable can be nested in that of another.
        variables.sum::<usize>().saturating_add(self.conditions.depth())
    }
}

/// The action of a binding for a failed validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Deny,
    Warn,
    Audit,
}

impl Action {
    /// The name in the API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Action::Deny => "Deny",
            Action::Warn => "Warn",
            Action::Audit => "Audit",
        }
    }
}

/// A binding is unusable for a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindingError {
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error(transparent)]
    Param(#[from] ParamError),
}

/// A binding of either kind of policy.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: String,
    /// The name of the policy.
    pub(super) policy: String,
    pub(super) criteria: Option<Criteria>,
    pub(super) params: Option<ParamRef>,
    pub(super) actions: Vec<Action>,
}

impl Binding {
    /// The parameters to evaluate the policy with: `None` if the binding does not match the
    /// request; one that is `None` if the policy has no parameters. `row` is the resource of the
    /// policy's `paramKind`.
    ///
    /// # Errors
    /// If the binding is unusable.
    pub(super) async fn params(
        &self,
        cluster: &Cluster,
        row: Option<&Arc<Resource>>,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<Option<Vec<Option<Value>>>, BindingError> {
        if let Some(criteria) = &self.criteria
            && criteria.matches(cluster, request, kind, object).await?.is_none()
        {
            return Ok(None);
        }
        // Without `paramKind`, the reference is ignored; without a reference, the parameter is
        // null.
        let (Some(row), Some(reference)) = (row, &self.params) else {
            return Ok(Some(vec![None]));
        };
        let namespace = matching::namespace_of(request, object);
        let found = reference.collect(cluster, row, namespace).await?;
        Ok(Some(found.into_iter().map(Some).collect()))
    }

    fn of(binding: &Value) -> Self {
        let spec = get(binding, "spec");
        let resources = get(spec, "matchResources");
        let actions = items(spec, "validationActions").iter().filter_map(Value::as_str);
        let all = [Action::Deny, Action::Warn, Action::Audit];
        Self {
            name: name_of(binding).to_owned(),
            policy: str_at(spec, "policyName").to_owned(),
            criteria: resources.is_object().then(|| Criteria::of(resources)),
            params: ParamRef::of(spec),
            actions: actions
                .filter_map(|word| all.into_iter().find(|action| action.name() == word))
                .collect(),
        }
    }
}

/// A policy with its bindings, by name.
#[derive(Debug)]
pub(super) struct Hook<B> {
    pub(super) policy: Arc<Policy<B>>,
    pub(super) bindings: Vec<Arc<Binding>>,
}

/// All policies that have bindings, by name.
pub(super) type Hooks<B> = ArcSwap<Vec<Hook<B>>>;

/// The policies of both kinds.
#[derive(Default)]
pub struct Sources {
    pub(super) mutating: Arc<Hooks<Mutations>>,
    pub(super) validating: Arc<Hooks<Validations>>,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sources")
    }
}

impl Sources {
    /// Loads all policies and bindings and keeps them current until shutdown. Await this before
    /// serving, so that no write bypasses a policy.
    ///
    /// # Errors
    /// If a cache fails to load.
    pub async fn follow(&self, objects: &Arc<Objects>, tasks: &Tasks) -> Result<(), Status> {
        let kinds = [&*lookup::MUTATING_POLICIES, &*lookup::MUTATING_POLICY_BINDINGS];
        follow_both(&self.mutating, kinds, objects, tasks).await?;
        let kinds = [&*lookup::VALIDATING_POLICIES, &*lookup::VALIDATING_POLICY_BINDINGS];
        follow_both(&self.validating, kinds, objects, tasks).await
    }
}

async fn follow_both<B: Body>(
    hooks: &Arc<Hooks<B>>,
    [policies, bindings]: [&'static Gvr; 2],
    objects: &Arc<Objects>,
    tasks: &Tasks,
) -> Result<(), Status> {
    let known = Arc::new(PolicyIndex {
        policies: Mutex::default(),
        bindings: Mutex::default(),
        hooks: Arc::clone(hooks),
    });
    let reader =
        Reader { known: Arc::clone(&known), side: |known| &known.policies, read: Policy::of };
    follow_one(reader, policies, objects, tasks).await?;
    let reader = Reader { known, side: |known| &known.bindings, read: Binding::of };
    follow_one(reader, bindings, objects, tasks).await
}

async fn follow_one<B: Body, T: Send + Sync + 'static>(
    mut reader: Reader<B, T>,
    gvr: &'static Gvr,
    objects: &Arc<Objects>,
    tasks: &Tasks,
) -> Result<(), Status> {
    let position = follower::load(objects, gvr, &mut reader).await?;
    let (objects, shutdown) = (Arc::clone(objects), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "admission policies", async move {
        tokio::select! {
            () = follower::follow(&objects, gvr, &mut reader, position) => {}
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(())
}

/// Objects by name, with their resource version.
type ByName<T> = Mutex<BTreeMap<Arc<str>, (i64, Arc<T>)>>;

/// The policies of one kind and their bindings.
struct PolicyIndex<B> {
    policies: ByName<Policy<B>>,
    bindings: ByName<Binding>,
    hooks: Arc<Hooks<B>>,
}

impl<B> PolicyIndex<B> {
    /// Publishes the combination of policies and bindings.
    fn publish(&self) {
        // The lock serializes updates, so that an older view never replaces a newer one.
        let policies = self.policies.lock();
        let mut bound: BTreeMap<String, Vec<Arc<Binding>>> = BTreeMap::new();
        for (_, binding) in self.bindings.lock().values() {
            bound.entry(binding.policy.clone()).or_default().push(Arc::clone(binding));
        }
        let hooks = bound.into_iter().filter_map(|(name, bindings)| {
            let (_, policy) = policies.get(name.as_str())?;
            Some(Hook { policy: Arc::clone(policy), bindings })
        });
        self.hooks.store(Arc::new(hooks.collect()));
    }
}

/// Follows policies or bindings.
struct Reader<B, T> {
    known: Arc<PolicyIndex<B>>,
    side: fn(&PolicyIndex<B>) -> &ByName<T>,
    read: fn(&Value) -> T,
}

impl<B: Body, T: Send + Sync> Follower for Reader<B, T> {
    fn replace(&mut self, all: &[Arc<Object>]) {
        let is_there = |name: &Arc<str>| all.iter().any(|o| o.key.name == *name);
        (self.side)(&self.known).lock().retain(|name, _| is_there(name));
        for object in all {
            self.put(object);
        }
    }

    fn put(&mut self, object: &Arc<Object>) {
        let (name, version) = (&object.key.name, object.resource_version);
        let side = (self.side)(&self.known);
        if side.lock().get(name).is_some_and(|(at, _)| *at == version) {
            return;
        }
        match object.value() {
            Ok(value) => {
                let read = Arc::new((self.read)(&value));
                side.lock().insert(Arc::clone(name), (version, read));
            }
            Err(error) => {
                tracing::error!(policy = %object.key, %error, "cannot decode a stored admission policy or binding");
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        (self.side)(&self.known).lock().remove(&key.name);
    }

    fn synced(&mut self) {
        self.known.publish();
    }
}
