//! The flags about images, their registries and runtimes: their checks, and what follows for the
//! node.

use std::path::{Path, PathBuf};

use node::runtime::registries::{self, Registries, RegistryOptions};
use node::{CredentialProviders, Snapshotter};
use settings::ClusterSettings;
use sorting::CompactSort as _;

use crate::command_line::{ImageArgs, NodeArgs};
use crate::error_catalogue::{CommandError, invalid_flag};

/// The flag and the kubelet's argument with the directory of credential providers.
pub(super) const PROVIDER_DIR: &str = "image-credential-provider-bin-dir";
/// The flag and the kubelet's argument with the configuration of credential providers.
pub(super) const PROVIDER_CONFIG: &str = "image-credential-provider-config";

/// The checked flags.
#[derive(Debug, Clone)]
pub(super) struct ImageConfig {
    snapshotter: Option<Snapshotter>,
    image_endpoint: Option<PathBuf>,
    registries: Registries,
}

/// A CRI socket as flags name it.
pub(super) fn socket(endpoint: &str) -> PathBuf {
    endpoint.trim_start_matches("unix://").into()
}

/// Refuses a flag about kube-lite's own containerd if another runtime is used.
fn needs_own_containerd(args: &NodeArgs, registries: &Registries) -> Result<(), CommandError> {
    if args.container_runtime_endpoint.is_none() {
        return Ok(());
    }
    let images = &args.images;
    let given = |text: &Option<String>| text.clone().into_iter().collect::<Vec<_>>();
    let on = |set: bool| if set { vec!["true".to_owned()] } else { Vec::new() };
    let registry_file = args.private_registry.display().to_string();
    for (flag, values) in [
        ("grouped-shims", on(args.grouped_shims)),
        ("private-registry", if registries.is_empty() { Vec::new() } else { vec![registry_file] }),
        ("pause-image", given(&images.pause_image)),
        ("snapshotter", given(&images.snapshotter)),
        ("default-runtime", given(&images.default_runtime)),
        ("nonroot-devices", on(images.nonroot_devices)),
        ("selinux", on(args.selinux)),
        ("airgap-extra-registry", images.airgap_extra_registry.clone()),
    ] {
        if let Some(value) = values.first() {
            let why = "needs kube-lite's own containerd, but --container-runtime-endpoint names another runtime";
            return Err(invalid_flag(flag, value, why));
        }
    }
    Ok(())
}

/// Reads the configuration of credential providers. `dir` and `config` are those of the kubelet's
/// arguments, which take precedence over the flags.
///
/// # Errors
/// One of both is missing, or the configuration is invalid.
pub(super) fn credential_providers(
    args: &ImageArgs,
    dir: Option<&Path>,
    config: Option<&Path>,
) -> Result<Option<CredentialProviders>, CommandError> {
    let dir = dir.or(args.image_credential_provider_bin_dir.as_deref());
    let config = config.or(args.image_credential_provider_config.as_deref());
    match (dir, config) {
        (None, None) => Ok(None),
        (Some(dir), Some(config)) => {
            for (flag, path) in [(PROVIDER_DIR, dir), (PROVIDER_CONFIG, config)] {
                if !path.is_absolute() {
                    let why = "must be an absolute path";
                    return Err(invalid_flag(flag, path.display(), why));
                }
            }
            let providers = CredentialProviders::load(config, dir);
            providers.map(Some).map_err(|e| invalid_flag(PROVIDER_CONFIG, config.display(), e))
        }
        (Some(dir), None) => {
            let why = format!("needs --{PROVIDER_CONFIG}, too");
            Err(invalid_flag(PROVIDER_DIR, dir.display(), why))
        }
        (None, Some(config)) => {
            let why = format!("needs --{PROVIDER_DIR}, too");
            Err(invalid_flag(PROVIDER_CONFIG, config.display(), why))
        }
    }
}

impl ImageConfig {
    /// Checks the flags and reads the registries.
    ///
    /// # Errors
    /// The first invalid flag, by name.
    pub(super) fn new(args: &NodeArgs) -> Result<Self, CommandError> {
        let images = &args.images;
        let registries = registries::load(&args.private_registry)
            .map_err(|e| invalid_flag("private-registry", args.private_registry.display(), e))?;
        needs_own_containerd(args, &registries)?;
        if let Some(image) = images.pause_image.as_ref().filter(|i| !node::is_image_name(i)) {
            let why = "must be the name of an image, such as registry.example.com/pause:3.10";
            return Err(invalid_flag("pause-image", image, why));
        }
        for registry in &images.airgap_extra_registry {
            registries::check_registry(registry)
                .map_err(|why| invalid_flag("airgap-extra-registry", registry, why))?;
        }
        let parse = |text: &String| {
            text.parse::<Snapshotter>().map_err(|e| invalid_flag("snapshotter", text, e))
        };
        Ok(Self {
            snapshotter: images.snapshotter.as_ref().map(parse).transpose()?,
            image_endpoint: images.image_service_endpoint.as_deref().map(socket),
            registries,
        })
    }

