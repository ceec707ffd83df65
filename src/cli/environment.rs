//! Environment variables that stand for flags: `KUBE_LITE_*`, and k3s's names beside them.

/// Flag and the part of the variable's name behind the prefix.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("config", "CONFIG_FILE"),
    ("data-dir", "DATA_DIR"),
    ("debug", "DEBUG"),
    ("node-name", "NODE_NAME"),
    ("write-kubeconfig", "KUBECONFIG_OUTPUT"),
    ("write-kubeconfig-mode", "KUBECONFIG_MODE"),
    ("resolv-conf", "RESOLV_CONF"),
    ("server", "URL"),
    ("token", "TOKEN"),
    ("token-file", "TOKEN_FILE"),
    ("cluster-reset", "CLUSTER_RESET"),
    ("agent-token", "AGENT_TOKEN"),
    ("agent-token-file", "AGENT_TOKEN_FILE"),
];

/// The data directory as the environment says it, for commands that run nothing.
pub fn data_dir(lookup: &dyn Fn(&str) -> Option<String>) -> Option<std::path::PathBuf> {
    let all = read(lookup);
    all.into_iter().find(|(flag, _)| *flag == "data-dir").map(|(_, value)| value.into())
}

/// Flag and value of every variable that is set; ours wins over k3s's.
pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let value = |name: &str| {
        let named = |prefix: &str| lookup(&format!("{prefix}{name}")).filter(|v| !v.is_empty());
        named("KUBE_LITE_").or_else(|| named("K3S_"))
    };
    VARIABLES.iter().filter_map(|(flag, name)| value(name).map(|v| (*flag, v))).collect()
}
