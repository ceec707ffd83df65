//! Authorizers with a constant decision (upstream's `authorizerfactory`).

use async_trait::async_trait;

use super::rule::Rule;
use super::{Attributes, Authorizer, Decision, UserRules};
use crate::request::user::User;

/// `AlwaysAllow`.
pub(super) struct AlwaysAllow;

#[async_trait]
impl Authorizer for AlwaysAllow {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        let all = || vec!["*".to_owned()];
        let resources =
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() };
        let paths = Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() };
        UserRules { rules: vec![resources, paths], ..UserRules::default() }
    }
}

/// `AlwaysDeny`: has no opinion, so that authorizers after it can allow.
pub(super) struct AlwaysDeny;

#[async_trait]
impl Authorizer for AlwaysDeny {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".to_owned())
    }
}
