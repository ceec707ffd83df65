//! ServiceAccount: sets the service account of pods and mounts its token.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::value::{get, has, is_empty, items, items_mut, set, str_at, str_in};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Operation, Plugin, Request};
use lookup::Lookup;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";

/// Seconds; upstream marks the tokens that it mounts itself with this odd value.
const TOKEN_SECONDS: i64 = 3607;

/// How long to wait for the `default` service account, which a controller creates for each
/// namespace.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The ServiceAccount plugin.
pub struct ServiceAccount(Arc<dyn Lookup>);

impl ServiceAccount {
    /// Creates the plugin; `lookup` finds the service accounts.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self(lookup)
    }

    async fn account(
        &self,
        request: &Request<'_>,
        pod: &Value,
        name: &str,
    ) -> Result<Value, Status> {
        let namespace = request.namespace;
        let refused = |why: &str| {
            let why = format!("error looking up service account {namespace}/{name}: {why}");
            request.forbidden(Some(pod), &why)
        };
        let mut found = self.0.get(&lookup::SERVICE_ACCOUNTS, namespace, name).await;
        if matches!(found, Ok(None)) {
            let patience = if name == "default" { PATIENCE } else { Duration::ZERO };
            found = self.0.wait_for(&lookup::SERVICE_ACCOUNTS, namespace, name, patience).await;
        }
        let found = found.map_err(|error| refused(&error.message))?;
        let missing = || {
            let bad = api::validation::names::name_is_path_segment(name, false);
            let absent = match bad.is_empty() {
                true => format!("serviceaccount \"{name}\" not found"),
                false => format!("invalid resource name \"{name}\": [{}]", bad.join(" ")),
            };
            refused(&absent)
        };
        found.ok_or_else(missing)?.value().map_err(|e| Status::internal(&e.to_string()))
    }
}

fn is_mirror(pod: &Value) -> bool {
    has(get(get(pod, "metadata"), "annotations"), "kubernetes.io/config.mirror")
}

fn automount(account: &Value, pod: &Value) -> bool {
    const FIELD: &str = "automountServiceAccountToken";
    let own = get(get(pod, "spec"), FIELD).as_bool();
    own.or_else(|| get(account, FIELD).as_bool()).unwrap_or(true)
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ],
    }})
}

/// Mounts the token volume into each container without a mount at its path, and adds the volume if
/// it is used.
fn mount(spec: &mut Value) {
    let existing = items(spec, "volumes")
        .iter()
        .map(|v| str_at(v, "name"))
        .find(|name| name.starts_with(VOLUME));
    let known = existing.is_some();
    let name = existing
        .map_or_else(|| format!("{VOLUME}{}", base::clock::random_suffix(5)), str::to_owned);
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec, list) {
            if items(container, "volumeMounts").iter().any(|m| str_at(m, "mountPath") == MOUNT_PATH)
            {
                continue;
            }
            push(
                container,
                "volumeMounts",
                json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}),
            );
            needed = true;
        }
    }
    if needed && !known {
        push(spec, "volumes", token_volume(&name));
    }
}

/// Appends to a list that may be absent.
pub(super) fn push(value: &mut Value, field: &str, item: Value) {
    if let Some(map) = value.as_object_mut() {
        let list = map.entry(field).or_insert(Value::Null);
        if list.is_null() {
            *list = json!([]);
        }
        if let Some(list) = list.as_array_mut() {
            list.push(item);
        }
    }
}

/// A pod references a Secret that its service account does not list. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
enum SecretReferenceError {
    #[error(
        "volume with secret.secretName=\"{secret}\" is not allowed because service account \
         {account} does not reference that secret"
    )]
    Volume { secret: String, account: String },
    /// `kind` is the kind of container, `source_field` is `envFrom` or `envVar` with its name.
    #[error(
        "{kind} {container} with {source_field} referencing secret.secretName=\"{secret}\" is not \
         allowed because service account {account} does not reference that secret"
    )]
    Environment {
        kind: &'static str,
        container: String,
        source_field: String,
        secret: String,
        account: String,
    },
    #[error(
        "imagePullSecrets[{index}].name=\"{secret}\" is not allowed because service account \
         {account} does not reference that imagePullSecret"
    )]
    ImagePull { index: usize, secret: String, account: String },
}

