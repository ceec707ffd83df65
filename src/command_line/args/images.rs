//! Flags about images, their registries and the runtimes that run them, with the names of k3s.

use std::path::PathBuf;

use clap::Args;
use settings::ClusterSettings;

/// Flags of a node.
#[derive(Debug, Args, Clone)]
pub struct ImageArgs {
    /// Image of the containers that hold the namespaces of pods [default: one that kube-lite
    /// contains]
    #[arg(long, value_name = "IMAGE", help_heading = "Images")]
    pub pause_image: Option<String>,
    /// How containerd mounts layers: overlayfs, native (copies them) or fuse-overlayfs (a running
    /// containerd-fuse-overlayfs-grpc) [default: overlayfs where the kernel allows it, else native]
    #[arg(long, value_name = "NAME", help_heading = "Images")]
    pub snapshotter: Option<String>,
    /// Pull and list images through this CRI socket [default: that of the container runtime]
    #[arg(long, value_name = "SOCKET", help_heading = "Images")]
    pub image_service_endpoint: Option<String>,
    /// Runtime of pods without a RuntimeClass: runc, or one that is installed, such as crun or
    /// nvidia
    #[arg(long, value_name = "NAME", help_heading = "Images")]
    pub default_runtime: Option<String>,
    /// Give the devices of a container to the user and group of its security context
    #[arg(long, help_heading = "Images")]
    pub nonroot_devices: bool,
    /// Registries whose names images of agent/images also get
    #[arg(long, value_name = "HOST", value_delimiter = ',', help_heading = "Images")]
    pub airgap_extra_registry: Vec<String>,
    /// Directory of the programs that provide credentials for images
    #[arg(long, value_name = "DIR", help_heading = "Images")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// CredentialProviderConfig of these programs: a file, or a directory of .yaml, .yml and .json
    /// files
    #[arg(long, value_name = "PATH", help_heading = "Images")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Let the embedded registry share images with the tag latest [env:
    /// KUBE_LITE_P2P_ENABLE_LATEST]
    #[arg(long, help_heading = "Images")]
    pub embedded_registry_latest: bool,
    /// Port of the registry at which containerd reaches the embedded registry and rewritten
    /// mirrors, on the loopback interface [env: KUBE_LITE_P2P_PORT]
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 5001,
        value_parser = clap::value_parser!(u16).range(1..),
        help_heading = "Several nodes on one machine"
    )]
    pub embedded_registry_port: u16,
}

/// Flags of a server that all nodes follow.
#[derive(Debug, Args, Clone)]
pub struct RegistryArgs {
    /// Nodes pull images from each other before they ask a registry; shared are the registries that
    /// a node's registries.yaml lists under mirrors
    #[arg(long, help_heading = "Components")]
    pub embedded_registry: bool,
    /// Registry for --pause-image, and for images of agent/images as by --airgap-extra-registry
    /// [env: KUBE_LITE_SYSTEM_DEFAULT_REGISTRY]
    #[arg(
        long,
        value_name = "HOST",
        value_parser = registry,
        help_heading = "Components"
    )]
    pub system_default_registry: Option<String>,
}

/// Why a text is not the name of a registry.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct InvalidRegistry(&'static str);

/// Checks the name of a registry.
fn registry(text: &str) -> Result<String, InvalidRegistry> {
    node::runtime::registries::check_registry(text).map_err(InvalidRegistry)?;
    Ok(text.to_owned())
}

impl RegistryArgs {
    /// Sets the fields that these flags state.
    pub(super) fn apply(&self, settings: &mut ClusterSettings) {
        settings.embedded_registry = self.embedded_registry;
        settings.system_default_registry = self.system_default_registry.clone();
    }
}
