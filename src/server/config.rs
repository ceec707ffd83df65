//! The validated configuration of `kube-lite server`. All flags are checked before anything
//! changes.

mod apiserver_args;
mod apiserver_settings;
mod component_args;
mod ingress;
mod network;
#[cfg(test)]
mod tests;
mod virtual_addresses;

use apiserver::priority_and_fairness::flags as flow;
use apiserver::request_tracing;
use cluster::join::ServerAddress;
use cluster::token::{self, Credentials, Secret, Token};
use settings::{AddressPool, ClusterSettings};
use sorting::CollectOrdered as _;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::command_line::{Locations, ServerArgs, SnapshotArgs, read_token};
use crate::error_catalogue::{BAD_TOKEN, BAD_VALUE, CommandError, SHORT_TOKEN, invalid_flag};
use crate::machine::Machine;
use crate::server::{datastore, fast_loss, reset};
use crate::snapshots;
pub(crate) use apiserver_args::apiserver_arg_error;
use apiserver_args::{ApiServerArgs, audit_plan};
use apiserver_settings::ApiServerSettings;
use client::proxy::EnvironmentProxies;
use component_args::ComponentSettings;
use network::{AddressRanges, node_ports};

/// Components that `--disable` keeps from running.
const DISABLEABLE: [&str; 8] = [
    "coredns",
    "gateway-api-crd",
    INGRESS,
    "local-storage",
    METRICS_SERVER,
    "runtimes",
    "servicelb",
    INGRESS_OF_K3S,
];

/// Components that `--enable` runs.
const ENABLEABLE: [&str; 1] = [VERTICAL_AUTOSCALER];

/// The vertical pod autoscaler.
const VERTICAL_AUTOSCALER: &str = "vertical-pod-autoscaler";

/// The source of the usage of pods, whose name is that of k3s's component.
const METRICS_SERVER: &str = "metrics-server";

/// The name of the ingress, which is also that of its packaged manifest.
const INGRESS: &str = "ingress";

/// The name by which k3s's users disable the ingress.
const INGRESS_OF_K3S: &str = "traefik";

/// Port of the store's metrics.
const ETCD_METRICS_PORT: u16 = 2381;

/// Upstream's `--default-not-ready-toleration-seconds` and `--default-unreachable-…`.
const TOLERATION_SECONDS: i64 = 300;

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// This machine as a node.
    pub machine: Machine,
    /// The settings that nodes receive from servers.
    pub cluster: ClusterSettings,
    /// Address of the API listener.
    pub listen: SocketAddr,
    /// Addresses of the etcd-compatible API with client certificates.
    pub etcd_listen: Vec<SocketAddr>,
    /// Its loopback address without TLS.
    pub etcd_listen_plain: Option<SocketAddr>,
    /// Addresses of the metrics of the store, without TLS.
    pub etcd_metrics_listen: Vec<SocketAddr>,
    /// The external datastore; `None` for the embedded store.
    pub datastore: Option<store::Endpoint>,
    /// Maximum size of keys and values of the store in bytes.
    pub etcd_quota: u64,
    /// Address at which pods and nodes reach the API.
    pub advertise: IpAddr,
    /// Proxies of downloads of charts.
    pub(crate) proxies: EnvironmentProxies,
    /// Port at which pods and nodes reach the API, if it is not the one of the listener.
    pub advertise_port: Option<u16>,
    /// Address at which the other members of the store reach this one.
    pub peer_address: IpAddr,
    /// Virtual address of the API, which one server holds.
    pub api_vip: Option<IpAddr>,
    /// Additional names and addresses of the serving certificate.
    pub tls_san: Vec<String>,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Administrator's kubeconfig and its mode.
    pub kubeconfig: (PathBuf, u32),
    /// Group of the kubeconfig; `None` for that of the process.
    pub kubeconfig_group: Option<u32>,
    /// Run the node.
    pub agent: bool,
    /// Run the controllers.
    pub controllers: bool,
    /// Whether HelmChart objects are applied.
    pub helm_controller: bool,
    /// Run the scheduler.
    pub scheduler: bool,
    /// Names of controllers that do not run.
    pub disabled_controllers: Vec<String>,
    /// How the scheduler works.
    pub scheduling: scheduler::config::Configuration,
    /// Settings of single controllers.
    pub tuning: controllers::Tuning,
    /// Names of `--disable`: components, and files in the manifests folder.
    pub disabled: BTreeSet<String>,
    /// Delete the objects of a file that is deleted from the manifests folder.
    pub manifests_prune: bool,
    /// Whether the resource metrics API is served.
    pub resource_metrics: bool,
    /// Run the vertical pod autoscaler.
    pub vertical_autoscaler: bool,
    /// Mark a node unreachable as soon as its tunnel is lost.
    pub fast_node_loss: bool,
    /// Default tolerations of not-ready and unreachable nodes, in seconds.
    pub toleration_seconds: (i64, i64),
    /// CSV file of static tokens.
    pub token_auth_file: Option<PathBuf>,
    /// Authenticators in addition to the cluster's own, and the anonymous paths.
    pub authentication: apiserver::authn::AuthenticationConfig,
    /// Encryption of values at rest, if a file configures it.
    pub encryption: Option<encryption::EncryptionConfig>,
    /// Which admission plugins run, and their configuration.
    pub admission: apiserver::admission::configuration::AdmissionConfig,
    /// Further settings of the API server.
    pub(crate) apiserver: ApiServerSettings,
    /// API Priority and Fairness.
    pub flow: flow::FlowFlags,
    /// The audit log.
    pub audit: Option<apiserver::audit::AuditConfig>,
    /// Request tracing; `None` without `tracing-config-file`.
    pub spans: Option<request_tracing::TracingConfig>,
    /// The authorizers.
    pub authorization: apiserver::authz::config::AuthorizationConfig,
    /// Secret with which machines join, if a flag sets it.
    pub token: Option<Secret>,
    /// Secret with which agents join, if a flag sets it.
    pub agent_token: Option<Secret>,
    /// Listen for other servers from the start.
    pub cluster_init: bool,
    /// Port of the peer API for the other members of the store.
    pub peer_port: u16,
    /// The servers to join.
    pub join: Option<JoinTarget>,
    /// Scheduled snapshots.
    pub snapshots: snapshots::Settings,
    /// Reset the store and exit.
    pub reset: Option<reset::Request>,
}

