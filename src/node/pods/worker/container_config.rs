//! The configuration of a container: environment, mounts, devices, user, limits.

use std::collections::HashMap;

use api::k8s::api::core::v1 as core;
use client::Informer;
use proto::runtime::v1 as cri;

use super::actions::PodActions;
use crate::context::Node;
use crate::devices::container::DeviceOptions;
use crate::pods::cri_config;
use crate::pods::cri_config::downward::FieldContext;
use crate::pods::cri_config::env::{Lookup, environment};
use crate::pods::cri_config::env_file::{FileKey, FileKeyError};
use crate::pods::cri_config::{ContainerInput, InvalidPodSpec};
use crate::pods::objects::{self, CachedObject, ObjectKind};
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::resource_managers::device_nodes;
use crate::status;
use crate::volumes::env_files::{self, FileKeys};
use crate::volumes::{self, PodVolumes};

/// Looks up ConfigMaps and Secrets of the pod's namespace in the cache, and keys of files that were
/// read, for the environment of a container.
struct CachedObjects<'a> {
    node: &'a Node,
    namespace: &'a str,
    file_keys: &'a FileKeys,
}

impl CachedObjects<'_> {
    /// Returns the data of an object. An object that has not been read yet counts as missing: the
    /// container then waits with `CreateContainerConfigError`.
    fn data(
        &self,
        kind: ObjectKind,
        name: &str,
    ) -> Option<std::collections::BTreeMap<String, Vec<u8>>> {
        match self.node.api.objects.get(&(kind, self.namespace.to_owned(), name.to_owned())) {
            CachedObject::Present(object) => Some(objects::data(kind, &object)),
            CachedObject::Missing | CachedObject::Unknown(_) => None,
        }
    }
}

impl Lookup for CachedObjects<'_> {
    fn config_map(&self, name: &str) -> Option<std::collections::BTreeMap<String, Vec<u8>>> {
        self.data(ObjectKind::ConfigMap, name)
    }

    fn secret(&self, name: &str) -> Option<std::collections::BTreeMap<String, Vec<u8>>> {
        self.data(ObjectKind::Secret, name)
    }

    fn file_key(&self, selector: &core::FileKeySelector) -> Result<FileKey, FileKeyError> {
        self.file_keys.get(selector)
    }
}

/// The images that a container needs.
pub(super) struct ContainerImages {
    /// The image that the container runs.
    pub(super) own: cri::Image,
    /// The images of volumes, by the names of the volumes.
    pub(super) volumes: HashMap<String, cri::ImageSpec>,
}

/// What the configuration of a container depends on and takes time to get.
struct ContainerSources<'a> {
    images: &'a ContainerImages,
    options: DeviceOptions,
    file_keys: FileKeys,
}

impl PodActions {
    /// Creates the configuration of a container with the devices of claims and of device plugins.
    ///
    /// # Errors
    ///
    /// A device cannot be had, a reference cannot be resolved, or the runtime ignores such devices.
    pub(super) async fn config_with_devices(
        &self,
        pod: &Pod,
        member: &PodContainer,
        images: &ContainerImages,
        restart_count: i32,
        observed: &ObservedPod,
        volumes: &PodVolumes,
    ) -> Result<cri::ContainerConfig, InvalidPodSpec> {
        let node = &self.node;
        let affinity = node.resource_managers.affinity(&pod.uid, member.name()).map(device_nodes);
        let devices = node.devices.prepare_container(pod, member, affinity.as_ref()).await;
        let devices = devices.map_err(|error| InvalidPodSpec(error.to_string()))?;
        let claimed = node.dynamic_resources.cdi_devices(pod, member);
        let claimed = claimed.map_err(|error| InvalidPodSpec(error.to_string()))?;
        let file_keys = env_files::read(pod, member, volumes).await?;
        let sources = ContainerSources { images, options: devices, file_keys };
        let mut config =
            self.container_config(pod, member, sources, restart_count, observed, volumes)?;
        // Devices of claims come before those of device plugins, as with upstream.
        config.cdi_devices.splice(0..0, claimed);
        if !config.cdi_devices.is_empty() && !node.identity.features.runtime.cdi_devices {
            return Err(InvalidPodSpec(
                "the container runtime of this node ignores devices of CDI; install containerd \
                 1.7 or newer"
                    .to_owned(),
            ));
        }
        Ok(config)
    }

