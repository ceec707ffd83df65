//! The settings in `--kube-controller-manager-arg`, `--kube-scheduler-arg`,
//! `--kube-cloud-controller-manager-arg` and `--etcd-arg`.

use std::num::NonZeroU64;
use std::time::Duration;

use controllers::{Autoscaling, Startup, Tuning};
use settings::Cidr;

use crate::command_line::ComponentArgs;
use crate::command_line::components::Arguments;
use crate::command_line::components::controller_manager::{
    CLOUD_CONTROLLER_MANAGER, CONTROLLER_MANAGER,
};
use crate::command_line::components::etcd::ETCD;
use crate::command_line::components::scheduler::SCHEDULER;
use crate::error_catalogue::CommandError;

/// Largest difference between the size of a cluster range and that of a node's range, in bits
/// (upstream's `NewCIDRSet`).
const NODE_BITS_MAX: u8 = 16;

/// The controllers of cloud-controller-manager, which kube-controller-manager once had, by their
/// names and former names.
const CLOUD: &[(&str, &str)] = &[
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("route", "node-route-controller"),
    ("service", "service-lb-controller"),
];

/// The controllers that upstream does not have; `--disable=local-storage` switches them off.
const OWN: [&str; 2] = ["local-driver", "local-path-provisioner"];

/// The settings of the components of a server.
#[derive(Debug, Clone, Default)]
pub(super) struct ComponentSettings {
    pub(super) tuning: Tuning,
    /// Names of controllers that do not run.
    pub(super) disabled_controllers: Vec<String>,
    /// The file of `--kube-scheduler-arg=config`.
    pub(super) scheduling: scheduler::config::Configuration,
    /// `quota-backend-bytes`.
    pub(super) etcd_quota: Option<NonZeroU64>,
    /// Arguments without effect, each with the reason.
    pub(super) without_effect: Vec<String>,
}

impl ComponentSettings {
    /// Checks the arguments; `clusters` are the ranges of pods.
    ///
    /// # Errors
    /// The first argument that is invalid or not supported, by name.
    pub(super) fn parse(args: &ComponentArgs, clusters: &[Cidr]) -> Result<Self, CommandError> {
        let manager = CONTROLLER_MANAGER.parse(&args.kube_controller_manager_arg)?;
        let scheduler = SCHEDULER.parse(&args.kube_scheduler_arg)?;
        let cloud = CLOUD_CONTROLLER_MANAGER.parse(&args.kube_cloud_controller_manager_arg)?;
        let etcd = ETCD.parse(&args.etcd_arg)?;
        let scheduling = scheduling(&scheduler)?;
        let quota = etcd.number::<i64>("quota-backend-bytes", 0..=i64::MAX)?;
        Ok(Self {
            tuning: tuning(&manager, clusters)?,
            disabled_controllers: disabled(&manager)?,
            // Zero is etcd's default.
            etcd_quota: quota.and_then(|n| u64::try_from(n).ok()).and_then(NonZeroU64::new),
            without_effect: [manager, scheduler, cloud, etcd]
                .into_iter()
                .flat_map(|arguments| arguments.without_effect)
                .chain(scheduling.without_effect.iter().cloned())
                .collect(),
            scheduling,
        })
    }
}

/// The configuration of the scheduler: the default one without a file.
fn scheduling(arguments: &Arguments) -> Result<scheduler::config::Configuration, CommandError> {
    const CONFIG: &str = "config";
    let Some(path) = arguments.value(CONFIG) else { return Ok(Default::default()) };
    let text = std::fs::read(path).map_err(|error| arguments.invalid(CONFIG, error))?;
    scheduler::config::parse(&text).map_err(|error| arguments.invalid(CONFIG, error))
}

const SECOND: Duration = Duration::from_secs(1);

fn tuning(manager: &Arguments, clusters: &[Cidr]) -> Result<Tuning, CommandError> {
    let default = Tuning::default();
    let grace = manager.duration("node-monitor-grace-period", SECOND)?;
    let startup_grace = manager.duration("node-startup-grace-period", SECOND)?;
    let terminated = manager.number::<i32>("terminated-pod-gc-threshold", i32::MIN..=i32::MAX)?;
    let signing = manager.duration("cluster-signing-duration", SECOND)?;
    let legacy = manager.duration("legacy-service-account-token-clean-up-period", SECOND)?;
    let keeps_attached = manager.boolean("disable-force-detach-on-timeout")?;
    Ok(Tuning {
        node_monitor_grace: grace.unwrap_or(default.node_monitor_grace),
        node_startup_grace: startup_grace.unwrap_or(default.node_startup_grace),
        // Zero and less switch the collection off, as upstream.
        terminated_pods: match terminated {
            None => default.terminated_pods,
            Some(n) => usize::try_from(n).ok().filter(|n| *n > 0).unwrap_or(usize::MAX),
        },
        signing_duration: signing.unwrap_or(default.signing_duration),
        legacy_token_clean_up: legacy.unwrap_or(default.legacy_token_clean_up),
        node_masks: node_masks(manager, clusters, default.node_masks)?,
        force_detach_on_timeout: keeps_attached.map_or(default.force_detach_on_timeout, |is| !is),
        autoscaling: autoscaling(manager)?,
    })
}

