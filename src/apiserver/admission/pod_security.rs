//! PodSecurity: enforces the Pod Security Standards by namespace labels.

pub mod baseline;
pub mod policy;
pub mod restricted;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::field::{Error, Path};
use api::value::{at, get, items, str_at, str_in};
use api::{Object, Status};
use async_trait::async_trait;
use serde_json::Value;
use sorting::{CollectOrdered as _, CompactSort as _};

use super::configuration::PodSecurityConfig;
use super::{Operation, Plugin, Request};
use lookup::Lookup;
use policy::{Level, LevelVersion, Policy};

/// The number of existing pods that are evaluated when a namespace becomes stricter (upstream's
/// default).
const MAX_PODS: usize = 3000;

/// Subresources of pods that do not change the pod's spec.
const IGNORED: [&str; 8] =
    ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// The PodSecurity plugin.
pub struct PodSecurity {
    /// Finds namespaces and pods.
    pub lookup: Arc<dyn Lookup>,
    /// Whether namespaces without labels enforce `baseline` and warn about `restricted`, except
    /// system namespaces.
    pub hardened: bool,
    /// The policy of namespaces without labels, and exemptions, instead of those of `hardened`.
    pub config: Option<PodSecurityConfig>,
}

/// Namespaces that the hardened profile exempts: system components need access to the host.
const OF_THE_SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// A violation: a short reason, and the details for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The short reason, such as `host namespaces`.
    pub reason: &'static str,
    /// The fields and containers that violate the policy.
    pub detail: String,
}

/// All violations of a level and version by a pod, in upstream's order.
pub fn evaluate(policy: LevelVersion, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let version = policy.version.minor();
    let pod = Pod { metadata, spec, version };
    match policy.level {
        Level::Privileged => Vec::new(),
        Level::Baseline => baseline::checks(&pod, false),
        Level::Restricted => {
            let mut found = baseline::checks(&pod, true);
            found.extend(restricted::checks(&pod));
            found
        }
    }
}

/// The input of the checks.
pub struct Pod<'a> {
    /// `metadata` of the pod or template.
    pub metadata: &'a Value,
    /// `spec` of the pod or template.
    pub spec: &'a Value,
    /// The minor version of the policy.
    pub version: u32,
}

impl<'a> Pod<'a> {
    /// All containers: init, regular and ephemeral.
    fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| items(spec, list))
    }

    /// The names of the containers for which `fails` is true.
    fn bad(&self, fails: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| fails(c)).map(|c| str_at(c, "name")).collect()
    }

    fn context(&self) -> &'a Value {
        get(self.spec, "securityContext")
    }

    fn in_user_namespace(&self) -> bool {
        get(self.spec, "hostUsers") == &Value::Bool(false)
    }

    fn windows(&self) -> bool {
        str_in(self.spec, &["os", "name"]) == "windows"
    }
}

/// `"a", "b"`.
fn quoted<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}

/// `container "a"` or `containers "a", "b"`.
fn containers(names: &[&str]) -> String {
    format!("{} {}", if names.len() == 1 { "container" } else { "containers" }, quoted(names))
}

/// Sorted and without duplicates.
fn set<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Vec<String> {
    let mut all: Vec<String> = values.into_iter().map(Into::into).collect();
    all.compact_sort();
    all.dedup();
    all
}

/// `pod and container "a"`: the setters of a forbidden value.
fn setters(pod: bool, names: &[&str]) -> String {
    let mut subjects = Vec::new();
    if pod {
        subjects.push("pod".to_owned());
    }
    if !names.is_empty() {
        subjects.push(containers(names));
    }
    subjects.join(" and ")
}

fn detail(violations: &[Violation]) -> String {
    let all: Vec<String> = violations
        .iter()
        .map(|v| {
            if v.detail.is_empty() {
                v.reason.to_owned()
            } else {
                format!("{} ({})", v.reason, v.detail)
            }
        })
        .collect();
    all.join(", ")
}