/// Checks the Secrets that the environment of a container references.
fn check_environment(
    container: &Value,
    kind: &'static str,
    allowed: &[&str],
    account: &str,
) -> Result<(), SecretReferenceError> {
    let refused = |source_field: String, secret: &str| SecretReferenceError::Environment {
        kind,
        container: str_at(container, "name").to_owned(),
        source_field,
        secret: secret.to_owned(),
        account: account.to_owned(),
    };
    for env in items(container, "env") {
        let reference = get(get(env, "valueFrom"), "secretKeyRef");
        let secret = str_at(reference, "name");
        if !reference.is_null() && !allowed.contains(&secret) {
            return Err(refused(format!("envVar {}", str_at(env, "name")), secret));
        }
    }
    for source in items(container, "envFrom") {
        let reference = get(source, "secretRef");
        let secret = str_at(reference, "name");
        if !reference.is_null() && !allowed.contains(&secret) {
            return Err(refused("envFrom".into(), secret));
        }
    }
    Ok(())
}

/// Checks that the pod references only Secrets that its service account lists, if the account
/// enforces this.
fn check_secrets(
    account: &Value,
    pod: &Value,
    ephemeral: bool,
) -> Result<(), SecretReferenceError> {
    let enforced =
        str_in(account, &["metadata", "annotations", "kubernetes.io/enforce-mountable-secrets"]);
    if !matches!(enforced, "1" | "t" | "T" | "true" | "TRUE" | "True") {
        return Ok(());
    }
    let names = |field: &str| -> Vec<&str> {
        items(account, field).iter().map(|s| str_at(s, "name")).collect()
    };
    let (secrets, name, spec) =
        (names("secrets"), str_in(account, &["metadata", "name"]), get(pod, "spec"));
    if ephemeral {
        return items(spec, "ephemeralContainers")
            .iter()
            .try_for_each(|c| check_environment(c, "ephemeral container", &secrets, name));
    }
    for volume in items(spec, "volumes") {
        let secret = str_in(volume, &["secret", "secretName"]);
        if has(volume, "secret") && !secrets.contains(&secret) {
            let (secret, account) = (secret.to_owned(), name.to_owned());
            return Err(SecretReferenceError::Volume { secret, account });
        }
    }
    items(spec, "initContainers")
        .iter()
        .try_for_each(|c| check_environment(c, "init container", &secrets, name))?;
    items(spec, "containers")
        .iter()
        .try_for_each(|c| check_environment(c, "container", &secrets, name))?;
    let pulls = names("imagePullSecrets");
    for (index, reference) in items(spec, "imagePullSecrets").iter().enumerate() {
        let secret = str_at(reference, "name");
        if !pulls.contains(&secret) {
            let (secret, account) = (secret.to_owned(), name.to_owned());
            return Err(SecretReferenceError::ImagePull { index, secret, account });
        }
    }
    Ok(())
}

