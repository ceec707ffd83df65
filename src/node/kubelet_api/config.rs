//! The configuration in effect as `KubeletConfiguration`, served at `/configz`: the defaults of
//! upstream, over them the fields that are given, over them what this node acts on.

mod defaults;

use std::time::Duration;

use api::codec::time::duration_text;
use serde_json::{Map, Value, json};

use super::state::KubeletApi;
use crate::config::Config;
use crate::machine_shutdown::{PriorityGracePeriod, ShutdownGracePeriod};

/// Returns the body of the response.
pub(super) fn configz(api: &KubeletApi) -> String {
    let config = &api.node.identity.config;
    let is_v2 = api.node.runtime.cgroups.is_v2();
    json!({ "kubeletconfig": fields(config, is_v2) }).to_string()
}

/// All fields.
fn fields(config: &Config, is_v2: bool) -> Map<String, Value> {
    let mut fields = defaults::fields();
    for further in [
        Map::clone(&config.given_fields),
        api_fields(config),
        pods(config),
        resources(config, is_v2),
    ] {
        merge(&mut fields, further);
    }
    fields.retain(|name, value| is_struct(name) || !is_unset(value));
    fields
}

/// Whether Go leaves a field with this value out.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// Replaces values; members of objects one by one.
fn merge(fields: &mut Map<String, Value>, further: Map<String, Value>) {
    for (key, value) in further {
        match (fields.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(value)) if is_struct(&key) => {
                merge(inner, value);
            }
            (_, value) => {
                fields.insert(key, value);
            }
        }
    }
}

/// Whether the members of an object are fields, and not names in a map, which is replaced as a
/// whole.
fn is_struct(key: &str) -> bool {
    const STRUCTS: [&str; 9] = [
        "anonymous",
        "authentication",
        "authorization",
        "crashLoopBackOff",
        "logging",
        "memorySwap",
        "options",
        "webhook",
        "x509",
    ];
    STRUCTS.contains(&key)
}

