//! The requests of a claim in the form that allocation needs: converted once per cycle.

use std::fmt;

use api::k8s::api::resource::v1 as resource;
use api::quantity::Quantity;

use super::capacity::Amounts;

/// How many devices a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `ExactCount`.
    Exact(i64),
    /// `All`: every device that matches.
    All,
    /// A mode of another release.
    Unknown(String),
}

/// A request without subrequests, or one subrequest.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    /// Its own name, without the request that contains it.
    pub(crate) name: String,
    /// `request` or `request/subrequest`: its name in results.
    pub(crate) full_name: String,
    /// Name of the device class.
    pub(crate) class: String,
    pub(crate) mode: Mode,
    pub(crate) has_admin_access: bool,
    /// CEL expressions; `None` is a selector of another release.
    pub(crate) selectors: Vec<Option<String>>,
    pub(crate) tolerations: Option<Vec<resource::DeviceToleration>>,
    /// Requested amounts by capacity.
    pub(crate) capacity: Amounts,
    pub(crate) has_derived_attributes: bool,
}

/// A request of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) name: String,
    /// `firstAvailable`: the alternatives are subrequests in the order of preference.
    pub(crate) is_prioritized_list: bool,
    /// One alternative, or the subrequests; none if the request has another type.
    pub(crate) alternatives: Vec<Alternative>,
}

/// A rule about the attributes of the claim's devices.
#[derive(Clone, Debug)]
pub(crate) struct ConstraintSpec {
    /// Names of requests or subrequests; empty means all.
    pub(crate) requests: Vec<String>,
    pub(crate) rule: ConstraintRule,
}

/// The kind of a constraint, with the name of the attribute.
#[derive(Clone, Debug)]
pub(crate) enum ConstraintRule {
    /// All devices have the same value.
    Match(String),
    /// All devices have different values.
    Distinct(String),
    /// A constraint of another release.
    Unknown,
}

/// Namespace and name of a claim; its text is `namespace/name`, as upstream logs objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ClaimName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ClaimName {
    /// The name of a claim.
    pub(crate) fn of(claim: &resource::ResourceClaim) -> Self {
        Self {
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            name: claim.metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// The requests, constraints and configurations of one claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimRequests {
    pub(crate) claim: ClaimName,
    pub(crate) requests: Vec<Request>,
    pub(crate) constraints: Vec<ConstraintSpec>,
    pub(crate) configs: Vec<resource::DeviceClaimConfiguration>,
}

/// Converts requested amounts; one that the API server would reject counts as 0.
fn capacity(capacity: Option<&resource::CapacityRequirements>) -> Amounts {
    let requests = capacity.and_then(|c| c.requests.as_ref());
    let parse = |text: &str| Quantity::parse(text).unwrap_or_default();
    requests.into_iter().flatten().map(|(name, q)| (name.clone(), parse(&q.0))).collect()
}

fn selectors(all: Option<&Vec<resource::DeviceSelector>>) -> Vec<Option<String>> {
    let expression =
        |s: &resource::DeviceSelector| s.cel.as_ref().map(|cel| cel.expression.clone());
    all.into_iter().flatten().map(expression).collect()
}

fn mode(mode: Option<&str>, count: Option<i64>) -> Mode {
    match mode {
        Some("ExactCount") => Mode::Exact(count.unwrap_or(0)),
        Some("All") => Mode::All,
        other => Mode::Unknown(other.unwrap_or_default().to_owned()),
    }
}

fn exact(name: &str, request: &resource::ExactDeviceRequest) -> Alternative {
    Alternative {
        name: name.to_owned(),
        full_name: name.to_owned(),
        class: request.device_class_name.clone(),
        mode: mode(request.allocation_mode.as_deref(), request.count),
        has_admin_access: request.admin_access == Some(true),
        selectors: selectors(request.selectors.as_ref()),
        tolerations: request.tolerations.clone(),
        capacity: capacity(request.capacity.as_ref()),
        has_derived_attributes: request.derived_attributes.as_ref().is_some_and(|d| !d.is_empty()),
    }
}

fn subrequest(parent: &str, request: &resource::DeviceSubRequest) -> Alternative {
    Alternative {
        name: request.name.clone(),
        full_name: format!("{parent}/{}", request.name),
        class: request.device_class_name.clone(),
        mode: mode(request.allocation_mode.as_deref(), request.count),
        has_admin_access: false,
        selectors: selectors(request.selectors.as_ref()),
        tolerations: request.tolerations.clone(),
        capacity: capacity(request.capacity.as_ref()),
        has_derived_attributes: request.derived_attributes.as_ref().is_some_and(|d| !d.is_empty()),
    }
}

impl Request {
    /// Converts a request.
    pub(crate) fn new(request: &resource::DeviceRequest) -> Self {
        let list = request.first_available.as_deref().unwrap_or_default();
        let alternatives = match &request.exactly {
            _ if !list.is_empty() => list.iter().map(|s| subrequest(&request.name, s)).collect(),
            Some(one) => vec![exact(&request.name, one)],
            None => Vec::new(),
        };
        Self { name: request.name.clone(), is_prioritized_list: !list.is_empty(), alternatives }
    }
}

fn constraint(constraint: &resource::DeviceConstraint) -> ConstraintSpec {
    let rule = match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), _) => ConstraintRule::Match(name.clone()),
        (None, Some(name)) => ConstraintRule::Distinct(name.clone()),
        (None, None) => ConstraintRule::Unknown,
    };
    ConstraintSpec { requests: constraint.requests.clone().unwrap_or_default(), rule }
}

impl ClaimRequests {
    /// Converts the spec of a claim.
    pub(crate) fn new(claim: &resource::ResourceClaim) -> Self {
        let name = ClaimName::of(claim);
        let Some(devices) = claim.spec.as_ref().and_then(|s| s.devices.as_ref()) else {
            return Self { claim: name, ..Self::default() };
        };
        Self {
            claim: name,
            requests: devices.requests.iter().flatten().map(Request::new).collect(),
            constraints: devices.constraints.iter().flatten().map(constraint).collect(),
            configs: devices.config.clone().unwrap_or_default(),
        }
    }
}
