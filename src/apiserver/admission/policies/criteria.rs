//! Matches requests against `matchConstraints` and `matchResources` (upstream's `policy/matching`).

use api::selector::SelectorError;
use api::value::{items, str_at};
use api::{Gvk, Gvr, Status};
use serde_json::Value;

use super::Cluster;
use crate::admission::Request;
use crate::admission::matching::{Rule, Selectors, namespace_of};

/// `MatchResources`.
#[derive(Debug)]
pub(super) struct Criteria {
    selectors: Result<Selectors, SelectorError>,
    rules: Vec<NamedRule>,
    excluded: Vec<NamedRule>,
    is_equivalent: bool,
}

/// Whether a request matches cannot be decided.
#[derive(Debug, thiserror::Error)]
pub(super) enum MatchError {
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The namespace of the request does not exist or cannot be read.
    #[error("{}", .0.message)]
    Namespace(Box<Status>),
}

/// A rule, optionally limited to `resourceNames`.
#[derive(Debug)]
struct NamedRule {
    rule: Rule,
    names: Vec<String>,
}

impl NamedRule {
    fn of(rule: &Value) -> Self {
        let names = items(rule, "resourceNames").iter().filter_map(Value::as_str);
        Self { rule: Rule::of(rule), names: names.map(str::to_owned).collect() }
    }
}

/// The attributes of a request that rules match.
struct RequestAttributes<'a> {
    request: &'a Request<'a>,
    namespace: &'a str,
    name: &'a str,
    kind: &'a Gvk,
    /// The equivalent resources of other versions; empty if only the exact version matches.
    others: Vec<(Gvr, Gvk)>,
}

impl RequestAttributes<'_> {
    /// The resource and kind of the first matching rule; the request's own version takes
    /// precedence.
    fn first(&self, rules: &[NamedRule]) -> Option<(Gvr, Gvk)> {
        let (operation, subresource) = (self.request.operation, self.request.subresource);
        let fits = |rule: &NamedRule, gvr: &Gvr| {
            rule.rule.matches(operation, gvr, subresource, self.namespace)
                && (rule.names.is_empty() || rule.names.iter().any(|name| name == self.name))
        };
        let own = self.request.gvr;
        if rules.iter().any(|rule| fits(rule, own)) {
            return Some((own.clone(), self.kind.clone()));
        }
        let mut pairs = rules.iter().flat_map(|r| self.others.iter().map(move |o| (r, o)));
        let found = pairs.find(|(rule, (gvr, _))| fits(rule, gvr));
        found.map(|(_, other)| other.clone())
    }
}

impl Criteria {
    /// Parses the criteria.
    pub(super) fn of(value: &Value) -> Self {
        let rules = |key| items(value, key).iter().map(NamedRule::of).collect();
        Self {
            selectors: Selectors::of(value),
            rules: rules("resourceRules"),
            excluded: rules("excludeResourceRules"),
            is_equivalent: str_at(value, "matchPolicy") == "Equivalent",
        }
    }

    /// The resource and kind of the matching rule; `None` if no rule matches.
    ///
    /// # Errors
    /// If this cannot be decided for a request that matches otherwise.
    pub(super) async fn matches(
        &self,
        cluster: &Cluster,
        request: &Request<'_>,
        kind: &Gvk,
        object: Option<&Value>,
    ) -> Result<Option<(Gvr, Gvk)>, MatchError> {
        let selected = match &self.selectors {
            Ok(selectors) => {
                let inside = selectors.namespace(request, object, &*cluster.objects).await;
                if matches!(inside, Ok(false)) || !selectors.object(object, request.old) {
                    return Ok(None);
                }
                inside.map(|_| ()).map_err(|status| MatchError::Namespace(Box::new(status)))
            }
            Err(error) => Err(MatchError::Selector(error.clone())),
        };
        let others = if self.is_equivalent {
            cluster.versions.equivalents(request.gvr, request.subresource)
        } else {
            Vec::new()
        };
        let attributes = RequestAttributes {
            request,
            namespace: namespace_of(request, object),
            name: request.named(object),
            kind,
            others,
        };
        if attributes.first(&self.excluded).is_some() {
            return Ok(None);
        }
        let found = if self.rules.is_empty() {
            Some((request.gvr.clone(), kind.clone()))
        } else {
            attributes.first(&self.rules)
        };
        match found {
            Some(found) => selected.map(|()| Some(found)),
            None => Ok(None),
        }
    }
}
