//! Which names a definition may have, and the conditions that say so: pure.
//!
//! Source of reasons and texts: `pkg/controller/status/naming_controller.go` and
//! `pkg/controller/establish` of apiextensions.

use std::collections::HashSet;

use super::definition::{Condition, Definition, Names};

/// What the status of a definition is to say.
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

fn fresh(wanted: &str, own: &str, used: &HashSet<&str>) -> Result<(), String> {
    if wanted == own || !used.contains(wanted) {
        return Ok(());
    }
    Err(format!("{} is already in use", api::field::go_quote(wanted)))
}

/// Texts of several errors as Go's aggregate joins them.
fn aggregate(errors: &[String]) -> String {
    let mut seen = HashSet::new();
    let distinct: Vec<&str> =
        errors.iter().map(String::as_str).filter(|error| seen.insert(*error)).collect();
    match distinct.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Names and conditions of `own`, given all definitions (`own` among them); `None` when its status
/// says so already.
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
    conditions.retain(|wanted| own.condition(&wanted.name) != Some(wanted));
    (accepted != own.accepted || !conditions.is_empty()).then_some(Outcome { accepted, conditions })
}

fn accept<'a>(
    own: &'a Definition,
    all: impl Iterator<Item = &'a Definition> + Clone,
) -> (Names, Condition) {
    let group = all.filter(|d| d.group == own.group);
    let mut resources: HashSet<&str> = HashSet::new();
    let mut kinds: HashSet<&str> = HashSet::new();
    for one in group {
        let names = &one.accepted;
        resources.extend([names.plural.as_str(), names.singular.as_str()]);
        resources.extend(names.short_names.iter().map(String::as_str));
        kinds.extend([names.kind.as_str(), names.list_kind.as_str()]);
    }
    let (wanted, had) = (&own.requested, &own.accepted);
    let mut accepted = had.clone();
    let mut refused: Option<(&str, String)> = None;
    match fresh(&wanted.plural, &had.plural, &resources) {
        Ok(()) => accepted.plural.clone_from(&wanted.plural),
        Err(why) => refused = Some(("PluralConflict", why)),
    }
    match fresh(&wanted.singular, &had.singular, &resources) {
        Ok(()) => accepted.singular.clone_from(&wanted.singular),
        Err(why) => refused = Some(("SingularConflict", why)),
    }
    let short = wanted.short_names.iter().filter(|name| !had.short_names.contains(name));
    let errors: Vec<String> = short.filter_map(|name| fresh(name, "", &resources).err()).collect();
    if errors.is_empty() {
        accepted.short_names.clone_from(&wanted.short_names);
    } else {
        refused = Some(("ShortNamesConflict", aggregate(&errors)));
    }
    match fresh(&wanted.kind, &had.kind, &kinds) {
        Ok(()) => accepted.kind.clone_from(&wanted.kind),
        Err(why) => refused = Some(("KindConflict", why)),
    }
    match fresh(&wanted.list_kind, &had.list_kind, &kinds) {
        Ok(()) => accepted.list_kind.clone_from(&wanted.list_kind),
        Err(why) => refused = Some(("ListKindConflict", why)),
    }
    accepted.categories.clone_from(&wanted.categories);
    let named = match refused {
        Some((reason, why)) => condition("NamesAccepted", false, reason, &why),
        None => condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
    };
    (accepted, named)
}

/// Once established, a definition stays so. Upstream says `Installing` in between; here the rows
/// are there at once.
fn establish(own: &Definition, named: bool) -> Option<Condition> {
    if own.is("Established") {
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
        let why = "The conversion webhook CABundle is invalid";
        return Some(condition("Established", false, "InvalidCABundle", why));
    }
    let why = "the initial names have been accepted";
    Some(condition("Established", true, "InitialNamesAccepted", why))
}

/// Base64 of PEM certificates that can be read.
fn is_bundle(text: &str) -> bool {
    use base64::Engine;
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(text) else { return false };
    let mut any = false;
    for block in x509_parser::pem::Pem::iter_from_buffer(&pem) {
        match block {
            Ok(block) if block.label == "CERTIFICATE" => {
                if block.parse_x509().is_err() {
                    return false;
                }
                any = true;
            }
            Ok(_) => {}
            Err(_) => return any,
        }
    }
    any
}

const APPROVAL: &str = "KubernetesAPIApprovalPolicyConformant";

/// Groups of Kubernetes' own say whether somebody approved them (`pkg/controller/apiapproval`).
fn approval(own: &Definition) -> Option<Condition> {
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        own.group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    if !protected {
        return None;
    }
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let note = own.approval.as_str();
    let quoted = api::field::go_quote("api-approved.kubernetes.io");
    let url = note.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    Some(match note {
        "" => {
            let why = format!("protected groups must have approval annotation {quoted}, {SEE}");
            condition(APPROVAL, false, "MissingAnnotation", &why)
        }
        _ if note.starts_with("unapproved") => {
            let why = format!("not approved: {}", api::field::go_quote(note));
            condition(APPROVAL, false, "UnapprovedAnnotation", &why)
        }
        _ if url => condition(APPROVAL, true, "ApprovedAnnotation", &format!("approved in {note}")),
        _ => {
            let why = format!(
                "protected groups must have approval annotation {quoted} with either a URL or a reason starting with \"unapproved\", {SEE}"
            );
            condition(APPROVAL, false, "InvalidAnnotation", &why)
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
        let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com"), "uid": plural},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "singular": kind.to_lowercase(),
                "kind": kind, "listKind": format!("{kind}List"), "shortNames": short}, "versions": []},
            "status": status});
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
    fn names_of_another_definition_of_the_group_are_refused() {
        let names = json!({"acceptedNames": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["f", "g"]}});
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
        // The last conflict is the one told.
        assert_eq!(
            summary(&outcome)[0],
            "NamesAccepted=False ListKindConflict: \"FooList\" is already in use"
        );
    }

    #[test]
    fn what_is_said_already_is_not_said_again() {
        let status = json!({"acceptedNames": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"}]});
        let own = definition("foos", "Foo", &[], status);
        assert_eq!(decide(&own, [&own].into_iter()), None);
    }
}
