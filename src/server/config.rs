//! The validated configuration of `kube-lite server`: everything is checked before anything is touched.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use apiserver::audit::{Fault, Form, Plan, Settings};
use apiserver::authn;
use apiserver::encryption;
use apiserver::flags;
use apiserver::priority_and_fairness::flags as flow;
use apiserver::request_tracing;
use cluster::join::ServerAddress;
use cluster::token::{self, Credentials, Secret, Token};
use settings::{Cidr, ClusterSettings};

use crate::command_line::{AuditPreset, Locations, ServerArgs, SnapshotArgs, read_token};
use crate::error_catalogue::{BAD_TOKEN, BAD_VALUE, Refusal, SHORT_TOKEN, UNSUPPORTED_FLAG};
use crate::machine::Machine;
use crate::server::{datastore, fast_loss, reset};
use crate::snapshots;

/// Issuer of service-account tokens (`--service-account-issuer` of upstream's examples and k3s).
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Components that `--disable` keeps from running.
const DISABLEABLE: [&str; 2] = ["coredns", "local-storage"];

/// Components of k3s that kube-lite does not contain: to disable them changes nothing.
const ABSENT: [&str; 4] = ["servicelb", "traefik", "metrics-server", "runtimes"];

/// Upstream's `--default-unreachable-toleration-seconds`.
const TOLERATION_SECONDS: i64 = 300;

