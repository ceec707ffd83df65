//! Rules about the attributes of a claim's devices: `matchAttribute` and `distinctAttribute`.

use api::k8s::api::resource::v1::DeviceAttribute;

use super::request::{Alternative, ConstraintRule, ConstraintSpec, Request};
use super::slice::Device;

/// A constraint with the attributes of the devices that were chosen so far.
#[derive(Debug)]
pub(crate) struct Constraint<'a> {
    requests: &'a [String],
    attribute: &'a str,
    is_distinct: bool,
    chosen: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    /// A constraint without devices; `None` if its rule is unknown.
    pub(crate) fn new(spec: &'a ConstraintSpec) -> Option<Self> {
        let (attribute, is_distinct) = match &spec.rule {
            ConstraintRule::Match(attribute) => (attribute, false),
            ConstraintRule::Distinct(attribute) => (attribute, true),
            ConstraintRule::Unknown => return None,
        };
        Some(Self { requests: &spec.requests, attribute, is_distinct, chosen: Vec::new() })
    }

    fn applies_to(&self, request: &Request, alternative: &Alternative) -> bool {
        let named = |name: &String| *name == request.name || *name == alternative.full_name;
        self.requests.is_empty() || self.requests.iter().any(named)
    }

    /// Adds a device unless it violates the constraint; returns whether it is added.
    pub(crate) fn add(
        &mut self,
        request: &Request,
        alternative: &Alternative,
        device: &'a Device,
    ) -> bool {
        if !self.applies_to(request, alternative) {
            return true;
        }
        let Some(attribute) = lookup(device, self.attribute) else { return false };
        let is_valid = match (self.is_distinct, self.chosen.first()) {
            // The first device is accepted whatever the type of its value.
            (_, None) => true,
            (true, Some(_)) => {
                self.chosen.iter().all(|other| compare(attribute, other) == Some(false))
            }
            (false, Some(first)) => compare(attribute, first) == Some(true),
        };
        if is_valid {
            self.chosen.push(attribute);
        }
        is_valid
    }

    /// Removes the device that was added last.
    pub(crate) fn remove(&mut self, request: &Request, alternative: &Alternative) {
        if self.applies_to(request, alternative) {
            self.chosen.pop();
        }
    }
}

/// Returns an attribute by its qualified name. A name without domain in the device has the driver
/// as its domain.
fn lookup<'a>(device: &'a Device, name: &str) -> Option<&'a DeviceAttribute> {
    if let Some(attribute) = device.attributes.get(name) {
        return Some(attribute);
    }
    let (domain, id) = name.split_once('/')?;
    if *domain == *device.id.pool.driver { device.attributes.get(id) } else { None }
}

/// Whether two values are equal; values of different types are not. `None` if the type is unknown.
fn compare(one: &DeviceAttribute, other: &DeviceAttribute) -> Option<bool> {
    if one.string.is_some() {
        return Some(one.string == other.string);
    }
    if one.int.is_some() {
        return Some(one.int == other.int);
    }
    if one.bool.is_some() {
        return Some(one.bool == other.bool);
    }
    one.version.as_ref().map(|_| one.version == other.version)
}
