//! The settings in `--kubelet-arg` and in files of KubeletConfiguration.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::Quantity;
use api::k8s::api::core::v1::Taint;
use node::resource_manager_config::ResourceManagersConfig;
use node::{
    ImageVerification, MemoryConfig, NodeAllocatableEnforcement, ShutdownGracePeriod, StaticPodUrl,
    SystemLogsConfig,
};

use super::enforcement_args;
use super::eviction_args::{self, EvictionSettings};
use super::flags;
use super::images;
use super::kubelet_config::{FieldArguments, KubeletConfig};
use super::kubelet_fields;
use super::memory_args;
use super::resource_manager_args;
use super::shutdown_args;
use super::static_pod_args;
use crate::command_line::components::kubelet::KUBELET;
use crate::command_line::components::kubelet_config::{
    CONFIG_FIELDS, IDS_PER_POD, IMAGE_ALLOWLIST, IMAGE_VERIFICATION, LOG_HANDLER, LOG_QUERY,
    RESTART_DELAY_MAX,
};
use crate::command_line::components::{Arguments, PlacedArgument};
use crate::error_catalogue::{BAD_VALUE, CommandError, UNSUPPORTED_FLAG};

/// Maximum number of image pulls at one time.
const PULLS_MAX: usize = 64;
/// The shortest interval of status updates.
const SECOND: Duration = Duration::from_secs(1);
/// Port of the kubelet's `/healthz` (`KubeletHealthzPort`).
const HEALTHZ_PORT: u16 = 10248;

/// Quantities by resource.
type Amounts = BTreeMap<String, String>;

/// The settings of the node.
#[derive(Debug, Clone, Default)]
pub(super) struct KubeletSettings {
    pub(super) max_pods: Option<u32>,
    pub(super) pods_per_core: Option<u32>,
    pub(super) pod_pids_max: Option<i64>,
    pub(super) seccomp_default: bool,
    pub(super) allowed_sysctls: Vec<String>,
    pub(super) reserved: BTreeMap<String, String>,
    pub(super) kube_reserved: BTreeMap<String, String>,
    pub(super) enforcement: NodeAllocatableEnforcement,
    pub(super) resource_managers: ResourceManagersConfig,
    pub(super) static_pod_url: Option<StaticPodUrl>,
    pub(super) eviction: EvictionSettings,
    pub(super) image_pulls_max: Option<usize>,
    /// The programs that provide credentials for images, and their configuration.
    pub(super) credential_provider_dir: Option<PathBuf>,
    pub(super) credential_provider_config: Option<PathBuf>,
    pub(super) image_age_min: Option<Duration>,
    /// Zero for no limit.
    pub(super) image_age_max: Option<Duration>,
    /// Which images that are present need credentials, which only files set.
    pub(super) image_verification: Option<ImageVerification>,
    pub(super) image_gc_high: Option<u8>,
    pub(super) image_gc_low: Option<u8>,
    pub(super) log_max_size: Option<u64>,
    pub(super) log_max_files: Option<usize>,
    pub(super) status_check_interval: Option<Duration>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
    pub(super) external_cloud: bool,
    pub(super) provider_id: Option<String>,
    pub(super) protect_kernel_defaults: bool,
    pub(super) resolv_conf: Option<PathBuf>,
    /// Address of `/healthz`, if it is served.
    pub(super) healthz: Option<SocketAddr>,
    pub(super) root_dir: Option<PathBuf>,
    /// The grace periods at a shutdown of the machine, which only files set.
    pub(super) shutdown_grace: Option<ShutdownGracePeriod>,
    /// The longest delay before a container that exited is restarted, which only files set.
    pub(super) restart_delay_max: Option<Duration>,
    /// The number of ids of a pod with a user namespace, which only files set.
    pub(super) ids_per_pod: Option<u32>,
    /// The use of memory beside its limits, which only files set.
    pub(super) memory: MemoryConfig,
    /// What is served at `/logs/`, which only files set.
    pub(super) system_logs: SystemLogsConfig,
    /// The fields that files and arguments give.
    pub(super) fields: Arc<serde_json::Map<String, serde_json::Value>>,
    /// Arguments without effect, each with the reason.
    pub(super) without_effect: Vec<String>,
}