fn autoscaling(manager: &Arguments) -> Result<Autoscaling, CommandError> {
    let default = Autoscaling::default();
    let name = |rest: &str| format!("horizontal-pod-autoscaler-{rest}");
    let sync = manager.duration(&name("sync-period"), SECOND)?;
    let seconds = |rest: &str| -> Result<Option<i64>, CommandError> {
        let found = manager.duration(&name(rest), Duration::ZERO)?;
        Ok(found.map(|found| i64::try_from(found.as_secs()).unwrap_or(i64::MAX)))
    };
    let stabilization = seconds("downscale-stabilization")?;
    let stabilization = stabilization.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
    let cpu = seconds("cpu-initialization-period")?;
    let readiness = seconds("initial-readiness-delay")?;
    let tolerance = manager.number::<f64>(&name("tolerance"), 0.0..=1.0)?;
    Ok(Autoscaling {
        sync_period: sync.unwrap_or(default.sync_period),
        downscale_stabilization: stabilization.unwrap_or(default.downscale_stabilization),
        tolerance: tolerance.unwrap_or(default.tolerance),
        startup: Startup {
            cpu_initialization: cpu.unwrap_or(default.startup.cpu_initialization),
            initial_readiness: readiness.unwrap_or(default.startup.initial_readiness),
        },
    })
}

/// The sizes of the ranges of nodes: `node-cidr-mask-size` is for a cluster of one family.
fn node_masks(
    manager: &Arguments,
    clusters: &[Cidr],
    default: (u8, u8),
) -> Result<(u8, u8), CommandError> {
    const ONE: &str = "node-cidr-mask-size";
    let mask = |name: &str, clusters: &[Cidr], is_v4: bool| -> Result<Option<u8>, CommandError> {
        let cluster = clusters.iter().find(|cluster| cluster.first().is_ipv4() == is_v4);
        let Some(cluster) = cluster else {
            return match manager.value(name) {
                Some(_) => Err(manager.invalid(name, "--cluster-cidr has no range of this family")),
                None => Ok(None),
            };
        };
        let (least, bits) = (cluster.prefix(), if is_v4 { 30 } else { 126 });
        manager.number(name, least..=bits.min(least.saturating_add(NODE_BITS_MAX)))
    };
    let both = clusters.len() > 1;
    if both && manager.value(ONE).is_some() {
        let why = "is for clusters of one family; use -ipv4 and -ipv6";
        return Err(manager.invalid(ONE, why));
    }
    let given = |name: &str, is_v4: bool| match both {
        false if manager.value(ONE).is_some() => {
            let is_ours = clusters.iter().any(|cluster| cluster.first().is_ipv4() == is_v4);
            if is_ours { mask(ONE, clusters, is_v4) } else { Ok(None) }
        }
        _ => mask(name, clusters, is_v4),
    };
    let v4 = given("node-cidr-mask-size-ipv4", true)?;
    let v6 = given("node-cidr-mask-size-ipv6", false)?;
    Ok((v4.unwrap_or(default.0), v6.unwrap_or(default.1)))
}

/// The canonical name of a controller that `controllers` may name, of kube-lite or of upstream.
fn canonical(name: &str) -> Option<&'static str> {
    let own = controllers::all::ALL.iter().map(|(known, _)| *known).find(|known| *known == name);
    let upstream = || controllers::all::upstream().find(|one| one.matches(name));
    let cloud = || CLOUD.iter().find(|(former, known)| *former == name || *known == name);
    own.or_else(|| upstream().map(|one| one.name)).or_else(|| cloud().map(|(_, known)| *known))
}

