//! Secrets that the ingress of each node reads: those with users, which Ingresses name.

use api::{Object, Status};
use lookup::Lookup;
use serde_json::Value;

use super::text;

/// `IngressClass.spec.controller` of the classes that nodes serve.
const CONTROLLER: &str = "kube-lite.io/ingress";
/// The annotations that name a Secret of the Ingress' namespace.
const ANNOTATIONS: [&str; 2] =
    ["ingress.kube-lite.io/auth-secret", "nginx.ingress.kubernetes.io/auth-secret"];

/// Whether an Ingress of the namespace, of a class that nodes serve, names the Secret.
pub(super) async fn names_secret(
    lookup: &dyn Lookup,
    namespace: &str,
    name: &str,
) -> Result<bool, Status> {
    for ingress in lookup.list(&lookup::INGRESSES, namespace).await? {
        let Some(class) = class_of(&ingress, namespace, name) else { continue };
        // An Ingress without a class gets the default class, which may be one of these.
        if class.is_empty() {
            return Ok(true);
        }
        let found = lookup.get(&lookup::INGRESS_CLASSES, "", &class).await;
        let found = found.and_then(lookup::value)?;
        if found.is_some_and(|class| text(&class, "/spec/controller") == CONTROLLER) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The class of an Ingress that names the Secret; empty if it has none.
fn class_of(ingress: &Object, namespace: &str, name: &str) -> Option<String> {
    let value = ingress.value().ok()?;
    let annotations = value.pointer("/metadata/annotations")?;
    let get = |key: &str| annotations.get(key).and_then(Value::as_str).map(str::trim);
    let is_named = |text: &str| match text.split_once('/') {
        Some((of, rest)) => of == namespace && rest == name,
        None => text == name,
    };
    if !ANNOTATIONS.iter().filter_map(|key| get(key)).any(is_named) {
        return None;
    }
    let class = text(&value, "/spec/ingressClassName");
    let class = if class.is_empty() { get("kubernetes.io/ingress.class") } else { Some(class) };
    Some(class.unwrap_or_default().to_owned())
}