/// The cluster to join as a server.
#[derive(Debug, Clone)]
pub struct JoinTarget {
    /// Address of one of its servers.
    pub server: ServerAddress,
    /// The join token.
    pub token: Token,
}

fn join_target(args: &ServerArgs) -> Result<Option<JoinTarget>, CommandError> {
    let Some(text) = &args.server else { return Ok(None) };
    if args.cluster_init {
        let why = "contradicts --cluster-init: a server either joins a cluster or starts one";
        return Err(invalid_flag("server", text, why));
    }
    let server = text.parse().map_err(|why: &str| invalid_flag("server", text, why))?;
    let secret = read_token("token", args.token.as_ref(), args.token_file.as_deref())?;
    let Some(secret) = secret else {
        let why = "needs --token or --token-file with the content of server/token of that server";
        return Err(invalid_flag("server", text, why));
    };
    let token = token::parse(secret.reveal())
        .map_err(|e| BAD_TOKEN.usage_error(format!("the token: {e}")))?;
    if token.ca_hash.is_none() {
        let text =
            "the token has no CA hash, and a joining server receives all keys of the cluster";
        return Err(SHORT_TOKEN.usage_error(text));
    }
    match &token.credentials {
        Credentials::Shared { user, .. } if user == "server" => {
            Ok(Some(JoinTarget { server, token }))
        }
        _ => Err(BAD_TOKEN
            .usage_error("the token only joins agents; a server needs the one in server/token")),
    }
}

/// The addresses of the store's metrics, as of an etcd that k3s starts with
/// `--etcd-expose-metrics`.
fn etcd_metrics_listen(args: &ServerArgs, machine: &Machine) -> Vec<SocketAddr> {
    if !args.metrics.etcd_expose_metrics {
        return Vec::new();
    }
    let loopback = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let mut addresses = vec![SocketAddr::new(loopback, ETCD_METRICS_PORT)];
    let others = machine.node_ips.iter().filter(|ip| **ip != loopback);
    addresses.extend(others.map(|ip| SocketAddr::new(*ip, ETCD_METRICS_PORT)));
    addresses
}