fn labels(object: &Object) -> BTreeMap<&str, &str> {
    object.labels.iter().map(|(k, v)| (&**k, &**v)).collect_map()
}

fn labels_of(value: &Value) -> BTreeMap<&str, &str> {
    api::value::entries(get(value, "metadata"), "labels")
        .filter_map(|(k, v)| Some((k.as_str(), v.as_str()?)))
        .collect_map()
}

/// The metadata and spec of the pods that an object creates, and whether it is a pod itself.
fn pod_spec<'v>(request: &Request<'_>, object: &'v Value) -> Option<(&'v Value, &'v Value)> {
    let template = |path: &[&str]| {
        let template = at(object, path);
        (!template.is_null()).then(|| (get(template, "metadata"), get(template, "spec")))
    };
    match (&*request.gvr.group, &*request.gvr.resource) {
        ("", "podtemplates") => template(&["template"]),
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => template(&["spec", "template"]),
        ("batch", "cronjobs") => template(&["spec", "jobTemplate", "spec", "template"]),
        _ => None,
    }
}

/// Whether the update changes an image or the set of containers.
fn significant(new: &Value, old: &Value) -> bool {
    let (new, old) = (get(new, "spec"), get(old, "spec"));
    let images =
        |spec, list| items(spec, list).iter().map(|c| str_at(c, "image")).collect::<Vec<_>>();
    if ["containers", "initContainers"].iter().any(|list| images(new, list) != images(old, list)) {
        return true;
    }
    items(new, "ephemeralContainers").iter().any(|c| {
        let before = items(old, "ephemeralContainers")
            .iter()
            .find(|o| str_at(o, "name") == str_at(c, "name"));
        before.is_none_or(|before| str_at(before, "image") != str_at(c, "image"))
    })
}

impl PodSecurity {
    async fn policy(&self, namespace: &str) -> Result<Policy, Status> {
        let failed = || Status::internal(&format!("failed to lookup namespace \"{namespace}\""));
        let found = match self.lookup.find(&lookup::NAMESPACES, "", namespace).await {
            Ok(found) => found.ok_or_else(failed)?,
            Err(error) => {
                tracing::warn!(namespace, %error, "rejecting a pod whose namespace cannot be read");
                return Err(failed());
            }
        };
        Ok(self.read(namespace, &labels(&found)).0)
    }

    fn read(
        &self,
        namespace: &str,
        labels: &BTreeMap<&str, &str>,
    ) -> (Policy, Vec<policy::BadLabel>) {
        Policy::from_labels(labels, self.defaults(namespace))
    }

    /// The policy of a namespace without labels.
    fn defaults(&self, namespace: &str) -> Policy {
        match &self.config {
            Some(config) => config.defaults,
            None if self.hardened && !OF_THE_SYSTEM.contains(&namespace) => Policy::HARDENED,
            None => Policy::OPEN,
        }
    }