/// Replaces a value by one that an argument sets.
fn set<T: Clone>(value: &mut T, argument: &Option<T>) {
    if let Some(argument) = argument {
        value.clone_from(argument);
    }
}

impl KubeletSettings {
    /// Writes the settings to the configuration of the node.
    pub(super) fn apply(&self, config: &mut node::Config) {
        set(&mut config.max_pods, &self.max_pods);
        set(&mut config.pods_per_core, &self.pods_per_core);
        self.eviction.apply(config);
        set(&mut config.image_pulls_max, &self.image_pulls_max);
        set(&mut config.image_age_min, &self.image_age_min);
        set(&mut config.image_age_max, &self.image_age_max);
        set(&mut config.image_verification, &self.image_verification);
        set(&mut config.image_gc_high, &self.image_gc_high);
        set(&mut config.image_gc_low, &self.image_gc_low);
        set(&mut config.log_max_size, &self.log_max_size);
        set(&mut config.log_max_files, &self.log_max_files);
        set(&mut config.status_check_interval, &self.status_check_interval);
        set(&mut config.provider_id, &self.provider_id);
        set(&mut config.restart_delay_max, &self.restart_delay_max);
        set(&mut config.ids_per_pod, &self.ids_per_pod);
        config.healthz = self.healthz;
        config.memory = self.memory;
        config.system_logs = self.system_logs;
        config.given_fields = Arc::clone(&self.fields);
        config.pod_pids_max = self.pod_pids_max;
        config.seccomp_default = self.seccomp_default;
        config.allowed_sysctls.clone_from(&self.allowed_sysctls);
        config.reserved.clone_from(&self.reserved);
        config.kube_reserved.clone_from(&self.kube_reserved);
        config.enforcement.clone_from(&self.enforcement);
        config.resource_managers.clone_from(&self.resource_managers);
        config.static_pod_url.clone_from(&self.static_pod_url);
    }
}

/// Reads the files that the arguments name. Those of `drop_ins`, the folder in the data directory,
/// apply where there is no argument `config-dir`.
fn read_files(given: &Arguments, drop_ins: &Path) -> Result<KubeletConfig, CommandError> {
    let file = absolute(given, "config")?;
    let folder = absolute(given, "config-dir")?;
    let folder = folder.or_else(|| drop_ins.is_dir().then(|| drop_ins.to_owned()));
    KubeletConfig::read(file.as_deref(), folder.as_deref())
        .map_err(|error| BAD_VALUE.usage_error(error))
}

/// Checks the arguments, and the fields of files. An argument takes precedence over the field.
///
/// # Errors
/// The first argument or field that is invalid or not supported, by name.
pub(super) fn parse(given: &[String], drop_ins: &Path) -> Result<KubeletSettings, CommandError> {
    let mut files = read_files(&KUBELET.parse(given)?, drop_ins)?;
    let names: Vec<&str> =
        given.iter().map(|text| component_config::flags::parts(text).0).collect();
    let FieldArguments { arguments: fields, own } =
        files.arguments(&names).map_err(|error| BAD_VALUE.usage_error(error))?;
    let mut all: Vec<PlacedArgument> =
        given.iter().map(|text| PlacedArgument { text: text.clone(), place: None }).collect();
    all.extend(fields);
    let mut own = CONFIG_FIELDS.parse_given(&own)?;
    let mut settings = settings(KUBELET.parse_given(&all)?)?;
    settings.shutdown_grace = shutdown_args::of_files(&own)?;
    settings.restart_delay_max = restart_delay_max(&own)?;
    settings.image_verification = image_verification(&own)?;
    settings.ids_per_pod = ids_per_pod(&own)?;
    settings.memory = memory_args::parse(&own)?;
    settings.system_logs = system_logs(&own)?;
    settings.fields = Arc::new(kubelet_fields::given(&files, given));
    settings.without_effect.append(&mut own.without_effect);
    settings.without_effect.append(&mut files.not_read);
    Ok(settings)
}