/// The reference that is forbidden in a mirror pod.
fn mirror(pod: &Value) -> Result<(), &'static str> {
    let spec = get(pod, "spec");
    if !is_empty(spec, "serviceAccountName") {
        return Err("a mirror pod may not reference service accounts");
    }
    if super::node_restriction::references(pod) == Some("secrets") {
        return Err("a mirror pod may not reference secrets");
    }
    let projects = |v: &Value| {
        items(get(v, "projected"), "sources").iter().any(|s| has(s, "serviceAccountToken"))
    };
    if items(spec, "volumes").iter().any(projects) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let Some(pod) =
            object.as_mut().filter(|_| request.is_pod() && request.operation == Operation::Create)
        else {
            return Ok(());
        };
        if is_mirror(pod) {
            return Ok(());
        }
        if let Some(spec) = pod.get_mut("spec").filter(|spec| is_empty(spec, "serviceAccountName"))
        {
            set(spec, "serviceAccountName", "default");
            set(spec, "serviceAccount", "default");
        }
        let name = str_in(pod, &["spec", "serviceAccountName"]).to_owned();
        let account = self.account(request, pod, &name).await?;
        let mounts = automount(&account, pod);
        let Some(spec) = pod.get_mut("spec") else { return Ok(()) };
        if mounts {
            mount(spec);
        }
        if is_empty(spec, "imagePullSecrets") && !is_empty(&account, "imagePullSecrets") {
            let secrets: Vec<Value> = items(&account, "imagePullSecrets")
                .iter()
                .map(|s| json!({"name": str_at(s, "name")}))
                .collect();
            set(spec, "imagePullSecrets", secrets);
        }
        Ok(())
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| request.is("", "pods")) else { return Ok(()) };
        let ephemeral =
            request.operation == Operation::Update && request.subresource == "ephemeralcontainers";
        if !ephemeral && (request.operation != Operation::Create || !request.subresource.is_empty())
        {
            return Ok(());
        }
        if !ephemeral && is_mirror(pod) {
            return mirror(pod).map_err(|why| request.forbidden(object, why));
        }
        let name = str_in(pod, &["spec", "serviceAccountName"]);
        if name.is_empty() {
            let why = format!(
                "no service account specified for pod {}/{}",
                request.namespace,
                str_in(pod, &["metadata", "name"])
            );
            return Err(request.forbidden(object, &why));
        }
        let account = self.account(request, pod, name).await?;
        check_secrets(&account, pod, ephemeral)
            .map_err(|error| request.forbidden(object, &error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{admit, creates};
    use super::*;
    use lookup::testing::Fixed;

    fn plugin(account: Value) -> ServiceAccount {
        ServiceAccount::new(Fixed::new(&[(&lookup::SERVICE_ACCOUNTS, account)]))
    }

    fn pod() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    }

    #[tokio::test]
    async fn a_pod_gets_the_default_account_and_its_token_volume() {
        let account = json!({"metadata": {"name": "default", "namespace": "a"}, "imagePullSecrets": [{"name": "pull"}]});
        let (pod, _) = admit(&plugin(account), creates(&lookup::PODS, "Pod"), pod()).await.unwrap();
        let volume = pod["spec"]["volumes"][0]["name"].as_str().unwrap();
        assert!(volume.starts_with(VOLUME) && volume.len() == VOLUME.len() + 5);
        let expected = json!({
            "serviceAccountName": "default", "serviceAccount": "default", "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [
                {"name": volume, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
            "volumes": [{"name": volume, "projected": {"sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}],
                "defaultMode": 420}}],
        });
        assert_eq!(pod["spec"], expected);
    }

    #[tokio::test]
    async fn automount_of_the_pod_takes_precedence_over_the_accounts() {
        let account = json!({"metadata": {"name": "default", "namespace": "a"}, "automountServiceAccountToken": false});
        let (quiet, _) =
            admit(&plugin(account.clone()), creates(&lookup::PODS, "Pod"), pod()).await.unwrap();
        assert!(quiet["spec"].get("volumes").is_none());
        let mut wishing = pod();
        wishing["spec"]["automountServiceAccountToken"] = json!(true);
        let (mounted, _) =
            admit(&plugin(account), creates(&lookup::PODS, "Pod"), wishing).await.unwrap();
        assert_eq!(mounted["spec"]["volumes"].as_array().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_missing_account_is_an_error_with_its_name() {
        let mut asking = pod();
        asking["spec"]["serviceAccountName"] = json!("bot");
        let account = json!({"metadata": {"name": "default", "namespace": "other"}});
        let error =
            admit(&plugin(account), creates(&lookup::PODS, "Pod"), asking).await.unwrap_err();
        assert_eq!(
            error.message,
            "pods \"p\" is forbidden: error looking up service account a/bot: serviceaccount \"bot\" not found"
        );
        let mut asking = pod();
        asking["spec"]["serviceAccountName"] = json!("../x");
        let account = json!({"metadata": {"name": "default", "namespace": "other"}});
        let error =
            admit(&plugin(account), creates(&lookup::PODS, "Pod"), asking).await.unwrap_err();
        assert_eq!(
            error.message,
            "pods \"p\" is forbidden: error looking up service account a/../x: invalid resource name \"../x\": [may not contain '/']"
        );
    }
}
