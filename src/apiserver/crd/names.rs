//! Decides which names of a definition are accepted, and the resulting conditions, without I/O.
//!
//! Reasons and messages are those of `pkg/controller/status/naming_controller.go` and
//! `pkg/controller/establish` of apiextensions.

use std::collections::HashSet;

use super::definition::{Condition, Definition, Names};
use component_config::aggregate;

/// The changes to the status of a definition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) accepted: Names,
    pub(crate) conditions: Vec<Condition>,
}

fn condition(name: &str, status: bool, reason: &str, message: &str) -> Condition {
    Condition {
        name: name.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message: message.into(),
    }
}

/// The name of another definition of the group.
#[derive(Debug, thiserror::Error)]
#[error("{} is already in use", api::field::go_quote(.0))]
struct NameInUse(String);

/// Checks that a requested name is the already accepted one or unused.
fn check_unused(requested: &str, accepted: &str, used: &HashSet<&str>) -> Result<(), NameInUse> {
    if requested == accepted || !used.contains(requested) {
        return Ok(());
    }
    Err(NameInUse(requested.to_owned()))
}

/// The accepted names and changed conditions of `own`, given all definitions including `own`;
/// `None` if its status is up to date.
pub(crate) fn decide<'a>(
    own: &'a Definition,
    all: impl Iterator<Item = &'a Definition> + Clone,
) -> Option<Outcome> {
    let (accepted, named) =
        if own.requested == own.accepted && own.condition("NamesAccepted").is_some() {
            (own.accepted.clone(), own.condition("NamesAccepted").cloned().unwrap_or_default())
        } else {
            accept(own, all)
        };
    let established = establish(own, named.status == "True");
    let mut conditions = vec![named];
    conditions.extend(established);
    conditions.extend(approval(own));
    conditions.retain(|new| own.condition(&new.name) != Some(new));
    (accepted != own.accepted || !conditions.is_empty()).then_some(Outcome { accepted, conditions })
}

fn accept<'a>(
    own: &'a Definition,
    all: impl Iterator<Item = &'a Definition> + Clone,
) -> (Names, Condition) {
    let group = all.filter(|d| d.group == own.group);
    let mut resources: HashSet<&str> = HashSet::new();
    let mut kinds: HashSet<&str> = HashSet::new();
    for definition in group {
        let names = &definition.accepted;
        resources.extend([names.plural.as_str(), names.singular.as_str()]);
        resources.extend(names.short_names.iter().map(String::as_str));
        kinds.extend([names.kind.as_str(), names.list_kind.as_str()]);
    }
    let (requested, old) = (&own.requested, &own.accepted);
    let mut accepted = old.clone();
    // Reason and message; the last conflict is reported, as in upstream.
    let mut conflict: Option<(&str, String)> = None;
    match check_unused(&requested.plural, &old.plural, &resources) {
        Ok(()) => accepted.plural.clone_from(&requested.plural),
        Err(error) => conflict = Some(("PluralConflict", error.to_string())),
    }
    match check_unused(&requested.singular, &old.singular, &resources) {
        Ok(()) => accepted.singular.clone_from(&requested.singular),
        Err(error) => conflict = Some(("SingularConflict", error.to_string())),
    }
    let added = requested.short_names.iter().filter(|name| !old.short_names.contains(name));
    let errors = added.filter_map(|name| check_unused(name, "", &resources).err());
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    if errors.is_empty() {
        accepted.short_names.clone_from(&requested.short_names);
    } else {
        conflict = Some(("ShortNamesConflict", aggregate(errors)));
    }
    match check_unused(&requested.kind, &old.kind, &kinds) {
        Ok(()) => accepted.kind.clone_from(&requested.kind),
        Err(error) => conflict = Some(("KindConflict", error.to_string())),
    }
    match check_unused(&requested.list_kind, &old.list_kind, &kinds) {
        Ok(()) => accepted.list_kind.clone_from(&requested.list_kind),
        Err(error) => conflict = Some(("ListKindConflict", error.to_string())),
    }
    accepted.categories.clone_from(&requested.categories);
    let named = match conflict {
        Some((reason, message)) => condition("NamesAccepted", false, reason, &message),
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
    };
    (accepted, named)
}

/// The condition `Established`; once true it does not change. Upstream sets the reason `Installing`
/// first; this server skips it, because it adds the rows before it writes the status.
fn establish(own: &Definition, named: bool) -> Option<Condition> {
    if own.has_condition("Established") {
        return None;
    }
    if !named {
        return own
            .condition("Established")
            .is_none()
            .then(|| condition("Established", false, "NotAccepted", "not all names are accepted"));
    }
    let bundle = own.conversion.webhook.as_ref().and_then(|w| w.pointer("/clientConfig/caBundle"));
    if bundle.and_then(serde_json::Value::as_str).is_some_and(|b| !b.is_empty() && !is_bundle(b)) {
        let message = "The conversion webhook CABundle is invalid";
        return Some(condition("Established", false, "InvalidCABundle", message));
    }
    let message = "the initial names have been accepted";
    Some(condition("Established", true, "InitialNamesAccepted", message))
}