/// What is served at `/logs/` (the kubelet's validation).
fn system_logs(own: &Arguments) -> Result<SystemLogsConfig, CommandError> {
    let default = SystemLogsConfig::default();
    let handler = own.boolean(LOG_HANDLER)?.unwrap_or(default.handler);
    let query = own.boolean(LOG_QUERY)?.unwrap_or(default.query);
    if query && !handler {
        let why = "invalid configuration: enableSystemLogHandler is required for \
                   enableSystemLogQuery";
        return Err(own.invalid(LOG_QUERY, why));
    }
    Ok(SystemLogsConfig { handler, query })
}

/// The longest delay between restarts of a file, within the bounds of the kubelet's validation.
fn restart_delay_max(own: &Arguments) -> Result<Option<Duration>, CommandError> {
    let delay = own.duration(RESTART_DELAY_MAX, SECOND)?;
    if delay.is_some_and(|delay| delay > node::RESTART_DELAY_MAX) {
        return Err(own.invalid(RESTART_DELAY_MAX, "must be at most 300s"));
    }
    Ok(delay)
}

/// The number of ids of a pod with a user namespace (the kubelet's validation).
fn ids_per_pod(own: &Arguments) -> Result<Option<u32>, CommandError> {
    let number = own.number::<i64>(IDS_PER_POD, i64::MIN..=i64::MAX)?;
    let Some(number) = number else { return Ok(None) };
    let unit = node::IDS_PER_POD;
    if number < i64::from(unit) {
        return Err(own.invalid(IDS_PER_POD, format!("must not be less than {unit}")));
    }
    if number % i64::from(unit) != 0 {
        return Err(own.invalid(IDS_PER_POD, format!("must be a multiple of {unit}")));
    }
    let number = u32::try_from(number);
    let limit = format!("must not be more than {}", u32::MAX);
    number.map(Some).map_err(|_| own.invalid(IDS_PER_POD, limit))
}

/// Which images that are present need credentials (the kubelet's validation).
fn image_verification(own: &Arguments) -> Result<Option<ImageVerification>, CommandError> {
    let policy = own.value(IMAGE_VERIFICATION);
    let allowlist = own.value(IMAGE_ALLOWLIST).unwrap_or_default();
    let allowlist: Vec<String> =
        allowlist.split(',').filter(|_| !allowlist.is_empty()).map(str::to_owned).collect();
    if !allowlist.is_empty() && policy != Some("NeverVerifyAllowlistedImages") {
        let why = "can't be set if imagePullCredentialsVerificationPolicy is not \
                   NeverVerifyAllowlistedImages";
        return Err(own.invalid(IMAGE_ALLOWLIST, why));
    }
    let Some(policy) = policy else { return Ok(None) };
    let name = if allowlist.is_empty() { IMAGE_VERIFICATION } else { IMAGE_ALLOWLIST };
    let parsed = ImageVerification::parse(policy, &allowlist);
    parsed.map(Some).map_err(|error| own.invalid(name, error))
}

