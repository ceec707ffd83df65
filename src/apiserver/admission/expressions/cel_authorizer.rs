//! The authorizer that CEL expressions use. Evaluation is synchronous: a check without a cached
//! decision is recorded, authorized after the evaluation, and the evaluation is repeated.

use std::sync::Arc;

use api::Status;
use kcel::{Authorize, Check, Decision};
use parking_lot::Mutex;

use crate::authz::{self, Attributes, Authorizer};
use crate::request::user::User;

/// The depth of a syntax tree up to which it is evaluated on the caller's stack.
const CALLER_STACK_DEPTH_MAX: usize = 40;
/// The stack size for deeper ones, in bytes.
const STACK_BYTES: usize = 32 << 20;

/// The authorization decisions of one request.
#[derive(Debug, Default)]
pub(crate) struct DecisionCache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    decisions: Vec<(Check, Decision)>,
    /// Checks that have no decision yet.
    pending: Vec<Check>,
}

impl Authorize for DecisionCache {
    fn authorize(&self, check: &Check) -> Decision {
        let mut state = self.0.lock();
        if let Some((_, decision)) = state.decisions.iter().find(|(known, _)| known == check) {
            return decision.clone();
        }
        if !state.pending.contains(check) {
            state.pending.push(check.clone());
        }
        Decision { error: Some("not decided yet".to_owned()), ..Decision::default() }
    }
}

/// Authorizes the checks of expressions for the user of one request.
pub(crate) struct CelAuthorizer<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) user: &'a User,
    pub(crate) cache: Arc<DecisionCache>,
}

impl<'a> CelAuthorizer<'a> {
    /// Creates an authorizer without cached decisions.
    pub(crate) fn new(authorizer: &'a dyn Authorizer, user: &'a User) -> Self {
        Self { authorizer, user, cache: Arc::default() }
    }

    /// Runs an evaluation until all of its checks have decisions, and returns the last outcome.
    /// `run` may be called several times and must be deterministic; `depth` is that of its deepest
    /// expression.
    ///
    /// # Errors
    /// 500 if no thread can be started for a deep expression.
    pub(crate) async fn evaluate<T: Send>(
        &self,
        depth: usize,
        run: impl Fn(&Arc<DecisionCache>) -> T + Send + Sync,
    ) -> Result<T, Status> {
        loop {
            let outcome = on_stack(depth, || run(&self.cache))?;
            let pending = std::mem::take(&mut self.cache.0.lock().pending);
            if pending.is_empty() {
                return Ok(outcome);
            }
            for check in pending {
                let decision = self.decide(&check).await;
                self.cache.0.lock().decisions.push((check, decision));
            }
        }
    }

    async fn decide(&self, check: &Check) -> Decision {
        let account;
        let user = match &check.service_account {
            None => self.user,
            Some((namespace, name)) => {
                account = User {
                    name: format!("system:serviceaccount:{namespace}:{name}"),
                    groups: vec![
                        "system:serviceaccounts".to_owned(),
                        format!("system:serviceaccounts:{namespace}"),
                    ],
                    ..User::default()
                };
                &account
            }
        };
        let attributes = match &check.path {
            Some(path) => Attributes { verb: &check.verb, path, ..Attributes::default() },
            None => Attributes {
                verb: &check.verb,
                group: &check.group,
                version: "*",
                resource: &check.resource,
                subresource: &check.subresource,
                namespace: &check.namespace,
                name: &check.name,
                path: "",
                field_selector: &check.field_selector,
                label_selector: &check.label_selector,
            },
        };
        match self.authorizer.authorize(user, &attributes).await {
            authz::Decision::Allow(reason) => Decision { allowed: true, reason, error: None },
            authz::Decision::Deny(reason) | authz::Decision::NoOpinion(reason) => {
                Decision { allowed: false, reason, error: None }
            }
            authz::Decision::Failed(authz::Failure { reason, error, .. }) => {
                Decision { allowed: false, reason, error: Some(error) }
            }
        }
    }
}

/// Runs an evaluation on a stack that is large enough for the depth of its expressions.
///
/// # Errors
/// 500 if no thread can be started for a deep expression.
pub(crate) fn on_stack<T: Send>(depth: usize, run: impl Fn() -> T + Send) -> Result<T, Status> {
    if depth <= CALLER_STACK_DEPTH_MAX {
        return Ok(run());
    }
    let failed = || Status::internal("a deep expression cannot be evaluated: no thread for it");
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("expression".to_owned());
        let running = thread.stack_size(STACK_BYTES).spawn_scoped(scope, run);
        running.map_err(|_| failed())?.join().map_err(|_| failed())
    })
}
