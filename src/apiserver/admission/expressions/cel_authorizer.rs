//! The authorizer that CEL expressions use. Evaluation is synchronous: a check without a cached
//! decision is recorded, authorized after the evaluation, and the evaluation is repeated.

use std::sync::Arc;

use api::Status;
use kcel::{Authorize, Check, Decision};
use parking_lot::Mutex;

use crate::authz::{self, Attributes, Authorizer};
use crate::request::user::User;

/// The depth of a syntax tree up to which it is evaluated on the caller's stack.
const SHALLOW: usize = 40;
/// The stack size for deeper ones, in bytes.
const STACK_BYTES: usize = 32 << 20;

/// The authorization decisions of one request.
#[derive(Debug, Default)]
pub(crate) struct Memo(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    answers: Vec<(Check, Decision)>,
    /// Checks that have no decision yet.
    open: Vec<Check>,
}

impl Authorize for Memo {
    fn authorize(&self, check: &Check) -> Decision {
        let mut state = self.0.lock();
        if let Some((_, decision)) = state.answers.iter().find(|(known, _)| known == check) {
            return decision.clone();
        }
        if !state.open.contains(check) {
            state.open.push(check.clone());
        }
        Decision { error: Some("not decided yet".to_owned()), ..Decision::default() }
    }
}

/// Authorizes the checks of expressions for the user of one request.
pub(crate) struct Asking<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) user: &'a User,
    pub(crate) memo: Arc<Memo>,
}

impl<'a> Asking<'a> {
    /// Creates an authorizer without cached decisions.
    pub(crate) fn new(authorizer: &'a dyn Authorizer, user: &'a User) -> Self {
        Self { authorizer, user, memo: Arc::default() }
    }

    /// Runs an evaluation until all of its checks have decisions, and returns the last outcome.
    /// `run` may be called several times and must be deterministic; `depth` is that of its deepest
    /// expression.
    ///
    /// # Errors
    /// 500 if no thread can be started for a deep expression.
    pub(crate) async fn settle<T: Send>(
        &self,
        depth: usize,
        run: impl Fn(&Arc<Memo>) -> T + Send + Sync,
    ) -> Result<T, Status> {
        loop {
            let outcome = on_stack(depth, || run(&self.memo))?;
            let open = std::mem::take(&mut self.memo.0.lock().open);
            if open.is_empty() {
                return Ok(outcome);
            }
            for check in open {
                let decision = self.answer(&check).await;
                self.memo.0.lock().answers.push((check, decision));
            }
        }
    }

    async fn answer(&self, check: &Check) -> Decision {
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
    if depth <= SHALLOW {
        return Ok(run());
    }
    let failed = || Status::internal("a deep expression cannot be evaluated: no thread for it");
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("expression".to_owned());
        let running = thread.stack_size(STACK_BYTES).spawn_scoped(scope, run);
        running.map_err(|_| failed())?.join().map_err(|_| failed())
    })
}