    fn exempts_namespace(&self, namespace: &str) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| config.namespaces.iter().any(|exempt| exempt == namespace))
    }

    fn exempts_runtime_class(&self, spec: &Value) -> bool {
        let class = str_at(spec, "runtimeClassName");
        let config = self.config.as_ref().filter(|_| !class.is_empty());
        config.is_some_and(|config| config.runtime_classes.iter().any(|exempt| exempt == class))
    }

    /// Whether the namespace or the user of the request is exempt; records that, as upstream.
    fn exempts_request(&self, request: &Request<'_>) -> bool {
        let Some(config) = &self.config else { return false };
        let why = if self.exempts_namespace(request.namespace) {
            "namespace"
        } else if config.usernames.contains(&request.user.name) {
            "user"
        } else {
            return false;
        };
        annotate_exemption(why);
        true
    }

    /// Warns that the labels of an exempt namespace are ignored.
    fn warn_of_exemption(
        &self,
        request: &Request<'_>,
        name: &str,
        policy: &Policy,
        labels: &BTreeMap<&str, &str>,
    ) {
        if policy.fully_privileged() || *policy == self.defaults(name) {
            return;
        }
        let modes = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)];
        let is_set = |mode: &str| {
            let level = format!("pod-security.kubernetes.io/{mode}");
            let version = format!("{level}-version");
            labels.contains_key(level.as_str()) || labels.contains_key(version.as_str())
        };
        let set: Vec<String> = modes
            .into_iter()
            .filter(|(mode, value)| value.level != Level::Privileged && is_set(mode))
            .map(|(mode, value)| format!("{mode}={value}"))
            .collect();
        request.warn(format!(
            "namespace \"{name}\" is exempt from Pod Security, and the policy ({}) will be ignored",
            set.join(", ")
        ));
    }

    async fn namespace(&self, request: &Request<'_>, namespace: &Value) -> Result<(), Status> {
        let name = str_in(namespace, &["metadata", "name"]);
        let given = labels_of(namespace);
        let (new, errors) = self.read(name, &given);
        let invalid = || {
            let path = Path::new("metadata").child("labels");
            let list: Vec<Error> = errors
                .iter()
                .map(|e| Error::invalid(&path.key(e.label), e.value.as_str(), e.why))
                .collect();
            Status::invalid("", "Namespace", name, &list)
        };
        let Some(old) = request.old.filter(|_| request.operation == Operation::Update) else {
            if !errors.is_empty() && request.operation == Operation::Create {
                return Err(invalid());
            }
            if self.exempts_namespace(name) {
                self.warn_of_exemption(request, name, &new, &given);
            }
            return Ok(());
        };
        let (old, old_errors) = self.read(name, &labels_of(old));
        if !errors.is_empty() && errors != old_errors {
            return Err(invalid());
        }
        let relaxed =
            new.enforce.version == old.enforce.version && new.enforce.level <= old.enforce.level;
        if new.enforce != old.enforce && new.enforce.level != Level::Privileged && !relaxed {
            if self.exempts_namespace(name) {
                self.warn_of_exemption(request, name, &new, &given);
            } else {
                self.warn_of_existing(request, name, new.enforce).await;
            }
        }
        Ok(())
    }

    /// Warns about existing pods that violate the new level.
    async fn warn_of_existing(
        &self,
        request: &Request<'_>,
        namespace: &str,
        enforce: LevelVersion,
    ) {
        let Ok(pods) = self.lookup.list(&lookup::PODS, namespace).await else {
            request.warn("failed to list pods while checking new PodSecurity enforce level".into());
            return;
        };
        // By reason: the first pod name and the number of pods.
        let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for pod in pods.iter().take(MAX_PODS) {
            let Ok(value) = pod.value() else { continue };
            if self.exempts_runtime_class(get(&value, "spec")) {
                continue;
            }
            let violations = evaluate(enforce, get(&value, "metadata"), get(&value, "spec"));
            if violations.is_empty() {
                continue;
            }
            let reasons: Vec<&str> = violations.iter().map(|v| v.reason).collect();
            let entry =
                found.entry(reasons.join(", ")).or_insert_with(|| (pod.key.name.to_string(), 0));
            if *pod.key.name < *entry.0 {
                entry.0 = pod.key.name.to_string();
            }
            entry.1 += 1;
        }
        if pods.len() > MAX_PODS {
            request.warn(format!("new PodSecurity enforce level only checked against the first {MAX_PODS} of {} existing pods", pods.len()));
        }
        if found.is_empty() {
            return;
        }
        request.warn(format!("existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{enforce}\""));
        let mut lines: Vec<String> = found
            .into_iter()
            .map(|(reasons, (name, count))| match count {
                1 => format!("{name}: {reasons}"),
                2 => format!("{name} (and 1 other pod): {reasons}"),
                more => format!("{name} (and {} other pods): {reasons}", more - 1),
            })
            .collect();
        lines.compact_sort();
        for line in lines {
            request.warn(line);
        }
    }

    fn check(
        request: &Request<'_>,
        object: &Value,
        policy: &Policy,
        (metadata, spec): (&Value, &Value),
        enforce: bool,
    ) -> Result<(), Status> {
        let audit = evaluate(policy.audit, metadata, spec);
        if !audit.is_empty() {
            count(request, false, "audit", policy.audit);
        }
        if !audit.is_empty() {
            crate::audit::annotate("pod-security.kubernetes.io/audit-violations", || {
                format!("would violate PodSecurity \"{}\": {}", policy.audit, detail(&audit))
            });
            tracing::info!(
                user = request.user.name,
                namespace = request.namespace,
                violations = detail(&audit),
                "pod would violate PodSecurity \"{}\"",
                policy.audit
            );
        }
        if enforce {
            annotate_enforced_policy(policy);
            let violations = evaluate(policy.enforce, metadata, spec);
            count(request, violations.is_empty(), "enforce", policy.enforce);
            if !violations.is_empty() {
                let why =
                    format!("violates PodSecurity \"{}\": {}", policy.enforce, detail(&violations));
                return Err(request.forbidden(Some(object), &why));
            }
        }
        let warn = evaluate(policy.warn, metadata, spec);
        if !warn.is_empty() {
            count(request, false, "warn", policy.warn);
            request.warn(format!(
                "would violate PodSecurity \"{}\": {}",
                policy.warn,
                detail(&warn)
            ));
        }
        Ok(())
    }
}