/// Whether the text is the base64 encoding of valid PEM certificates.
fn is_bundle(text: &str) -> bool {
    use base64::Engine;
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(text) else { return false };
    let mut has_certificate = false;
    for block in x509_parser::pem::Pem::iter_from_buffer(&pem) {
        match block {
            Ok(block) if block.label == "CERTIFICATE" => {
                if block.parse_x509().is_err() {
                    return false;
                }
                has_certificate = true;
            }
            Ok(_) => {}
            Err(_) => return has_certificate,
        }
    }
    has_certificate
}

const APPROVAL: &str = "KubernetesAPIApprovalPolicyConformant";

/// The condition for the approval annotation of protected groups (`pkg/controller/apiapproval`).
fn approval(own: &Definition) -> Option<Condition> {
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        own.group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    if !protected {
        return None;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let annotation = own.approval.as_str();
    let quoted = api::field::go_quote("api-approved.kubernetes.io");
    let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    Some(match annotation {
        "" => {
            let message = format!("protected groups must have approval annotation {quoted}, {SEE}");
            condition(APPROVAL, false, "MissingAnnotation", &message)
        }
        _ if annotation.starts_with("unapproved") => {
            let message = format!("not approved: {}", api::field::go_quote(annotation));
            condition(APPROVAL, false, "UnapprovedAnnotation", &message)
        }
        _ if is_url => {
            let message = format!("approved in {annotation}");
            condition(APPROVAL, true, "ApprovedAnnotation", &message)
        }
        _ => {
            let message = format!(
                "protected groups must have approval annotation {quoted} with either a URL or a \
                 reason starting with \"unapproved\", {SEE}"
            );
            condition(APPROVAL, false, "InvalidAnnotation", &message)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Object;
    use serde_json::json;
    use std::sync::Arc;

    fn definition(
        plural: &str,
        kind: &str,
        short: &[&str],
        status: serde_json::Value,
    ) -> Definition {
        let names = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
            "listKind": format!("{kind}List"), "shortNames": short});
        let object = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com"), "uid": plural},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": names, "versions": [],
            },
            "status": status,
        });
        Definition::read(&Arc::new(Object::from_value(object).unwrap())).unwrap()
    }

    fn summary(outcome: &Outcome) -> Vec<String> {
        let one = |c: &Condition| format!("{}={} {}: {}", c.name, c.status, c.reason, c.message);
        outcome.conditions.iter().map(one).collect()
    }

    #[test]
    fn free_names_are_accepted_and_established() {
        let own = definition("foos", "Foo", &["f"], json!({}));
        let outcome = decide(&own, [&own].into_iter()).unwrap();
        assert_eq!(outcome.accepted, own.requested);
        assert_eq!(
            summary(&outcome),
            [
                "NamesAccepted=True NoConflicts: no conflicts found",
                "Established=True InitialNamesAccepted: the initial names have been accepted"
            ]
        );
    }

    #[test]
    fn names_of_another_definition_of_the_group_are_rejected() {
        let names = json!({"acceptedNames": {"plural": "foos", "singular": "foo", "kind": "Foo",
            "listKind": "FooList", "shortNames": ["f", "g"]}});
        let other = definition("foos", "Foo", &["f", "g"], names);
        let own = definition("bars", "Bar", &["f", "g", "h"], json!({}));
        let outcome = decide(&own, [&own, &other].into_iter()).unwrap();
        assert_eq!(outcome.accepted.plural, "bars");
        assert!(outcome.accepted.short_names.is_empty());
        assert_eq!(
            summary(&outcome),
            [
                "NamesAccepted=False ShortNamesConflict: [\"f\" is already in use, \"g\" is already in use]",
                "Established=False NotAccepted: not all names are accepted"
            ]
        );
        let own = definition("foos", "Foo", &[], json!({}));
        let outcome = decide(&own, [&other].into_iter()).unwrap();
        // The last conflict is reported.
        assert_eq!(
            summary(&outcome)[0],
            "NamesAccepted=False ListKindConflict: \"FooList\" is already in use"
        );
    }

    #[test]
    fn an_up_to_date_status_is_not_changed() {
        let names = json!({"plural": "foos", "singular": "foo", "kind": "Foo",
            "listKind": "FooList"});
        let condition = |name: &str, reason: &str, message: &str| {
            let status = "True";
            json!({"type": name, "status": status, "reason": reason, "message": message})
        };
        let initial = "the initial names have been accepted";
        let status = json!({"acceptedNames": names, "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", initial),
        ]});
        let own = definition("foos", "Foo", &[], status);
        assert_eq!(decide(&own, [&own].into_iter()), None);
    }
}