/// The controllers that `controllers` switches off (`IsControllerEnabled`). The first `name` or
/// `-name` of a controller applies; `*` enables the controllers that run by default, and without it
/// only the named ones run.
fn disabled(manager: &Arguments) -> Result<Vec<String>, CommandError> {
    let given = manager.values("controllers");
    let items: Vec<&str> = given.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
    let is_all = items.is_empty() || items.contains(&"*");
    let names = || controllers::all::ALL.iter().map(|(name, _)| *name);
    let mut named = Vec::new();
    for item in items.into_iter().filter(|item| *item != "*") {
        let (name, is_on) = item.strip_prefix('-').map_or((item, true), |name| (name, false));
        let Some(known) = canonical(name) else {
            let why = format!("{name:?} is not in the list of known controllers");
            return Err(manager.invalid("controllers", why));
        };
        if is_on && !names().any(|own| own == known) {
            let why = format!("{name} is not part of kube-lite; remove it");
            return Err(manager.invalid("controllers", why));
        }
        named.push((known, is_on));
    }
    let runs = |name: &str| {
        let first = named.iter().find(|(known, _)| *known == name);
        let by_default = is_all && !controllers::all::OFF_BY_DEFAULT.contains(&name);
        first.map_or(by_default || OWN.contains(&name), |(_, is_on)| *is_on)
    };
    Ok(names().filter(|name| !runs(name)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(manager: &[&str], clusters: &[&str]) -> Result<ComponentSettings, String> {
        let args = ComponentArgs {
            kube_controller_manager_arg: manager.iter().map(|text| (*text).into()).collect(),
            ..ComponentArgs::default()
        };
        let clusters: Vec<Cidr> = clusters.iter().map(|text| text.parse().unwrap()).collect();
        let first =
            |error: CommandError| error.to_string().lines().next().unwrap_or_default().to_owned();
        ComponentSettings::parse(&args, &clusters).map_err(first)
    }

    #[test]
    fn settings_of_controllers_have_upstreams_defaults_and_form() {
        assert_eq!(parse(&[], &["10.42.0.0/16"]).unwrap().tuning, Tuning::default());
        let given = [
            "node-monitor-grace-period=20s",
            "terminated-pod-gc-threshold=10",
            "cluster-signing-duration=1h",
            "horizontal-pod-autoscaler-tolerance=0.2",
            "horizontal-pod-autoscaler-downscale-stabilization=1m",
            "node-cidr-mask-size=25",
            "disable-force-detach-on-timeout",
            "concurrent-deployment-syncs=10",
        ];
        let settings = parse(&given, &["10.42.0.0/16"]).unwrap();
        let tuning = settings.tuning;
        assert_eq!(tuning.node_monitor_grace, Duration::from_secs(20));
        assert_eq!((tuning.terminated_pods, tuning.node_masks), (10, (25, 64)));
        assert_eq!(tuning.signing_duration, Duration::from_secs(3600));
        assert!(!tuning.force_detach_on_timeout);
        assert_eq!(tuning.autoscaling.downscale_stabilization, 60);
        assert!((tuning.autoscaling.tolerance - 0.2).abs() < f64::EPSILON);
        assert_eq!(
            settings.without_effect,
            ["--kube-controller-manager-arg=concurrent-deployment-syncs: the number of workers \
                 is fixed"]
        );
        let off = parse(&["terminated-pod-gc-threshold=0"], &["10.42.0.0/16"]).unwrap();
        assert_eq!(off.tuning.terminated_pods, usize::MAX);
        let both = ["node-cidr-mask-size-ipv4=26", "node-cidr-mask-size-ipv6=72"];
        let both = parse(&both, &["10.42.0.0/16", "fd00::/56"]).unwrap();
        assert_eq!(both.tuning.node_masks, (26, 72));
    }

    #[test]
    fn masks_fit_the_cluster_range() {
        for (given, clusters, want) in [
            ("node-cidr-mask-size=12", &["10.42.0.0/16"][..], "must be a number from 16 to 30"),
            ("node-cidr-mask-size=24", &["10.42.0.0/16", "fd00::/56"], "use -ipv4 and -ipv6"),
            ("node-cidr-mask-size-ipv6=64", &["10.42.0.0/16"], "has no range of this family"),
        ] {
            let error = parse(&[given], clusters).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn controllers_are_selected_as_upstream_does() {
        let disabled = |list: &str| {
            parse(&[&format!("controllers={list}")], &["10.42.0.0/16"])
                .map(|settings| settings.disabled_controllers)
        };
        let signer = "bootstrap-signer-controller";
        assert_eq!(parse(&[], &["10.42.0.0/16"]).unwrap().disabled_controllers, [signer]);
        assert_eq!(disabled("*,-ttl,-route").unwrap(), [signer, "ttl-controller"]);
        let attach_detach = "persistentvolume-attach-detach-controller";
        assert_eq!(disabled("*,-attachdetach").unwrap(), [attach_detach, signer]);
        assert_eq!(disabled("*,tokencleaner").unwrap(), [signer]);
        assert_eq!(disabled("*,bootstrapsigner").unwrap(), Vec::<String>::new());
        // The first mention decides.
        assert_eq!(disabled("bootstrapsigner,-bootstrap-signer-controller,*").unwrap().len(), 0);
        assert_eq!(disabled("-ttl-controller,ttl,*").unwrap(), [signer, "ttl-controller"]);
        let only = disabled("deployment").unwrap();
        assert_eq!(only.len(), controllers::all::ALL.len() - 3);
        assert!(
            !only
                .iter()
                .any(|name| name == "deployment-controller" || OWN.contains(&name.as_str()))
        );
        assert!(disabled("*,nope").unwrap_err().contains("is not in the list of known"));
        for absent in ["selinux-warning-controller", "storage-version-gc", "route"] {
            let error = disabled(&format!("*,{absent}")).unwrap_err();
            assert!(error.contains("is not part of kube-lite"), "{error}");
            assert_eq!(disabled(&format!("*,-{absent}")).unwrap(), [signer], "{absent}");
        }
    }
}
