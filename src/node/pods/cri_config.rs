//! Converts a pod to the sandbox and container configurations of the CRI.

mod bandwidth;
pub(crate) mod dns;
pub(crate) mod downward;
pub(crate) mod env;
pub(crate) mod env_file;
mod error;
pub(crate) mod expand;
pub(crate) mod hosts;
pub(crate) mod security;
pub(crate) mod sysctls;

pub(crate) use bandwidth::{InvalidBandwidth, check_bandwidth};
pub(crate) use error::InvalidPodSpec;

use std::collections::HashMap;
use std::path::Path;

use proto::runtime::v1 as cri;

use crate::config::Config;
use crate::pods::observed::label;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::resources::{self, MemoryControl};
use crate::resource_managers::container_cpus::ContainerCpus;

/// Returns the host name of a pod (63 bytes at most) and its domain, which may be empty.
pub(crate) fn hostname(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = pod.spec();
    let cut = |name: &str| {
        let cut: String = name.chars().take(63).collect();
        if cut.len() < name.len() { cut.trim_end_matches(['-', '.']).to_owned() } else { cut }
    };
    if let Some(name) = &spec.hostname_override {
        return (cut(name), String::new());
    }
    let name = spec.hostname.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod.name());
    let domain = match spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
        Some(subdomain) => format!("{subdomain}.{}.svc.{cluster_domain}", pod.namespace()),
        None => String::new(),
    };
    (cut(name), domain)
}

/// Returns the host name that the kernel of the pod shows.
fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, InvalidPodSpec> {
    let (name, domain) = hostname(pod, cluster_domain);
    if pod.spec().set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(name);
    }
    let full = format!("{name}.{domain}");
    // The kernel limits host names to 64 bytes.
    if full.len() > 64 {
        return Err(InvalidPodSpec(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too \
             long (64 characters is the max, {} characters requested)",
            full.len()
        )));
    }
    Ok(full)
}

/// Returns the sandbox configuration of a pod.
///
/// # Errors
///
/// A host name that is too long, or a sysctl or profile that is not supported.
pub(crate) fn sandbox(
    pod: &Pod,
    config: &Config,
    attempt: u32,
    cgroup_parent: &str,
    user_namespace: cri::UserNamespace,
) -> Result<cri::PodSandboxConfig, InvalidPodSpec> {
    let mut labels: HashMap<String, String> =
        pod.object.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(identity(pod));
    let mut annotations: HashMap<String, String> =
        pod.annotations().cloned().unwrap_or_default().into_iter().collect();
    // Only the agent assigns shims, never a pod's annotation.
    annotations.remove("io.containerd.runc.v2.group");
    if config.runtime.grouped_shims {
        // Eight groups limit the number of pods that a lost shim affects.
        let group = pod.uid.bytes().fold(0_u32, |sum, b| sum.wrapping_add(u32::from(b))) % 8;
        annotations.insert("io.containerd.runc.v2.group".to_owned(), format!("kube-lite-{group}"));
    }
    let port_mappings = pod
        .containers
        .iter()
        .flat_map(|m| m.container.ports.iter().flatten())
        .filter(|p| p.host_port.is_some_and(|p| p > 0) && !pod.host_network())
        .map(|p| cri::PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp,
                Some("SCTP") => cri::Protocol::Sctp,
                _ => cri::Protocol::Tcp,
            }
            .into(),
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or_default(),
            host_ip: p.host_ip.clone().unwrap_or_default(),
        })
        .collect();
    let hostname = if pod.host_network() {
        String::new()
    } else {
        kernel_hostname(pod, &config.cluster_domain)?
    };
    let (requests, limits) = (resources::pod_requests(pod), resources::pod_limits(pod));
    let linux = cri::LinuxPodSandboxConfig {
        cgroup_parent: cgroup_parent.to_owned(),
        security_context: Some(security::sandbox(pod, user_namespace)?),
        sysctls: sysctls::of_sandbox(pod, &config.allowed_sysctls)?,
        resources: Some(cri::LinuxContainerResources {
            cpu_period: resources::CPU_PERIOD,
            cpu_quota: resources::quota(limits.cpu_milli),
            cpu_shares: resources::shares(requests.cpu_milli),
            memory_limit_in_bytes: limits.memory,
            ..cri::LinuxContainerResources::default()
        }),
        ..cri::LinuxPodSandboxConfig::default()
    };
    let log_directory = config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
    Ok(cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.name().to_owned(),
            uid: pod.uid.to_string(),
            namespace: pod.namespace().to_owned(),
            attempt,
        }),
        hostname,
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(dns::pod_dns(pod, config).dns),
        port_mappings,
        labels,
        annotations,
        linux: Some(linux),
        ..cri::PodSandboxConfig::default()
    })
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (label::POD_NAME.to_owned(), pod.name().to_owned()),
        (label::POD_NAMESPACE.to_owned(), pod.namespace().to_owned()),
        (label::POD_UID.to_owned(), pod.uid.to_string()),
    ]
}