/// The names of `--disable`; the one by which k3s's users disable the ingress adds ours.
fn disabled_components(disable: &[String]) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = disable.iter().cloned().collect_set();
    if names.contains(INGRESS_OF_K3S) {
        names.insert(INGRESS.to_owned());
    }
    names
}

/// Refuses unknown values of `--disable` and `--enable`, and a component without what it needs.
fn check_components(args: &ServerArgs) -> Result<(), CommandError> {
    let flags =
        [("disable", &args.disable, &DISABLEABLE[..]), ("enable", &args.enable, &ENABLEABLE)];
    for (flag, given, known) in flags {
        if let Some(name) = given.iter().find(|name| !known.contains(&name.as_str())) {
            let why = format!("unknown component; known components: {}", known.join(", "));
            return Err(invalid_flag(flag, name, why));
        }
    }
    if is_enabled(args, VERTICAL_AUTOSCALER) && is_disabled(args, METRICS_SERVER) {
        let why = "needs the usage of pods, which --disable=metrics-server switches off; \
                   remove one of both flags";
        return Err(invalid_flag("enable", VERTICAL_AUTOSCALER, why));
    }
    Ok(())
}

/// The secret of `--<flag>` or `--<flag>-file`, checked for its strength.
fn secret(
    flag: &str,
    token: Option<&Secret>,
    file: Option<&Path>,
) -> Result<Option<Secret>, CommandError> {
    let secret = read_token(flag, token, file)?;
    let chosen = secret.as_ref().map(cluster::token::files::validate_secret).transpose();
    chosen.map_err(|e| BAD_VALUE.usage_error(format!("--{flag}: {e}")))
}

fn snapshot_settings(
    args: &SnapshotArgs,
    machine: &Machine,
) -> Result<snapshots::Settings, CommandError> {
    let cron = &args.etcd_snapshot_schedule_cron;
    let schedule: snapshots::Schedule =
        cron.parse().map_err(|why| invalid_flag("etcd-snapshot-schedule-cron", cron, why))?;
    snapshots::check_name("etcd-snapshot-name", &args.etcd_snapshot_name)?;
    Ok(snapshots::Settings {
        folder: snapshots::Folder::new(args.etcd_snapshot_dir.as_deref(), &machine.data_dir),
        name: args.etcd_snapshot_name.clone(),
        schedule: (!args.etcd_disable_snapshots).then_some(schedule),
        retention: args.etcd_snapshot_retention,
        compress: args.etcd_snapshot_compress,
        node: machine.node_name.clone(),
        s3: snapshots::s3::settings::from_args(&args.s3)?,
    })
}

fn reset_request(args: &SnapshotArgs, joins: bool) -> Result<Option<reset::Request>, CommandError> {
    if args.cluster_reset && joins {
        return Err(BAD_VALUE.usage_error(
            "cannot perform cluster-reset while server URL is set - remove server from configuration before resetting",
        ));
    }
    let restore = args.cluster_reset_restore_path.clone();
    match (args.cluster_reset, restore) {
        (false, Some(_)) => Err(BAD_VALUE.usage_error(
            "invalid flag use; --cluster-reset required with --cluster-reset-restore-path",
        )),
        (reset, restore) => Ok(reset.then_some(reset::Request { restore })),
    }
}

/// The mode of `--write-kubeconfig-mode`.
fn kubeconfig_mode(text: &str) -> Result<u32, CommandError> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| invalid_flag("write-kubeconfig-mode", text, "must be octal, such as 600"))
}

/// The number of the group of `--write-kubeconfig-group`, which is a name or a number.
fn kubeconfig_group(text: Option<&str>) -> Result<Option<u32>, CommandError> {
    let Some(text) = text else { return Ok(None) };
    if let Ok(number) = text.parse() {
        return Ok(Some(number));
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
        Ok(None) => Err(invalid_flag("write-kubeconfig-group", text, "no group has this name")),
        Err(error) => Err(invalid_flag("write-kubeconfig-group", text, error)),
    }
}

/// Whether HelmChart objects are applied, which is a task of the controllers.
fn runs_helm_controller(args: &ServerArgs) -> bool {
    !args.helm.disable_helm_controller && !args.disable_controller_manager
}

