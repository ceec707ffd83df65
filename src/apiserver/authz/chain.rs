//! The chain of authorizers, and the denial at its end.

use std::sync::Arc;

use api::Status;
use api::field::go_quote;
use async_trait::async_trait;

use super::{Attributes, Authorizer, Decision, Failure, UserRules};
use crate::authz::metrics::{AuthorizationMetrics, Tally};
use crate::request::user::User;
use crate::response::status::without_html;
use component_config::aggregate;

/// A named authorizer of the chain.
pub(super) struct Member {
    /// The name in reasons and metrics.
    name: String,
    authorizer: Arc<dyn Authorizer>,
    tally: Arc<Tally>,
}

impl Member {
    /// Creates a member; its decisions are counted in `tally`.
    pub(super) fn new(name: &str, authorizer: Arc<dyn Authorizer>, tally: Arc<Tally>) -> Self {
        Self { name: name.to_owned(), authorizer, tally }
    }
}

/// Allows members of `system:masters` everything, whatever the roles are. For other users, calls
/// the members in order until one allows or denies; the reasons of the others are joined with line
/// feeds (upstream's `pkg/authorization/union`).
pub struct Chain {
    members: Vec<Member>,
    metrics: Arc<AuthorizationMetrics>,
}

impl Chain {
    /// Creates a chain of `system:masters` and these authorizers, without names.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        let unnamed = |authorizer| Member::new("", authorizer, Arc::default());
        Self::of(members.into_iter().map(unnamed).collect(), &Arc::default())
    }

    /// Creates a chain of `system:masters` and these members.
    pub(super) fn of(members: Vec<Member>, metrics: &Arc<AuthorizationMetrics>) -> Self {
        Self { members, metrics: Arc::clone(metrics) }
    }
}

#[async_trait]
impl Authorizer for Chain {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        if user.in_group("system:masters") {
            return Decision::Allow(String::new());
        }
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for member in &self.members {
            let reason = match member.authorizer.authorize(user, attributes).await {
                Decision::NoOpinion(reason) => reason,
                Decision::Failed(Failure { denied: false, reason, error }) => {
                    errors.push(error);
                    reason
                }
                decided => {
                    member.tally.count(matches!(decided, Decision::Allow(_)));
                    return decided;
                }
            };
            if !reason.is_empty() && member.name.is_empty() {
                reasons.push(reason);
            } else if !reason.is_empty() {
                reasons.push(format!("{}: {reason}", member.name));
            }
        }
        let reason = reasons.join("\n");
        if errors.is_empty() {
            return Decision::NoOpinion(reason);
        }
        Decision::Failed(Failure { denied: false, reason, error: aggregate(errors) })
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let mut all = UserRules::default();
        for member in &self.members {
            let known = member.authorizer.rules(user, namespace);
            all.rules.extend(known.rules);
            all.errors.extend(known.errors);
            all.incomplete |= known.incomplete;
        }
        all
    }

    fn render(&self, out: &mut String) {
        self.metrics.render(out);
    }
}

/// Authorizes a request; every decision but an approval becomes the 403 for the client.
///
/// # Errors
/// 403 `Forbidden` with upstream's message.
pub async fn require(
    authorizer: &dyn Authorizer,
    user: &User,
    attributes: &Attributes<'_>,
) -> Result<(), Status> {
    match authorizer.authorize(user, attributes).await {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason)
        | Decision::NoOpinion(reason)
        | Decision::Failed(Failure { reason, .. }) => Err(forbidden(user, attributes, &reason)),
    }
}