/// Input of a container's configuration besides pod and member.
#[derive(Debug)]
pub(crate) struct ContainerInput<'a> {
    pub(crate) image_ref: &'a str,
    pub(crate) restart_count: i32,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) mounts: Vec<cri::Mount>,
    pub(crate) devices: Vec<cri::Device>,
    /// User of the image: a number, or a name.
    pub(crate) image_user: (Option<i64>, String),
    /// Container whose process namespace an ephemeral container joins.
    pub(crate) target_id: Option<String>,
    pub(crate) memory: &'a MemoryControl,
    /// Huge page sizes, in bytes, that the container's cgroup can limit.
    pub(crate) huge_page_sizes: &'a [i64],
    pub(crate) seccomp_root: &'a Path,
    /// Whether the stricter defaults of the hardened profile apply.
    pub(crate) hardened: bool,
    /// Whether a container without a seccomp profile gets the runtime's.
    pub(crate) seccomp_default: bool,
    pub(crate) cpus: ContainerCpus,
}

/// Returns the configuration of a container.
///
/// # Errors
///
/// A `runAsNonRoot` that is violated or cannot be verified, or a profile that is not supported.
pub(crate) fn container(
    pod: &Pod,
    member: &PodContainer,
    input: ContainerInput<'_>,
) -> Result<cri::ContainerConfig, InvalidPodSpec> {
    let c = &member.container;
    let lookup = |name: &str| input.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let expanded = |list: &Option<Vec<String>>| -> Vec<String> {
        list.iter().flatten().map(|text| expand::expand(text, lookup)).collect()
    };
    let mut labels: HashMap<String, String> = identity(pod).into();
    labels.insert(label::CONTAINER_NAME.to_owned(), member.name().to_owned());
    let mut security =
        security::container(pod, member, &input.image_user, input.seccomp_root, input.hardened)?;
    if input.seccomp_default {
        security::apply_seccomp_default(pod, member, &mut security);
    }
    if let (Some(id), Some(namespaces)) = (&input.target_id, &mut security.namespace_options)
        && namespaces.pid() == cri::NamespaceMode::Container
    {
        namespaces.set_pid(cri::NamespaceMode::Target);
        namespaces.target_id.clone_from(id);
    }
    let (command, args) = (expanded(&c.command), expanded(&c.args));
    let mut linux = resources::linux(pod, member, input.memory);
    input.cpus.add_to(&mut linux);
    linux.hugepage_limits = resources::huge_page_limits(pod, member, input.huge_page_sizes);
    let mut annotations = annotations(pod, member, input.restart_count);
    let allocated = resources::AllocatedResources::of(c, &linux);
    annotations.insert(label::RESOURCES.to_owned(), allocated.text());
    let stop_signal = c
        .lifecycle
        .as_ref()
        .and_then(|l| l.stop_signal.as_deref())
        .and_then(|s| {
            cri::Signal::from_str_name(&format!("SIGNAL_{s}")).or(cri::Signal::from_str_name(s))
        })
        .unwrap_or(cri::Signal::RuntimeDefault);
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: member.name().to_owned(),
            attempt: u32::try_from(input.restart_count).unwrap_or_default(),
        }),
        image: Some(cri::ImageSpec {
            image: input.image_ref.to_owned(),
            user_specified_image: member.image().to_owned(),
            ..cri::ImageSpec::default()
        }),
        command,
        args,
        working_dir: c.working_dir.clone().unwrap_or_default(),
        mounts: input.mounts,
        devices: input.devices,
        labels,
        annotations,
        log_path: format!("{}/{}.log", member.name(), input.restart_count),
        stdin: c.stdin.unwrap_or_default(),
        stdin_once: c.stdin_once.unwrap_or_default(),
        tty: c.tty.unwrap_or_default(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(linux),
            security_context: Some(security),
        }),
        envs: input
            .env
            .into_iter()
            .map(|(key, value)| cri::KeyValue { key, value: value.into_bytes() })
            .collect(),
        stop_signal: stop_signal.into(),
        ..cri::ContainerConfig::default()
    })
}

