//! The environment of a container: services, `envFrom`, `env`.

use std::collections::BTreeMap;

use api::k8s::api::core::v1 as core;

use super::downward::{FieldContext, field, resource};
use super::env_file::{FileKey, FileKeyError};
use super::error::InvalidPodSpec;
use super::expand::expand;
use crate::pods::pod::{Pod, PodContainer};

/// Looks up objects that a pod refers to; `None` for a missing object.
pub(crate) trait Lookup {
    /// Data of a ConfigMap of the pod's namespace.
    fn config_map(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>>;
    /// Data of a Secret of the pod's namespace.
    fn secret(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>>;
    /// What a file of a volume of the pod has for a key.
    ///
    /// # Errors
    ///
    /// The volume or the file is missing, or the file is invalid.
    fn file_key(&self, selector: &core::FileKeySelector) -> Result<FileKey, FileKeyError>;
}

/// Returns the variables in order: those of the specification, then those of services unless the
/// specification sets them.
///
/// # Errors
///
/// A ConfigMap, Secret, file or key that is missing and not optional, or an invalid file.
pub(crate) fn environment(
    pod: &Pod,
    member: &PodContainer,
    fields: &FieldContext<'_>,
    services: &[core::Service],
    lookup: &impl Lookup,
) -> Result<Vec<(String, String)>, InvalidPodSpec> {
    let links = service_variables(pod, services);
    let mut out: Vec<(String, String)> = Vec::new();
    let set = |out: &mut Vec<(String, String)>, name: &str, value: String| match out
        .iter_mut()
        .find(|(n, _)| n == name)
    {
        Some(entry) => entry.1 = value,
        None => out.push((name.to_owned(), value)),
    };
    for source in member.container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (data, kind, name, optional) = if let Some(r) = &source.config_map_ref {
            (lookup.config_map(&r.name), "configmap", &r.name, r.optional)
        } else if let Some(r) = &source.secret_ref {
            (lookup.secret(&r.name), "secret", &r.name, r.optional)
        } else {
            continue;
        };
        match data {
            Some(data) => {
                for (key, value) in data {
                    set(&mut out, &format!("{prefix}{key}"), text(value));
                }
            }
            None if optional == Some(true) => {}
            None => return Err(InvalidPodSpec(format!("{kind} {name:?} not found"))),
        }
    }
    for variable in member.container.env.iter().flatten() {
        let known = |name: &str| {
            out.iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.clone())
                .or_else(|| links.get(name).cloned())
        };
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            Some(source) if literal.is_empty() => {
                match from_source(pod, member, source, fields, lookup)? {
                    Some(value) => value,
                    None => continue,
                }
            }
            _ => expand(literal, known),
        };
        set(&mut out, &variable.name, value);
    }
    for (name, value) in links {
        if !out.iter().any(|(n, _)| *n == name) {
            out.push((name, value));
        }
    }
    Ok(out)
}

fn text(value: Vec<u8>) -> String {
    String::from_utf8(value).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Returns the value of a source; `None` if an optional source is missing.
fn from_source(
    pod: &Pod,
    member: &PodContainer,
    source: &core::EnvVarSource,
    fields: &FieldContext<'_>,
    lookup: &impl Lookup,
) -> Result<Option<String>, InvalidPodSpec> {
    if let Some(reference) = &source.field_ref {
        return field(pod, &reference.field_path, fields).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource(pod, Some(member), selector, fields).map(Some);
    }
    let (data, kind, title, name, key, optional) = if let Some(r) = &source.config_map_key_ref {
        (lookup.config_map(&r.name), "configmap", "ConfigMap", &r.name, &r.key, r.optional)
    } else if let Some(r) = &source.secret_key_ref {
        (lookup.secret(&r.name), "secret", "Secret", &r.name, &r.key, r.optional)
    } else {
        return source.file_key_ref.as_ref().map_or(Ok(None), |r| file_key(r, lookup));
    };
    let optional = optional == Some(true);
    match data {
        None if optional => Ok(None),
        None => Err(InvalidPodSpec(format!("{kind} {name:?} not found"))),
        Some(mut data) => match data.remove(key) {
            Some(value) => Ok(Some(text(value))),
            None if optional => Ok(None),
            None => Err(InvalidPodSpec(format!(
                "couldn't find key {key} in {title} {}/{name}",
                pod.namespace()
            ))),
        },
    }
}

/// Returns the value of a key of a file; `None` if the key is optional and missing. A missing file
/// is an error in any case, as in upstream.
fn file_key(
    selector: &core::FileKeySelector,
    lookup: &impl Lookup,
) -> Result<Option<String>, InvalidPodSpec> {
    let FileKey { value, path } =
        lookup.file_key(selector).map_err(|error| InvalidPodSpec(error.to_string()))?;
    if value.is_none() && selector.optional != Some(true) {
        return Err(InvalidPodSpec(format!(
            "environment variable key {:?} not found in file {:?}",
            selector.key,
            path.to_string_lossy()
        )));
    }
    Ok(value.map(text))
}

/// Variables of the services of the pod's namespace (and always of `kubernetes`), in the form of
/// Docker links.
fn service_variables(pod: &Pod, services: &[core::Service]) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for service in services {
        let (namespace, name) =
            (service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        let master = namespace == Some("default") && name == Some("kubernetes");
        let own =
            namespace == Some(pod.namespace()) && pod.spec().enable_service_links != Some(false);
        let Some(spec) = &service.spec else { continue };
        let ip = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
        let (Some(ip), Some(name), true) = (ip, name, master || own) else { continue };
        let ports = spec.ports.as_deref().unwrap_or_default();
        let Some(first) = ports.first() else { continue };
        let prefix = variable_name(name);
        out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
        out.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        let joined = |port: i32| {
            if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
        };
        for (index, port) in ports.iter().enumerate() {
            if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
                out.insert(
                    format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name)),
                    port.port.to_string(),
                );
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{}", protocol.to_lowercase(), joined(port.port));
            if index == 0 {
                out.insert(format!("{prefix}_PORT"), url.clone());
            }
            let link = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
            out.insert(link.clone(), url);
            out.insert(format!("{link}_PROTO"), protocol.to_lowercase());
            out.insert(format!("{link}_PORT"), port.port.to_string());
            out.insert(format!("{link}_ADDR"), ip.to_owned());
        }
    }
    out
}

fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    struct Objects;
    impl Lookup for Objects {
        fn config_map(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
            (name == "c").then(|| [("k".to_owned(), b"v".to_vec())].into())
        }
        fn secret(&self, _: &str) -> Option<BTreeMap<String, Vec<u8>>> {
            None
        }
        fn file_key(&self, selector: &core::FileKeySelector) -> Result<FileKey, FileKeyError> {
            if selector.path != "a.env" {
                return Err(FileKeyError::NotParsed);
            }
            let value = (selector.key == "K").then(|| b"v".to_vec());
            Ok(FileKey { value, path: "/v/a.env".into() })
        }
    }

    fn of(container: serde_json::Value) -> Result<Vec<(String, String)>, InvalidPodSpec> {
        let p = pod(json!({"containers": [container]}));
        let service =
            serde_json::from_value(json!({"metadata": {"name": "my-db", "namespace": "d"},
            "spec": {"clusterIP": "10.43.0.5", "ports": [{"name": "pg", "port": 5432}]}}))
            .unwrap();
        let fields = FieldContext { pod_ips: &[], node_ips: &[], allocatable: &BTreeMap::new() };
        environment(&p, &p.containers[0], &fields, &[service], &Objects)
    }

    #[test]
    fn sources_override_each_other_and_services_come_last() {
        let env = of(json!({"name": "a", "envFrom": [{"prefix": "P_",
            "configMapRef": {"name": "c"}}],
            "env": [{"name": "A", "value": "$(P_k)-$(MY_DB_SERVICE_HOST)"}, {"name": "P_k",
            "value": "w"}]}))
        .unwrap();
        let get = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!((get("A"), get("P_k")), (Some("v-10.43.0.5"), Some("w")));
        assert_eq!(get("MY_DB_PORT_5432_TCP"), Some("tcp://10.43.0.5:5432"));
        assert_eq!(get("MY_DB_SERVICE_PORT_PG"), Some("5432"));
        let missing = |optional| {
            of(json!({"name": "a", "env": [{"name": "S",
                    "valueFrom": {"secretKeyRef": {"name": "s", "key": "k",
                    "optional": optional}}}]}))
        };
        assert!(missing(true).is_ok());
        assert_eq!(missing(false).unwrap_err().0, "secret \"s\" not found");
    }

    /// `TestMakeEnvironmentVariablesWithFileKeyRef` of `pkg/kubelet`.
    #[test]
    fn a_key_of_a_file_may_be_optional_and_the_file_may_not() {
        let value = |path: &str, key: &str, optional: bool| {
            let selector = json!({"volumeName": "v", "path": path, "key": key,
                "optional": optional});
            let env = of(json!({"name": "a", "env": [
                {"name": "F", "valueFrom": {"fileKeyRef": selector}},
                {"name": "G", "value": "<$(F)>"}]}))?;
            let get = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
            Ok::<_, InvalidPodSpec>((get("F"), get("G").unwrap()))
        };
        let found = Ok((Some("v".to_owned()), "<v>".to_owned()));
        assert_eq!(value("a.env", "K", false), found);
        assert_eq!(value("a.env", "L", true), Ok((None, "<$(F)>".to_owned())));
        assert_eq!(
            value("a.env", "L", false).unwrap_err().0,
            "environment variable key \"L\" not found in file \"/v/a.env\""
        );
        for optional in [false, true] {
            let error = value("b.env", "K", optional).unwrap_err();
            assert_eq!(error.0, "couldn't parse env file");
        }
    }
}
