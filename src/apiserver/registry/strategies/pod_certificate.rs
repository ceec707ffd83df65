//! Validates a PodCertificateRequest: a request signed with the pod's key, and one decision that
//! does not change. Rules, order and texts are those of upstream's
//! `pkg/apis/certificates/validation`.

use api::field::{Error, ErrorList, Path};
use api::validation::{conditions, each, immutable_as, names, signers};
use api::value::{get, int_at, is_empty, items, semantic_equal, str_at, str_in};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

mod chain;
mod key;

/// Longest identifier of an object.
const UID_MAX: usize = 128;
/// `MaxStubPKCS10RequestSize`, in bytes.
const REQUEST_MAX: usize = 10 * 1024;
/// The decisions that a signer can take, in upstream's order.
const DECISIONS: [&str; 3] = ["Issued", "Denied", "Failed"];

/// Validates a new request.
pub(super) fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (signer, field) = (str_at(spec, "signerName"), path.child("signerName"));
    let mut errors = signers::signer_name(signer, &field);
    errors.extend(signers::user_annotations(spec, "unverifiedUserAnnotations", &path));
    for (name, uid) in [
        ("podName", "podUID"),
        ("serviceAccountName", "serviceAccountUID"),
        ("nodeName", "nodeUID"),
    ] {
        let text = str_at(spec, name);
        errors.extend(each(&path.child(name), text, names::name_is_subdomain(text, false)));
        let (text, field) = (str_at(spec, uid), path.child(uid));
        if text.is_empty() {
            errors.push(Error::invalid(&field, "", "must not be empty"));
        }
        if text.len() > UID_MAX {
            errors.push(Error::too_long(&field, UID_MAX));
        }
    }
    let field = path.child("maxExpirationSeconds");
    let Some(seconds) = int_at(spec, "maxExpirationSeconds") else {
        errors.push(Error::required(&field, "must be set"));
        return errors;
    };
    let (min, max) = (signers::EXPIRATION_MIN, signers::expiration_max(signer));
    if !(min..=max).contains(&seconds) {
        let text = format!("must be in the range [{min}, {max}]");
        errors.push(Error::invalid(&field, seconds, text));
    }
    if is_empty(spec, "stubPKCS10Request") {
        // The other two fields belong to versions that are not served.
        let text =
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        errors.push(Error::omitted(&path, text));
        return errors;
    }
    errors.extend(request(spec, &path.child("stubPKCS10Request")).err());
    errors
}

/// Validates the request that is signed with the pod's key.
fn request(spec: &Value, field: &Path) -> Result<(), Error> {
    let der = STANDARD.decode(str_at(spec, "stubPKCS10Request")).unwrap_or_default();
    if der.len() > REQUEST_MAX {
        return Err(Error::too_long(field, REQUEST_MAX));
    }
    key::verify(&der).map_err(|error| match error.offending_key() {
        Some(key) => Error::invalid(field, key, error.to_string()),
        None => Error::omitted(field, error.to_string()),
    })
}

/// Validates a changed request: only the metadata may change.
pub(super) fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let (new, old) = (get(object, "spec"), get(old, "spec"));
    immutable_as(new, old, &Path::new("spec"), "PodCertificateRequestSpec")
}

/// Validates a signer's decision.
pub(super) fn validate_status(_: &str, object: &Value, old: &Value) -> ErrorList {
    let (status, old_status) = (get(object, "status"), get(old, "status"));
    let path = Path::new("status");
    let mut errors = decisions(items(status, "conditions"), &path.child("conditions"));
    if !errors.is_empty() {
        return errors;
    }
    if DECISIONS.iter().any(|kind| decided(old_status, kind)) {
        let text = "immutable after PodCertificateRequest is issued, denied, or failed";
        errors.extend(equal(status, old_status, text));
    } else if decided(status, "Denied") || decided(status, "Failed") {
        let others = ["certificateChain", "notBefore", "beginRefreshAt", "notAfter"];
        if others.iter().any(|field| !is_empty(status, field)) {
            let text = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            errors.push(Error::omitted(&path, text));
        }
    } else if decided(status, "Issued") {
        errors.extend(chain::issued(status, get(old, "spec"), base::clock::unix_time()));
    } else {
        let text =
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
        errors.extend(equal(status, old_status, text));
    }
    errors
}

fn equal(status: &Value, old: &Value, text: &str) -> Option<Error> {
    (!semantic_equal(status, old)).then(|| Error::omitted(&Path::new("status"), text))
}

/// Whether the request has this decision.
fn decided(status: &Value, kind: &str) -> bool {
    let mut conditions = items(status, "conditions").iter();
    conditions.any(|c| str_at(c, "type") == kind && str_at(c, "status") == "True")
}

/// Validates that there is at most one condition, a decision with status `True`.
fn decisions(list: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut known = 0;
    for (index, condition) in list.iter().enumerate() {
        // Upstream makes the index a path element.
        let field = path.child(&format!("[{index}]"));
        let kind = str_at(condition, "type");
        if !DECISIONS.contains(&kind) {
            errors.push(Error::not_supported(&field.child("type"), kind, &DECISIONS));
            continue;
        }
        known += 1;
        if known > 1 {
            let text = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(Error::invalid(&field.child("type"), kind, text));
        }
        let status = str_at(condition, "status");
        if status != "True" {
            errors.push(Error::not_supported(&field.child("status"), status, &["True"]));
        }
    }
    errors.extend(conditions::validate(list, path));
    errors
}

/// Drops fractions of `beginRefreshAt`; the other times must equal those of the certificate, which
/// are whole seconds.
pub(super) fn whole_seconds(object: &mut Value) {
    const KEY: &str = "beginRefreshAt";
    let Some(status) = api::value::object_mut(object, "status") else { return };
    if let Some((whole, _)) = str_at(status, KEY).split_once('.') {
        let whole = format!("{whole}Z");
        api::value::set(status, KEY, whole);
    }
}

/// The selectable fields of requests.
pub(super) fn selectable(object: &Value) -> Vec<(&'static str, String)> {
    let fields = ["spec.signerName", "spec.podName", "spec.nodeName"];
    let keys = ["signerName", "podName", "nodeName"].into_iter();
    keys.zip(fields)
        .map(|(key, field)| (field, str_in(object, &["spec", key]).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
