//! Creates the registry rows of a definition, and orders versions for discovery.

use std::cmp::Ordering;
use std::sync::Arc;

use api::{Gvk, Gvr};

use super::definition::Definition;
use super::kind::{Family, Kind};
use super::strategy::Custom;
use crate::registry::{ResourceSpec, Subresource};
use printers::CustomColumns;

/// The verbs in discovery, in upstream's order.
const VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// The verbs in discovery while the definition is being deleted. The other verbs are still served,
/// so that clients can remove finalizers.
pub(crate) const LAST_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];

/// The rows of a definition: one per served version; none if the definition is not served.
pub(crate) fn rows(family: &Arc<Family>) -> Vec<ResourceSpec> {
    let definition = &family.definition;
    let Some(storage) = definition.storage().filter(|_| definition.is_served()) else {
        return Vec::new();
    };
    let served = definition.versions.iter().enumerate().filter(|(_, version)| version.served);
    served.map(|(index, _)| row(family, definition, index, &storage.name)).collect()
}

fn row(family: &Arc<Family>, definition: &Definition, index: usize, storage: &str) -> ResourceSpec {
    let names = &definition.accepted;
    let version = definition.versions.get(index);
    let name = version.map_or("", |v| &v.name);
    let gvk = Gvk::new(&definition.group, name, &names.kind);
    let gvr = Gvr {
        group: Arc::clone(&gvk.group),
        version: Arc::clone(&gvk.version),
        resource: names.plural.as_str().into(),
    };
    let mut subresources = Vec::new();
    if version.is_some_and(super::definition::Version::has_status) {
        subresources.push(Subresource::of_parent("status", &names.kind));
    }
    if version.is_some_and(|v| v.scale().is_some()) {
        let scale = Subresource::of_parent("scale", "Scale");
        subresources.push(Subresource { kind: Gvk::new("autoscaling", "v1", "Scale"), ..scale });
    }
    let columns = version.and_then(|v| v.additional_printer_columns.as_ref());
    let columns = CustomColumns::new(columns).or_else(|error| {
        tracing::warn!(
            definition = %definition.name(),
            %error,
            "invalid additionalPrinterColumns, using the default columns"
        );
        CustomColumns::new(None)
    });
    let texts = |list: &[String]| list.iter().map(|t| t.as_str().into()).collect();
    let kind = Arc::new(Kind::new(family, index, gvk.clone()));
    let strategy = Arc::new(Custom::new(&kind));
    ResourceSpec {
        singular: names.singular.as_str().into(),
        short_names: texts(&names.short_names),
        categories: texts(&names.categories),
        verbs: VERBS.map(Into::into).to_vec(),
        subresources,
        storage: Gvk::new(&gvk.group, storage, &gvk.kind),
        columns: columns.ok().map(Arc::new),
        custom: Some(kind),
        ..ResourceSpec::custom(gvr, &gvk.kind, definition.namespaced, strategy)
    }
}

/// Orders versions for discovery, the preferred one first (`CompareKubeAwareVersionStrings`): GA
/// before beta before alpha, newer before older; other names come last, in alphabetical order.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Parses a version such as `v2beta1` into stage (2 is GA, 1 beta, 0 alpha), major and minor.
fn parse(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, stage) = rest.split_at_checked(end)?;
    let major = major.parse().ok()?;
    let digits = |text: &str| -> Option<u64> {
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    };
    match (stage, stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
        ("", ..) => Some((2, major, 0)),
        (_, Some(minor), _) => Some((1, major, digits(minor)?)),
        (_, _, Some(minor)) => Some((0, major, digits(minor)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_in_the_example_of_the_documentation() {
        // The page "Versions in CustomResourceDefinitions" of the Kubernetes documentation.
        let mut versions = [
            "foo1",
            "v12alpha1",
            "v1",
            "v3beta1",
            "v11alpha2",
            "v11beta2",
            "v10beta3",
            "v2",
            "v10",
            "foo10",
        ];
        versions.sort_by(|a, b| compare(a, b));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "foo1",
                "foo10"
            ]
        );
    }
}