    /// Generates the configuration of a container: environment, mounts, user, limits.
    fn container_config(
        &self,
        pod: &Pod,
        member: &PodContainer,
        ContainerSources { images, options, file_keys }: ContainerSources<'_>,
        restart_count: i32,
        observed: &ObservedPod,
        volumes: &PodVolumes,
    ) -> Result<cri::ContainerConfig, InvalidPodSpec> {
        let node = &self.node;
        // A static pod also starts without a server; its environment then has no Services.
        if !node.api.services.is_synced() && pod.origin == crate::pods::pod::PodOrigin::Api {
            return Err(InvalidPodSpec(
                "services have not yet been read at least once, cannot construct envvars"
                    .to_owned(),
            ));
        }
        let ips = status::pod::pod_ips(&node.identity.config.node_ips(), pod, observed);
        let allocatable = node.caches.allocatable.load();
        let node_ips = node.identity.config.node_ips();
        let fields = FieldContext { pod_ips: &ips, node_ips: &node_ips, allocatable: &allocatable };
        let services: Vec<core::Service> = relevant_services(&node.api.services, pod);
        let cached = CachedObjects { node, namespace: pod.namespace(), file_keys: &file_keys };
        let env = environment(pod, member, &fields, &services, &cached)?;
        let env = options.with_environment(env);
        let mounts = volumes::container_mounts(
            &node.identity,
            pod,
            member,
            (volumes, &images.volumes),
            &env,
            &ips,
        )?;
        let devices = volumes::container_devices(member, volumes)?;
        let image_user = image_user(&images.own);
        // An ephemeral container may share the process namespace of another container.
        let target_id = match (&member.target, member.role) {
            (Some(target), ContainerRole::Ephemeral) => {
                let container =
                    observed.active_container(target).filter(|c| c.state == ObservedState::Running);
                let id = container.map(|c| c.id.clone());
                Some(id.ok_or_else(|| {
                    InvalidPodSpec(format!("unable to find target container {target}"))
                })?)
            }
            _ => None,
        };
        let seccomp_root = node.identity.config.root_dir.join("seccomp");
        let input = ContainerInput {
            image_ref: &images.own.id,
            restart_count,
            env,
            mounts,
            devices,
            image_user,
            target_id,
            memory: node.runtime.cgroups.memory(),
            huge_page_sizes: node.runtime.cgroups.huge_page_sizes(),
            seccomp_root: &seccomp_root,
            hardened: node.identity.config.hardened,
            seccomp_default: node.identity.config.seccomp_default,
            cpus: node.resource_managers.container_cpus(pod, member),
        };
        let mut config = cri_config::container(pod, member, input)?;
        options.add_to(&mut config);
        Ok(config)
    }
}

/// Returns the user of an image, either its id or its name. An image without a user runs as root.
fn image_user(image: &cri::Image) -> (Option<i64>, String) {
    match (&image.uid, image.username.as_str()) {
        (Some(uid), _) => (Some(uid.value), String::new()),
        (None, "") => (Some(0), String::new()),
        (None, name) => (None, name.to_owned()),
    }
}

/// Returns the Services that the environment of a pod describes: those of its namespace, unless
/// `enableServiceLinks` is false, and always `kubernetes` in `default`.
fn relevant_services(services: &Informer<core::Service>, pod: &Pod) -> Vec<core::Service> {
    let mut out: Vec<core::Service> = if pod.spec().enable_service_links == Some(false) {
        Vec::new()
    } else {
        services.list(pod.namespace())
    };
    if pod.namespace() != "default" || out.is_empty() {
        out.extend(services.get("default", "kubernetes"));
    }
    out
}