fn duration(duration: Duration) -> String {
    duration_text(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Where the node listens, and how it reports itself.
fn api_fields(config: &Config) -> Map<String, Value> {
    let listening = config.kubelet_api.as_ref().and_then(|http| http.listener.local_addr().ok());
    let address = listening.map(|address| address.ip().to_string());
    let healthz = config.healthz.map(|at| at.ip().to_string());
    let addresses = config.cluster_dns.iter().map(ToString::to_string);
    let socket = config.runtime.socket();
    let images = config.runtime.image_endpoint.as_ref();
    let mut fields = object(json!({
        "address": address,
        "clusterDNS": addresses.collect::<Vec<_>>(),
        "clusterDomain": config.cluster_domain,
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "enableSystemLogHandler": config.system_logs.handler,
        "enableSystemLogQuery": config.system_logs.query,
        "healthzPort": config.healthz.map_or(0, |at| at.port()),
        "imageServiceEndpoint": images.map(|socket| format!("unix://{}", socket.display())),
        "nodeStatusReportFrequency": duration(config.status_interval),
        "nodeStatusUpdateFrequency": duration(config.status_check_interval),
        "port": config.kubelet_api.as_ref().map_or(0, |http| http.port),
        "providerID": config.provider_id,
        "registerWithTaints": config.taints,
        "resolvConf": config.resolv_conf,
        "staticPodPath": config.manifest_dirs.first(),
    }));
    if let Some(healthz) = healthz {
        fields.insert("healthzBindAddress".to_owned(), healthz.into());
    }
    fields.extend(shutdown(&config.shutdown_grace));
    fields
}

/// The grace periods at a shutdown of the machine.
fn shutdown(grace: &ShutdownGracePeriod) -> Map<String, Value> {
    let (total, critical, periods) = match grace {
        ShutdownGracePeriod::Total { total, critical } => (*total, *critical, Vec::new()),
        ShutdownGracePeriod::ByPriority(_) => (Duration::ZERO, Duration::ZERO, grace.by_priority()),
    };
    let period = |period: PriorityGracePeriod| json!({"priority": period.priority, "shutdownGracePeriodSeconds": period.seconds});
    object(json!({
        "shutdownGracePeriod": duration(total),
        "shutdownGracePeriodByPodPriority": periods.into_iter().map(period).collect::<Vec<_>>(),
        "shutdownGracePeriodCriticalPods": duration(critical),
    }))
}

/// Pods, their images and their logs.
fn pods(config: &Config) -> Map<String, Value> {
    object(json!({
        "allowedUnsafeSysctls": config.allowed_sysctls,
        "containerLogMaxFiles": config.log_max_files,
        "containerLogMaxSize": config.log_max_size.to_string(),
        "crashLoopBackOff": {"maxContainerRestartPeriod": duration(config.restart_delay_max)},
        "imageGCHighThresholdPercent": config.image_gc_high,
        "imageGCLowThresholdPercent": config.image_gc_low,
        "imageMaximumGCAge": duration(config.image_age_max),
        "imageMinimumGCAge": duration(config.image_age_min),
        "imagePullCredentialsVerificationPolicy": config.image_verification.name(),
        "maxParallelImagePulls": config.image_pulls_max,
        "maxPods": config.max_pods,
        "podLogsDir": config.pod_logs_dir,
        "podPidsLimit": config.pod_pids_max.unwrap_or(-1),
        "podsPerCore": (config.pods_per_core > 0).then_some(config.pods_per_core),
        "seccompDefault": config.hardened || config.seccomp_default,
        "serializeImagePulls": config.image_pulls_max == 1,
        "userNamespaces": {"idsPerPod": config.ids_per_pod},
    }))
}

/// Resources and eviction.
fn resources(config: &Config, is_v2: bool) -> Map<String, Value> {
    let (eviction, max_grace) = (config.eviction.texts(), config.eviction_max_pod_grace);
    object(json!({
        "cgroupRoot": config.cgroup_root,
        "evictionHard": eviction.hard,
        "evictionMaxPodGracePeriod": (max_grace > 0).then_some(max_grace),
        "evictionMinimumReclaim": eviction.min_reclaim,
        "evictionPressureTransitionPeriod": duration(config.pressure_transition),
        "evictionSoft": eviction.soft,
        "evictionSoftGracePeriod": eviction.soft_grace,
        "failCgroupV1": false,
        "failSwapOn": false,
        "kubeReserved": config.kube_reserved,
        // A group of version 1 cannot end all of its processes at once.
        "singleProcessOOMKill": !is_v2,
        "systemReserved": config.reserved,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let ip = std::net::IpAddr::from([192, 0, 2, 1]);
        Config::new("n", ip, "/data".into(), "/run/x".into())
    }

    #[test]
    fn fields_have_the_defaults_of_upstream() {
        let fields = fields(&config(), true);
        for (name, value) in [
            ("fileCheckFrequency", json!("20s")),
            ("syncFrequency", json!("1m0s")),
            ("imageMinimumGCAge", json!("2m0s")),
            ("nodeStatusReportFrequency", json!("5m0s")),
            ("shutdownGracePeriod", json!("0s")),
            ("registryPullQPS", json!(5)),
            ("cpuManagerPolicy", json!("none")),
            ("kind", json!("KubeletConfiguration")),
            ("memorySwap", json!({})),
            ("enableSystemLogQuery", json!(false)),
            ("singleProcessOOMKill", json!(false)),
            ("crashLoopBackOff", json!({"maxContainerRestartPeriod": "5m0s"})),
            ("containerRuntimeEndpoint", json!("unix:///run/x/containerd.sock")),
        ] {
            assert_eq!(fields.get(name), Some(&value), "{name}");
        }
        for name in [
            "providerID",
            "clusterDNS",
            "imageServiceEndpoint",
            "featureGates",
            "shutdownGracePeriodByPodPriority",
        ] {
            assert_eq!(fields.get(name), None, "{name}");
        }
    }

    #[test]
    fn grace_periods_by_priority_are_shown_in_their_order() {
        let mut config = config();
        let period = |(priority, seconds)| PriorityGracePeriod { priority, seconds };
        config.shutdown_grace =
            ShutdownGracePeriod::ByPriority([(10, 5), (0, 7)].map(period).to_vec());
        let fields = fields(&config, true);
        assert_eq!(fields["shutdownGracePeriod"], "0s");
        assert_eq!(
            fields["shutdownGracePeriodByPodPriority"],
            json!([
                {"priority": 0, "shutdownGracePeriodSeconds": 7},
                {"priority": 10, "shutdownGracePeriodSeconds": 5},
            ])
        );
    }

    #[test]
    fn given_fields_replace_defaults_and_not_what_the_node_does() {
        let given = json!({
            "fileCheckFrequency": "1m30s",
            "maxPods": 5,
            "logging": {"verbosity": 4},
            "authentication": {"webhook": {"cacheTTL": "5s"}},
            "systemReserved": {"cpu": "1"},
            "cpuManagerPolicy": "static",
        });
        let mut config = config();
        config.given_fields = std::sync::Arc::new(object(given));
        config.max_pods = 7;
        let fields = fields(&config, false);
        assert_eq!(fields["fileCheckFrequency"], "1m30s");
        assert_eq!(fields["maxPods"], 7, "an argument has another value than the file");
        assert_eq!(fields["logging"]["verbosity"], 4);
        assert_eq!(fields["logging"]["format"], "text");
        assert_eq!(fields["authentication"]["webhook"], json!({"cacheTTL": "5s", "enabled": true}));
        assert_eq!(fields.get("systemReserved"), None, "the node reserves nothing");
        assert_eq!(fields["cpuManagerPolicy"], "static");
        assert_eq!(fields["singleProcessOOMKill"], true);
    }
}
