//! Warnings for pods and pod templates (`pkg/api/pod/warnings.go`).

use std::collections::BTreeSet;

use serde_json::Value;

use super::{fraction, node_term, old_label, ports, required_terms, volumes};
use crate::field::{Path, go_quote};
use crate::validation::core::{APP_ARMOR_ANNOTATION, APP_ARMOR_DEPRECATED, app_armor_profile};
use crate::validation::net;
use crate::value::{at, entries, get, has, items, semantic_equal, str_at};

/// Annotations that have been replaced by fields, and the texts of their warnings.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";
const BYTES: [&str; 2] = ["memory", "ephemeral-storage"];

/// Returns the warnings for a new pod. Updates have no warnings, because mostly controllers send
/// them.
pub fn pod(object: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut list: Vec<String> = super::hostname(object, "the Pod's hostname").into_iter().collect();
    let subject = Subject { spec: get(object, "spec"), meta: get(object, "metadata"), root: None };
    list.extend(subject.warnings());
    list
}

/// Returns the warnings for the pod template at `path`, or none if the template is null.
pub fn template(object: &Value, path: &Path) -> Vec<String> {
    if object.is_null() {
        return Vec::new();
    }
    let (spec, meta) = (get(object, "spec"), get(object, "metadata"));
    Subject { spec, meta, root: Some(path) }.warnings()
}

struct Subject<'a> {
    spec: &'a Value,
    meta: &'a Value,
    /// Path of the template; `None` for a pod.
    root: Option<&'a Path>,
}