fn settings(mut arguments: Arguments) -> Result<KubeletSettings, CommandError> {
    let pids = arguments.number::<i64>("pod-max-pids", -1..=i64::MAX)?;
    let (gc_high, gc_low) = image_thresholds(&arguments)?;
    let external_cloud = cloud_provider(&mut arguments)?;
    tls_version(&mut arguments)?;
    let (reserved, kube_reserved, resource_managers) = reservations(&arguments)?;
    let enforcement = enforcement_args::parse(&mut arguments)?;
    let static_pod_url = static_pod_args::parse(&mut arguments)?;
    Ok(KubeletSettings {
        max_pods: arguments.number("max-pods", 1..=u32::MAX)?,
        pods_per_core: arguments.number("pods-per-core", 0..=u32::MAX)?,
        pod_pids_max: pids.filter(|pids| *pids > 0),
        seccomp_default: arguments.boolean("seccomp-default")?.unwrap_or_default(),
        allowed_sysctls: sysctls(&arguments)?,
        reserved,
        kube_reserved,
        enforcement,
        resource_managers,
        static_pod_url,
        eviction: eviction_args::parse(&arguments)?,
        image_pulls_max: image_pulls(&arguments)?,
        credential_provider_dir: absolute(&arguments, images::PROVIDER_DIR)?,
        credential_provider_config: absolute(&arguments, images::PROVIDER_CONFIG)?,
        image_age_min: image_age(&arguments)?,
        image_age_max: image_age_max(&arguments)?,
        image_verification: None,
        image_gc_high: gc_high,
        image_gc_low: gc_low,
        log_max_size: log_size(&arguments)?,
        log_max_files: arguments.number("container-log-max-files", 2..=usize::MAX)?,
        status_check_interval: arguments.duration("node-status-update-frequency", SECOND)?,
        labels: flags::labels(&list(&arguments, "node-labels"))
            .map_err(|error| arguments.invalid("node-labels", error.details))?,
        taints: flags::taints(&list(&arguments, "register-with-taints"))
            .map_err(|error| arguments.invalid("register-with-taints", error.details))?,
        external_cloud,
        provider_id: arguments.value("provider-id").map(str::to_owned),
        protect_kernel_defaults: arguments.boolean("protect-kernel-defaults")?.unwrap_or_default(),
        resolv_conf: absolute(&arguments, "resolv-conf")?,
        healthz: healthz(&arguments)?,
        root_dir: absolute(&arguments, "root-dir")?,
        restart_delay_max: None,
        ids_per_pod: None,
        shutdown_grace: None,
        memory: MemoryConfig::default(),
        system_logs: SystemLogsConfig::default(),
        fields: Arc::default(),
        without_effect: arguments.without_effect,
    })
}

/// What is reserved, and the managers of the rest. CPUs that are reserved by number replace the
/// amounts of CPU, as in the kubelet.
fn reservations(
    arguments: &Arguments,
) -> Result<(Amounts, Amounts, ResourceManagersConfig), CommandError> {
    let mut system = reserved(arguments, "system-reserved")?;
    let mut kube = reserved(arguments, "kube-reserved")?;
    let managers = resource_manager_args::parse(arguments)?;
    if let Some(cpus) = &managers.reserved_cpus {
        system.insert("cpu".to_owned(), cpus.len().to_string());
        kube.remove("cpu");
    }
    Ok((system, kube, managers))
}

/// The address of `/healthz`; port 0 disables it.
fn healthz(arguments: &Arguments) -> Result<Option<SocketAddr>, CommandError> {
    let port = arguments.number("healthz-port", 0..=u16::MAX)?.unwrap_or(HEALTHZ_PORT);
    let address = match arguments.value("healthz-bind-address") {
        None => Ok(IpAddr::from([127, 0, 0, 1])),
        Some(text) => text.parse::<IpAddr>(),
    };
    let why = "must be an IP address, such as 127.0.0.1";
    let address = address.map_err(|_| arguments.invalid("healthz-bind-address", why))?;
    Ok((port != 0).then_some(SocketAddr::new(address, port)))
}