/// Seconds that pods stay on nodes that are not ready, and on unreachable nodes.
fn toleration_seconds(args: &ServerArgs, given: (Option<i64>, Option<i64>)) -> (i64, i64) {
    let default =
        if args.fast_node_loss { fast_loss::TOLERATION_SECONDS } else { TOLERATION_SECONDS };
    let unreachable = args.default_unreachable_toleration_seconds.or(given.1).unwrap_or(default);
    let not_ready = args.default_not_ready_toleration_seconds.or(given.0);
    (not_ready.unwrap_or(TOLERATION_SECONDS), unreachable)
}

/// The settings that nodes receive.
///
/// # Errors
/// A flag of the proxies in front of the ingress is invalid.
fn cluster_settings(
    args: &ServerArgs,
    ranges: AddressRanges,
    cluster_dns: Vec<IpAddr>,
    pool: AddressPool,
    machine: &Machine,
) -> Result<ClusterSettings, CommandError> {
    let mut settings = ClusterSettings {
        cluster_cidrs: ranges.pods,
        service_cidrs: ranges.services,
        cluster_dns,
        cluster_domain: args.cluster_domain.trim_matches('.').to_owned(),
        external_cloud: args.cloud.disable_cloud_controller,
        no_service_lb: args.disable.iter().any(|name| name == "servicelb"),
        ..ClusterSettings::default()
    };
    settings.lb_pool = pool;
    args.cluster.apply(&mut settings);
    machine.apply_overlay(&mut settings);
    settings.supervisor_metrics = args.metrics.supervisor_metrics;
    settings.ingress = !disabled_components(&args.disable).contains(INGRESS);
    settings.ingress_proxies = ingress::proxies(args)?;
    Ok(settings)
}

/// Whether `--disable` names the component.
fn is_disabled(args: &ServerArgs, component: &str) -> bool {
    args.disable.iter().any(|name| name == component)
}

/// Whether `--enable` names the component.
fn is_enabled(args: &ServerArgs, component: &str) -> bool {
    args.enable.iter().any(|name| name == component)
}

/// Controllers that flags of kube-lite switch off.
fn disabled_controllers(args: &ServerArgs) -> Vec<String> {
    let no_cloud = args.cloud.disable_cloud_controller;
    let switches = [
        ("cloud-node-controller", no_cloud),
        // ServiceLB is a part of the cloud controller, as in k3s.
        ("service-lb-controller", no_cloud || is_disabled(args, "servicelb")),
        ("local-driver", is_disabled(args, "local-storage")),
        ("local-path-provisioner", is_disabled(args, "local-storage")),
    ];
    let off = switches.into_iter().filter(|(_, is_off)| *is_off);
    off.map(|(name, _)| name.to_owned()).collect()
}

/// The addresses at which nodes reach the API, and at which the other members of the store reach
/// this one. The first is by default the node's external address in the family of Service
/// `kubernetes`: endpoints of another family are not published.
fn own_addresses(
    args: &ServerArgs,
    machine: &Machine,
    cluster: &ClusterSettings,
) -> (IpAddr, IpAddr) {
    let peer_address = args.advertise_address.unwrap_or(machine.ip());
    let family = cluster.service_cidrs.first().map(settings::Cidr::family);
    let mut external = machine.args.addresses.node_external_ip.iter().copied();
    let external = external.find(|ip| Some(settings::Family::of(*ip)) == family);
    (args.advertise_address.or(external).unwrap_or(peer_address), peer_address)
}

/// The administrator's kubeconfig: its path and mode.
fn kubeconfig(args: &ServerArgs, locations: &Locations) -> Result<(PathBuf, u32), CommandError> {
    let path = args.write_kubeconfig.clone();
    let path = path.unwrap_or_else(|| locations.config.join("kube-lite.yaml"));
    Ok((path, kubeconfig_mode(&args.write_kubeconfig_mode)?))
}

/// The secrets that the flags set, with which servers and agents join.
fn join_secrets(args: &ServerArgs, joins: bool) -> Result<[Option<Secret>; 2], CommandError> {
    // A server that joins writes the token that it receives with the shared files.
    let token = match joins {
        true => None,
        false => secret("token", args.token.as_ref(), args.token_file.as_deref())?,
    };
    let (flag, file) = (args.agent_token.as_ref(), args.agent_token_file.as_deref());
    Ok([token, secret("agent-token", flag, file)?])
}

impl Config {
    /// The port at which pods and nodes reach the API, whose listener has the port `bound`.
    pub(crate) fn advertised_port(&self, bound: u16) -> u16 {
        self.advertise_port.unwrap_or(bound)
    }