/// `pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"`,
/// and the reason if there is one.
pub fn forbidden(user: &User, a: &Attributes<'_>, reason: &str) -> Status {
    let name = go_quote(&user.name);
    let message = if a.path.is_empty() {
        let resource = if a.subresource.is_empty() {
            a.resource.to_owned()
        } else {
            format!("{}/{}", a.resource, a.subresource)
        };
        let scope = if a.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", go_quote(a.namespace))
        };
        format!(
            "User {name} cannot {} resource {} in API group {} {scope}",
            a.verb,
            go_quote(&resource),
            go_quote(a.group)
        )
    } else {
        format!("User {name} cannot {} path {}", a.verb, go_quote(a.path))
    };
    let mut why = without_html(&message);
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    let mut status = Status::forbidden(a.group, a.resource, a.name, &why);
    if a.resource.is_empty() && a.group.is_empty() {
        status.message = format!("forbidden: {why}");
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_have_upstreams_messages() {
        let jane = User::authenticated("jane", &[]);
        let list = Attributes {
            verb: "list",
            version: "v1",
            resource: "pods",
            namespace: "shop",
            ..Attributes::default()
        };
        assert_eq!(
            forbidden(&jane, &list, "").message,
            r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "shop""#
        );
        let scale = Attributes {
            verb: "patch",
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            name: "web",
            ..Attributes::default()
        };
        assert_eq!(
            forbidden(&jane, &scale, "RBAC: x").message,
            r#"deployments.apps "web" is forbidden: User "jane" cannot patch resource "deployments/scale" in API group "apps" at the cluster scope: RBAC: x"#
        );
        let path = Attributes { verb: "get", path: "/<b>", ..Attributes::default() };
        assert_eq!(
            forbidden(&User::anonymous(), &path, "").message,
            r#"forbidden: User "system:anonymous" cannot get path "/&lt;b&gt;""#
        );
    }

    #[tokio::test]
    async fn only_system_masters_passes_an_empty_chain() {
        let chain = Chain::new(Vec::new());
        let any = Attributes { verb: "delete", resource: "nodes", ..Attributes::default() };
        assert!(
            require(&chain, &User::authenticated("root", &["system:masters"]), &any).await.is_ok()
        );
        assert_eq!(
            require(&chain, &User::authenticated("jane", &[]), &any).await.unwrap_err().code,
            403
        );
    }

    struct Fixed(Decision);

    #[async_trait]
    impl Authorizer for Fixed {
        async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
            self.0.clone()
        }
    }

    fn failed(denied: bool, reason: &str, error: &str) -> Decision {
        Decision::Failed(Failure { denied, reason: reason.into(), error: error.into() })
    }

    /// Rows of upstream's `union_test.go`, and the error handling of its `Authorize`.
    #[tokio::test]
    async fn the_first_decision_applies_and_errors_are_collected() {
        use Decision::{Allow, Deny, NoOpinion};
        let none = || NoOpinion(String::new());
        let rows = [
            (vec![none(), Allow("a".into()), Deny("d".into())], Allow("a".into())),
            (vec![Deny("d".into()), Allow("a".into())], Deny("d".into())),
            (vec![none(), none()], none()),
            (vec![NoOpinion("x".into()), NoOpinion("y".into())], NoOpinion("m0: x\nm1: y".into())),
            (vec![failed(false, "", "down"), Allow("a".into())], Allow("a".into())),
            (
                vec![failed(false, "", "down"), NoOpinion("y".into())],
                failed(false, "m1: y", "down"),
            ),
            (
                vec![failed(false, "", "e1"), failed(false, "r", "e2")],
                failed(false, "m1: r", "[e1, e2]"),
            ),
            (vec![failed(true, "r", "down"), Allow("a".into())], failed(true, "r", "down")),
        ];
        for (decision, want) in rows {
            let metrics = Arc::new(AuthorizationMetrics::default());
            let members = decision.into_iter().enumerate().map(|(at, decision)| {
                let name = format!("m{at}");
                Member::new(&name, Arc::new(Fixed(decision)), metrics.tally("Webhook", &name))
            });
            let chain = Chain::of(members.collect(), &metrics);
            let jane = User::authenticated("jane", &[]);
            assert_eq!(chain.authorize(&jane, &Attributes::default()).await, want);
        }
    }
}