    /// Sets the runtime's configuration.
    pub(super) fn apply(
        &self,
        runtime: &mut node::RuntimeConfig,
        args: &NodeArgs,
        cluster: &ClusterSettings,
    ) {
        let images = &args.images;
        let options = RegistryOptions {
            no_default: args.disable_default_registry_endpoint,
            embedded: cluster.embedded_registry,
            port: images.embedded_registry_port,
        };
        runtime.registries = self.registries.clone().with_options(options);
        runtime.registries_file = Some(args.private_registry.clone());
        runtime.pause_image = pause_image(images, cluster);
        runtime.extra_registries = extra_registries(images, cluster);
        runtime.snapshotter = self.snapshotter;
        runtime.image_endpoint.clone_from(&self.image_endpoint);
        runtime.default_runtime.clone_from(&images.default_runtime);
        runtime.nonroot_devices = images.nonroot_devices;
        runtime.selinux = args.selinux;
        runtime.share_latest = images.embedded_registry_latest;
        runtime.no_proxy = cluster.no_proxy();
    }
}

/// The pause image of the flag, from the default registry unless its name begins with that, as in
/// k3s.
fn pause_image(images: &ImageArgs, cluster: &ClusterSettings) -> Option<String> {
    let image = images.pause_image.as_ref()?;
    let full = match &cluster.system_default_registry {
        Some(registry) if !image.starts_with(registry) => format!("{registry}/{image}"),
        _ => image.clone(),
    };
    Some(node::full_image_name(&full))
}

/// The registries whose names imported images also get.
fn extra_registries(images: &ImageArgs, cluster: &ClusterSettings) -> Vec<String> {
    let mut all = images.airgap_extra_registry.clone();
    all.extend(cluster.system_default_registry.clone());
    all.compact_sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flags: &[&str]) -> NodeArgs {
        let argv = ["kube-lite", "agent", "--config=/dev/null", "--private-registry=/none"];
        let argv = argv.iter().chain(flags).map(Into::into).collect();
        let parsed = crate::command_line::parse(argv, |_| None).map_err(|_| "invalid flags");
        match parsed.unwrap().command {
            crate::command_line::Command::Agent(args) => args.node,
            _ => unreachable!(),
        }
    }

    fn error(flags: &[&str]) -> String {
        format!("{:?}", ImageConfig::new(&args(flags)).unwrap_err())
    }

    #[test]
    fn the_default_registry_precedes_the_pause_image_and_names_imported_images() {
        let cluster = ClusterSettings {
            system_default_registry: Some("r.io:5000".into()),
            ..ClusterSettings::default()
        };
        let none = ClusterSettings::default();
        let given = args(&["--pause-image=rancher/mirrored-pause:3.6"]).images;
        let image = pause_image(&given, &cluster);
        assert_eq!(image.as_deref(), Some("r.io:5000/rancher/mirrored-pause:3.6"));
        let image = pause_image(&given, &none);
        assert_eq!(image.as_deref(), Some("docker.io/rancher/mirrored-pause:3.6"));
        let own = args(&["--pause-image=r.io:5000/pause", "--airgap-extra-registry=x.io"]).images;
        assert_eq!(pause_image(&own, &cluster).as_deref(), Some("r.io:5000/pause:latest"));
        assert_eq!(extra_registries(&own, &cluster), ["r.io:5000", "x.io"]);
        assert_eq!(pause_image(&args(&[]).images, &cluster), None);
    }

    #[test]
    fn invalid_flags_are_refused_by_name() {
        for (flags, text) in [
            (
                &["--snapshotter=stargz"][..],
                "--snapshotter=stargz: is not supported; supported are",
            ),
            (&["--pause-image=A B"], "--pause-image=A B: must be the name of an image"),
            (&["--airgap-extra-registry=a/b"], "--airgap-extra-registry=a/b: must be a host"),
            (
                &["--container-runtime-endpoint=/c.sock", "--nonroot-devices"],
                "--nonroot-devices=true: needs kube-lite's own containerd",
            ),
        ] {
            let error = error(flags);
            assert!(error.contains(text), "{error}");
        }
    }
}