    /// The settings that nodes receive from this server, whose listener has the port `bound`.
    pub(crate) fn settings_for_nodes(&self, bound: u16) -> ClusterSettings {
        let port = self.advertised_port(bound);
        ClusterSettings {
            servers: vec![SocketAddr::new(self.advertise, port).to_string()],
            listen_port: (port != bound).then_some(bound),
            ..self.cluster.clone()
        }
    }

    /// Checks the flags.
    ///
    /// # Errors
    /// The first invalid flag, by name.
    pub fn new(args: ServerArgs, locations: &Locations) -> Result<Self, CommandError> {
        let ranges = AddressRanges::parse(&args)?;
        let join = join_target(&args)?;
        let datastore = datastore::endpoint(&args)?;
        let mut apiserver = ApiServerArgs::parse(args.kube_apiserver_arg.clone())?;
        let mut components = ComponentSettings::parse(&args.components, &ranges.pods)?;
        let mut machine = Machine::new(&args.general, args.node.clone(), locations)?;
        let audit = audit_plan(&apiserver.audit, args.audit, &machine)?;
        let authentication = apiserver.authentication_plan(&args.kube_apiserver_arg, &machine)?;
        let has_dns = !is_disabled(&args, "coredns");
        let cluster_dns = ranges.cluster_dns(&args.cluster_dns, has_dns)?;
        check_components(&args)?;
        machine.without_effect.append(&mut components.without_effect);
        machine.without_effect.append(&mut apiserver.settings.without_effect);
        components.disabled_controllers.extend(disabled_controllers(&args));
        let (pool, api_vip) = virtual_addresses::parse(&args, &ranges, &machine)?;
        let cluster = cluster_settings(&args, ranges, cluster_dns, pool, &machine)?;
        machine.check_overlay(&cluster, Some(components.tuning.node_masks))?;
        let (advertise, peer_address) = own_addresses(&args, &machine, &cluster);
        let quota = args.etcd_quota_backend_bytes.or(components.etcd_quota);
        let [token, agent_token] = join_secrets(&args, join.is_some())?;
        Ok(Self {
            cluster,
            listen: SocketAddr::new(machine.listen, args.https_listen_port),
            etcd_listen: args.etcd_listen.clone(),
            etcd_listen_plain: args.etcd_listen_plain,
            etcd_metrics_listen: etcd_metrics_listen(&args, &machine),
            datastore,
            etcd_quota: quota.map_or(store::DEFAULT_QUOTA_BYTES, std::num::NonZeroU64::get),
            advertise,
            proxies: args.snapshots.s3.proxies.clone(),
            // k3s's default is 0, which means the port of the listener.
            advertise_port: args.advertise.advertise_port.filter(|port| *port != 0),
            peer_address,
            api_vip,
            tls_san: args.tls_san.clone(),
            node_ports: node_ports(&args.service_node_port_range)?,
            kubeconfig: kubeconfig(&args, locations)?,
            kubeconfig_group: kubeconfig_group(args.write_kubeconfig_group.as_deref())?,
            agent: !args.disable_agent,
            controllers: !args.disable_controller_manager,
            helm_controller: runs_helm_controller(&args),
            scheduler: !args.disable_scheduler,
            disabled_controllers: components.disabled_controllers,
            scheduling: components.scheduling,
            tuning: components.tuning,
            disabled: disabled_components(&args.disable),
            manifests_prune: args.manifests.manifests_prune,
            resource_metrics: !is_disabled(&args, METRICS_SERVER),
            vertical_autoscaler: is_enabled(&args, VERTICAL_AUTOSCALER),
            token,
            agent_token,
            cluster_init: args.cluster_init,
            peer_port: args.peer_port,
            join,
            toleration_seconds: toleration_seconds(&args, apiserver.settings.tolerations),
            fast_node_loss: args.fast_node_loss,
            snapshots: snapshot_settings(&args.snapshots, &machine)?,
            reset: reset_request(&args.snapshots, args.server.is_some())?,
            token_auth_file: args.token_auth_file,
            authentication,
            admission: apiserver.admission,
            apiserver: apiserver.settings,
            encryption: apiserver.encryption,
            flow: apiserver.flow,
            audit,
            spans: apiserver.spans,
            authorization: apiserver.authorization,
            machine,
        })
    }
}