impl Subject<'_> {
    fn path(&self, first: &str) -> Path {
        self.root.map_or_else(|| Path::new(first), |root| root.child(first))
    }

    /// Returns the init, regular and ephemeral containers with their paths.
    fn containers(&self) -> Vec<(&Value, Path)> {
        let mut all = Vec::new();
        for kind in ["initContainers", "containers", "ephemeralContainers"] {
            let path = self.path("spec").child(kind);
            let found = items(self.spec, kind).iter().enumerate();
            all.extend(found.map(|(index, container)| (container, path.index(index))));
        }
        all
    }

    fn warnings(&self) -> Vec<String> {
        let path = self.path("spec");
        let mut list = self.placement(&path);
        list.extend(self.old_annotations());
        list.extend(volumes::warnings(items(self.spec, "volumes"), &path.child("volumes")));
        list.extend(self.doubled(&path));
        for name in BYTES {
            list.extend(fraction(get(self.spec, "overhead"), name, &path.child("overhead")));
        }
        list.extend(self.security());
        let containers = self.containers();
        list.extend(ports::warnings(&containers));
        if get(self.spec, "terminationGracePeriodSeconds").as_i64().is_some_and(|s| s < 0) {
            list.push(format!(
                "{}: must be >= 0; negative values are invalid and will be treated as 1",
                path.child("terminationGracePeriodSeconds")
            ));
        }
        list.extend(self.pod_affinity(&path));
        list.extend(self.addresses(&path));
        list
    }

    fn placement(&self, path: &Path) -> Vec<String> {
        let mut list = Vec::new();
        for (key, _) in entries(self.spec, "nodeSelector") {
            let field = path.child("nodeSelector").key(key);
            list.extend(old_label(key).map(|text| format!("{field}: {text}")));
        }
        let affinity = at(self.spec, &["affinity", "nodeAffinity"]);
        let field = path.child("affinity").child("nodeAffinity");
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        list.extend(required_terms(get(affinity, required), &field.child(required)));
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, preferred).iter().enumerate() {
            let field = field.child(preferred).index(index).child("preference");
            list.extend(node_term(get(term, "preference"), true, &field));
        }
        for (index, spread) in items(self.spec, "topologySpreadConstraints").iter().enumerate() {
            let field = path.child("topologySpreadConstraints").index(index);
            let key = str_at(spread, "topologyKey");
            list.extend(
                old_label(key)
                    .map(|text| format!("{}: {key} is {text}", field.child("topologyKey"))),
            );
            list.extend(null_selector(spread, &field));
        }
        list
    }

    fn annotated(&self, key: &str) -> Option<(Path, &str)> {
        let value = at(self.meta, &["annotations"]).get(key)?.as_str()?;
        Some((self.path("metadata").child("annotations").key(key), value))
    }

    fn old_annotations(&self) -> Vec<String> {
        let found = OLD_ANNOTATIONS.iter().filter_map(|(key, text)| {
            self.annotated(key).map(|(field, _)| format!("{field}: {text}"))
        });
        found.collect()
    }

    fn doubled(&self, path: &Path) -> Vec<String> {
        let mut list = Vec::new();
        for (key, inner, what) in
            [("hostAliases", "ip", "duplicate ip"), ("imagePullSecrets", "name", "duplicate name")]
        {
            let mut seen = BTreeSet::new();
            for (index, item) in items(self.spec, key).iter().enumerate() {
                let value = str_at(item, inner);
                if !seen.insert(value) {
                    let field = path.child(key).index(index).child(inner);
                    list.push(format!("{field}: {what} {}", go_quote(value)));
                }
            }
        }
        for (index, secret) in items(self.spec, "imagePullSecrets").iter().enumerate() {
            if str_at(secret, "name").is_empty() {
                let field = path.child("imagePullSecrets").index(index).child("name");
                list.push(format!("{field}: invalid empty name \"\""));
            }
        }
        list
    }

    fn security(&self) -> Vec<String> {
        let mut list = Vec::new();
        let security = get(self.spec, "securityContext");
        if !has(security, "seccompProfile") {
            let found = self.annotated("seccomp.security.alpha.kubernetes.io/pod");
            list.extend(found.map(|(field, _)| format!("{field}: {SECCOMP}")));
        }
        for (container, path) in self.containers() {
            let own = get(container, "securityContext");
            let name = str_at(container, "name");
            if !has(own, "seccompProfile") {
                let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
                let found = self.annotated(&key);
                list.extend(found.map(|(field, _)| format!("{field}: {SECCOMP}")));
            }
            // For pods, the code that sets the field from the annotation returns this warning.
            if self.root.is_some() && !has(own, "appArmorProfile") {
                let of_pod = get(security, "appArmorProfile");
                let is_other = |value: &str| {
                    app_armor_profile(value).is_none_or(|own| !semantic_equal(of_pod, &own))
                };
                let found = self.annotated(&format!("{APP_ARMOR_ANNOTATION}{name}"));
                list.extend(
                    found
                        .filter(|(_, value)| is_other(value))
                        .map(|(field, _)| format!("{field}: {APP_ARMOR_DEPRECATED}")),
                );
            }
            let resources = path.child("resources");
            for name in BYTES {
                for kind in ["limits", "requests"] {
                    let amounts = at(container, &["resources", kind]);
                    list.extend(fraction(amounts, name, &resources.child(kind)));
                }
            }
            list.extend(hidden_variables(container, &path));
        }
        list
    }

    fn pod_affinity(&self, path: &Path) -> Vec<String> {
        let mut list = Vec::new();
        for side in ["podAffinity", "podAntiAffinity"] {
            let (affinity, field) =
                (at(self.spec, &["affinity", side]), path.child("affinity").child(side));
            let key = "requiredDuringSchedulingIgnoredDuringExecution";
            for (index, term) in items(affinity, key).iter().enumerate() {
                list.extend(null_selector(term, &field.child(key).index(index)));
            }
            let key = "preferredDuringSchedulingIgnoredDuringExecution";
            for (index, term) in items(affinity, key).iter().enumerate() {
                let field = field.child(key).index(index).child("podAffinityTerm");
                list.extend(null_selector(get(term, "podAffinityTerm"), &field));
            }
        }
        list
    }

    fn addresses(&self, path: &Path) -> Vec<String> {
        let mut list = Vec::new();
        let servers = items(get(self.spec, "dnsConfig"), "nameservers").iter().enumerate();
        let field = path.child("dnsConfig").child("nameservers");
        list.extend(servers.filter_map(|(index, ip)| {
            net::ip_warning(&field.index(index), ip.as_str().unwrap_or_default())
        }));
        let aliases = items(self.spec, "hostAliases").iter().enumerate();
        let field = path.child("hostAliases");
        list.extend(aliases.filter_map(|(index, alias)| {
            net::ip_warning(&field.index(index).child("ip"), str_at(alias, "ip"))
        }));
        list
    }
}

