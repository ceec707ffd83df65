//! The chain of authorizers, and the refusal at its end.

use std::sync::Arc;

use api::Status;
use api::field::go_quote;
use async_trait::async_trait;

use super::{Attributes, Authorizer, Decision};
use crate::user::User;

/// Members of `system:masters` may do anything, whatever the roles say.
pub struct Masters;

#[async_trait]
impl Authorizer for Masters {
    async fn authorize(&self, user: &User, _: &Attributes<'_>) -> Decision {
        if user.in_group("system:masters") {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Asks its members in order until one allows or denies; the reasons of the others are joined by line feeds.
pub struct Chain(Vec<Arc<dyn Authorizer>>);

impl Chain {
    /// `system:masters`, then these.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        let mut all: Vec<Arc<dyn Authorizer>> = vec![Arc::new(Masters)];
        all.extend(members);
        Self(all)
    }
}

#[async_trait]
impl Authorizer for Chain {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let mut reasons = Vec::new();
        for member in &self.0 {
            match member.authorize(user, attributes).await {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }
}

/// Asks, and turns everything but an approval into the 403 that clients get.
///
/// # Errors
/// 403 `Forbidden` with upstream's text.
pub async fn require(
    authorizer: &dyn Authorizer,
    user: &User,
    attributes: &Attributes<'_>,
) -> Result<(), Status> {
    match authorizer.authorize(user, attributes).await {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(forbidden(user, attributes, &reason))
        }
    }
}

/// `pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"`, and the reason if there is one.
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
    // Nothing that looks like HTML leaves in an error.
    let mut why = message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
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
    fn refusals_read_as_upstream() {
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
    async fn masters_pass_an_empty_chain_and_nobody_else_does() {
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
}