/// The parts of the comma-separated lists of an argument.
pub(super) fn list(arguments: &Arguments, name: &str) -> Vec<String> {
    let parts = arguments.values(name).iter().flat_map(|value| value.split(','));
    parts.map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn absolute(arguments: &Arguments, name: &str) -> Result<Option<PathBuf>, CommandError> {
    let path = arguments.value(name).map(PathBuf::from);
    match path {
        Some(path) if !path.is_absolute() => {
            Err(arguments.invalid(name, "must be an absolute path"))
        }
        path => Ok(path),
    }
}

/// Patterns of sysctls: a name, or a prefix with `*`.
fn sysctls(arguments: &Arguments) -> Result<Vec<String>, CommandError> {
    let name = "allowed-unsafe-sysctls";
    let patterns = list(arguments, name);
    // The groups with a namespace of their own (`pkg/kubelet/sysctl`).
    let has_namespace = |pattern: &String| {
        let pattern = pattern.replace('/', ".");
        let groups = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.", "net.", "user."];
        groups.iter().any(|group| pattern.starts_with(group))
    };
    match patterns.iter().find(|pattern| !has_namespace(pattern)) {
        Some(pattern) => {
            let why = format!(
                "{pattern} has no namespace of its own; kernel.shm*, kernel.msg*, kernel.sem, \
                 fs.mqueue.*, net.* and user.* have"
            );
            Err(arguments.invalid(name, why))
        }
        None => Ok(patterns.into_iter().map(|pattern| pattern.replace('/', ".")).collect()),
    }
}

/// `cpu=100m,memory=256Mi,…`
fn reserved(arguments: &Arguments, name: &str) -> Result<BTreeMap<String, String>, CommandError> {
    let mut out = BTreeMap::new();
    for part in arguments.value(name).unwrap_or_default().split(',').filter(|p| !p.is_empty()) {
        let invalid = |why: &str| arguments.invalid(name, format!("{part}: {why}"));
        let form = "must be RESOURCE=QUANTITY, such as cpu=100m";
        let (resource, amount) = part.split_once('=').ok_or_else(|| invalid(form))?;
        let (resource, amount) = (resource.trim(), amount.trim());
        match resource {
            "cpu" | "memory" | "ephemeral-storage" | "pid" => {}
            _ => return Err(invalid("must be cpu, memory, ephemeral-storage or pid")),
        }
        if Quantity::parse(amount).ok().is_none_or(|quantity| quantity.sign() < 0) {
            return Err(invalid(form));
        }
        if out.insert(resource.to_owned(), amount.to_owned()).is_some() {
            return Err(invalid("is given twice"));
        }
    }
    Ok(out)
}

/// The thresholds of image garbage collection, in percent.
fn image_thresholds(arguments: &Arguments) -> Result<(Option<u8>, Option<u8>), CommandError> {
    const LOW: &str = "image-gc-low-threshold";
    let high = arguments.number::<u8>("image-gc-high-threshold", 0..=100)?;
    let low = arguments.number::<u8>(LOW, 0..=100)?;
    // The defaults of upstream.
    let (high_or, low_or) = (high.unwrap_or(85), low.unwrap_or(80));
    if low_or >= high_or {
        let why = format!(
            "image-gc-low-threshold ({low_or}) must be below image-gc-high-threshold ({high_or})"
        );
        let name = if low.is_some() { LOW } else { "image-gc-high-threshold" };
        return Err(arguments.invalid(name, why));
    }
    Ok((high, low))
}

/// The number of image pulls at one time.
fn image_pulls(arguments: &Arguments) -> Result<Option<usize>, CommandError> {
    const PARALLEL: &str = "max-parallel-image-pulls";
    let parallel = arguments.number::<usize>(PARALLEL, 1..=PULLS_MAX)?;
    match (arguments.boolean("serialize-image-pulls")?, parallel) {
        (Some(true), Some(n)) if n > 1 => {
            let why = "contradicts serialize-image-pulls=true; remove one of them";
            Err(arguments.invalid(PARALLEL, why))
        }
        (Some(true), _) => Ok(Some(1)),
        (_, parallel) => Ok(parallel),
    }
}

fn image_age(arguments: &Arguments) -> Result<Option<Duration>, CommandError> {
    let age = arguments.duration("image-minimum-gc-age", Duration::ZERO)?;
    Ok(age.or(arguments.duration("minimum-image-ttl-duration", Duration::ZERO)?))
}

/// The age at which unused images are removed; zero for no limit.
fn image_age_max(arguments: &Arguments) -> Result<Option<Duration>, CommandError> {
    const NAME: &str = "image-maximum-gc-age";
    let age = arguments.duration(NAME, Duration::ZERO)?;
    // The default of upstream.
    let least = image_age(arguments)?.unwrap_or(Duration::from_secs(120));
    if age.is_some_and(|age| !age.is_zero() && age <= least) {
        let why = format!("must be greater than imageMinimumGCAge, {}s", least.as_secs_f64());
        return Err(arguments.invalid(NAME, why));
    }
    Ok(age)
}

fn log_size(arguments: &Arguments) -> Result<Option<u64>, CommandError> {
    const NAME: &str = "container-log-max-size";
    let Some(text) = arguments.value(NAME) else { return Ok(None) };
    let size = Quantity::parse(text).ok().and_then(|q| u64::try_from(q.value()).ok());
    let why = "must be a positive quantity, such as 10Mi";
    size.filter(|size| *size > 0).map(Some).ok_or_else(|| arguments.invalid(NAME, why))
}

/// Whether an external cloud controller initializes this node.
fn cloud_provider(arguments: &mut Arguments) -> Result<bool, CommandError> {
    const NAME: &str = "cloud-provider";
    match arguments.value(NAME) {
        None => Ok(false),
        Some("external") => Ok(true),
        Some(_) => Err(arguments.invalid(NAME, "must be external; no cloud provider is built in")),
    }
}

/// The servers of a node accept TLS 1.2 and 1.3.
fn tls_version(arguments: &mut Arguments) -> Result<(), CommandError> {
    const NAME: &str = "tls-min-version";
    match arguments.value(NAME) {
        None => Ok(()),
        Some(version @ ("VersionTLS10" | "VersionTLS11" | "VersionTLS12")) => {
            let place = arguments.place(NAME);
            let note = format!("{place}={version}: the minimum is always TLS 1.2");
            arguments.without_effect.push(note);
            Ok(())
        }
        Some(version @ "VersionTLS13") => Err(UNSUPPORTED_FLAG.usage_error(format!(
            "{}={version} is not supported: clients of TLS 1.2 are always accepted",
            arguments.place(NAME)
        ))),
        Some(_) => Err(arguments.invalid(NAME, "must be VersionTLS12")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[&str]) -> Result<KubeletSettings, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        super::parse(&given, Path::new("/none")).map_err(|error| error.to_string())
    }

    #[test]
    fn healthz_listens_on_the_loopback_interface_unless_arguments_say_otherwise() {
        let healthz = |given: &[&str]| parse(given).map(|s| s.healthz.map(|at| at.to_string()));
        let at = |text: &str| Ok::<_, String>(Some(text.to_owned()));
        assert_eq!(healthz(&[]), at("127.0.0.1:10248"));
        assert_eq!(healthz(&["healthz-port=0"]), Ok(None));
        let given = ["healthz-port=99", "healthz-bind-address=::1"];
        assert_eq!(healthz(&given), at("[::1]:99"));
        assert!(healthz(&["healthz-bind-address=x"]).unwrap_err().contains("IP address"));
    }

    #[test]
    fn arguments_set_the_settings_of_the_node() {
        let settings = parse(&[
            "max-pods=250",
            "pods-per-core=10",
            "system-reserved=cpu=100m,memory=256Mi",
            "kube-reserved=memory=1Gi",
            "image-gc-high-threshold=70",
            "image-gc-low-threshold=60",
            "container-log-max-size=5Mi",
            "container-log-max-files=3",
            "node-labels=a=b,c=d",
            "register-with-taints=x=y:NoSchedule",
            "allowed-unsafe-sysctls=net.ipv4.ip_forward,kernel.msg*",
            "serialize-image-pulls=true",
            "pod-max-pids=1000",
            "cloud-provider=external",
            "v=4",
            "read-only-port=0",
        ])
        .unwrap();
        assert_eq!((settings.max_pods, settings.pods_per_core), (Some(250), Some(10)));
        assert_eq!(settings.reserved["memory"], "256Mi");
        assert_eq!(settings.kube_reserved["memory"], "1Gi");
        assert_eq!((settings.image_gc_high, settings.image_gc_low), (Some(70), Some(60)));
        assert_eq!((settings.log_max_size, settings.log_max_files), (Some(5 << 20), Some(3)));
        assert_eq!((settings.labels.len(), settings.taints.len()), (2, 1));
        assert_eq!(settings.allowed_sysctls, ["net.ipv4.ip_forward", "kernel.msg*"]);
        assert_eq!((settings.image_pulls_max, settings.pod_pids_max), (Some(1), Some(1000)));
        assert!(settings.external_cloud);
        let notes = "--kubelet-arg=v: use -v or --debug of kube-lite";
        assert_eq!(settings.without_effect[0], notes);
        assert_eq!(settings.without_effect.len(), 2);
    }

    #[test]
    fn arguments_that_cannot_be_honoured_are_refused_by_name() {
        for (given, want) in [
            ("max-pods", "--kubelet-arg=max-pods has no value"),
            ("max-pods=0", "--kubelet-arg=max-pods=0: must be a number from 1"),
            ("max-pod=5", "--kubelet-arg=max-pod is not supported, did you mean max-pods?"),
            ("system-reserved=cpu", "cpu: must be RESOURCE=QUANTITY"),
            ("system-reserved=gpu=1", "gpu=1: must be cpu, memory, ephemeral-storage or pid"),
            ("image-gc-low-threshold=90", "must be below image-gc-high-threshold (85)"),
            ("container-log-max-files=1", "must be a number from 2"),
            ("eviction-soft=memory.available<1Gi", "grace period must be specified for the soft"),
            ("cpu-manager-policy=fast", "unknown policy: \"fast\""),
            ("memory-manager-policy=BestEffort", "is not available for platform \"linux\""),
            ("cpu-cfs-quota=false", "limits of CPU are always enforced"),
            ("allowed-unsafe-sysctls=vm.swappiness", "vm.swappiness has no namespace"),
            ("node-labels=node-role.kubernetes.io/x=", "--kubelet-arg=node-labels="),
            ("cloud-provider=aws", "must be external"),
            ("tls-min-version=VersionTLS13", "clients of TLS 1.2 are always accepted"),
            ("resolv-conf=etc", "must be an absolute path"),
            ("config=kubelet.yaml", "--kubelet-arg=config=kubelet.yaml: must be an absolute path"),
            ("config=/none/kubelet.yaml", "/none/kubelet.yaml: No such file"),
            ("config-dir=/none", "/none: No such file"),
            ("read-only-port=10255", "every request to a kubelet is authenticated"),
            ("feature-gates=Nope=true", "unrecognized feature gate: Nope"),
        ] {
            let error = parse(&[given]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    /// Parses arguments beside a file with the fields of `text`; the error as text.
    fn with_file(file: &Path, text: &str, given: &[&str]) -> Result<KubeletSettings, String> {
        let kind = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration";
        std::fs::write(file, format!("{kind}\n{text}\n")).unwrap();
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        super::parse(&given, file.parent().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_ids_of_a_pod_are_a_multiple_of_65536() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("10.conf");
        let run = |number: &str| {
            let text = format!("userNamespaces: {{idsPerPod: {number}}}");
            with_file(&file, &text, &[]).map(|settings| settings.ids_per_pod)
        };
        assert_eq!(run("131072").unwrap(), Some(131_072));
        assert_eq!(run("null").unwrap(), None);
        for (number, want) in [
            ("0", "idsPerPod=0: must not be less than 65536"),
            ("65535", "idsPerPod=65535: must not be less than 65536"),
            ("65537", "idsPerPod=65537: must be a multiple of 65536"),
            ("4294967296", "idsPerPod=4294967296: must not be more than 4294967295"),
            ("many", "userNamespaces.idsPerPod must be a whole number"),
        ] {
            let error = run(number).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn queries_of_logs_need_the_handler_of_logs() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("10.conf");
        let settings = with_file(&file, "enableSystemLogQuery: true", &[]).unwrap();
        assert_eq!(settings.system_logs, SystemLogsConfig { handler: true, query: true });
        let text = "enableSystemLogQuery: true\nenableSystemLogHandler: false";
        let error = with_file(&file, text, &[]).unwrap_err();
        let why = "invalid configuration: enableSystemLogHandler is required for \
                   enableSystemLogQuery";
        assert!(error.contains(&format!(": enableSystemLogQuery=true: {why}")), "{error}");
    }

    #[test]
    fn memory_has_a_behavior_of_swap_a_reservation_and_a_throttling_factor() {
        use node::{MemoryReservation, SwapBehavior};
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("10.conf");
        let memory = with_file(
            &file,
            "memorySwap: {swapBehavior: LimitedSwap}\nmemoryThrottlingFactor: 0.9\n\
             memoryReservationPolicy: TieredReservation",
            &[],
        );
        let expected = MemoryConfig {
            swap: SwapBehavior::LimitedSwap,
            reservation: MemoryReservation::Tiered,
            throttling_factor: Some(0.9),
        };
        assert_eq!(memory.unwrap().memory, expected);
        for (text, want) in [
            (
                "memorySwap: {swapBehavior: UnlimitedSwap}",
                ": memorySwap.swapBehavior=UnlimitedSwap: must be one of: \"\", \"LimitedSwap\" or",
            ),
            (
                "memoryReservationPolicy: Hard",
                ": memoryReservationPolicy=Hard: valid options are \"None\" or \"TieredReservation\"",
            ),
            ("memoryThrottlingFactor: 0", ": memoryThrottlingFactor=0: must be greater than 0 and"),
            ("memoryThrottlingFactor: 1.1", ": memoryThrottlingFactor=1.1: must be greater than 0"),
        ] {
            let error = with_file(&file, text, &[]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn files_have_the_decisions_of_arguments_with_their_place() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("10.conf");
        let run = |text: &str, given: &[&str]| with_file(&file, text, given);
        let settings = run(
            "maxPods: 50\npodPidsLimit: 99\nshutdownGracePeriod: 20s\nlogging: {verbosity: 4}\n\
             featureGates: {NodeSwap: true}\ncpuManagerPolicy: none\n\
             crashLoopBackOff: {maxContainerRestartPeriod: 30s}\nimageMaximumGCAge: 24h\n\
             imagePullCredentialsVerificationPolicy: AlwaysVerify",
            &["max-pods=60"],
        )
        .unwrap();
        assert_eq!((settings.max_pods, settings.pod_pids_max), (Some(60), Some(99)));
        let (total, critical) = (Duration::from_secs(20), Duration::ZERO);
        let grace = ShutdownGracePeriod::Total { total, critical };
        assert_eq!(settings.shutdown_grace, Some(grace));
        assert_eq!(settings.restart_delay_max, Some(Duration::from_secs(30)));
        assert_eq!(settings.image_age_max, Some(Duration::from_secs(24 * 3600)));
        assert_eq!(settings.image_verification, Some(ImageVerification::AlwaysVerify));
        let place = file.display();
        let note = format!("{place}: logging.verbosity: use -v or --debug of kube-lite");
        assert!(settings.without_effect.contains(&note), "{:?}", settings.without_effect);
        for (text, want) in [
            ("maxPods: -1", ": maxPods=-1: must be a number from 1"),
            ("cpuCFSQuota: false", ": cpuCFSQuota=false is not supported: limits of CPU"),
            ("cpuManagerPolicy: fast", ": cpuManagerPolicy=fast: unknown policy: \"fast\""),
            (
                "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]",
                ": reservedMemory=0:memory=0: invalid configuration: reserved memory may not be \
                 zero for NUMA node 0 and resource \"memory\"",
            ),
            (
                "reservedMemory: [{node: 0}]",
                ": reservedMemory must be a list of numaNode and limits",
            ),
            ("clusterDNS: [10.0.0.10]", ": clusterDNS is not supported: use --cluster-dns of"),
            ("tlsMinVersion: VersionTLS13", ": tlsMinVersion=VersionTLS13 is not supported"),
            (
                "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
                ": crashLoopBackOff.maxContainerRestartPeriod=0s: must be at least 1s",
            ),
            (
                "crashLoopBackOff: {maxContainerRestartPeriod: 6m}",
                ": crashLoopBackOff.maxContainerRestartPeriod=6m: must be at most 300s",
            ),
            ("featureGates: {Nope: true}", ": featureGates: unrecognized feature gate: Nope"),
            ("imageMaximumGCAge: 1m", ": imageMaximumGCAge=1m: must be greater than imageMin"),
            (
                "imagePullCredentialsVerificationPolicy: Never",
                ": imagePullCredentialsVerificationPolicy=Never: must be NeverVerify, NeverVerifyP",
            ),
            (
                "preloadedImagesVerificationAllowlist: [a]",
                ": preloadedImagesVerificationAllowlist=a: can't be set if imagePull",
            ),
            (
                "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
                 preloadedImagesVerificationAllowlist: ['a*']",
                ": preloadedImagesVerificationAllowlist=a*: not a valid wildcard pattern",
            ),
            (
                "shutdownGracePeriodByPodPriority: [{priority: 0, seconds: 5}]",
                ": shutdownGracePeriodByPodPriority must be a list of priority and \
                 shutdownGracePeriodSeconds",
            ),
        ] {
            let error = run(text, &[]).unwrap_err();
            assert!(error.contains(&format!("{place}{want}")), "{error}");
        }
    }
}