/// What a server runs with.
#[derive(Debug, Clone)]
pub struct Config {
    /// This machine as a node.
    pub machine: Machine,
    /// What every node of the cluster has from its servers.
    pub cluster: ClusterSettings,
    /// Listener.
    pub listen: SocketAddr,
    /// Where the store is reached as etcd, with client certificates.
    pub etcd_listen: Vec<SocketAddr>,
    /// Where it is reached in the clear.
    pub etcd_listen_plain: Option<SocketAddr>,
    /// The database that keeps the cluster instead of the embedded store.
    pub datastore: Option<store::Endpoint>,
    /// Bytes that the store takes.
    pub etcd_quota: u64,
    /// Address that pods and nodes reach the API under.
    pub advertise: IpAddr,
    /// Further names and addresses of the serving certificate.
    pub tls_san: Vec<String>,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Administrator's kubeconfig and its mode.
    pub kubeconfig: (PathBuf, u32),
    /// Run the node.
    pub agent: bool,
    /// Run the controllers.
    pub controllers: bool,
    /// Run the scheduler.
    pub scheduler: bool,
    /// Run the local-path provisioner.
    pub local_storage: bool,
    /// Mark a node unreachable as soon as its tunnel is lost.
    pub fast_node_loss: bool,
    /// Default tolerations of not-ready and unreachable nodes, in seconds.
    pub toleration_seconds: (i64, i64),
    /// CSV file of static tokens.
    pub token_auth_file: Option<PathBuf>,
    /// Authenticators in addition to the cluster's own, and the anonymous paths.
    pub authentication: apiserver::authn::Plan,
    /// Encryption of values at rest, if a file configures it.
    pub encryption: Option<encryption::Plan>,
    /// API Priority and Fairness.
    pub flow: flow::Settings,
    /// The audit log.
    pub audit: Option<apiserver::audit::Plan>,
    /// Request tracing; `None` without `tracing-config-file`.
    pub spans: Option<request_tracing::Plan>,
    /// The authorizers.
    pub authorization: apiserver::authz::config::Plan,
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

fn join_target(args: &ServerArgs) -> Result<Option<JoinTarget>, Refusal> {
    let Some(text) = &args.server else { return Ok(None) };
    if args.cluster_init {
        return Err(bad(
            "server",
            text,
            "contradicts --cluster-init: a server either joins a cluster or starts one",
        ));
    }
    let server = text.parse().map_err(|why: &str| bad("server", text, why))?;
    let given = read_token("token", args.token.as_ref(), args.token_file.as_deref())?;
    let Some(given) = given else {
        return Err(bad(
            "server",
            text,
            "needs --token or --token-file with the content of server/token of that server",
        ));
    };
    let token = token::parse(given.reveal())
        .map_err(|e| BAD_TOKEN.refuse_usage(format!("the token: {e}")))?;
    if token.ca_hash.is_none() {
        let text =
            "the token has no CA hash, and a joining server receives all keys of the cluster";
        return Err(SHORT_TOKEN.refuse_usage(text));
    }
    match &token.credentials {
        Credentials::Shared { user, .. } if user == "server" => {
            Ok(Some(JoinTarget { server, token }))
        }
        _ => Err(BAD_TOKEN
            .refuse_usage("the token only joins agents; a server needs the one in server/token")),
    }
}

/// The values of `--kube-apiserver-arg` by subject.
struct ApiServer {
    authorization: apiserver::authz::config::Plan,
    authentication: authn::Plan,
    encryption: Option<encryption::Plan>,
    flow: flow::Settings,
    spans: Option<request_tracing::Plan>,
    /// Audit flags and unknown ones, which [`audit`] rejects.
    audit: Vec<String>,
}

impl ApiServer {
    fn of(arguments: Vec<String>) -> Result<Self, Refusal> {
        let (authorization, others) = split(arguments, apiserver::authz::config::Plan::is_flag);
        let (authentication, others) = split(others, authn::flags::is_flag);
        let (encryption, others) = split(others, encryption::Plan::is_flag);
        let (flow, others) = split(others, flow::is_flag);
        let (spans, others) = split(others, request_tracing::is_flag);
        let bad = |why: String| BAD_VALUE.refuse_usage(format!("--kube-apiserver-arg: {why}"));
        let settings = authn::flags::Settings::of(&authentication).map_err(bad)?;
        let issuer = ISSUER.to_owned();
        Ok(Self {
            authorization: apiserver::authz::config::Plan::read(&authorization).map_err(bad)?,
            authentication: authn::Plan::read(&settings, &[issuer]).map_err(bad)?,
            encryption: encryption::Plan::read(&encryption).map_err(bad)?,
            flow: flow::Settings::of(&flow).map_err(bad)?,
            spans: request_tracing::Plan::read(&spans).map_err(bad)?,
            audit: others,
        })
    }
}

/// Arguments `NAME=VALUE` whose name is one of these, and the others.
fn split(arguments: Vec<String>, is_one: fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
    arguments.into_iter().partition(|argument| is_one(flags::parts(argument).0))
}

/// The audit log: of the policy that the arguments name, else of a preset.
fn audit(
    arguments: &[String],
    form: Option<AuditPreset>,
    machine: &Machine,
) -> Result<Option<Plan>, Refusal> {
    let bad = |why: String| BAD_VALUE.refuse_usage(format!("--kube-apiserver-arg: {why}"));
    let audit_error = |fault| {
        match fault {
        Fault::Unknown(name) => UNSUPPORTED_FLAG.refuse_usage(format!(
            "--kube-apiserver-arg={name} is not supported. Supported: audit-*, oidc-*, authorization-mode, \
             authorization-config, authorization-webhook-*, authentication-token-webhook-*, \
             authentication-config, anonymous-auth, encryption-provider-config, \
             encryption-provider-config-automatic-reload, max-requests-inflight, \
             max-mutating-requests-inflight, enable-priority-and-fairness, tracing-config-file"
        )),
        Fault::Value(why) => bad(why),
    }
    };
    let settings = Settings::of(arguments).map_err(audit_error)?;
    if let (Some(file), Some(form)) = (&settings.policy_file, form) {
        let why = format!("contradicts audit-policy-file={}; use only one of them", file.display());
        return Err(self::bad("audit", form.name(), why));
    }
    let form = match form {
        // The policy takes precedence, even where it records nothing.
        None if settings.policy_file.is_some() => None,
        None if machine.hardened() => Some(Form::Metadata),
        Some(AuditPreset::Metadata) => Some(Form::Metadata),
        None | Some(AuditPreset::Compact) => Some(Form::Compact),
        Some(AuditPreset::Off) if arguments.is_empty() => None,
        Some(AuditPreset::Off) => {
            let why =
                "contradicts the settings of audit in --kube-apiserver-arg; use only one of them";
            return Err(self::bad("audit", "off", why));
        }
    };
    match form {
        None => Plan::read(&settings).map_err(bad),
        Some(form) => {
            let path = machine.data_dir.join("server/logs/audit.log");
            form.plan(&form.over(&path, arguments).map_err(audit_error)?).map_err(bad)
        }
    }
}

/// Applies `--profile=hardened` to authentication and rejects the settings that contradict it.
fn hardened(
    plan: authn::Plan,
    arguments: &[String],
    machine: &Machine,
) -> Result<authn::Plan, Refusal> {
    if !machine.hardened() {
        return Ok(plan);
    }
    for argument in arguments {
        let (name, value) = flags::parts(argument);
        let value = value.unwrap_or("true");
        let why = match name {
            "anonymous-auth" if value == "true" => {
                "contradicts --profile=hardened; list the anonymous paths in authentication-config=FILE"
            }
            "authorization-mode" if value.split(',').any(|mode| mode == "AlwaysAllow") => {
                "contradicts --profile=hardened; the default is Node,RBAC"
            }
            _ => continue,
        };
        return Err(bad("kube-apiserver-arg", argument, why));
    }
    Ok(plan.with_anonymous_probes())
}

fn bad(flag: &str, value: impl std::fmt::Display, why: impl std::fmt::Display) -> Refusal {
    BAD_VALUE.refuse_usage(format!("--{flag}={value}: {why}"))
}

fn cidrs(flag: &str, values: &[String]) -> Result<Vec<Cidr>, Refusal> {
    let mut parsed = Vec::with_capacity(values.len());
    for value in values {
        let cidr: Cidr = value.parse().map_err(|why| bad(flag, value, why))?;
        let given = value.trim().split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        if given != Some(cidr.first()) {
            return Err(bad(flag, value, format!("has host bits set, use {cidr}")));
        }
        parsed.push(cidr);
    }
    match parsed.as_slice() {
        [_] => Ok(parsed),
        [a, b] if a.family() != b.family() => Ok(parsed),
        _ => Err(bad(flag, values.join(","), "must be one range, or one per IP family")),
    }
}

fn node_ports(value: &str) -> Result<(u16, u16), Refusal> {
    let parse = || {
        let (from, to) = value.split_once('-')?;
        Some((from.trim().parse::<u16>().ok()?, to.trim().parse::<u16>().ok()?))
    };
    parse().filter(|(from, to)| *from > 0 && from <= to).ok_or_else(|| {
        bad("service-node-port-range", value, "must be FROM-TO, such as 30000-32767")
    })
}

/// The values of `--disable` without effect, each with the reason.
fn absent(disable: &[String]) -> Result<Vec<String>, Refusal> {
    let names = disable.iter().map(String::as_str).filter(|name| !DISABLEABLE.contains(name));
    let explain = |name: &str| match ABSENT.contains(&name) {
        true => {
            Ok(format!("--disable={name}: {name} is not part of kube-lite, nothing to disable"))
        }
        false => {
            let known = [&DISABLEABLE[..], &ABSENT[..]].concat().join(", ");
            Err(bad("disable", name, format!("unknown component; known components: {known}")))
        }
    };
    names.map(explain).collect()
}

/// The secret of `--<flag>` or `--<flag>-file`, checked for its strength.
fn secret(
    flag: &str,
    token: Option<&Secret>,
    file: Option<&Path>,
) -> Result<Option<Secret>, Refusal> {
    let given = read_token(flag, token, file)?;
    let chosen = given.as_ref().map(cluster::token::files::validate_secret).transpose();
    chosen.map_err(|e| BAD_VALUE.refuse_usage(format!("--{flag}: {e}")))
}

fn snapshots(args: &SnapshotArgs, machine: &Machine) -> Result<snapshots::Settings, Refusal> {
    let cron = &args.etcd_snapshot_schedule_cron;
    let schedule =
        cron.parse().map_err(|why: String| bad("etcd-snapshot-schedule-cron", cron, why))?;
    crate::commands::etcd_snapshot::named("etcd-snapshot-name", &args.etcd_snapshot_name)?;
    Ok(snapshots::Settings {
        folder: snapshots::Folder::new(args.etcd_snapshot_dir.as_deref(), &machine.data_dir),
        name: args.etcd_snapshot_name.clone(),
        schedule: (!args.etcd_disable_snapshots).then_some(schedule),
        retention: args.etcd_snapshot_retention,
        compress: args.etcd_snapshot_compress,
        node: machine.node_name.clone(),
        s3: snapshots::s3::settings::settings(&args.s3)?,
    })
}

fn reset(args: &SnapshotArgs, joins: bool) -> Result<Option<reset::Request>, Refusal> {
    if args.cluster_reset && joins {
        return Err(BAD_VALUE.refuse_usage(
            "cannot perform cluster-reset while server URL is set - remove server from configuration before resetting",
        ));
    }
    let restore = args.cluster_reset_restore_path.clone();
    match (args.cluster_reset, restore) {
        (false, Some(_)) => Err(BAD_VALUE.refuse_usage(
            "invalid flag use; --cluster-reset required with --cluster-reset-restore-path",
        )),
        (reset, restore) => Ok(reset.then_some(reset::Request { restore })),
    }
}

impl Config {
    /// Checks the flags.
    ///
    /// # Errors
    /// The first flag that does not make sense, by name.
    pub fn new(args: ServerArgs, locations: &Locations) -> Result<Self, Refusal> {
        let cluster_cidrs = cidrs("cluster-cidr", &args.cluster_cidr)?;
        let service_cidrs = cidrs("service-cidr", &args.service_cidr)?;
        for service in &service_cidrs {
            if let Some(pods) = cluster_cidrs.iter().find(|c| c.overlaps(service)) {
                return Err(bad(
                    "service-cidr",
                    service,
                    format!("overlaps with --cluster-cidr={pods}"),
                ));
            }
        }
        let join = join_target(&args)?;
        let datastore = datastore::endpoint(&args)?;
        let ApiServer { authorization, authentication, encryption, flow, spans, audit: recorded } =
            ApiServer::of(args.kube_apiserver_arg.clone())?;
        let mut machine = Machine::new(&args.general, args.node, locations)?;
        let audit = audit(&recorded, args.audit, &machine)?;
        let authentication = hardened(authentication, &args.kube_apiserver_arg, &machine)?;
        let mut cluster_dns = args.cluster_dns.clone();
        if cluster_dns.is_empty() {
            cluster_dns = service_cidrs.iter().filter_map(|c| c.nth(10)).collect();
        }
        if let Some(outside) =
            cluster_dns.iter().find(|ip| !service_cidrs.iter().any(|c| c.contains(**ip)))
        {
            return Err(bad("cluster-dns", outside, "must lie in --service-cidr"));
        }
        machine.without_effect.extend(absent(&args.disable)?);
        let mode = u32::from_str_radix(&args.write_kubeconfig_mode, 8).ok().filter(|m| *m <= 0o777);
        let mode = mode.ok_or_else(|| {
            bad("write-kubeconfig-mode", &args.write_kubeconfig_mode, "must be octal, such as 600")
        })?;
        let unreachable =
            if args.fast_node_loss { fast_loss::TOLERATION_SECONDS } else { TOLERATION_SECONDS };
        let disabled = |name: &str| args.disable.iter().any(|d| d == name);
        if disabled("coredns") {
            cluster_dns.clear();
        }
        let advertise = args.advertise_address.unwrap_or(machine.ip());
        let cluster = ClusterSettings {
            cluster_cidrs,
            service_cidrs,
            cluster_dns,
            cluster_domain: args.cluster_domain.trim_matches('.').to_owned(),
            proxy: !args.disable_kube_proxy,
            network_policies: !args.disable_network_policy,
            backend: machine.backend.unwrap_or_default(),
            servers: vec![SocketAddr::new(advertise, args.https_listen_port).to_string()],
        };
        Ok(Self {
            cluster,
            listen: SocketAddr::new(machine.listen, args.https_listen_port),
            etcd_listen: args.etcd_listen.clone(),
            etcd_listen_plain: args.etcd_listen_plain,
            datastore,
            etcd_quota: args
                .etcd_quota_backend_bytes
                .map_or(store::DEFAULT_QUOTA_BYTES, std::num::NonZeroU64::get),
            advertise,
            tls_san: args.tls_san.clone(),
            node_ports: node_ports(&args.service_node_port_range)?,
            kubeconfig: (
                args.write_kubeconfig
                    .clone()
                    .unwrap_or_else(|| locations.config.join("kube-lite.yaml")),
                mode,
            ),
            agent: !args.disable_agent,
            controllers: !args.disable_controller_manager,
            scheduler: !args.disable_scheduler,
            local_storage: !disabled("local-storage"),
            // That of the servers to join is written as they have it.
            token: match join {
                Some(_) => None,
                None => secret("token", args.token.as_ref(), args.token_file.as_deref())?,
            },
            cluster_init: args.cluster_init,
            peer_port: args.peer_port,
            join,
            agent_token: secret(
                "agent-token",
                args.agent_token.as_ref(),
                args.agent_token_file.as_deref(),
            )?,
            toleration_seconds: (
                args.default_not_ready_toleration_seconds,
                args.default_unreachable_toleration_seconds.unwrap_or(unreachable),
            ),
            fast_node_loss: args.fast_node_loss,
            snapshots: snapshots(&args.snapshots, &machine)?,
            reset: reset(&args.snapshots, args.server.is_some())?,
            token_auth_file: args.token_auth_file,
            authentication: if authorization.admits_anonymous() {
                authentication
            } else {
                authentication.without_anonymous()
            },
            encryption,
            flow,
            audit,
            spans,
            authorization,
            machine,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Cli, Command, parse};

    fn config(flags: &[&str]) -> Result<Config, String> {
        let argv = ["kube-lite", "server", "--config=/dev/null"]
            .iter()
            .chain(flags)
            .map(Into::into)
            .collect();
        let Ok(Cli { command: Command::Server(args) }) = parse(argv, |_| None) else {
            return Err("does not parse".into());
        };
        let locations = Locations { data: "/d".into(), config: "/c".into(), path: String::new() };
        Config::new(*args, &locations)
            .map_err(|r| r.to_string().lines().next().unwrap_or_default().to_owned())
    }

    #[test]
    fn defaults_are_k3ss() {
        let config = config(&["--node-ip=10.0.0.5"]).unwrap();
        assert_eq!(config.listen.to_string(), "0.0.0.0:6443");
        assert_eq!(config.cluster.cluster_dns, ["10.43.0.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(
            (config.advertise.to_string(), config.node_ports),
            ("10.0.0.5".into(), (30000, 32767))
        );
        assert_eq!(config.kubeconfig, ("/c/kube-lite.yaml".into(), 0o600));
    }

    #[test]
    fn a_node_with_ipv6_listens_in_both_families() {
        let listen = |flags: &[&str]| config(flags).unwrap().listen.to_string();
        assert_eq!(listen(&["--node-ip=10.0.0.5,2001:db8::5"]), "[::]:6443");
        assert_eq!(
            listen(&["--node-ip=2001:db8::5", "--bind-address=127.0.0.1"]),
            "127.0.0.1:6443"
        );
    }

    #[test]
    fn disabling_a_component_of_k3s_that_is_absent_changes_nothing() {
        let config = config(&["--disable=traefik,local-storage", "--disable=servicelb"]).unwrap();
        assert!(!config.local_storage && !config.cluster.cluster_dns.is_empty());
        assert_eq!(
            config.machine.without_effect,
            [
                "--disable=traefik: traefik is not part of kube-lite, nothing to disable",
                "--disable=servicelb: servicelb is not part of kube-lite, nothing to disable"
            ]
        );
    }

    #[test]
    fn node_names_are_refused_with_the_reason() {
        let long = format!("--node-name={}", "a".repeat(64));
        for (flag, want) in [
            (long.as_str(), "must be no more than 63 characters"),
            ("--node-name=A", "must be lower-case letters, digits, '-' and '.'"),
            (
                "--node-name=a-.b",
                "each part between dots must start and end with a letter or digit",
            ),
        ] {
            assert_eq!(config(&[flag]).unwrap_err(), format!("error[KL0104]: {flag}: {want}"));
        }
        assert!(config(&[&format!("--node-name={}", "a".repeat(63))]).is_ok());
    }

    #[test]
    fn contradictions_are_refused_by_flag() {
        for (flags, want) in [
            (
                vec!["--service-cidr=10.42.3.0/24"],
                "error[KL0104]: --service-cidr=10.42.3.0/24: overlaps with --cluster-cidr=10.42.0.0/16",
            ),
            (
                vec!["--profile=hardened", "--kube-apiserver-arg=anonymous-auth=true"],
                "error[KL0104]: --kube-apiserver-arg=anonymous-auth=true: contradicts --profile=hardened; list the anonymous paths in authentication-config=FILE",
            ),
            (
                vec![
                    "--profile=hardened",
                    "--kube-apiserver-arg=authorization-mode=Node,AlwaysAllow",
                ],
                "error[KL0104]: --kube-apiserver-arg=authorization-mode=Node,AlwaysAllow: contradicts --profile=hardened; the default is Node,RBAC",
            ),
            (
                vec!["--service-cidr=10.43.0.1/16"],
                "error[KL0104]: --service-cidr=10.43.0.1/16: has host bits set, use 10.43.0.0/16",
            ),
            (
                vec!["--service-cidr=10.43.0.0/33"],
                "error[KL0104]: --service-cidr=10.43.0.0/33: \"10.43.0.0/33\" is not an address block such as 10.42.0.0/16",
            ),
            (
                vec!["--cluster-dns=1.1.1.1"],
                "error[KL0104]: --cluster-dns=1.1.1.1: must lie in --service-cidr",
            ),
            (
                vec!["--token=short"],
                "error[KL0104]: --token: a secret needs at least 16 characters; `kube-lite token generate` makes one",
            ),
            (
                vec!["--node-name=A_b"],
                "error[KL0104]: --node-name=A_b: must be lower-case letters, digits, '-' and '.'",
            ),
            (
                vec!["--service-node-port-range=5"],
                "error[KL0104]: --service-node-port-range=5: must be FROM-TO, such as 30000-32767",
            ),
            (
                vec!["--disable=traefic"],
                "error[KL0104]: --disable=traefic: unknown component; known components: coredns, local-storage, servicelb, traefik, metrics-server, runtimes",
            ),
            (
                vec!["--grouped-shims", "--container-runtime-endpoint=/run/c.sock"],
                "error[KL0104]: --grouped-shims=true: needs kube-lite's own containerd, but --container-runtime-endpoint names another runtime",
            ),
            (
                vec!["--server=https://a", "--cluster-init", "--token=abcdefghijklmnop"],
                "error[KL0104]: --server=https://a: contradicts --cluster-init: a server either joins a cluster or starts one",
            ),
            (
                vec!["--server=https://a"],
                "error[KL0104]: --server=https://a: needs --token or --token-file with the content of server/token of that server",
            ),
            (
                vec!["--server=https://a", "--token=abcdefghijklmnop"],
                "error[KL0422]: the token has no CA hash, and a joining server receives all keys of the cluster",
            ),
            (
                vec!["--etcd-snapshot-schedule-cron=often"],
                "error[KL0104]: --etcd-snapshot-schedule-cron=often: is no schedule of cron: Invalid pattern: Pattern must have 5 fields when seconds are disallowed.",
            ),
            (
                vec!["--cluster-reset-restore-path=/x"],
                "error[KL0104]: invalid flag use; --cluster-reset required with --cluster-reset-restore-path",
            ),
            (
                vec!["--service-cidr=10.1.0.0/16,10.2.0.0/16"],
                "error[KL0104]: --service-cidr=10.1.0.0/16,10.2.0.0/16: must be one range, or one per IP family",
            ),
        ] {
            assert_eq!(config(&flags).unwrap_err(), want);
        }
    }
}