/// Gives a container the user namespace of its sandbox. The ids of each mount are mapped to the
/// same range, so that the files of volumes have the ids that the container shows.
pub(crate) fn join_user_namespace(
    container: &mut cri::ContainerConfig,
    sandbox: &cri::PodSandboxConfig,
) {
    let context = sandbox.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let namespaces = context.and_then(|context| context.namespace_options.as_ref());
    let Some(namespace) = namespaces.and_then(|n| n.userns_options.as_ref()) else { return };
    for mount in &mut container.mounts {
        mount.uid_mappings.clone_from(&namespace.uids);
        mount.gid_mappings.clone_from(&namespace.gids);
    }
    let context = container.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    if let Some(options) = context.and_then(|context| context.namespace_options.as_mut()) {
        options.userns_options = Some(namespace.clone());
    }
}

/// State that a later process needs of the container, even if the pod is deleted from the API.
fn annotations(pod: &Pod, member: &PodContainer, restart_count: i32) -> HashMap<String, String> {
    let c = &member.container;
    let mut out = HashMap::from([
        (label::HASH.to_owned(), member.hash()),
        (label::RESTART_COUNT.to_owned(), restart_count.to_string()),
        (label::MESSAGE_PATH.to_owned(), c.termination_message_path.clone().unwrap_or_default()),
        (
            label::MESSAGE_POLICY.to_owned(),
            c.termination_message_policy.clone().unwrap_or_default(),
        ),
    ]);
    if let Some(seconds) = pod.object.metadata.deletion_grace_period_seconds {
        out.insert(label::DELETION_GRACE.to_owned(), seconds.to_string());
    }
    if let Some(seconds) = pod.spec().termination_grace_period_seconds {
        out.insert(label::TERMINATION_GRACE.to_owned(), seconds.to_string());
    }
    if let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref())
        && let Ok(json) = serde_json::to_string(hook)
    {
        out.insert(label::PRE_STOP.to_owned(), json);
    }
    if let Some(ports) = c.ports.as_ref().filter(|p| !p.is_empty())
        && let Ok(json) = serde_json::to_string(ports)
    {
        out.insert(label::PORTS.to_owned(), json);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    fn mapped(namespace: cri::UserNamespace) -> (cri::NamespaceOption, Vec<cri::Mount>) {
        let pod = pod(json!({"containers": [{"name": "a"}], "hostUsers": false}));
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let config = Config::new("n", address, "/data".into(), "/run".into());
        let sandbox = sandbox(&pod, &config, 0, "/kubepods", namespace).unwrap();
        let context = cri::LinuxContainerSecurityContext {
            namespace_options: Some(security::namespaces(&pod)),
            ..cri::LinuxContainerSecurityContext::default()
        };
        let linux = cri::LinuxContainerConfig {
            security_context: Some(context),
            ..cri::LinuxContainerConfig::default()
        };
        let mut container = cri::ContainerConfig {
            mounts: vec![cri::Mount::default(), cri::Mount::default()],
            linux: Some(linux),
            ..cri::ContainerConfig::default()
        };
        join_user_namespace(&mut container, &sandbox);
        let of_sandbox = sandbox.linux.unwrap().security_context.unwrap().namespace_options;
        let context = container.linux.unwrap().security_context.unwrap();
        assert_eq!(context.namespace_options, of_sandbox);
        (of_sandbox.unwrap(), container.mounts)
    }

    #[test]
    fn containers_and_their_mounts_have_the_range_of_the_sandbox() {
        let mapping = cri::IdMapping { host_id: 131_072, container_id: 0, length: 65536 };
        let namespace = cri::UserNamespace {
            mode: cri::NamespaceMode::Pod.into(),
            uids: vec![mapping],
            gids: vec![mapping],
        };
        let (options, mounts) = mapped(namespace.clone());
        assert_eq!(options.userns_options, Some(namespace));
        assert_eq!(mounts.len(), 2);
        let is_mapped = |m: &cri::Mount| m.uid_mappings == [mapping] && m.gid_mappings == [mapping];
        assert!(mounts.iter().all(is_mapped));
    }

    #[test]
    fn mounts_of_a_pod_in_the_user_namespace_of_the_host_have_no_mappings() {
        let (options, mounts) = mapped(crate::user_namespaces::of_host());
        assert_eq!(options.userns_options.unwrap().mode(), cri::NamespaceMode::Node);
        assert!(mounts.iter().all(|m| m.uid_mappings.is_empty() && m.gid_mappings.is_empty()));
    }
}