/// Counts one evaluation in upstream's metric.
fn count(request: &Request<'_>, allowed: bool, mode: &str, policy: policy::LevelVersion) {
    let decision = if allowed { "allow" } else { "deny" };
    let operation = if request.operation == Operation::Create { "create" } else { "update" };
    let resource = if request.is("", "pods") { "pod" } else { "controller" };
    let what = (operation, resource, request.subresource);
    let (level, version) = policy.metric_labels();
    crate::metrics::requests::evaluated(decision, mode, (level, &version), what);
}

/// Records in the audit annotations why a request is exempt.
fn annotate_exemption(why: &'static str) {
    crate::audit::annotate("pod-security.kubernetes.io/exempt", || why.to_owned());
}

/// Records the enforced policy in the audit annotations.
fn annotate_enforced_policy(policy: &Policy) {
    let key = "pod-security.kubernetes.io/enforce-policy";
    crate::audit::annotate(key, || policy.enforce.to_string());
}

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let Some(value) =
            object.filter(|_| matches!(request.operation, Operation::Create | Operation::Update))
        else {
            return Ok(());
        };
        if request.is("", "namespaces") {
            return if request.subresource.is_empty() {
                self.namespace(request, value).await
            } else {
                Ok(())
            };
        }
        if request.is("", "pods") {
            if IGNORED.contains(&request.subresource) {
                return Ok(());
            }
            if self.exempts_request(request) {
                return Ok(());
            }
            let policy = self.policy(request.namespace).await?;
            let unchanged = request.operation == Operation::Update
                && request.old.is_some_and(|old| !significant(value, old));
            if policy.fully_privileged() || unchanged {
                if policy.fully_privileged() {
                    annotate_enforced_policy(&policy);
                    count(request, true, "enforce", policy.enforce);
                }
                return Ok(());
            }
            let spec = get(value, "spec");
            if self.exempts_runtime_class(spec) {
                annotate_exemption("runtimeClass");
                return Ok(());
            }
            return Self::check(request, value, &policy, (get(value, "metadata"), spec), true);
        }
        let Some(pod) = pod_spec(request, value).filter(|_| request.subresource.is_empty()) else {
            return Ok(());
        };
        if self.exempts_request(request) {
            return Ok(());
        }
        let policy = self.policy(request.namespace).await?;
        if self.exempts_runtime_class(pod.1) {
            annotate_exemption("runtimeClass");
            return Ok(());
        }
        Self::check(request, value, &policy, pod, false)
    }
}

#[cfg(test)]
mod tests;