fn null_selector(term: &Value, path: &Path) -> Option<String> {
    (!has(term, "labelSelector"))
        .then(|| format!("{}: {NULL_SELECTOR}", path.child("labelSelector")))
}

/// Returns the warnings for variables that are set again without a reference to the earlier value.
fn hidden_variables(container: &Value, path: &Path) -> Vec<String> {
    let (mut seen, mut list) = (BTreeSet::new(), Vec::new());
    for (index, variable) in items(container, "env").iter().enumerate() {
        let (name, value) = (str_at(variable, "name"), str_at(variable, "value"));
        if seen.insert(name) {
            continue;
        }
        let earlier = format!("$({name})");
        if has(variable, "valueFrom") || value == earlier || !value.contains(&earlier) {
            list.push(format!(
                "{}: hides previous definition of {}, which may be dropped when using apply",
                path.child("env").index(index),
                go_quote(name)
            ));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn check(spec: Value, expected: &[&str]) {
        same(&pod(&json!({"metadata": {"name": "p"}, "spec": spec}), None), expected);
    }

    /// `GetWarningsForPod` of `pkg/api/pod`.
    #[test]
    fn fields_without_effect_are_named() {
        check(json!({}), &[]);
        check(
            json!({"terminationGracePeriodSeconds": -1}),
            &["spec.terminationGracePeriodSeconds: must be >= 0; \
               negative values are invalid and will be treated as 1"],
        );
        check(
            json!({"overhead": {"memory": "1m"}}),
            &["spec.overhead[memory]: fractional byte value \"1m\" is invalid, \
               must be an integer"],
        );
        check(
            json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "100m"},
                "requests": {"cpu": "100m", "ephemeral-storage": "200m"}}}]}),
            &[
                "spec.containers[0].resources.limits[memory]: \
                 fractional byte value \"100m\" is invalid, must be an integer",
                "spec.containers[0].resources.requests[ephemeral-storage]: \
                 fractional byte value \"200m\" is invalid, must be an integer",
            ],
        );
        check(
            json!({"topologySpreadConstraints": [{"topologyKey": "zone"}]}),
            &["spec.topologySpreadConstraints[0].labelSelector: \
               a null labelSelector results in matching no pod"],
        );
        check(
            json!({"nodeSelector": {"beta.kubernetes.io/arch": "amd64"}}),
            &["spec.nodeSelector[beta.kubernetes.io/arch]: \
               deprecated since v1.14; use \"kubernetes.io/arch\" instead"],
        );
        check(
            json!({"hostAliases": [{"ip": "010.1.2.3"}],
                "dnsConfig": {"nameservers": ["1.2.3.4"]}}),
            &["spec.hostAliases[0].ip: non-standard IP address \"010.1.2.3\" is invalid: \
               use \"10.1.2.3\""],
        );
    }

    /// `GetWarningsForPod` of `pkg/api/pod`.
    #[test]
    fn annotations_that_fields_replaced_are_named() {
        let check = |key: &str, spec: Value, expected: &[&str]| {
            let meta = json!({"annotations": { key: "runtime/default" }});
            let object = json!({"metadata": meta, "spec": spec});
            same(&template(&object, &Path::new("template")), expected);
        };
        const AT: &str = "template.metadata.annotations";
        let spec = || json!({"containers": [{"name": "c"}]});
        const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
        check(
            SECCOMP,
            spec(),
            &[&format!(
                "{AT}[{SECCOMP}]: non-functional in v1.27+; \
                 use the \"seccompProfile\" field instead"
            )],
        );
        check(SECCOMP, json!({"securityContext": {"seccompProfile": {}}}), &[]);
        const CRITICAL: &str = "scheduler.alpha.kubernetes.io/critical-pod";
        check(
            CRITICAL,
            spec(),
            &[&format!(
                "{AT}[{CRITICAL}]: non-functional in v1.16+; \
                 use the \"priorityClassName\" field instead"
            )],
        );
        const ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/c";
        check(
            ARMOR,
            spec(),
            &[&format!(
                "{AT}[{ARMOR}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            )],
        );
        let mut same_profile = spec();
        same_profile["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        check(ARMOR, same_profile, &[]);
        same(&template(&Value::Null, &Path::new("template")), &[""; 0]);
    }
}
